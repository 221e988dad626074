/* What a simulated program does with the library, one thing at a time (simulation.h). */
#include "simulation.h"

#include <string.h>

#include "core/gpu/fence.h"
#include "core/gpu/map.h"
#include "core/share/internal.h"

#define SLOT_SIZE    (GS_PAGE_SIZE / SLOTS)
#define WORK_NS      (GS_NS_PER_MS / 4) /* 64 times as long at most */
#define LONG_WORK_NS (2 * GS_NS_PER_MS)
#define SHORT_NS     (50 * GS_NS_PER_MS)
#define WAITS_NS     (2 * GS_NS_PER_S)   /* core/share/flush.c */
#define LATE_NS      (20 * GS_NS_PER_MS) /* a call may take longer than its limit by this */
#define EXIT_NS      (20 * GS_NS_PER_MS) /* core/share/place.c */
#define DEVICE       0
#define CHUNKS_FROM  (UINT64_C(1) << 44) /* the driver maps none of them there */

const char *const operation_names[OP_ALL] = {
    [OP_EXPORT] = "export",     [OP_OPEN] = "open",           [OP_USE] = "use",
    [OP_CLOSE] = "close",       [OP_FREE] = "free",           [OP_PASS_ON] = "pass-on",
    [OP_TRIM] = "trim",         [OP_SHORT] = "short",         [OP_PUBLISH] = "publish",
    [OP_LOOK_UP] = "look-up",   [OP_UNPUBLISH] = "unpublish", [OP_ASK] = "ask",
    [OP_CONTEXT] = "context",   [OP_EXIT] = "exit",           [OP_END] = "end",
    [OP_SLEEP] = "sleep",       [OP_CLOSE_ALL] = "close-all", [OP_FREE_ALL] = "free-all",
    [OP_TRIM_ALL] = "trim-all", [OP_OPEN_ALL] = "open-all"};

/* ---- Sharing -------------------------------------------------------------------------------- */

static unsigned slots(void)
{
    return world.options.isolate ? 1 : SLOTS;
}

static struct chunk *chunk_with_room(struct process *process, unsigned *ret_slot)
{
    for (unsigned i = 0; i < CHUNKS_MAX; i++)
        for (unsigned k = 0; process->chunks[i].id && k < slots(); k++)
            if (!process->chunks[i].phys->slots[k]) {
                *ret_slot = k;
                return &process->chunks[i];
            }
    for (unsigned i = 0; i < CHUNKS_MAX; i++) {
        struct chunk *chunk = &process->chunks[i];

        if (chunk->id)
            continue;
        chunk->phys = phys_new(&chunk->handle);
        if (!chunk->phys)
            return NULL;
        chunk->id = ++world.next_number;
        chunk->address = CHUNKS_FROM + (world.next_address += GS_PAGE_SIZE);
        *ret_slot = 0;
        return chunk;
    }
    return NULL;
}

static struct block *block_new(struct process *process, unsigned arg)
{
    unsigned slot;
    struct chunk *chunk = chunk_with_room(process, &slot);
    struct block *block;

    if (!chunk)
        return NULL;
    block = sim_alloc(sizeof *block);
    block->id = ++world.next_number;
    block->maker = process;
    block->image = process->image;
    block->chunk = chunk;
    block->phys = chunk->phys;
    block->slot = slot;
    block->address = chunk->address + slot * SLOT_SIZE;
    block->size = world.options.isolate ? GS_PAGE_SIZE : SLOT_SIZE - arg % 4096;
    block->next = world.blocks;
    world.blocks = block;
    chunk->phys->slots[slot] = block;
    return block;
}

void handle_enter(struct block *block)
{
    unsigned at = world.handle_count++ % HANDLES_MAX;

    world.handles[at] = block;
}

static gs_status export_block(struct process *process, struct block *block)
{
    const struct gs_share_source source = {.handle = block->chunk->handle,
                                           .chunk_id = block->chunk->id,
                                           .chunk_size = GS_PAGE_SIZE,
                                           .block_id = block->id,
                                           .offset = block->slot * SLOT_SIZE,
                                           .size = block->size,
                                           .address = block->address,
                                           .alone = world.options.isolate};

    return gs_share_export(process->share, &source, &block->export);
}

