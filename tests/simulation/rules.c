/* What must always hold (design: whose memory it is, and until when), and who is told when not. */
#include "simulation.h"

#include <string.h>

#include "core/gpu/map.h"
#include "core/share/exporter.h"
#include "core/share/importer.h"

#define SILENT_NS (GS_NS_PER_S / 2) /* core/share/flush.c: who does not answer is awaited so long */

static unsigned number_of(const struct image *image)
{
    return (unsigned)image->life->pid;
}

struct use *use_of(struct block *block, struct image *image)
{
    struct use *use = block->uses;

    while (use && use->image != image)
        use = use->next;
    if (use)
        return use;
    use = sim_alloc(sizeof *use);
    use->image = image;
    use->next = block->uses;
    block->uses = use;
    return use;
}

static bool is_cut_off(const struct child *child, const struct image *maker)
{
    unsigned i = 0;

    while (i < child->cuts && child->cut_off[i] != maker)
        i++;
    return i < child->cuts;
}

/* Whether a child keeps alive what its parent's GPU works at, and the block's maker can know of it:
 * not of one that was forked before the connection, nor of one that the maker's program has cut
 * off. */
static bool is_kept_by(const struct block *block, const struct use *use, const struct child *child)
{
    return child->image == use->image && child->number > use->number &&
           !is_cut_off(child, block->image);
}

/* When the last work of this use is done: its process's end ends it, too, and that of the children
 * that have the GPU's descriptors. Where one is not known of, what it may do has debug.settle from
 * the exit on. */
static uint64_t busy_until(const struct block *block, const struct use *use)
{
    uint64_t gone = use->image->gpu_gone_ns > use->gone_ns ? use->image->gpu_gone_ns : use->gone_ns;
    uint64_t settled = use->image->life->exited_ns + world.options.settle_ns;

    if (use->unseen && use->image->life->exited && gone < settled)
        gone = settled;
    for (const struct child *child = world.children; child; child = child->next)
        if (is_kept_by(block, use, child))
            gone = NEVER;
    return use->busy_ns < gone ? use->busy_ns : gone;
}

void rule_child_ended(const struct child *child, uint64_t gone_ns)
{
    for (struct block *block = world.blocks; block; block = block->next)
        for (struct use *use = block->uses; use; use = use->next)
            if (is_kept_by(block, use, child))
                use->gone_ns = gone_ns;
}

/* A connection that the process has, other than that one, is the child's too, and is known for its
 * parent's. */
static bool has_another(const struct child *child, const struct process *process,
                        const struct file *socket)
{
    for (unsigned i = 0; i < FDS_MAX; i++) {
        const struct file *file = child->files[i];

        if (file && file->kind == FILE_SOCKET && file->greeted && file->peer &&
            file->peer != socket && file->peer->holder == process)
            return true;
    }
    return false;
}

static bool has_other_end(const struct child *child, const struct file *socket)
{
    for (unsigned i = 0; i < FDS_MAX; i++)
        if (child->files[i] && child->files[i] == socket->peer)
            return true;
    return false;
}

/* Of the children that have its other end, and no other connection, the process can know nothing
 * any more. */
void rule_program_closes(const struct process *process, const struct file *socket)
{
    if (socket->kind != FILE_SOCKET || !socket->peer)
        return;
    socket->peer->forsaken = true;
    for (struct child *child = world.children; child; child = child->next) {
        if (child->cuts == PROCESSES_MAX || !has_other_end(child, socket) ||
            has_another(child, process, socket))
            continue;
        for (struct block *block = world.blocks; block; block = block->next)
            for (struct use *use = block->uses; use; use = use->next)
                use->unseen |= block->image == process->image && is_kept_by(block, use, child);
        child->cut_off[child->cuts++] = process->image;
    }
}

