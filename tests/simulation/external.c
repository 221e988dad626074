/*
 * External memory: what a part of a simulated program that has its own allocator brings with it,
 * shares and takes away again (core/share/external.c), as shim/external.c has it of gpushim_attach
 * and gpushim_detach. Its allocator uses some of it again once the deleter was called. One world of
 * ten has it: the others, and so those in which something was found (meson.build, tests/mutants),
 * are what they were before there was any.
 *
 *   LIVE ─► (detached; its context gone; the process ends) LIMBO ─► GONE: its deleter was called
 */
#include "simulation.h"

#include <string.h>

#include "core/gpu/driver.h"
#include "core/gpu/map.h"
#include "core/share/internal.h"

#define EXTERNALS 3 /* that a process has attached at once */
#define DEVICE    0
#define WORK_NS   (GS_NS_PER_MS / 2)
#define LATE_NS   (20 * GS_NS_PER_MS) /* operations.c */
#define ENOUGH_NS (50 * GS_NS_PER_MS) /* in which an end comes that nothing is in the way of */

bool has_externals(void)
{
    return world.seed / 10 % 10 == 7;
}

static bool is_of(const struct block *block, const struct process *process)
{
    return block->is_external && block->image == process->image;
}

static struct block *of_state(const struct process *process, int state, unsigned skip)
{
    struct block *block = world.blocks;

    while (block && (!is_of(block, process) || (int)block->state != state || skip-- > 0))
        block = block->next;
    return block;
}

static struct block *numbered(const struct process *process, uint64_t id)
{
    struct block *block = world.blocks;

    while (block && (!is_of(block, process) || block->id != id))
        block = block->next;
    return block;
}

/* ---- The allocator that it comes from -------------------------------------------------------- */

/* Memory whose deleter was called and that was not given back; or new memory, of the GPU or the
 * host. */
static bool allocate(struct process *process, struct block *block, bool host)
{
    struct block *before = world.blocks;

    while (before && (!is_of(before, process) || before->state != BLOCK_GONE || !before->handle ||
                      before->phys->slots[0]))
        before = before->next;
    if (before) {
        block->handle = before->handle;
        block->phys = before->phys;
        before->handle = 0;
    } else {
        block->phys = phys_new(&block->handle);
    }
    if (!block->phys)
        return false;
    if (!before)
        block->phys->host = host;
    block->phys->slots[0] = block;
    return true;
}