static void share_block(struct process *process, unsigned arg)
{
    struct block *block;
    gs_status status;

    if (strip_share(process, arg) || external_share(process, arg) ||
        (!(block = across_new(process, arg)) && !(block = block_new(process, arg))))
        return;
    status = block->crosses ? strip_export(process, block) : export_block(process, block);
    if (status != GS_OK) {
        block->state = BLOCK_GONE;
        block->phys->slots[block->slot] = NULL;
        if (world.settled &&
            !(world.options.limbo_limit && (world.given_up || world_is_kept_open(process->image))))
            sim_fail("liveness: process %u cannot share a block, status %d", process->index,
                     status);
        return;
    }
    gs_lock_take(&process->arena);
    block->state = BLOCK_LIVE;
    gs_share_given_out(process->share, block->export);
    gs_lock_release(&process->arena);
    gs_export_handle(block->export, block->ipc_handle);
    block->wire_id = ((const struct gs_ipc_handle *)(const void *)block->ipc_handle)->block_id;
    sim_trace("    block %llu (%llu) in slot %u of memory %llu", (unsigned long long)block->id,
              (unsigned long long)block->wire_id, block->slot, (unsigned long long)block->phys->id);
    handle_enter(block);
}

/* ---- Freeing -------------------------------------------------------------------------------- */

/* Called with the arena's lock held, as core does. */
static void ask_locked(struct process *process, struct block *block)
{
    block->state = BLOCK_LIMBO;
    if (!gs_share_withdraw(process->share, block->export))
        return;
    block->export = NULL;
    block->state = BLOCK_GONE;
    block->gone_ns = world.now_ns;
    sim_trace("    block %llu is handed out again", (unsigned long long)block->id);
    rule_handed_out(block);
    block->phys->slots[block->slot] = NULL;
}

/* Those whose own GPU work is done now. */
static void ask_freed(struct process *process, bool all)
{
    struct block *block;

    gs_lock_take(&process->arena);
    for (block = world.blocks; block; block = block->next)
        if (block->image == process->image && !block->is_external &&
            (block->state == BLOCK_FREED || (all && block->state == BLOCK_LIMBO)))
            ask_locked(process, block);
    gs_lock_release(&process->arena);
}

void program_lease_ended(void *arg, uint64_t address)
{
    struct process *process = arg;
    struct block *block = world.blocks;

    if (process->is_broker)
        return;
    if (has_externals()) /* as core does where it is no block of its pools */
        gs_share_look_again(process->share);
    gs_lock_take(&process->arena);
    while (block && (block->image != process->image || block->address != address ||
                     block->state != BLOCK_LIMBO || block->is_external))
        block = block->next;
    if (block)
        ask_locked(process, block);
    gs_lock_release(&process->arena);
}

static void free_block(struct process *process, struct block *block, bool at_once)
{
    if (block->piece_count && !block->crosses) {
        strip_unmap(process, block);
        return;
    }
    gs_lock_take(&process->arena);
    if (block->state == BLOCK_LIVE) {
        block->state = BLOCK_FREED;
        block->freed_ns = gs_now_ns();
        rule_little_is_left(process); /* the share thread may have asked just before */
        gs_share_freed(process->share, block->export, block->freed_ns);
        block->waits = true;
        if (at_once)
            ask_locked(process, block);
    }
    gs_lock_release(&process->arena);
}

static void free_some(struct process *process, unsigned arg)
{
    struct block *block, *found = NULL;
    unsigned count = 0;

    for (block = world.blocks; block; block = block->next)
        if (block->image == process->image && block->state == BLOCK_LIVE && arg / 2 % ++count == 0)
            found = block;
    if (found && found->is_external)
        external_detach(process, found, arg / 2);
    else if (found)
        free_block(process, found, arg % 2);
}

static void free_all(struct process *process)
{
    for (struct block *block = world.blocks; block; block = block->next)
        if (block->image != process->image || block->state != BLOCK_LIVE)
            continue;
        else if (block->is_external)
            external_detach(process, block, 0);
        else
            free_block(process, block, true);
    ask_freed(process, false);
}

/* ---- The chunks ----------------------------------------------------------------------------- */

static bool is_empty(const struct chunk *chunk)
{
    for (unsigned i = 0; i < SLOTS; i++)
        if (chunk->phys->slots[i])
            return false;
    return true;
}