/* All of a strip. */
static void look_at_strip(const struct process *process, const struct block *block,
                          uint64_t address)
{
    for (unsigned i = 0; i < block->piece_count; i++) {
        uint64_t offset = 0;

        if (phys_at(process, strip_base(block, address) + i * GS_PAGE_SIZE, &offset) !=
            block->pieces[i])
            sim_fail(
                "an open is its block: process %u has strip %llu of process %u open, and in the "
                "place of a piece there is something else",
                number_of(process->image), (unsigned long long)block->id, number_of(block->image));
    }
}

void rule_used(const struct process *process, const struct block *block, uint64_t address)
{
    uint64_t offset = 0;
    const struct phys *phys = phys_at(process, address, &offset);

    if (!phys)
        sim_fail("an open is its block: process %u has block %llu of process %u open, and nothing "
                 "is mapped there",
                 number_of(process->image), (unsigned long long)block->id, number_of(block->image));
    else if (phys != block->phys || offset != block->slot * (GS_PAGE_SIZE / SLOTS))
        sim_fail("an open is its block: process %u has block %llu of process %u open, and other "
                 "memory is mapped there",
                 number_of(process->image), (unsigned long long)block->id, number_of(block->image));
    else if (phys->slots[block->slot] != block)
        sim_fail("an open is its block: process %u has block %llu of process %u open, whose memory "
                 "was handed out again",
                 number_of(process->image), (unsigned long long)block->id, number_of(block->image));
    look_at_strip(process, block, address);
}

/* One that sleeps has none. */
static bool sleeps(const struct image *image)
{
    unsigned i = 0;

    while (i < PROCESSES_MAX && (world.processes[i].image != image || !world.processes[i].lets_go))
        i++;
    return i < PROCESSES_MAX;
}

/* The work that it submitted last goes on until the GPU is taken from it. */
void rule_works_on(const struct image *image)
{
    if (sleeps(image))
        return;
    for (struct block *block = world.blocks; block; block = block->next)
        for (struct use *use = block->uses; use; use = use->next)
            if (use->image == image && use->opens > 0)
                use->busy_ns = NEVER;
}

static struct gs_export *export_in(const struct process *broker, const struct block *block)
{
    const struct gs_ipc_handle *ipc_handle = (const void *)block->ipc_handle;

    return gs_export_find_locked(broker->share, ipc_handle->instance, block->wire_id);
}

/* Of what it has not freed, and as far as it knows its broker has. */
void rule_left(const struct process *process)
{
    if (!process->share || process->ends != ENDS_NOT ||
        process->alone) /* alone it may be at the end of all exports */
        return;
    for (struct block *block = world.blocks; block; block = block->next) {
        if (block->image != process->image || block->state != BLOCK_LIVE || block->is_external ||
            (block->piece_count && !block->crosses) || !block->export ||
            !gs_export_is_brokered(process->share, block->export))
            continue;
        for (unsigned i = 0; i < PROCESSES_MAX; i++) {
            const struct process *broker = &world.processes[i];

            if (broker->state == PROCESS_RUNS && broker->is_broker && broker->share &&
                broker->machine == process->machine && export_in(broker, block))
                block->left_with = broker->image;
        }
    }
}

/* Also of what lies across pieces there are all. */
static bool has_all_of(const struct process *broker, const struct block *block)
{
    const struct gs_export *export = export_in(broker, block);
    const struct gs_published_chunk *chunk =
        export ? (const void *)(uintptr_t)export->source.handle : NULL;

    return chunk && chunk->came == chunk->fd_count;
}

static bool is_left(const struct block *block)
{
    for (unsigned i = 0; i < PROCESSES_MAX; i++) {
        const struct process *broker = &world.processes[i];

        if (broker->state == PROCESS_RUNS && broker->is_broker && broker->share &&
            broker->machine == block->image->machine &&
            (has_all_of(broker, block) || broker->share->store.published_said))
            return true;
    }
    return false;
}

