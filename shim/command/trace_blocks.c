/* What became of each block and piece of a trace (trace_read.h). */
#include "shim/command/trace_read.h"

#include <search.h>

#include "shim/command/command.h"

struct follower {
    struct trace_memory *memory;
    void *blocks, *pieces; /* those that are there, by their address: trees (tsearch) */
    uint64_t live[TRACE_DEVICES], reserved[TRACE_DEVICES];
};

static uint64_t stack_of(const struct trace_event *event)
{
    uint64_t stack = 0;

    for (unsigned i = 0; i < event->frame_count; i++) {
        stack = (stack ^ trace_frame(event, i)) * UINT64_C(0x9e3779b97f4a7c15);
        stack ^= stack >> 32;
    }
    return event->frame_count && !stack ? 1 : stack;
}

/* It is no less from now on. */
static void raise_to(uint64_t *most, uint64_t now)
{
    if (now > *most)
        *most = now;
}

static int by_address(const void *a, const void *b)
{
    const struct trace_block *x = a, *y = b;

    return COMMAND_ORDER(x->address, y->address);
}

/* The block that this event ends; NULL: none is known there. */
static struct trace_block *end_block(struct follower *follower, void **there,
                                     const struct trace_block *blocks,
                                     const struct trace_event *event, size_t at)
{
    const struct trace_block like = {.address = event->address};
    struct trace_block *const *found = tfind(&like, there, by_address);
    struct trace_block *block = found ? *found : NULL;

    if (!block)
        return NULL;
    tdelete(block, there, by_address);
    block->to = at;
    follower->memory->ends[at] = (uint32_t)(block - blocks) + 1;
    return block;
}

static void begin_block(struct follower *follower, void **there, struct trace_block *blocks,
                        size_t *count, const struct trace_event *event, size_t at)
{
    struct trace_block *block = &blocks[(*count)++];

    *block = (struct trace_block){.from = at,
                                  .to = TRACE_NEVER,
                                  .address = event->address,
                                  .size = event->size,
                                  .stack = stack_of(event),
                                  .device = event->device};
    follower->memory->begins[at] = (uint32_t)*count;
    command_need(tsearch(block, there, by_address));
}

struct point {
    uint64_t address;
    const struct trace_block *below; /* the last piece passed that does not begin beyond it */
};

static int by_point(const void *point_, const void *piece_)
{
    struct point *point = (struct point *)(uintptr_t)point_;
    const struct trace_block *piece = piece_;

    if (point->address < piece->address)
        return -1;
    point->below = piece;
    return point->address > piece->address;
}

static bool is_in_a_piece(const struct follower *follower, uint64_t address, unsigned device)
{
    struct point point = {.address = address};

    tfind(&point, &follower->pieces, by_point);
    return point.below && point.below->device == device &&
           address - point.below->address < point.below->size;
}

/* A block may lie in several pieces, side by side: both of its ends tell. */
static bool is_in_pieces(const struct follower *follower, const struct trace_block *block)
{
    return is_in_a_piece(follower, block->address, block->device) &&
           is_in_a_piece(follower, block->address + block->size - 1, block->device);
}

static void follow_alloc(struct follower *follower, const struct trace_event *event, size_t at)
{
    struct trace_memory *memory = follower->memory;
    struct trace_device_sums *sums = &memory->devices[event->device];
    struct trace_block *gone;

    if (!trace_did(event)) {
        memory->sums.refused++, sums->refused++;
        return;
    }
    memory->sums.allocations++, sums->allocations++;
    sums->bytes += event->size;
    gone = end_block(follower, &follower->blocks, memory->blocks, event, at);
    if (gone) {
        memory->sums.replaced++;
        follower->live[gone->device] -= gone->size;
    }
    begin_block(follower, &follower->blocks, memory->blocks, &memory->block_count, event, at);
    memory->blocks[memory->block_count - 1].is_in_pieces =
        is_in_pieces(follower, &memory->blocks[memory->block_count - 1]);
    follower->live[event->device] += event->size;
    if (follower->live[event->device] > sums->live_peak) {
        sums->live_peak = follower->live[event->device];
        sums->live_peak_at = at;
        sums->live_peak_ns = event->at_ns;
    }
}

static void follow_free(struct follower *follower, const struct trace_event *event, size_t at)
{
    struct trace_memory *memory = follower->memory;
    struct trace_block *block;

    if (!trace_did(event)) {
        memory->sums.failed_frees++;
        return;
    }
    memory->sums.frees++, memory->devices[event->device].frees++;
    block = end_block(follower, &follower->blocks, memory->blocks, event, at);
    if (block)
        follower->live[block->device] -= block->size;
    else if (event->address)
        memory->sums.unknown_frees++;
}

static void follow_piece(struct follower *follower, const struct trace_event *event, size_t at)
{
    struct trace_memory *memory = follower->memory;
    struct trace_block *gone;

    if (!trace_did(event))
        return;
    gone = end_block(follower, &follower->pieces, memory->pieces, event, at);
    if (gone)
        follower->reserved[gone->device] -= gone->size;
    if (event->op == GS_TRACE_PIECE_GONE)
        return;
    follower->reserved[event->device] += event->size;
    raise_to(&memory->devices[event->device].reserved_peak, follower->reserved[event->device]);
    begin_block(follower, &follower->pieces, memory->pieces, &memory->piece_count, event, at);
}