static void trim(struct process *process, struct chunk *chunk)
{
    struct chunk gone = *chunk;

    *chunk = (struct chunk){0};
    gs_share_chunk_gone(process->share, gone.id);
    driver_release(gone.handle);
    gone.phys->released = true;
    gone.phys->released_ns = world.now_ns;
}

static void trim_some(struct process *process, unsigned arg, bool all)
{
    for (unsigned i = 0; i < CHUNKS_MAX; i++)
        if (process->chunks[i].id && (all || i == arg % CHUNKS_MAX) &&
            is_empty(&process->chunks[i]))
            trim(process, &process->chunks[i]);
    if (all || arg % CHUNKS_MAX == 0)
        across_trim(process, false);
}

/* Of what is freed before or meanwhile. */
static void end_graces(struct process *process)
{
    for (struct block *block = world.blocks; block; block = block->next)
        block->ends |= block->image == process->image && block->waits;
    process->graceless++;
    gs_share_end_graces(process->share, NULL, GS_GRACES_ALL);
    if (--process->graceless == 0) /* another thread is not at it */
        rule_graces_ended(process);
    for (struct block *block = world.blocks; block; block = block->next)
        block->graceless |= block->image == process->image && block->state >= BLOCK_FREED;
}

/* When the oldest of the waits began that are under way. */
static uint64_t oldest_wait(const struct image *image)
{
    uint64_t oldest = NEVER;

    for (unsigned i = 0; i < THREADS; i++)
        if (image->waits_ns[i] && image->waits_ns[i] < oldest)
            oldest = image->waits_ns[i];
    return oldest;
}

/* However others stand still. */
static void look_at_wait(const struct process *process, uint64_t begun_ns, uint64_t starved_ns)
{
    uint64_t took = world.now_ns - begun_ns, starved = process->starved_ns - starved_ns;

    if (took > starved + WAITS_NS + LATE_NS)
        sim_fail("liveness: process %u waited %llu ms for what others have closed", process->index,
                 (unsigned long long)((took - starved) / GS_NS_PER_MS));
}

/* The GPU is full: core/process/reclaim.c. */
static void run_short(struct process *process)
{
    uint64_t *waits = &process->image->waits_ns[world.current - process->threads];
    uint64_t begun, ended, asked, starved = process->starved_ns;

    ask_freed(process, false);
    begun = *waits = gs_now_ns();
    asked = oldest_wait(process->image);
    gs_share_await_given_back(process->share, NULL, SHORT_NS);
    ended = gs_now_ns();
    *waits = 0;
    look_at_wait(process, begun, starved);
    end_graces(process);
    ask_freed(process, true);
    rule_given_back(process, asked, begun, ended);
    trim_some(process, 0, true);
}

/* ---- Opening -------------------------------------------------------------------------------- */

static struct opened *opened_of(struct process *process, const struct block *block)
{
    for (unsigned i = 0; i < OPENS_MAX; i++)
        if (process->opened[i].block == block && (block || !process->opened[i].busy))
            return &process->opened[i];
    return NULL;
}

static void look_at_time(const struct process *process, uint64_t begun_ns, uint64_t starved_ns)
{
    uint64_t took = world.now_ns - begun_ns, starved = process->starved_ns - starved_ns;

    if (took > starved + world.options.timeout_ns + LATE_NS)
        sim_fail("liveness: an open of process %u took %llu ms, beyond debug.timeout",
                 process->index, (unsigned long long)((took - starved) / GS_NS_PER_MS));
}

