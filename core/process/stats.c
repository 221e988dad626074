/* Statistics (core/process/stats.h). */
#include "core/process/stats.h"

#include <inttypes.h>
#include <string.h>

#include "core/process/context.h"

#define LOAD(field) __atomic_load_n(&(field), __ATOMIC_RELAXED)
#define MIB(bytes)  ((bytes) >> 20)

static void add_counts(struct gs_arena_counts *sum, const struct gs_arena_counts *counts)
{
    const uint64_t *from = (const uint64_t *)counts;
    uint64_t *to = (uint64_t *)sum;

    for (size_t i = 0; i < sizeof *counts / sizeof *from; i++)
        to[i] += LOAD(from[i]);
}

void gs_stats_took(struct gs_core *core, CUdevice device, uint64_t began_ns)
{
    uint64_t us = (gs_now_ns() - began_ns) / 1000;
    unsigned bits = us ? 64 - (unsigned)__builtin_clzll(us) : 0;

    __atomic_fetch_add(&core->figures.took[device][bits < GS_TOOK ? bits : GS_TOOK - 1], 1,
                       __ATOMIC_RELAXED);
}

static void add_arena(struct gs_stats *stats, const struct gs_arena *arena)
{
    size_t reserved = LOAD(arena->reserved), live = LOAD(arena->live),
           free_bytes = LOAD(arena->free_bytes);
    size_t ordered = LOAD(arena->order.bytes), limbo = LOAD(arena->held);
    size_t rest = live + free_bytes + ordered + limbo;

    stats->reserved += reserved;
    stats->live += live;
    stats->cached += free_bytes;
    stats->ordered += ordered;
    stats->limbo += limbo;
    stats->retired += reserved > rest ? reserved - rest : 0;
    add_counts(&stats->counts, &arena->counts);
}

void gs_async_read(struct gs_core *core, CUdevice device, bool forget, uint64_t *ret_live,
                   uint64_t *ret_high)
{
    struct gs_async_count *count = &core->async[device];
    struct gs_arena *arena = NULL;

    *ret_live = *ret_high = 0;
    while ((arena = gs_next_locked(core, &core->device[device], arena, false))) {
        if (forget)
            __atomic_store_n(&arena->async.high, arena->async.live, __ATOMIC_RELAXED);
        *ret_live += arena->async.live;
        *ret_high += arena->async.high;
    }
    if (!forget && *ret_high < LOAD(count->high))
        *ret_high = LOAD(count->high);
    __atomic_store_n(&count->high, *ret_high, __ATOMIC_RELAXED);
}

static void read_device_locked(struct gs_core *core, CUdevice device, struct gs_stats *stats)
{
    const struct gs_arena *arena = NULL;

    gs_lock_assert_held(&core->lock);
    *stats = (struct gs_stats){0};
    if (!gs_is_device(device))
        return;
    while ((arena = gs_next_arena(core, &core->device[device], arena)))
        add_arena(stats, arena);
    stats->reserved -= LOAD(core->sleep.pieces_away[device]);
    for (unsigned i = 0; i < GS_TOOK; i++)
        stats->took[i] = LOAD(core->figures.took[device][i]);
}

void gs_stats_read(struct gs_core *core, CUdevice device, struct gs_stats *ret_stats)
{
    GS_HOLDING(&core->lock);

    read_device_locked(core, device, ret_stats);
}

bool gs_stats_try_read(struct gs_core *core, CUdevice device, struct gs_stats *ret_stats)
{
    if (!gs_lock_try(&core->lock))
        return false;
    read_device_locked(core, device, ret_stats);
    gs_lock_release(&core->lock);
    return true;
}

#define SLOW 11 /* of GS_TOOK: from here on they took 1,024 us or more */

/* The last device that there is or was an arena of; -1: none. */
static int last_device(const struct gs_core *core)
{
    const struct gs_arena *arena = NULL;
    int last = -1;

    while ((arena = gs_next_arena(core, NULL, arena)))
        if (arena->device->ordinal > last)
            last = arena->device->ordinal;
    return last;
}

/* What other processes hold of freed memory is in limbo for whoever reads, though its block is
 * still retired: the GPU's work before its free is not over. The holders are told beside it. */
static void count_held(struct gs_core *core, struct gs_figures *figures)
{
    uint64_t held = gs_share_freed_held(core->share, figures->uuid);
    uint64_t more = held > figures->limbo ? held - figures->limbo : 0;

    more = more < figures->retired ? more : figures->retired;
    figures->limbo += more;
    figures->retired -= more;
}

