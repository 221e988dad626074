/* The process table: how simulated processes begin, stop, change and end (core/share/alive.h). */
#include "simulation.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/gpu/fence.h"
#include "core/share/alive.h"
#include "core/share/internal.h"

#define REPAIR_NS \
    (10 * GS_NS_PER_S) /* by then there is another connection for one that was closed */
#define FIRST_PID 1000
#define LIVES_MAX 512

struct process *process_here(void)
{
    return world.current ? world.current->process : NULL;
}

struct life *life_of(pid_t pid)
{
    unsigned index = (unsigned)(pid - FIRST_PID);

    return pid >= FIRST_PID && index < world.life_count ? &world.lives[index] : NULL;
}

bool life_is_seen(const struct life *life)
{
    const unsigned space = process_here()->life->space;

    return space == 0 || life->space == space;
}

static struct image *image_new(struct life *life)
{
    struct image *image = sim_alloc(sizeof *image);

    image->life = life;
    image->clean = true;
    image->gpu_gone_ns = NEVER;
    world.images[world.image_count++] = image;
    return image;
}

static struct process *place(void)
{
    for (unsigned i = 0; i < PROCESSES_MAX; i++)
        if (world.processes[i].state == PROCESS_NONE)
            return &world.processes[i];
    return NULL;
}

/* Begins the program of its present image. */
static void begin(struct process *process)
{
    process->fd_limit = FDS_MAX;
    gs_lock_init(&process->arena, GS_RANK_ARENA);
    process->fences = sim_alloc(sizeof *process->fences);
    gs_fences_init(process->fences, &sim_driver);
    if (process->is_broker || process->is_agent) {
        fibre_start(&process->threads[1], process, process->is_agent ? agent_run : broker_run,
                    process);
        return;
    }
    for (unsigned i = 1; i < ENDS_THREAD; i++)
        fibre_start(&process->threads[i], process, program_run, process);
}

struct process *process_start(bool is_broker, bool is_agent, unsigned machine)
{
    struct process *process = place();
    struct fibre threads[THREADS];
    struct life *life;

    if (!process || world.life_count == LIVES_MAX || world.image_count == LIVES_MAX)
        return NULL;
    if (!world.lives)
        world.lives = sim_alloc(LIVES_MAX * sizeof *world.lives);
    life = &world.lives[world.life_count];
    life->pid = FIRST_PID + (pid_t)world.life_count++;
    memcpy(threads, process->threads, sizeof threads);
    *process = (struct process){.index = (unsigned)(process - world.processes),
                                .state = PROCESS_RUNS,
                                .is_broker = is_broker,
                                .is_agent = is_agent,
                                .machine = machine,
                                .life = life,
                                .image = image_new(life)};
    process->image->machine = machine;
    memcpy(process->threads, threads, sizeof threads); /* their stacks */
    begin(process);
    return process;
}

/* What goes with the memory of a program: all but descriptors and the GPU's work. */
static void image_ends(struct process *process, uint64_t linger_ns)
{
    struct image *image = process->image;

    rule_left(process);
    if (linger_ns > LINGER_NS)
        rule_works_on(image);
    for (unsigned i = 0; i < THREADS; i++)
        fibre_kill(&process->threads[i]);
    driver_forget(process);
    image->over = true;
    image->fork_told = process->share && process->share->importer.fork_told;
    image->gpu_gone_ns = world.now_ns + linger_ns;
    heap_free_all(process);
    watches_free(process);
    sim_free(process->fences);
    process->fences = NULL;
    process->share = NULL;
    memset(process->chunks, 0, sizeof process->chunks);
    memset(process->opened, 0, sizeof process->opened);
    while (process->mapped_words) {
        struct file *file = process->mapped_words;

        process->mapped_words = file->next_mapped;
        file_unref(file);
    }
    fd_close_all(process);
}

/* Its connections hang up, then its GPU work ends, then it has exited (measured:
 * core/share/share.h). */