/* `must`: nothing stands in its way. */
static void open_block(struct process *process, struct block *block, bool must)
{
    uint64_t begun = gs_now_ns(), starved = process->starved_ns;
    struct use *use = (block->piece_count && !block->crosses) || block->is_external
                          ? use_of(block, process->image)
                          : NULL;
    const bool stale = use && !use->number && !use->opening &&
                       (block->state == BLOCK_GONE || (block->is_external && block->freed_ns));
    struct opened *opened;
    CUdeviceptr address;
    gs_status status;

    if (use)
        use->opening++;
    if (process->index % 2) /* others may ask it for memory */
        gs_share_serve_soon(process->share);
    status = gs_share_open(process->share, block->ipc_handle, program_context(process), DEVICE,
                           &address);
    if (use)
        use->opening--;
    /* Who finds no room for its record registers memory of the host no more, which waits for the
     * context's work. */
    if (status != GS_NO_HOST_MEMORY || !block->is_external)
        look_at_time(process, begun, starved);
    if (stale && status == GS_OK)
        sim_fail("handles: process %u opened %s %llu of process %u, which had taken it away before",
                 process->index, block->is_external ? "external block" : "strip",
                 (unsigned long long)block->id, block->maker->index);
    sim_trace("    process %u opened block %llu: %d", process->index, (unsigned long long)block->id,
              (int)status);
    if (must && status != GS_OK && world.options.max_clients > PROCESSES_MAX)
        sim_fail(
            "liveness: process %u cannot open block %llu of process %u, which lives: status %d",
            process->index, (unsigned long long)block->id, block->maker->index, status);
    if (block->image == process->image && status != GS_SAME_PROCESS)
        sim_fail("handles: process %u opened its own block %llu: status %d", process->index,
                 (unsigned long long)block->id, status);
    if (status != GS_OK)
        return;
    rule_opened(process, block, address);
    opened = opened_of(process, block);
    if (!opened)
        opened = opened_of(process, NULL);
    if (!opened) { /* its program has no place for it */
        use_of(block, process->image)->opens--;
        gs_share_close(process->share, address);
        return;
    }
    if (opened->block && opened->address != address)
        sim_fail("handles: process %u has block %llu at two addresses", process->index,
                 (unsigned long long)block->id);
    opened->block = block;
    opened->address = address;
    opened->count++;
}

static void open_some(struct process *process, unsigned arg)
{
    unsigned count = world.handle_count < HANDLES_MAX ? world.handle_count : HANDLES_MAX;

    if (count > 0)
        open_block(process, world.handles[arg % count], false);
}

/* All that is for others: who shares something lives, so it must go. Of another machine it may. */
static void open_all(struct process *process)
{
    for (struct block *block = world.blocks; block; block = block->next)
        if (block->state == BLOCK_LIVE && block->image != process->image && !block->image->over &&
            (!block->is_external || external_is_served(block)))
            open_block(process, block, block->image->machine == process->machine);
    events_open_all(process);
}

static struct opened *pick(struct process *process, unsigned arg)
{
    for (unsigned i = 0; i < OPENS_MAX; i++) {
        struct opened *opened = &process->opened[(arg + i) % OPENS_MAX];

        if (opened->block && !opened->busy)
            return opened;
    }
    return NULL;
}

static void use(struct process *process, unsigned arg)
{
    struct opened *opened = external_use(process, arg) ? NULL : pick(process, arg);

    if (!opened)
        return;
    rule_used(process, opened->block, opened->address);
    if (process->gpu_busy_ns < world.now_ns)
        process->gpu_busy_ns = world.now_ns;
    process->gpu_busy_ns += arg / OPENS_MAX % 64 * (arg >> 15 ? LONG_WORK_NS : WORK_NS);
    use_of(opened->block, process->image)->busy_ns = process->gpu_busy_ns;
}

static void close_one(struct process *process, struct opened *opened)
{
    struct use *use = use_of(opened->block, process->image);
    struct block *block = opened->block;
    uint64_t address = opened->address;
    gs_status status;

    use->opens--;
    use->closed_ns = NEVER; /* while the call is under way */
    if (--opened->count == 0)
        opened->block = NULL;
    status = gs_share_close(process->share, address);
    use->closed_ns = world.now_ns;
    if (status != GS_OK)
        sim_fail("handles: process %u closes block %llu, which it has open: status %d",
                 process->index, (unsigned long long)block->id, status);
}

void program_close(struct process *process, struct opened *opened)
{
    while (opened->block)
        close_one(process, opened);
}

static void close_all(struct process *process)
{
    for (unsigned i = 0; i < OPENS_MAX; i++)
        program_close(process, &process->opened[i]);
}

static void pass_on(struct process *process, unsigned arg)
{
    struct opened *opened = external_pass_on(process, arg) ? NULL : pick(process, arg);
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    struct block *block;
    gs_status status;

    if (!opened)
        return;
    opened->busy = true;
    block = opened->block;
    status = gs_share_pass_on(process->share, opened->address, ipc_handle);
    opened->busy = false;
    if (status != GS_OK || memcmp(ipc_handle, block->ipc_handle, sizeof ipc_handle) != 0)
        sim_fail("handles: process %u passes block %llu on, and its handle is another one",
                 process->index, (unsigned long long)block->id);
    handle_enter(block);
}