bool gs_stats_tell(struct gs_core *core, unsigned device, struct gs_figures *ret_figures)
{
    const struct gs_arena_counts *counts;
    struct gs_stats stats;
    int last;
    GS_HOLDING(&core->lock); /* one that is being tried has no number and no UUID for a moment */

    last = last_device(core);
    if (last < 0 || device > (unsigned)last)
        return false;
    read_device_locked(core, (CUdevice)device, &stats);
    counts = &stats.counts;
    *ret_figures = (struct gs_figures){.reserved = stats.reserved,
                                       .live = stats.live,
                                       .cached = stats.cached,
                                       .retired = stats.retired,
                                       .ordered = stats.ordered,
                                       .limbo = stats.limbo,
                                       .reserved_peak = counts->reserved_peak,
                                       .live_peak = counts->live_peak,
                                       .hits = counts->hits,
                                       .misses = counts->misses,
                                       .grown = counts->grown,
                                       .trims = counts->trims,
                                       .waits = counts->waits,
                                       .late = counts->late,
                                       .wait_ns = counts->wait_ns,
                                       .map_ns = counts->map_ns,
                                       .refused = LOAD(core->figures.refused[device])};
    for (unsigned i = SLOW; i < GS_TOOK; i++)
        ret_figures->slow += stats.took[i];
    memcpy(ret_figures->uuid, core->device[device].uuid, sizeof ret_figures->uuid);
    count_held(core, ret_figures);
    return true;
}

static void log_device_locked(struct gs_core *core, CUdevice device)
{
    const struct gs_arena_counts *counts;
    struct gs_stats stats;

    read_device_locked(core, device, &stats);
    counts = &stats.counts;
    if (counts->hits + counts->misses == 0)
        return;
    gs_log_line(&core->options.log, GS_LOG_INFO,
                "device %d: %" PRIu64 " allocations from memory that was there, %" PRIu64
                " that had to look further; %" PRIu64 " pieces made and %" PRIu64
                " given back in %" PRIu64 " ms, %" PRIu64 " in the background; %" PRIu64
                " frees at once, %" PRIu64 " events, %" PRIu64 " waits (%" PRIu64 " ms, %" PRIu64
                " given up); MiB: peak %" PRIu64 " reserved for %" PRIu64 " live, now %zu "
                "reserved, %zu live, %zu cached, %zu retired, %zu ordered, %zu in limbo",
                (int)device, counts->hits, counts->misses, counts->grown, counts->trims,
                counts->map_ns / 1000000, counts->later, counts->at_once, counts->events,
                counts->waits, counts->wait_ns / 1000000, counts->late, MIB(counts->reserved_peak),
                MIB(counts->live_peak), MIB(stats.reserved), MIB(stats.live), MIB(stats.cached),
                MIB(stats.retired), MIB(stats.ordered), MIB(stats.limbo));
}

static void log_neighbours(struct gs_core *core)
{
    const struct gs_neighbour_counts *counts = &core->neighbour.counts;

    if (LOAD(counts->asked) + LOAD(counts->answered) == 0)
        return;
    gs_log_line(&core->options.log, GS_LOG_INFO,
                "other processes were asked for memory %" PRIu64 " times and gave %" PRIu64
                " MiB back; this one was asked %" PRIu64 " times and gave %" PRIu64 " MiB",
                LOAD(counts->asked), MIB(LOAD(counts->got)), LOAD(counts->answered),
                MIB(LOAD(counts->given)));
}

static void log_registrations(struct gs_core *core)
{
    struct gs_regcache_stats stats;

    if (!gs_regcache_try_stats(core->regcache, &stats) || stats.misses == 0)
        return;
    gs_log_line(&core->options.log, GS_LOG_INFO,
                "registrations: %" PRIu64 " found kept, %" PRIu64 " not; %" PRIu64
                " made in %" PRIu64 " ms, %" PRIu64 " undone in %" PRIu64 " ms: %" PRIu64
                " for others, %" PRIu64 " as their memory went, %" PRIu64 " merged; %" PRIu64
                " failed; now %" PRIu64 ", %" PRIu64 " in use, %" PRIu64 " MiB",
                stats.hits, stats.misses, stats.pins, stats.pin_ns / 1000000, stats.unpins,
                stats.unpin_ns / 1000000, stats.evictions, stats.invalidations, stats.merges,
                stats.failures, stats.entries, stats.in_use, MIB(stats.bytes));
}

void gs_stats_log(struct gs_core *core)
{
    log_neighbours(core);
    log_registrations(core);
    if (!gs_lock_try(&core->lock))
        return;
    for (CUdevice device = 0; device < GS_DEVICES_MAX; device++)
        log_device_locked(core, device);
    gs_lock_release(&core->lock);
}