void process_kill(struct process *process, uint64_t linger_ns, uint64_t exit_ns)
{
    if (process->image && !process->image->over)
        image_ends(process, linger_ns);
    process->state = PROCESS_DYING;
    process->begins_ns = 0;
    process->life->dying = true;
    process->life->stopped = false;
    process->exit_ns = world.now_ns + (exit_ns > linger_ns ? exit_ns : linger_ns);
    if (process->exit_ns < process->exec_ns) /* that ends first */
        process->exit_ns = process->exec_ns;
}

void process_stop(struct process *process, bool stopped)
{
    process->life->stopped = stopped;
    if (process->image)
        process->image->clean = false;
}

void process_exec(struct process *process, uint64_t linger_ns)
{
    if (process->begins_ns) /* it is at one */
        return;
    image_ends(process, linger_ns);
    if (process->exec_ns < world.now_ns + linger_ns) /* or that of an earlier one lasts longer */
        process->exec_ns = world.now_ns + linger_ns;
    process->image = image_new(process->life);
    process->image->machine = process->machine;
    process->ends = ENDS_NOT;
    process->alone = process->context_gone = process->lets_go = false;
    process->begins_ns = linger_ns > LINGER_NS ? world.now_ns + linger_ns - LINGER_NS : 0;
    if (!process->begins_ns)
        begin(process);
}

void processes_lose_power(unsigned machine)
{
    for (unsigned i = 0; i < PROCESSES_MAX; i++) {
        struct process *process = &world.processes[i];

        if (process->state == PROCESS_NONE || process->machine != machine)
            continue;
        if (process->state == PROCESS_RUNS)
            process_kill(process, 0, 0);
        process->exit_ns = process->exec_ns = world.now_ns;
    }
    for (unsigned i = 0; i < world.image_count; i++)
        if (world.images[i]->machine == machine && world.images[i]->gpu_gone_ns > world.now_ns)
            world.images[i]->gpu_gone_ns = world.now_ns;
}

/* A child has the connections of the library that there are: a process that has lost one, and
 * has no other yet, leaves a child of which nobody can know. */
static bool may_lack_connections(const struct process *process)
{
    for (unsigned i = 0; i < FDS_MAX; i++)
        if (process->fds[i].file && process->fds[i].file->forsaken)
            return true;
    return process->lost_ns && world.now_ns - process->lost_ns < REPAIR_NS;
}

void process_fork(struct process *process)
{
    struct child *child = sim_alloc(sizeof *child);

    child->image = process->image;
    child->number = may_lack_connections(process) ? 0 : ++world.next_number;
    child->image->clean = false;
    if (process->share)
        gs_share_forking(process->share);
    for (unsigned i = 0; i < FDS_MAX; i++) {
        child->files[i] = process->fds[i].file;
        if (child->files[i])
            file_ref(child->files[i]);
    }
    child->next = world.children;
    world.children = child;
}

/* A parent that is dying exits after its GPU work: where the child was the last to have it, its
 * parent is quicker, and was killed before it said that it has forked, no exporter could tell
 * (README.md). */
static void hold_up_parent(const struct image *image, uint64_t until_ns)
{
    for (unsigned i = 0; i < PROCESSES_MAX; i++) {
        struct process *process = &world.processes[i];

        if (process->state == PROCESS_NONE || process->life != image->life)
            continue;
        if (process->exit_ns < until_ns)
            process->exit_ns = until_ns;
        if (process->exec_ns < until_ns)
            process->exec_ns = until_ns;
    }
}

void process_child_ends(struct child *child, uint64_t linger_ns)
{
    struct child **link = &world.children;

    while (*link != child)
        link = &(*link)->next;
    *link = child->next;
    for (unsigned i = 0; i < FDS_MAX; i++)
        if (child->files[i])
            file_unref(child->files[i]);
    if (child->image->over) { /* else its parent has the GPU's descriptors still */
        rule_child_ended(child, world.now_ns + linger_ns);
        if (!child->image->fork_told)
            hold_up_parent(child->image, world.now_ns + linger_ns);
    }
    sim_free(child);
}