/* At an address of its own; false: the driver has failed, and nothing is mapped. */
static bool map_own(struct block *block)
{
    CUmemAccessDesc access = {.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUdeviceptr base;

    if (block->phys->host)
        return host_map(block->phys, &block->address) == 0;
    if (sim_driver.mem_address_reserve(&base, GS_PAGE_SIZE, 0, 0, 0) != CUDA_SUCCESS)
        return false;
    block->address = base;
    if (sim_driver.mem_map(base, GS_PAGE_SIZE, 0, block->handle, 0) == CUDA_SUCCESS) {
        if (sim_driver.mem_set_access(base, GS_PAGE_SIZE, &access, 1) == CUDA_SUCCESS)
            return true;
        sim_driver.mem_unmap(base, GS_PAGE_SIZE);
    }
    sim_driver.mem_address_free(base, GS_PAGE_SIZE);
    block->address = 0;
    return false;
}

static void unmap_own(struct block *block)
{
    const CUdeviceptr base = block->address;

    block->address = 0;
    if (base && block->phys->host) {
        host_unmap(base);
    } else if (base) {
        sim_driver.mem_unmap(base, GS_PAGE_SIZE);
        sim_driver.mem_address_free(base, GS_PAGE_SIZE);
    }
}

static void give_back(struct block *block)
{
    const uint64_t handle = block->handle;

    if (!handle)
        return;
    if (block->by_address) /* by who ends the process, if not by its deleter */
        unmap_own(block);
    block->handle = 0;
    block->phys->released = true;
    block->phys->released_ns = world.now_ns;
    driver_release(handle);
}

/* It is in nobody's hands any more. */
static void gone(struct block *block)
{
    block->state = BLOCK_GONE;
    block->gone_ns = world.now_ns;
    if (block->phys && !block->forced)
        block->phys->slots[0] = NULL;
    if (block->phys && !block->forced && (block->id % 2 || world.calm))
        give_back(block);
}

void externals_trim(struct process *process)
{
    for (struct block *block = world.blocks; block; block = block->next)
        if (is_of(block, process) && block->state == BLOCK_GONE)
            give_back(block);
}

/* ---- Deleters -------------------------------------------------------------------------------- */

static void call_deleter(struct process *process, struct block *block)
{
    uint64_t offset;
    bool mapped;

    sim_trace("    the deleter of external block %llu is called", (unsigned long long)block->id);
    if (block->state == BLOCK_LIVE && !block->freed_ns)
        sim_fail("external memory: process %u calls the deleter of block %llu, which it has not "
                 "detached",
                 process->index, (unsigned long long)block->id);
    if (!block->forced) {
        rule_handed_out(block);
        mapped = phys_at(process, block->address, &offset);
        if (mapped != (block->by_address && !block->phys->host))
            sim_fail("external memory: process %u calls the deleter of block %llu, which %s",
                     process->index, (unsigned long long)block->id,
                     mapped ? "it has mapped" : "was its program's to unmap");
    }
    if (block->by_address && !block->forced)
        unmap_own(block);
    gone(block);
    fibre_wake_all(process, &process->image); /* who waits for it */
}

/* The thread that calls them. */
static void *run(void *arg)
{
    struct process *process = arg;

    for (;;) {
        const uint64_t id = gs_share_external_next(process->share, NEVER);
        struct block *block = numbered(process, id);

        if (block && block->forced) /* who ends the process has called it */
            block->forced = false;
        else if (!block || block->state == BLOCK_GONE)
            sim_fail(
                "external memory: process %u is to call the deleter of block %llu, and has called "
                "it, or never attached it",
                process->index, (unsigned long long)id);
        else
            call_deleter(process, block);
        sim_point();
    }
    return NULL;
}

/* ---- Attaching and sharing ------------------------------------------------------------------- */

static const unsigned char uuid[16];

static gs_status attach_address(struct process *process, struct block *block)
{
    struct gs_external_memory memory = {.kind = GS_EXTERNAL_ADDRESS, .size = block->size};
    CUdeviceptr address = 0;
    gs_status status;

    if (!map_own(block))
        return (gs_status)CUDA_ERROR_OUT_OF_MEMORY;
    memory.address = block->address;
    status = gs_share_attach(process->share, &memory, program_context(process), DEVICE, uuid,
                             block->id, &address);
    if (status != GS_OK)
        unmap_own(block);
    else if (address != memory.address)
        sim_fail("external memory: process %u has block %llu at another address than it had",
                 process->index, (unsigned long long)block->id);
    return status;
}

static gs_status attach(struct process *process, struct block *block, unsigned arg)
{
    struct gs_external_memory memory = {.kind = block->phys->host ? GS_EXTERNAL_MEMFD
                                                                  : GS_EXTERNAL_EXPORTED,
                                        .size = block->size,
                                        .read_only = arg / 3 % 4 == 0};
    CUresult result = sim_driver.mem_export(&memory.fd, block->handle,
                                            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    CUdeviceptr address;
    gs_status status;

    if (result != CUDA_SUCCESS)
        return (gs_status)result;
    process->fds[memory.fd].is_programs = true;
    status = gs_share_attach(process->share, &memory, program_context(process), DEVICE, uuid,
                             block->id, &address);
    process->fds[memory.fd].is_programs = false;
    fd_close(memory.fd, "its program");
    if (status == GS_OK)
        block->address = address;
    return status;
}

/* Asks for its handle, which stays the same while it is attached, and is had no more from then
 * on. */
static gs_status hand_out(struct process *process, struct block *block)
{
    const bool detached = block->freed_ns != 0;
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    gs_status status;

    if (block->by_address) /* the driver's matter */
        return GS_OK;
    status = gs_share_pass_on(process->share, block->address, ipc_handle);
    if (status != GS_OK)
        return status;
    if (detached)
        sim_fail("handles: process %u gets a handle of external block %llu, which it has detached",
                 process->index, (unsigned long long)block->id);
    if (block->wire_id && memcmp(ipc_handle, block->ipc_handle, sizeof ipc_handle) != 0)
        sim_fail("handles: process %u gets another handle of external block %llu than before",
                 process->index, (unsigned long long)block->id);
    memcpy(block->ipc_handle, ipc_handle, sizeof ipc_handle);
    block->wire_id = ((const struct gs_ipc_handle *)(const void *)ipc_handle)->block_id;
    sim_trace("    block %llu (%llu) is external, in memory %llu", (unsigned long long)block->id,
              (unsigned long long)block->wire_id, (unsigned long long)block->phys->id);
    handle_enter(block);
    return GS_OK;
}

static unsigned attached(const struct process *process)
{
    unsigned count = 0;

    for (const struct block *block = world.blocks; block; block = block->next)
        count += is_of(block, process) && block->state != BLOCK_GONE;
    return count;
}

/* With the first one the thread for their ends starts. */
static struct block *external_new(struct process *process)
{
    struct block *block = sim_alloc(sizeof *block);

    if (process->threads[ENDS_THREAD].state == FIBRE_NONE)
        fibre_start(&process->threads[ENDS_THREAD], process, run, process);
    block->id = ++world.next_number;
    block->maker = process;
    block->image = process->image;
    block->is_external = true;
    block->graceless = true; /* an open that comes with its end comes too late, as one after it */
    block->size = GS_PAGE_SIZE;
    block->next = world.blocks;
    world.blocks = block;
    return block;
}

bool external_share(struct process *process, unsigned arg)
{
    struct block *block;
    gs_status status = GS_NO_HOST_MEMORY;

    if (!has_externals() || (arg % 3 != 1 && !world.settled) || attached(process) >= EXTERNALS)
        return false;
    block = external_new(process); /* its place is taken */
    block->by_address = arg / 96 % 4 == 1;
    if (allocate(process, block, arg / 24 % 4 == 1))
        status = block->by_address ? attach_address(process, block) : attach(process, block, arg);
    if (status == GS_OK) {
        sim_trace("    block %llu is attached", (unsigned long long)block->id);
        block->state = BLOCK_LIVE;
        status = hand_out(process, block);
        if (world.options.limbo_limit) /* what others still have counts there */
            status = GS_OK;
    } else {
        gone(block);
    }
    if (world.settled && status != GS_OK &&
        !(world.options.limbo_limit && world_is_kept_open(process->image)))
        sim_fail("liveness: process %u cannot share external memory, status %d", process->index,
                 status);
    return !world.settled;
}

/* Of what it has, or has detached. False: the process has none of its own, or passes on what it has
 * opened. */
bool external_pass_on(struct process *process, unsigned arg)
{
    const int state = arg % 8 == 7 ? BLOCK_LIMBO : BLOCK_LIVE;
    struct block *block =
        has_externals() && arg % 2 ? of_state(process, state, arg / 2 % EXTERNALS) : NULL;

    if (block)
        hand_out(process, block);
    return block != NULL;
}

/* Its maker's GPU works on it. */
bool external_use(struct process *process, unsigned arg)
{
    struct block *block =
        has_externals() && arg % 4 == 0 ? of_state(process, BLOCK_LIVE, arg / 4 % EXTERNALS) : NULL;
    struct use *use;

    if (!block || block->freed_ns)
        return false;
    rule_used(process, block, block->address);
    if (process->gpu_busy_ns < world.now_ns)
        process->gpu_busy_ns = world.now_ns;
    process->gpu_busy_ns += arg / 16 % 64 * WORK_NS;
    use = use_of(block, process->image);
    use->address = block->address;
    use->busy_ns = process->gpu_busy_ns;
    return true;
}

gs_status external_name(struct process *process, struct block *block,
                        const struct gs_naming *naming, uint64_t *ret_since_ns)
{
    const bool detached = block->freed_ns != 0;
    gs_status status = gs_share_name_external(process->share, block->address, naming, ret_since_ns);

    if (status == GS_OK && detached)
        sim_fail("names: process %u publishes external block %llu, which it has detached",
                 process->index, (unsigned long long)block->id);
    return status;
}

/* Whether its process can serve it: it has a handle, and the program has not closed the library's
 * descriptor. */
bool external_is_served(const struct block *block)
{
    for (unsigned i = 0; block->wire_id && i < FDS_MAX; i++) {
        const struct descriptor *descriptor = &block->maker->fds[i];

        if (descriptor->file && descriptor->file->phys == block->phys && descriptor->is_kept)
            return true;
    }
    return false;
}

/* ---- Its end --------------------------------------------------------------------------------- */

static bool is_at_work(const struct image *image)
{
    for (unsigned i = 0; i < PROCESSES_MAX; i++)
        if (world.processes[i].image == image &&
            world.processes[i].gpu_busy_ns + LATE_NS > world.now_ns)
            return true;
    return false;
}

struct wait {
    uint64_t begun_ns, limit_ns;
    uint64_t starved_ns, all_starved_ns;
};

static struct wait wait_begin(const struct process *process, uint64_t limit_ns)
{
    return (struct wait){.begun_ns = world.now_ns,
                         .limit_ns = limit_ns,
                         .starved_ns = process->starved_ns,
                         .all_starved_ns = world.starved_ns};
}

/* All could do what was asked of them meanwhile. */
static bool all_ran(const struct wait *wait)
{
    return world.starved_ns - wait->all_starved_ns < LATE_NS / 4;
}

/* Whether a process that has had it must have let go of it by now: it had closed it before, and was
 * asked for it since. */
static bool has_let_go(const struct use *use, const struct block *block, const struct wait *wait)
{
    const struct image *image = use->image;

    return !world.disturbed && all_ran(wait) && image->clean && !image->over &&
           image->machine == block->image->machine && use->opens == 0 && !use->opening &&
           use->closed_ns < wait->begun_ns && !is_at_work(image);
}

/* What the end of a block may be waiting for: somebody has it, its process's GPU is at something,
 * or its share thread waits for a broker to start (core/share/publish.c: for seconds, if that one
 * is killed then). */
static bool may_be_held(const struct block *block, const struct wait *wait)
{
    const struct use *use = block->uses;

    while (use && (use->image == block->image || has_let_go(use, block, wait)))
        use = use->next;
    return use || is_at_work(block->image) || (world.broker && (world.disturbed || !all_ran(wait)));
}

/* It returns in time, and without its end only where something was in the way. */
static void look_at_wait(const struct process *process, const struct block *block,
                         const struct wait *wait)
{
    const uint64_t took = world.now_ns - wait->begun_ns,
                   starved = process->starved_ns - wait->starved_ns;

    if (took > starved + wait->limit_ns + LATE_NS)
        sim_fail("liveness: a detach of process %u took %llu ms, beyond its timeout",
                 process->index, (unsigned long long)((took - starved) / GS_NS_PER_MS));
    if (block->state != BLOCK_GONE && wait->limit_ns >= ENOUGH_NS && starved < GS_NS_PER_MS &&
        process->image->clean && !world.short_of_memory && !may_be_held(block, wait))
        sim_fail(
            "external memory: process %u has detached block %llu, which nobody has and no GPU work "
            "is at, and its end has not come",
            process->index, (unsigned long long)block->id);
}

static void await(const struct process *process, const struct block *block, uint64_t until_ns)
{
    while (block->state != BLOCK_GONE && world.now_ns < until_ns)
        fibre_wait(&process->image, until_ns);
}

/* False: for want of memory nothing has begun. */
static bool begin_end(struct process *process, struct block *block)
{
    gs_status status;

    block->state = BLOCK_LIMBO; /* its deleter may be called from here on */
    status = gs_share_detach(process->share, block->address);
    if (status == GS_NO_HOST_MEMORY && block->state != BLOCK_GONE && !block->freed_ns) {
        block->state = BLOCK_LIVE;
        return false;
    }
    if (block->state == BLOCK_LIVE) /* another thread's has failed meanwhile */
        block->state = BLOCK_LIMBO;
    if (!block->freed_ns)
        block->freed_ns = world.now_ns;
    return true;
}

void external_detach(struct process *process, struct block *block, unsigned arg)
{
    static const unsigned timeouts_ms[] = {0, 2, 60, 400};
    const struct wait wait =
        wait_begin(process, world.calm ? 0 : timeouts_ms[arg / 2 % 4] * GS_NS_PER_MS);

    if (!begin_end(process, block))
        return;
    await(process, block, wait.begun_ns + wait.limit_ns);
    look_at_wait(process, block, &wait);
    sim_trace("    process %u has detached block %llu: %s", process->index,
              (unsigned long long)block->id,
              block->state == BLOCK_GONE ? "its end has come" : "busy");
}

/* Its context is gone, and what was attached in it ends. */
void externals_context_gone(struct process *process)
{
    for (struct block *block = world.blocks; block; block = block->next)
        if (is_of(block, process) && block->state == BLOCK_LIVE)
            block->state = BLOCK_LIMBO;
    gs_share_context_gone(process->share, program_context(process));
    for (struct block *block = world.blocks; block; block = block->next)
        if (is_of(block, process) && block->state == BLOCK_LIMBO && !block->freed_ns)
            block->freed_ns = world.now_ns;
}

/* The process ends in order: all that it has is detached, and what is not over in the settling time
 * has its deleter called whoever has it: they keep it by their descriptors. */
void externals_end(struct process *process)
{
    const struct wait wait = wait_begin(process, world.options.settle_ns);
    struct block *block;

    if (!has_externals())
        return;
    for (unsigned i = 0; (block = of_state(process, BLOCK_LIVE, 0)) && i < 2 * EXTERNALS; i++)
        begin_end(process, block);
    while ((block = of_state(process, BLOCK_LIMBO, 0)) &&
           world.now_ns < wait.begun_ns + wait.limit_ns)
        await(process, block, wait.begun_ns + wait.limit_ns);
    while ((block = of_state(process, BLOCK_LIMBO, 0)) ||
           (block = of_state(process, BLOCK_LIVE, 0))) {
        look_at_wait(process, block, &wait);
        if (!block->freed_ns)
            block->freed_ns = world.now_ns;
        block->forced = true;
        call_deleter(process, block);
    }
}

/* As the end of all threads: it has nothing of the library's by then. */
void externals_thread_ends(struct process *process)
{
    struct fibre *thread = &process->threads[ENDS_THREAD];

    while (thread->state == FIBRE_READY || (thread->state == FIBRE_WAITING &&
                                            thread->waits_on != &process->share->importer.changed))
        gs_rest_ns(GS_NS_PER_MS);
    fibre_kill(thread);
}