const struct block *rule_not_left(void)
{
    const struct block *block = world.blocks;

    while (block && (block->state != BLOCK_LIVE || block->is_external || block->image->over ||
                     (block->piece_count && !block->crosses) || !block->export ||
                     !block->image->clean || block->maker->image != block->image ||
                     block->maker->ends != ENDS_NOT || is_left(block)))
        block = block->next;
    return block;
}

void rule_exited(const struct process *process)
{
    for (const struct block *block = world.blocks; block; block = block->next) {
        const struct process *broker = NULL;

        if (block->image != process->image || !block->left_with || world.short_of_memory ||
            (world.spaces && world.kernel == KERNEL_NO_PIDFDS)) /* it cannot see that end */
            continue;
        for (unsigned i = 0; i < PROCESSES_MAX; i++)
            if (world.processes[i].state == PROCESS_RUNS &&
                world.processes[i].image == block->left_with)
                broker = &world.processes[i];
        if (broker && broker->share && !export_in(broker, block))
            sim_fail("what is left with a broker is there when its process has ended: process %u "
                     "has dropped block %llu of process %u, which has exited now",
                     number_of(block->left_with), (unsigned long long)block->id,
                     number_of(block->image));
    }
}

void rule_opened(const struct process *process, struct block *block, uint64_t address)
{
    struct use *use = use_of(block, process->image);

    rule_used(process, block, address);
    use->opens++;
    use->number = ++world.next_number; /* maybe over another connection */
    use->address = address;
}

void rule_handed_out(const struct block *block)
{
    for (const struct use *use = block->uses; use; use = use->next) {
        if (!use->image->over && use->opens > 0)
            sim_fail(
                "no byte has two owners: process %u hands block %llu out again, and process %u "
                "has it open",
                number_of(block->image), (unsigned long long)block->id, number_of(use->image));
        if (busy_until(block, use) > world.now_ns)
            sim_fail("no byte has two owners: process %u hands block %llu out again, and GPU work "
                     "of process %u, which %s, runs on it for %llu us more",
                     number_of(block->image), (unsigned long long)block->id, number_of(use->image),
                     use->image->over ? "was ended" : "has closed it",
                     (unsigned long long)(busy_until(block, use) - world.now_ns) / 1000);
    }
    if (!block->graceless && !block->maker->graceless && !block->granted &&
        world.now_ns < block->freed_ns + (block->too_much ? world.options.grace_least_ns
                                                          : world.options.grace_ns))
        sim_fail("no byte has two owners: process %u hands block %llu out again in its grace",
                 number_of(block->image), (unsigned long long)block->id);
}

static bool waits(const struct block *block, const struct process *process)
{
    return block->image == process->image && !block->granted && !block->is_external &&
           (block->state == BLOCK_FREED || block->state == BLOCK_LIMBO);
}

void rule_little_is_left(const struct process *process)
{
    size_t waiting = 0;
    struct block *block;

    for (block = world.blocks; block; block = block->next)
        if (waits(block, process))
            waiting += block->size > GS_PAGE_SIZE ? block->size : GS_PAGE_SIZE;
    if (waiting <= process->left / 8)
        return;
    for (block = world.blocks; block; block = block->next)
        block->too_much |=
            waits(block, process) && world.now_ns >= block->freed_ns + world.options.grace_least_ns;
}

/* Also of what the share thread has in its hands just then. */
void rule_graces_ended(const struct process *process)
{
    for (const struct block *block = world.blocks; block; block = block->next) {
        const struct gs_export *export =
            block->image == process->image && block->ends ? export_in(process, block) : NULL;

        if (export && export->in_grace && !export->opened)
            sim_fail("a full GPU ends graces: block %llu of process %u waits for its grace still",
                     (unsigned long long)block->id, number_of(process->image));
    }
}

/* From then on the exporter may know that it was opened: there is no grace any more. */
void rule_granted(const struct process *process, const struct life *to, uint64_t wire_id)
{
    struct block *block = world.blocks;

    while (block && (block->image != process->image || block->wire_id != wire_id))
        block = block->next;
    if (!block)
        return;
    block->granted = true;
    block->granted_ns = world.now_ns;
}