void process_children_end(const struct image *image, uint64_t linger_ns)
{
    struct child *child = world.children, *next;

    for (; child; child = next) {
        next = child->next;
        if (child->image == image)
            process_child_ends(child, linger_ns);
    }
}

/* All who may watch it look. */
static void exited(struct process *process)
{
    process->state = PROCESS_NONE;
    process->life->exited = true;
    process->life->exited_ns = world.now_ns;
    rule_exited(process);
    for (unsigned i = 0; i < PROCESSES_MAX; i++)
        for (unsigned k = 0; k < THREADS; k++)
            if (world.processes[i].threads[k].waits_on == &world.processes[i])
                fibre_wake(&world.processes[i].threads[k]);
}

void processes_tick(void)
{
    for (unsigned i = 0; i < PROCESSES_MAX; i++) {
        struct process *process = &world.processes[i];

        if (process->state == PROCESS_DYING && process->exit_ns <= world.now_ns)
            exited(process);
        else if (process->state == PROCESS_RUNS && process->ends != ENDS_NOT) {
            uint64_t slow = world.slow && process->life->pid % 4 == 0 ? SLOW / 2 : 1;

            rule_ended(process);
            process_kill(process, process->life->pid % 2 * slow * LINGER_NS / 2, slow * LINGER_NS);
        } else if (process->state == PROCESS_RUNS && process->begins_ns &&
                   process->begins_ns <= world.now_ns) {
            process->begins_ns = 0;
            begin(process);
        }
    }
}

uint64_t processes_due(void)
{
    uint64_t due = NEVER;

    for (unsigned i = 0; i < PROCESSES_MAX; i++)
        if (world.processes[i].state == PROCESS_DYING && world.processes[i].exit_ns < due)
            due = world.processes[i].exit_ns;
        else if (world.processes[i].state == PROCESS_RUNS && world.processes[i].begins_ns &&
                 world.processes[i].begins_ns < due)
            due = world.processes[i].begins_ns;
    return due;
}

/* ---- core/share/alive.h --------------------------------------------------------------------- */

bool gs_alive_exited(int pidfd)
{
    const struct file *file = fd_file(pidfd, FILE_PIDFD);

    return file && file->life->exited;
}

bool gs_alive_is_pidfd(int fd)
{
    return fd_file(fd, FILE_PIDFD) != NULL;
}

bool gs_alive_runs(pid_t pid)
{
    const struct life *life = life_of(pid);

    return life && life_is_seen(life) && !life->exited;
}

/* No number is another process's again. */
uint64_t gs_alive_started(pid_t pid)
{
    const struct life *life = life_of(pid);

    return life && life_is_seen(life) ? (uint64_t)pid : 0;
}

bool gs_alive_is_stopped(pid_t pid)
{
    const struct life *life = life_of(pid);

    return life && life_is_seen(life) && life->stopped;
}

bool gs_alive_is_same(int pidfd, int other)
{
    const struct file *one = fd_file(pidfd, FILE_PIDFD), *two = fd_file(other, FILE_PIDFD);

    return one && two && one->life == two->life;
}

/* In another PID namespace than the first one low numbers, which others have as well. */
pid_t gs_alive_own_pid(void)
{
    const struct life *life = process_here()->life;

    return life->space ? 1 + life->pid % 3 : life->pid;
}

int gs_alive_own_pidfd(void)
{
    struct file *file = world.kernel == KERNEL_NO_PIDFDS ? NULL : file_new(FILE_PIDFD);

    if (!file) {
        errno = ENOSYS;
        return -1;
    }
    file->life = process_here()->life;
    return fd_new(process_here(), file);
}

pid_t gs_alive_own_thread(void)
{
    return (pid_t)(world.current - process_here()->threads) + 1;
}

bool gs_alive_has_thread(pid_t thread)
{
    return process_here()->threads[thread - 1].state != FIBRE_NONE;
}