static void follow(struct follower *follower, const struct trace_event *event, size_t at)
{
    struct trace_memory *memory = follower->memory;
    struct trace_device_sums *sums = &memory->devices[event->device];

    if (trace_is_alloc(event) || trace_is_free(event))
        memory->sums.in_calls_ns += event->took_ns;
    memory->sums.exported += event->op == GS_TRACE_EXPORTED && trace_did(event);
    memory->sums.opened += event->op == GS_TRACE_OPENED && trace_did(event);
    if (trace_is_alloc(event))
        follow_alloc(follower, event, at);
    else if (trace_is_free(event))
        follow_free(follower, event, at);
    else if (event->op == GS_TRACE_PIECE_MADE || event->op == GS_TRACE_PIECE_GONE)
        follow_piece(follower, event, at);
    else if (event->op == GS_TRACE_FIGURES) {
        raise_to(&sums->cached_peak, event->figures.cached);
        raise_to(&sums->retired_peak, event->figures.retired);
        raise_to(&sums->limbo_peak, event->figures.limbo);
    }
}

static void sum_what_is_left(struct trace_memory *memory)
{
    for (size_t i = 0; i < memory->block_count; i++)
        if (memory->blocks[i].to == TRACE_NEVER) {
            memory->devices[memory->blocks[i].device].never_freed++;
            memory->devices[memory->blocks[i].device].live_end += memory->blocks[i].size;
        }
}

void trace_follow(const struct trace *trace, struct trace_memory *ret_memory)
{
    struct follower follower = {.memory = ret_memory};
    size_t blocks = 0, pieces = 0;

    *ret_memory = (struct trace_memory){.trace = trace};
    for (size_t i = 0; i < trace->count; i++) {
        blocks += trace_is_alloc(&trace->events[i]);
        pieces += trace->events[i].op == GS_TRACE_PIECE_MADE;
    }
    for (unsigned i = 0; i < TRACE_DEVICES; i++)
        ret_memory->devices[i].live_peak_at = TRACE_NEVER;
    ret_memory->blocks = command_need(malloc((blocks + 1) * sizeof *ret_memory->blocks));
    ret_memory->pieces = command_need(malloc((pieces + 1) * sizeof *ret_memory->pieces));
    ret_memory->begins = command_need(calloc(trace->count + 1, sizeof *ret_memory->begins));
    ret_memory->ends = command_need(calloc(trace->count + 1, sizeof *ret_memory->ends));
    for (size_t i = 0; i < trace->count; i++)
        follow(&follower, &trace->events[i], i);
    tdestroy(follower.blocks, trace_keep);
    tdestroy(follower.pieces, trace_keep);
    sum_what_is_left(ret_memory);
}

void trace_memory_free(struct trace_memory *memory)
{
    free(memory->blocks);
    free(memory->pieces);
    free(memory->begins);
    free(memory->ends);
}

/* ---- Holders -------------------------------------------------------------------------------- */

/* From this event on. */
static bool is_there(const struct trace_block *block, size_t event)
{
    return block->from <= event && block->to > event;
}

/* Largest first; of equal ones who came first, so that the order is the same each time. */
static int by_bytes(const void *a, const void *b)
{
    const struct trace_holder *x = a, *y = b;

    return COMMAND_ORDER(y->bytes, x->bytes)
               ?: COMMAND_ORDER(x->first, y->first); /* as they took effect */
}

static int by_key(const void *a, const void *b)
{
    const struct trace_holder *x = a, *y = b;

    return COMMAND_ORDER(x->key, y->key);
}

struct trace_holder *trace_holders(const struct trace_memory *memory, unsigned device, size_t event,
                                   size_t *ret_count)
{
    struct trace_holder *holders;
    void *tree = NULL;
    size_t count = 0, blocks = 0;

    *ret_count = 0;
    for (size_t i = 0; i < memory->block_count; i++)
        blocks += memory->blocks[i].device == device && is_there(&memory->blocks[i], event);
    holders = command_need(malloc((blocks + 1) * sizeof *holders));
    for (size_t i = 0; i < memory->block_count; i++) {
        const struct trace_block *block = &memory->blocks[i];
        const struct trace_event *made = &memory->trace->events[block->from];
        struct trace_holder *const *found;

        if (block->device != device || !is_there(block, event))
            continue;
        holders[count] =
            (struct trace_holder){.key =
                                      block->stack ? block->stack : block->size ^ UINT64_C(1) << 63,
                                  .first = made};
        found = command_need(tsearch(&holders[count], &tree, by_key));
        count += *found == &holders[count]; /* it is the first of its */
        (*found)->bytes += block->size;
        (*found)->count++;
        (*found)->last = made;
    }
    tdestroy(tree, trace_keep);
    qsort(holders, count, sizeof *holders, by_bytes);
    *ret_count = count;
    return holders;
}