/* ---- Names ---------------------------------------------------------------------------------- */

#define NAMES   3
#define TELL_NS (200 * GS_NS_PER_MS) /* core/share/share.h: to tell others of a name */

static void name_of(unsigned arg, char ret_name[GS_NAME_SIZE])
{
    memset(ret_name, 0, GS_NAME_SIZE);
    ret_name[0] = (char)('a' + arg % NAMES);
}

static void look_at_names_time(const struct process *process, uint64_t begun_ns,
                               uint64_t starved_ns, uint64_t limit_ns)
{
    uint64_t took = world.now_ns - begun_ns, starved = process->starved_ns - starved_ns;

    if (took > starved + limit_ns + LATE_NS)
        sim_fail("liveness: process %u was at a name for %llu ms", process->index,
                 (unsigned long long)((took - starved) / GS_NS_PER_MS));
}

/* One of its own blocks. */
static void publish(struct process *process, unsigned arg)
{
    uint64_t begun = world.now_ns, starved = process->starved_ns, since_ns = 0;
    struct gs_naming naming = {.note_size = sizeof(uint64_t)};
    gs_status status = GS_INVALID;
    struct block *block = world.blocks;
    unsigned skip = arg / NAMES % 4;

    while (block && (block->image != process->image || block->state != BLOCK_LIVE ||
                     !block->wire_id || skip-- > 0))
        block = block->next;
    if (!block)
        return;
    name_of(arg, naming.name);
    memcpy(naming.note, &block->id, sizeof block->id);
    if (block->is_external) {
        block->names |= 1u << arg % NAMES;
        status = external_name(process, block, &naming, &since_ns);
    } else {
        gs_lock_take(&process->arena);
        if (block->state == BLOCK_LIVE) {
            block->names |= 1u << arg % NAMES;
            block->naming++; /* a strip has no lock of its own here */
            status = gs_share_name(process->share, block->export, &naming, 0, &since_ns);
            block->naming--;
        }
        gs_lock_release(&process->arena);
    }
    if (status != GS_OK)
        return;
    sim_trace("    block %llu has the name %s", (unsigned long long)block->id, naming.name);
    gs_share_named(process->share, naming.name, since_ns);
    look_at_names_time(process, begun, starved, world.options.timeout_ns + TELL_NS);
}

static void look_up(struct process *process, unsigned arg)
{
    uint64_t begun = world.now_ns, starved = process->starved_ns, id = 0;
    struct block *block;
    char name[GS_NAME_SIZE];
    struct gs_found found;

    name_of(arg, name);
    if (gs_share_look_up(process->share, name, &found) != GS_LOOK_FOUND) {
        look_at_names_time(process, begun, starved, world.options.timeout_ns);
        return;
    }
    look_at_names_time(process, begun, starved, world.options.timeout_ns);
    memcpy(&id, found.naming.note, sizeof id);
    block = world.blocks;
    while (block && block->id != id)
        block = block->next;
    sim_trace("    process %u finds block %llu under %s", process->index, (unsigned long long)id,
              name);
    if (!block || !(block->names >> arg % NAMES & 1) ||
        memcmp(block->ipc_handle, found.ipc_handle, sizeof block->ipc_handle) != 0)
        sim_fail("names: process %u finds block %llu under %s, which it never had", process->index,
                 (unsigned long long)id, name);
    else if (block->state == BLOCK_GONE && block->gone_ns < begun)
        sim_fail(
            "names: process %u finds block %llu of process %u under %s, whose memory was handed "
            "out before it asked",
            process->index, (unsigned long long)id, block->maker->index, name);
    else if (block->image != process->image)
        open_block(process, block, false);
}

static void unpublish(struct process *process, unsigned arg)
{
    uint64_t begun = world.now_ns, starved = process->starved_ns;
    char name[GS_NAME_SIZE];

    name_of(arg, name);
    gs_share_unname(process->share, name);
    look_at_names_time(process, begun, starved, TELL_NS);
}

/* ---- The rest ------------------------------------------------------------------------------- */