/* Whether what a program has at an address lies, or a part of it, on the page. */
static bool is_at(const struct block *block, uint64_t address, uint64_t page)
{
    if (block->piece_count)
        return page - strip_base(block, address) < block->piece_count * GS_PAGE_SIZE;
    return address - page < GS_PAGE_SIZE;
}

/* Memory may be mapped twice: by its exporter's word, and by one who has passed it on. */
void rule_unmapped(const struct process *process, const struct phys *phys, uint64_t base)
{
    for (unsigned i = 0; i < SLOTS; i++) {
        const struct block *block = phys->slots[i];
        const struct use *use = block ? block->uses : NULL;

        while (use && (use->image != process->image || !is_at(block, use->address, base)))
            use = use->next;
        if (use && use->opens > 0 && process->ends == ENDS_NOT && !process->lets_go)
            sim_fail("nothing is unmapped in use: process %u unmaps block %llu, which its program "
                     "has open",
                     number_of(process->image), (unsigned long long)block->id);
        if (use && use->busy_ns > world.now_ns)
            sim_fail("nothing is unmapped in use: process %u unmaps block %llu under its GPU work",
                     number_of(process->image), (unsigned long long)block->id);
    }
}

/* What it keeps for its next open it may have mapped a moment longer, where it had lost the
 * connection: it is never taken for the memory that comes back (rule_opened). */
static bool has_open(const struct process *process, const struct phys *phys)
{
    bool open = false;

    for (unsigned i = 0; i < SLOTS; i++)
        for (const struct use *use = phys->slots[i] ? phys->slots[i]->uses : NULL; use;
             use = use->next)
            open |= use->image == process->image && use->opens > 0;
    return open && driver_maps(process, phys);
}

void rule_sleeps(const struct phys *phys)
{
    for (unsigned i = 0; i < PROCESSES_MAX; i++)
        if (world.processes[i].state == PROCESS_RUNS && has_open(&world.processes[i], phys))
            sim_fail("sleep: memory of process %u goes, and process %u has it mapped",
                     number_of(phys->maker), world.processes[i].index);
    for (unsigned i = 0; i < SLOTS; i++)
        for (const struct use *use = phys->slots[i] ? phys->slots[i]->uses : NULL; use;
             use = use->next)
            if (use->image != phys->maker && busy_until(phys->slots[i], use) > world.now_ns)
                sim_fail("sleep: memory of process %u goes under GPU work of process %u",
                         number_of(phys->maker), number_of(use->image));
}

/* Whether this use was over before `begun`, as far as its program and its GPU are concerned. */
static bool was_closed(const struct use *use, uint64_t begun_ns)
{
    return use->image->clean && !use->image->over && use->opens == 0 && use->closed_ns < begun_ns &&
           use->busy_ns < begun_ns;
}

/* Who was asked for an older wait is awaited until half a second after that one's begin. */
void rule_given_back(const struct process *process, uint64_t asked_ns, uint64_t begun_ns,
                     uint64_t ended_ns)
{
    const struct block *block;

    if (!process->image->clean || world.disturbed || ended_ns - asked_ns >= SILENT_NS ||
        world.stalled_ns + SILENT_NS >= begun_ns)
        return;
    for (block = world.blocks; block; block = block->next) {
        const struct use *use = block->uses;

        if (block->image != process->image || block->state != BLOCK_LIMBO || !block->granted ||
            block->is_external || block->freed_ns >= begun_ns ||
            block->granted_ns >= begun_ns) /* to who opens it meanwhile */
            continue;
        while (use && was_closed(use, begun_ns) && use->image->machine == block->image->machine)
            use = use->next;
        if (use && use->image->machine != block->image->machine)
            continue; /* what is on its way from another machine is not waited for */
        if (!use && block->uses)
            sim_fail("a flush is answered when all is back: process %u waited for what others had "
                     "closed, and block %llu is not back",
                     number_of(process->image), (unsigned long long)block->id);
    }
}

