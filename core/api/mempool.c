/* Default memory pools (core/api/mempool.h). */
#include "core/api/mempool.h"

#include <time.h>

#include "core/base/clock.h"
#include "core/process/context.h"
#include "core/process/reclaim.h"
#include "core/process/stats.h"

#define TRIM_LOOKS 20
#define TURN 64 /* blocks that are looked at under a latch at once: under a microsecond */

CUdevice gs_core_mempool_device(struct gs_core *core, CUmemoryPool pool)
{
    CUmemoryPool its;
    int count = 0;

    if (!core->driver.device_get_default_pool || !core->driver.device_get_count ||
        core->driver.device_get_count(&count) != CUDA_SUCCESS)
        return -1;
    for (CUdevice device = 0; device < count && device < GS_DEVICES_MAX; device++)
        if (core->driver.device_get_default_pool(&its, device) == CUDA_SUCCESS && its == pool)
            return device;
    return -1;
}

struct survey {
    struct gs_core *core;
    CUdevice device;
    unsigned turn; /* blocks that were looked at since others had theirs */
    uint64_t reserved, in_use;
};

struct look { /* at one piece */
    uint64_t piece; /* its id; 0: not begun */
    uint64_t at;    /* goes on at this address */
    bool live, async; /* some of its blocks are */
};

/* Looks at blocks until the turn is over; false: that is known which was looked for. */
static bool look_locked(struct survey *survey, const struct gs_piece *piece, struct look *look)
{
    const struct gs_block *block = gs_piece_find_locked(piece, look->at);

    for (; block && block->base < gs_piece_end(piece) && !look->async && survey->turn < TURN;
         block = block->above, survey->turn++) {
        look->live = look->live || block->state == GS_BLOCK_LIVE;
        look->async = block->state == GS_BLOCK_LIVE && block->async;
    }
    if (!block || block->base >= gs_piece_end(piece) || look->async)
        return false;
    look->at = block->base;
    return true;
}

static void count_locked(struct survey *survey, const struct gs_piece *piece,
                         const struct look *look)
{
    if (look->async || !look->live)
        survey->reserved += piece->span.size;
    if (look->async)
        survey->in_use += piece->span.size;
}

/* Called for each piece and import. Memory of cuMemAlloc alone is no pool's; pieces that nothing is live in
 * count. A piece may have thousands of blocks, and who allocates waits for the latch. So it is let go after
 * some of them; what changes meanwhile is seen or not, and a piece that goes does not count. */
static void survey_piece(uint64_t address, void *arg)
{
    struct survey *survey = arg;
    struct look look = {0};
    struct gs_piece *piece;
    bool more = true;

    while (more && gs_context_lock_piece(survey->core, address, &piece) == GS_OK) {
        if (!look.piece)
            look = (struct look){.piece = piece->id, .at = piece->span.base};
        more = piece->id == look.piece && piece->arena->device->ordinal == survey->device;
        if (more) {
            more = look_locked(survey, piece, &look);
            if (!more)
                count_locked(survey, piece, &look);
        }
        gs_latch_release(&piece->arena->lock);
        if (survey->turn == TURN) {
            gs_yield();
            survey->turn = 0;
        }
    }
}

void gs_core_mempool_figures(struct gs_core *core, CUdevice device,
                             struct gs_mempool_figures *ret_figures)
{
    struct gs_async_count *count = &core->async[device];
    struct survey survey = {.core = core, .device = device};
    uint64_t high;

    gs_async_read(core, device, &ret_figures->used, &ret_figures->used_high);
    if (__atomic_load_n(&count->ever, __ATOMIC_RELAXED))
        gs_map_each(&core->map, survey_piece, &survey);
    ret_figures->reserved = survey.reserved;
    ret_figures->in_use = survey.in_use;
    high = gs_page_round(ret_figures->used_high);
    if (high < survey.reserved)
        high = survey.reserved;
    if (high < __atomic_load_n(&count->reserved_high, __ATOMIC_RELAXED))
        high = __atomic_load_n(&count->reserved_high, __ATOMIC_RELAXED);
    __atomic_store_n(&count->reserved_high, high, __ATOMIC_RELAXED);
    ret_figures->reserved_high = high;
}

void gs_core_mempool_reset_reserved_high(struct gs_core *core, CUdevice device)
{
    __atomic_store_n(&core->async[device].reserved_high, 0, __ATOMIC_RELAXED);
}

void gs_core_mempool_reset_used_high(struct gs_core *core, CUdevice device)
{
    gs_async_forget_peak(core, device);
}

/* No more than that many free bytes stay in each arena. */
static void trim_arenas(struct gs_core *core, CUdevice device, uint64_t keep)
{
    struct gs_arena *arena;

    for (unsigned at = 0; (arena = gs_next_pool(core, &core->device[device], &at));) {
        struct gs_piece *released;

        gs_latch_take(&arena->lock);
        gs_arena_flush_streams_locked(arena, 0);
        gs_arena_collect_locked(arena);
        released = gs_arena_detach_ready_locked(arena, keep);
        gs_latch_release(&arena->lock);
        gs_pieces_unmap(core, released);
    }
}

void gs_core_mempool_trim(struct gs_core *core, CUdevice device, uint64_t keep)
{
    const struct timespec moment = {.tv_nsec = 20000};
    struct gs_mempool_figures figures;
    uint64_t used;

    gs_core_mempool_figures(core, device, &figures);
    used = figures.used;
    if (figures.reserved <= keep)
        return;
    /* An event that was just recorded needs a moment even where the GPU is idle. */
    for (int i = 0; i < TRIM_LOOKS && figures.reserved > keep; i++) {
        if (i)
            nanosleep(&moment, NULL);
        trim_arenas(core, device, keep > used ? keep - used : 0);
        gs_core_mempool_figures(core, device, &figures);
        if (figures.reserved == figures.in_use)
            break;
    }
}
