/* What goes off the GPU, and what of it is live (core/process/sleep_parts.h). */
#include "core/process/sleep_parts.h"

#include <stdlib.h>

#include "core/share/let_go.h"

#define GAP_COPIED ((size_t)64 << 10) /* two live ranges so near are copied as one */

void gs_sleep_stays(struct gs_core *core, enum gs_stays why, size_t size)
{
    __atomic_add_fetch(&core->sleep.figures.stays[why], size, __ATOMIC_RELAXED);
}

struct gs_away *gs_sleep_add(struct gs_sleep *sleep, size_t places, size_t ranges)
{
    struct gs_away *away =
        calloc(1, sizeof *away + places * sizeof *away->place + ranges * sizeof *away->range);

    if (!away)
        return NULL;
    away->place = (struct gs_away_place *)(away + 1);
    away->range = (struct gs_away_range *)(away->place + places);
    DL_APPEND(sleep->pieces, away);
    return away;
}

/* Whether a block's contents are anybody's. What retires still, though the GPU is done, is kept
 * too. */
static bool has_contents(const struct gs_block *block)
{
    return block->state == GS_BLOCK_LIVE || block->state == GS_BLOCK_RETIRED ||
           block->state == GS_BLOCK_HELD;
}

/* There is room for it. */
static void add_range(struct gs_away *away, uint64_t from, uint64_t to)
{
    struct gs_away_range *last = away->ranges ? &away->range[away->ranges - 1] : NULL;

    if (last && from - (last->address + last->size) <= GAP_COPIED)
        last->size = to - last->address;
    else
        away->range[away->ranges++] = (struct gs_away_range){.address = from, .size = to - from};
}

/* The blocks below `end` that have a handle can be had again. */
static void exports_wake_locked(struct gs_core *core, const struct gs_piece *piece, uint64_t end)
{
    for (struct gs_block *block = gs_piece_first_locked(piece); block && block->base < end;
         block = block->above)
        if (block->export)
            gs_share_export_wakes(core->share, block->export, piece->handle);
}

/* Whether nobody has the piece, nor is given it from now on: then its blocks keep their handles and
 * leases. */
static bool exports_sleep_locked(struct gs_core *core, const struct gs_piece *piece, bool *ret_any)
{
    const uint64_t end = gs_piece_end(piece);

    *ret_any = false;
    for (struct gs_block *block = gs_piece_first_locked(piece); block && block->base < end;
         block = block->above) {
        if (block->export ? !gs_share_export_sleeps(core->share, block->export)
                          : block->state == GS_BLOCK_HELD) {
            exports_wake_locked(core, piece, block->base);
            return false;
        }
        *ret_any |= block->export != NULL;
    }
    return true;
}

/* The reason why a piece stays, or GS_STAYS_REASONS: then nobody is given any of it. */
static enum gs_stays stays_locked(struct gs_core *core, const struct gs_piece *piece,
                                  bool *ret_exports)
{
    if (piece->arena->dead || piece->arena->leaving)
        return GS_STAYS_ENDING;
    if (gs_regcache_in_use(core->regcache, piece->span.base, piece->span.size))
        return GS_STAYS_REGISTERED;
    return piece->lent || !exports_sleep_locked(core, piece, ret_exports) ? GS_STAYS_SHARED
                                                                          : GS_STAYS_REASONS;
}

static size_t count_blocks_locked(const struct gs_piece *piece)
{
    size_t count = 0;

    for (const struct gs_block *block = gs_piece_first_locked(piece);
         block && block->base < gs_piece_end(piece); block = block->above)
        count++;
    return count;
}