void rule_ended(const struct process *process)
{
    unsigned fds = 0, i;

    if (folder_count(process->image) > 0 && process->ends != ENDS_LATE)
        sim_fail("nothing is left: process %u ended in order and left a name in the folder",
                 number_of(process->image));
    if (process->ends != ENDS_EMPTY)
        return;
    for (i = 0; i < FDS_MAX; i++)
        fds += process->fds[i].file && !process->fds[i].is_programs;
    if (fds > 0)
        sim_fail("nothing is left: process %u has ended and has %u descriptors",
                 number_of(process->image), fds);
    if (driver_count(process) > 0)
        sim_fail("nothing is left: process %u has ended and has %u things of the driver's",
                 number_of(process->image), driver_count(process));
    if (process->heap_count > 0)
        sim_fail("nothing is left: process %u has ended and has %u pieces of host memory",
                 number_of(process->image), process->heap_count);
}

/* ---- How long a share thread may sleep ------------------------------------------------------- */

struct nap {
    uint64_t most_ns;
    const char *why;
};

static void at_most(struct nap *nap, uint64_t ns, bool is_so, const char *why)
{
    if (is_so && ns < nap->most_ns)
        *nap = (struct nap){ns, why};
}

static void as_to_clients(const struct gs_share *share, struct nap *nap)
{
    const struct gs_clients *clients = &share->clients;

    for (const struct gs_client *client = clients->first; client; client = client->hh.next) {
        const struct gs_over *over = &client->over;

        at_most(nap, share->options.settle_ns, client->fd < 0 && over->rests,
                "somebody's GPU work may go on");
        at_most(nap, share->options.timeout_ns, client->fd >= 0 && !client->greeted && !over->ended,
                "somebody has said nothing");
        if (client->fd < 0)
            at_most(nap, (over->late || over->ended ? 5 : 1) * GS_NS_PER_S, true,
                    "somebody has hung up");
        else
            at_most(nap, 30 * GS_NS_PER_S,
                    !client->references && !client->published && !client->shares &&
                        !client->said.is_agent,
                    "somebody has nothing");
    }
    at_most(nap, GS_NS_PER_S, clients->unread, "somebody has hung up and left descriptors unread");
    at_most(nap, 20 * GS_NS_PER_MS, clients->listener_pause, "it does not listen");
}

/* Those whose memory was freed first are over first: they stand in that order. */
static void look_at_graces(const struct process *process)
{
    const struct gs_export *grace = gs_export_oldest(process->share, GS_EXPORT_GRACE);

    for (; grace && grace->newer; grace = grace->newer)
        if (grace->newer->freed_ns < grace->freed_ns)
            sim_fail("what was freed first is over first: process %u has block %llu behind block "
                     "%llu, which it freed later",
                     number_of(process->image), (unsigned long long)grace->newer->key.id,
                     (unsigned long long)grace->key.id);
}

/* By it others are refused, and people told. */
static void look_at_limbo(const struct process *process)
{
    const struct gs_export *export = process->share->exporter.exports;
    unsigned held = 0;

    for (; export; export = export->hh.next)
        held += export->freed_ns && export->references > 0;
    if (held != process->share->limbo.count)
        sim_fail("what is freed and held is counted: process %u has %u blocks of it, and counts "
                 "%llu",
                 number_of(process->image), held, (unsigned long long)process->share->limbo.count);
}

