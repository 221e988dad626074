/* Freeing (core/api/core.h). */
#include "core/api/core.h"

#include "core/process/context.h"
#include "core/process/reclaim.h"
#include "core/process/stats.h"

/* The live block that starts at the address, its arena locked. */
static gs_status lock_live(struct gs_core *core, CUdeviceptr address, struct gs_block **ret)
{
    struct gs_piece *piece;
    gs_status status = gs_context_lock_piece(core, address, &piece);
    struct gs_block *block;

    if (status != GS_OK)
        return status;
    block = gs_piece_start_locked(piece, address);
    if (block && block->state == GS_BLOCK_LIVE) {
        *ret = block;
        return GS_OK;
    }
    gs_latch_release(&piece->arena->lock);
    return GS_NOT_LIVE;
}

/* The lock is held, and let go here. What an arena has beyond its limit goes to the driver. */
static __attribute__((noinline)) void leave_surplus_locked(struct gs_core *core,
                                                           struct gs_arena *arena)
{
    struct gs_piece *pieces = NULL;

    if (!gs_trimmer_is_there(core))
        pieces = gs_arena_detach_locked(arena, arena->free_bytes - arena->kept.limit, SIZE_MAX);
    gs_latch_release(&arena->lock);
    gs_trimmer_wake(core);
    gs_pieces_unmap(core, pieces);
}

static inline void leave_locked(struct gs_core *core, struct gs_arena *arena)
{
    if (__builtin_expect(arena->free_bytes > arena->kept.limit, 0))
        leave_surplus_locked(core, arena);
    else
        gs_latch_release(&arena->lock);
}

/* As the driver's free: waits first, and so for what was freed before; where it is refused the wait
 * the block stays. The arena's lock is held, and let go here. */
__attribute__((noinline)) static gs_status pass_waiting(struct gs_core *core, CUdeviceptr address,
                                                        struct gs_block *block)
{
    const uint64_t id = block->id, began = gs_now_ns();
    struct gs_block_list before = {0}, freed = {0};
    struct gs_arena *arena = block->piece->arena;
    gs_status waited, status;

    gs_arena_take_open_locked(arena, &before);
    waited = gs_arena_synchronize_locked(core, arena, &before);
    gs_latch_release(&arena->lock);
    gs_stats_took(core, arena->device->ordinal, began);
    if (waited != GS_OK && waited != GS_CAPTURING)
        return waited;
    status = lock_live(core, address, &block);
    if (status != GS_OK)
        return status;
    arena = block->piece->arena;
    if (block->id == id) {
        gs_arena_unlive_locked(arena, block);
        gs_block_list_push(&freed, block);
        gs_arena_waited_locked(arena, &freed, waited == GS_OK);
    } else {
        status = GS_NOT_LIVE; /* another thread's, which had it meanwhile */
    }
    leave_locked(core, arena);
    return status;
}

/* On a driver without cuCtxRecordEvent no event can be behind what is freed, unless all work goes
 * to one stream. */
static inline bool waits_locked(const struct gs_core *core, const struct gs_block *block)
{
    return __builtin_expect(!core->driver.ctx_record_event, 0) &&
           (block->multi_stream || !gs_single_is(&core->single));
}

/* Whether the current context has ended: the driver frees nothing then, whosever it is. */
static inline bool is_in_ended(struct gs_core *core)
{
    return __builtin_expect(__atomic_load_n(&core->gone.ever, __ATOMIC_RELAXED), 0) &&
           gs_core_in_context(core) == (gs_status)CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

/* `id`: of the block that it has to be still; 0: any. */
static inline gs_status free_block(struct gs_core *core, CUdeviceptr address, uint64_t id)
{
    struct gs_block *block;
    struct gs_arena *arena;
    gs_status status = lock_live(core, address, &block);

    if (status != GS_OK)
        return status;
    arena = block->piece->arena;
    if (id && block->id != id) {
        gs_latch_release(&arena->lock);
        return GS_NOT_LIVE;
    }
    if (core->options.free_native || waits_locked(core, block))
        return pass_waiting(core, address, block);
    gs_arena_retire_locked(arena, block);
    leave_locked(core, arena);
    return GS_OK;
}

gs_status gs_core_free(struct gs_core *core, CUdeviceptr address)
{
    if (is_in_ended(core))
        return (gs_status)CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return free_block(core, address, 0);
}

/* The work of another context's stream is not behind the owning context's events, and so is waited
 * for: by an event where one can be recorded, so that captures begin meanwhile. */
__attribute__((noinline)) static gs_status free_elsewhere(struct gs_core *core, CUdeviceptr address,
                                                          uint64_t id, struct gs_context *context)
{
    const CUcontext handle = context->handle;
    gs_status status = gs_context_await_work(context, UINT64_MAX);

    if (status != GS_OK)
        status = gs_fences_synchronize(&core->fences, handle);
    return status == GS_OK ? free_block(core, address, id) : status;
}

gs_status gs_core_free_async(struct gs_core *core, CUdeviceptr address, CUstream stream)
{
    struct gs_context *context;
    struct gs_block *block;
    struct gs_arena *arena;
    gs_status status;
    uint64_t key, id;

    if (!gs_map_find(&core->map, address))
        return GS_NOT_OURS;
    status = gs_context_of_stream(core, stream, &context, &key);
    if (status != GS_OK)
        return status;
    status = lock_live(core, address, &block);
    if (status != GS_OK)
        return status;
    arena = block->piece->arena;
    if (arena->context == context->handle) {
        gs_arena_retire_stream_locked(arena, block, key);
        gs_latch_release(&arena->lock);
        return GS_OK;
    }
    id = block->id;
    gs_latch_release(&arena->lock);
    return free_elsewhere(core, address, id, context);
}