/* A piece that goes, and what of it is live. False: no host memory. */
static bool add_piece_locked(struct gs_core *core, struct gs_piece *piece, bool exports)
{
    const uint64_t end = gs_piece_end(piece);
    const uint64_t access = piece->peer_access | UINT64_C(1) << piece->device;
    struct gs_away *away = gs_sleep_add(&core->sleep, 1, count_blocks_locked(piece));

    if (!away) {
        exports_wake_locked(core, piece, end);
        return false;
    }
    away->piece = piece;
    away->exports = exports;
    away->device = piece->device;
    away->size = piece->span.size;
    away->context = piece->arena->context;
    away->handle = piece->handle;
    away->references = 1;
    away->made = true;
    for (const struct gs_block *block = gs_piece_first_locked(piece); block && block->base < end;
         block = block->above)
        if (has_contents(block) && !gs_sleep_discards(&core->sleep, piece->arena->tag))
            add_range(away, block->base > piece->span.base ? block->base : piece->span.base,
                      gs_block_end(block) < end ? gs_block_end(block) : end);
    away->place[away->places++] = (struct gs_away_place){.base = piece->span.base,
                                                         .size = piece->span.size,
                                                         .reads = access,
                                                         .writes = access,
                                                         .mapped = true};
    piece->asleep = true;
    return true;
}

static bool add_region_locked(struct gs_core *core, struct gs_region *region)
{
    for (struct gs_piece *piece = region->lowest; piece; piece = piece->next) {
        enum gs_stays stays;
        bool exports;

        if (!piece->mapped)
            continue;
        stays = stays_locked(core, piece, &exports);
        if (stays != GS_STAYS_REASONS)
            gs_sleep_stays(core, stays, piece->span.size);
        else if (!add_piece_locked(core, piece, exports))
            return false;
    }
    return true;
}

static bool add_all(struct gs_core *core)
{
    struct gs_arena *arena = NULL;
    bool added = true;

    while ((arena = gs_next_locked(core, NULL, arena, false)))
        added = added && add_region_locked(core, &arena->small) &&
                add_region_locked(core, &arena->large);
    return added;
}

/* It goes no more. */
static void give_back(struct gs_core *core, struct gs_away *away)
{
    struct gs_piece *piece = away->piece;

    if (!piece) {
        gs_sleep_own_back(core, away);
        return;
    }
    GS_HOLDING_LATCH(&piece->arena->lock);
    piece->asleep = false;
    exports_wake_locked(core, piece, gs_piece_end(piece));
}

void gs_sleep_keep(struct gs_core *core, struct gs_away *away, enum gs_stays why)
{
    give_back(core, away);
    gs_sleep_stays(core, why, away->size);
    DL_DELETE(core->sleep.pieces, away);
    free(away);
}

static bool end_registrations(struct gs_core *core, const struct gs_away *away)
{
    bool ended = true;

    for (size_t k = 0; ended && k < away->places; k++)
        ended = gs_regcache_drain(core->regcache, away->place[k].base, away->place[k].size);
    return ended;
}

/* What is kept of registrations ends, and of descriptors for others. */
static void end_uses(struct gs_core *core)
{
    struct gs_away *away, *next;

    DL_FOREACH_SAFE(core->sleep.pieces, away, next) {
        if (!end_registrations(core, away))
            gs_sleep_keep(core, away, GS_STAYS_REGISTERED);
        else if (away->piece)
            gs_share_chunk_gone(core->share, away->piece->id);
    }
}

/* Where each range is in the store; its size. */
static size_t place_ranges(struct gs_sleep *sleep)
{
    struct gs_away *away;
    size_t size = 0;

    DL_FOREACH(sleep->pieces, away)
        for (size_t k = 0; k < away->ranges; k++) {
            away->range[k].offset = size;
            size += away->range[k].size;
        }
    return size;
}

bool gs_sleep_plan(struct gs_core *core, size_t *ret_size)
{
    struct gs_sleep *sleep = &core->sleep;

    if (!add_all(core) || !gs_sleep_plan_own(core))
        return false;
    end_uses(core);
    *ret_size = place_ranges(sleep);
    return true;
}

void gs_sleep_plan_none(struct gs_core *core)
{
    struct gs_sleep *sleep = &core->sleep;
    struct gs_away *away, *next;

    DL_FOREACH_SAFE(sleep->pieces, away, next) {
        give_back(core, away);
        free(away);
    }
    sleep->pieces = NULL;
    __atomic_store_n(&sleep->figures.copied, 0, __ATOMIC_RELAXED);
    for (int i = 0; i < GS_STAYS_REASONS; i++)
        __atomic_store_n(&sleep->figures.stays[i], 0, __ATOMIC_RELAXED);
}