static void as_exporter(const struct gs_share *share, struct nap *nap)
{
    const struct gs_export *grace = gs_export_oldest(share, GS_EXPORT_GRACE);
    const uint64_t least_ns = share->options.grace_least_ns;

    as_to_clients(share, nap);
    at_most(nap, share->options.grace_ns + 10 * GS_NS_PER_MS, grace, "a handle is on its way");
    while (grace && grace->freed_ns + least_ns <= world.now_ns)
        grace = grace->newer;
    at_most(nap, least_ns + 10 * GS_NS_PER_MS, grace, "a block was freed just now");
    at_most(nap, GS_NS_PER_MS, share->exporter.work[GS_WORK_CHUNK_FD],
            "a descriptor is to be made ahead");
    at_most(nap, GS_NS_PER_S, share->place.listener >= 0 && share->place.look_ns != NEVER,
            "its socket may have gone");
    at_most(nap, GS_NS_PER_MS, share->place.serve_ns != NEVER, "its socket is to be put up");
    at_most(nap, 20 * GS_NS_PER_MS, share->place.sweep_ns != NEVER,
            "its folder is not cleared yet");
}

static void as_to_brokers(const struct gs_share *share, struct nap *nap)
{
    const struct gs_link *link = &share->link;

    at_most(nap, 20 * GS_NS_PER_MS, link->fd >= 0 && link->asks && link->again_ns,
            "its broker has no answer yet");
    at_most(nap, (world.now_ns < link->found_ns + GS_NS_PER_S ? 1 : 60) * GS_NS_PER_S,
            link->fd >= 0 && !link->asks, "its broker asks nothing");
    at_most(nap, 96 * GS_NS_PER_S, share->options.broker && link->fd < 0 && share->exporter.offered,
            "it has no broker");
    at_most(nap, 20 * GS_NS_PER_MS, share->store.cluster.holds_due,
            "a process does not know what it is to hold");
    at_most(nap, share->options.keep_ns / 4,
            share->options.is_broker && share->store.published_due_ns != NEVER,
            "it keeps what nobody has open");
}

static void as_importer(const struct gs_share *share, struct nap *nap)
{
    const struct gs_importer *importer = &share->importer;

    for (const struct gs_remote *remote = importer->remotes; remote; remote = remote->hh.next) {
        at_most(nap, GS_NS_PER_MS, remote->flush_number, "somebody waits for what it has closed");
        at_most(nap, GS_NS_PER_S, remote->astray && !remote->busy, "it has lost a connection");
    }
    at_most(nap, 16 * GS_NS_PER_MS, importer->polling, "something is on its way back");
    at_most(nap, GS_NS_PER_S, importer->look_ns != NEVER, "somebody has said something");
    at_most(nap, 20 * GS_NS_PER_MS, importer->forked && !importer->fork_told, "it has forked");
    at_most(nap, share->options.idle_ns, importer->kept, "something is kept");
}

static void look_at(const struct process *process, uint64_t due_ns, uint64_t most_ns,
                    const char *why)
{
    if (due_ns > world.now_ns + most_ns)
        sim_fail("a share thread comes by: %s, and process %u sees to it in %llu us", why,
                 number_of(process->image), (unsigned long long)(due_ns - world.now_ns) / 1000);
}

/* A share thread that has something to do that nobody announces comes by itself, and soon
 * enough. */
void rule_sleeps_until(const struct process *process, uint64_t due_ns)
{
    const struct gs_share *share = process->share;
    struct nap nap = {.most_ns = NEVER};

    look_at_graces(process);
    look_at_limbo(process);
    as_exporter(share, &nap);
    as_to_brokers(share, &nap);
    if (!share->ending)
        as_importer(share, &nap);
    if (nap.why)
        look_at(process, due_ns, nap.most_ns, nap.why);
    if (!share->clients.lost_look_ns)
        sim_fail("a share thread comes by: process %u never looks for lost connections",
                 number_of(process->image));
    look_at(process, share->clients.lost_look_ns, GS_NS_PER_S, "connections may be lost");
    if (share->importer.look_ns != NEVER)
        look_at(process, share->importer.look_ns, 20 * GS_NS_PER_MS, "somebody has said something");
}