static void ask(struct process *process, unsigned arg)
{
    static const unsigned char uuid[16];
    struct gs_share_stats stats;
    struct gs_share_held held;
    struct gs_share_answers answers;
    struct gs_import_info info;
    struct opened *opened;

    events_do(process, arg);
    gs_share_stats(process->share, &stats);
    if (arg % 2)
        gs_share_held(process->share, NULL, 0, &held);
    if (arg % 5 == 0)
        gs_share_ask(process->share, uuid, GS_PAGE_SIZE, &answers);
    gs_share_look_again(process->share);
    opened = pick(process, arg);
    if (!opened)
        return;
    opened->busy = true;
    if (gs_share_find(process->share, opened->address, &info) != GS_OK ||
        info.base != (opened->block->piece_count && !opened->block->crosses
                          ? strip_base(opened->block, opened->address)
                          : opened->address))
        sim_fail("handles: process %u has block %llu open, and it is not found", process->index,
                 (unsigned long long)opened->block->id);
    opened->busy = false;
}

/* Whether the other thread of the program's waits for its next. */
static bool is_alone(const struct process *process)
{
    unsigned idle = 0;

    for (unsigned i = 1; i < ENDS_THREAD; i++)
        idle += process->threads[i].state == FIBRE_IDLE;
    return idle == ENDS_THREAD - 2;
}

static void forget_opened(struct process *process)
{
    for (unsigned i = 0; i < OPENS_MAX; i++) {
        struct opened *opened = &process->opened[i];

        if (opened->block) {
            struct use *use = use_of(opened->block, process->image);

            use->opens = 0;
            use->closed_ns = world.now_ns;
        }
        *opened = (struct opened){0};
    }
}

/* The context goes with its work, and what it had open is closed. */
static void end_context(struct process *process)
{
    gs_share_context_leaving(process->share, program_context(process), true);
    sim_driver.ctx_synchronize();
    forget_opened(process);
    process->context_gone = true;
    driver_end_context(process);
    externals_context_gone(process);
    process->contexts++;
    process->context_gone = false;
}

static void end(struct process *process)
{
    sim_driver.ctx_synchronize();
    externals_end(process);
    externals_thread_ends(process);
    forget_opened(process);
    events_end(process);
    gs_share_destroy(process->share);
    process->share = NULL;
    gs_fences_destroy(process->fences);
    strips_end(process);
    across_trim(process, true);
    externals_trim(process);
    for (unsigned i = 0; i < CHUNKS_MAX; i++)
        if (process->chunks[i].id)
            driver_release(process->chunks[i].handle);
    process->ends = ENDS_EMPTY;
}

static void perform_alone(struct process *process, enum operation_kind kind, unsigned arg)
{
    if (!is_alone(process))
        return;
    process->alone = true;
    if (kind == OP_CONTEXT) {
        end_context(process);
    } else if (kind == OP_SLEEP) {
        program_sleeps(process, arg);
    } else if (kind == OP_END) {
        end(process);
    } else {
        uint64_t begun;

        externals_end(process);
        begun = world.now_ns;
        gs_share_at_exit(process->share);
        process->ends = world.now_ns - begun < EXIT_NS ? ENDS_BY_EXIT : ENDS_LATE;
    }
    process->alone = false;
}

void program_perform(struct process *process, const struct operation *operation)
{
    unsigned arg = operation->arg;

    switch (operation->kind) {
    case OP_EXPORT:
        return share_block(process, arg);
    case OP_OPEN:
        return open_some(process, arg);
    case OP_USE:
        return use(process, arg);
    case OP_CLOSE:
        return pick(process, arg) ? close_one(process, pick(process, arg)) : (void)0;
    case OP_FREE:
        ask_freed(process, false);
        return free_some(process, arg);
    case OP_PASS_ON:
        return pass_on(process, arg);
    case OP_TRIM:
        ask_freed(process, false);
        externals_trim(process);
        return trim_some(process, arg, false);
    case OP_SHORT:
        return run_short(process);
    case OP_PUBLISH:
        return publish(process, arg);
    case OP_LOOK_UP:
        return look_up(process, arg);
    case OP_UNPUBLISH:
        return unpublish(process, arg);
    case OP_ASK:
        return ask(process, arg);
    case OP_CLOSE_ALL:
        return close_all(process);
    case OP_FREE_ALL:
        return free_all(process);
    case OP_TRIM_ALL:
        externals_trim(process);
        return trim_some(process, 0, true);
    case OP_OPEN_ALL:
        return open_all(process);
    default:
        return perform_alone(process, operation->kind, arg);
    }
}
