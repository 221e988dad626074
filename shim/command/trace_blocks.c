/* What became of each block and piece of a trace (trace_blocks.h). */
#include "shim/command/trace_blocks.h"

#include <search.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>

#include "shim/command/command.h"

/* Blocks, or pieces, by their address while they are there: open addressing, never full. Where an address
 * has its place depends on a number of this process, so that no file can have all in the same one. */
struct table {
    struct place {
        uint64_t address;
        size_t block; /* its place, and one; 0: free */
    } * places;
    size_t mask;
    uint64_t secret;
};

static size_t spread(const struct table *table, uint64_t number)
{
    number ^= table->secret;
    number = (number ^ number >> 33) * UINT64_C(0xff51afd7ed558ccd);
    number = (number ^ number >> 33) * UINT64_C(0xc4ceb9fe1a85ec53);
    return (size_t)(number ^ number >> 33) & table->mask;
}

static bool table_make(struct table *table, size_t most)
{
    size_t size = 64;

    while (size < most * 2)
        size *= 2;
    table->places = calloc(size, sizeof *table->places);
    table->mask = size - 1;
    memcpy(&table->secret, (const void *)getauxval(AT_RANDOM), sizeof table->secret);
    return table->places;
}

/* Where it is, or would be. */
static struct place *table_at(const struct table *table, uint64_t address)
{
    size_t at = spread(table, address);

    while (table->places[at].block && table->places[at].address != address)
        at = (at + 1) & table->mask;
    return &table->places[at];
}

/* Those behind it move up, so that they are found. */
static void table_remove(const struct table *table, struct place *place)
{
    size_t hole = (size_t)(place - table->places), at = hole;

    for (;;) {
        size_t home;

        at = (at + 1) & table->mask;
        if (!table->places[at].block)
            break;
        home = spread(table, table->places[at].address);
        if (((at - home) & table->mask) >= ((at - hole) & table->mask)) {
            table->places[hole] = table->places[at];
            hole = at;
        }
    }
    table->places[hole].block = 0;
}

/* ---- Following ------------------------------------------------------------------------------ */

struct follower {
    const struct trace *trace;
    struct trace_memory *memory;
    struct table blocks, pieces;
    void *there; /* pieces that are there, by their address: a tree (tsearch) */
    uint64_t live[256], reserved[256];
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

static void raise(uint64_t *most, uint64_t now)
{
    if (now > *most)
        *most = now;
}

/* The block that this event ends; NULL: none is known there. */
static struct trace_block *end_block(struct follower *follower, const struct table *table,
                                     struct trace_block *blocks, const struct trace_event *event,
                                     size_t at)
{
    struct place *place = table_at(table, event->address);
    struct trace_block *block = place->block ? &blocks[place->block - 1] : NULL;

    if (!block)
        return NULL;
    block->to = at;
    follower->memory->ends[at] = (uint32_t)place->block;
    table_remove(table, place);
    return block;
}

static void begin_block(struct follower *follower, const struct table *table,
                        struct trace_block *blocks, size_t *count, const struct trace_event *event,
                        size_t at)
{
    struct trace_block *block = &blocks[(*count)++];

    *block = (struct trace_block){.from = at,
                                  .to = TRACE_NEVER,
                                  .address = event->address,
                                  .size = event->size,
                                  .stack = stack_of(event),
                                  .device = event->device};
    *table_at(table, event->address) = (struct place){event->address, *count};
    follower->memory->begins[at] = (uint32_t)*count;
}

static int by_address(const void *a, const void *b)
{
    const struct trace_block *x = a, *y = b;

    return x->address < y->address ? -1 : x->address > y->address;
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

/* It lies in the last of the pieces that begin at or below it, if at all. */
static void place_in_piece(const struct follower *follower, struct trace_block *block)
{
    struct point point = {.address = block->address};
    const struct trace_block *piece;

    tfind(&point, &follower->there, by_point);
    piece = point.below;
    if (piece && piece->device == block->device && block->size <= piece->size &&
        block->address - piece->address <= piece->size - block->size)
        block->piece = (uint32_t)(piece - follower->memory->pieces) + 1;
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
    place_in_piece(follower, &memory->blocks[memory->block_count - 1]);
    follower->live[event->device] += event->size;
    if (follower->live[event->device] > sums->live_peak) {
        sums->live_peak = follower->live[event->device];
        sums->live_peak_at = at;
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

/* False: there is too little memory. */
static bool follow_piece(struct follower *follower, const struct trace_event *event, size_t at)
{
    struct trace_memory *memory = follower->memory;
    struct trace_block *gone;

    if (!trace_did(event))
        return true;
    gone = end_block(follower, &follower->pieces, memory->pieces, event, at);
    if (gone) {
        follower->reserved[gone->device] -= gone->size;
        tdelete(gone, &follower->there, by_address);
    }
    if (event->op == GS_TRACE_PIECE_GONE)
        return true;
    begin_block(follower, &follower->pieces, memory->pieces, &memory->piece_count, event, at);
    follower->reserved[event->device] += event->size;
    raise(&memory->devices[event->device].reserved_peak, follower->reserved[event->device]);
    return tsearch(&memory->pieces[memory->piece_count - 1], &follower->there, by_address);
}

static bool follow(struct follower *follower, const struct trace_event *event, size_t at)
{
    struct trace_memory *memory = follower->memory;
    struct trace_device_sums *sums = &memory->devices[event->device];

    if (trace_is_alloc(event) || trace_is_free(event))
        memory->sums.in_calls_ns += event->took_ns;
    if (trace_is_alloc(event))
        follow_alloc(follower, event, at);
    else if (trace_is_free(event))
        follow_free(follower, event, at);
    else if (event->op == GS_TRACE_PIECE_MADE || event->op == GS_TRACE_PIECE_GONE)
        return follow_piece(follower, event, at);
    else if (event->op == GS_TRACE_FIGURES) {
        raise(&sums->cached_peak, event->figures.cached);
        raise(&sums->retired_peak, event->figures.retired);
        raise(&sums->limbo_peak, event->figures.limbo);
    }
    memory->sums.exported += event->op == GS_TRACE_EXPORTED && trace_did(event);
    memory->sums.opened += event->op == GS_TRACE_OPENED && trace_did(event);
    return true;
}

static void sum_what_is_left(struct trace_memory *memory)
{
    for (size_t i = 0; i < memory->block_count; i++)
        if (memory->blocks[i].to == TRACE_NEVER) {
            memory->devices[memory->blocks[i].device].never_freed++;
            memory->devices[memory->blocks[i].device].live_end += memory->blocks[i].size;
        }
}

static bool no_memory(void)
{
    command_complain("the trace is too large for the memory of this machine; look at it on a "
                     "larger one");
    return false;
}

/* The tree's own nodes go; what they are of stays. */
static void keep(void *piece)
{
}

bool trace_follow(const struct trace *trace, struct trace_memory *ret_memory)
{
    struct follower follower = {.trace = trace, .memory = ret_memory};
    size_t blocks = 0, pieces = 0;
    bool room;

    memset(ret_memory, 0, sizeof *ret_memory);
    for (size_t i = 0; i < trace->count; i++) {
        blocks += trace_is_alloc(&trace->events[i]);
        pieces += trace->events[i].op == GS_TRACE_PIECE_MADE;
    }
    for (unsigned i = 0; i < 256; i++)
        ret_memory->devices[i].live_peak_at = TRACE_NEVER;
    ret_memory->blocks = malloc((blocks + 1) * sizeof *ret_memory->blocks);
    ret_memory->pieces = malloc((pieces + 1) * sizeof *ret_memory->pieces);
    ret_memory->begins = calloc(trace->count + 1, sizeof *ret_memory->begins);
    ret_memory->ends = calloc(trace->count + 1, sizeof *ret_memory->ends);
    room = trace->count < UINT32_MAX && ret_memory->begins && ret_memory->ends &&
           table_make(&follower.blocks, blocks) && table_make(&follower.pieces, pieces) &&
           ret_memory->blocks && ret_memory->pieces;
    for (size_t i = 0; room && i < trace->count; i++)
        room = follow(&follower, &trace->events[i], i);
    free(follower.blocks.places);
    free(follower.pieces.places);
    tdestroy(follower.there, keep);
    if (room)
        sum_what_is_left(ret_memory);
    else
        trace_memory_free(ret_memory);
    return room || no_memory();
}

void trace_memory_free(struct trace_memory *memory)
{
    free(memory->blocks);
    free(memory->pieces);
    free(memory->begins);
    free(memory->ends);
    memset(memory, 0, sizeof *memory);
}

const struct trace_block *trace_piece_of(const struct trace_memory *memory,
                                         const struct trace_block *block)
{
    const struct trace_block *piece = block->piece ? &memory->pieces[block->piece - 1] : NULL;

    return piece && piece->to >= block->to ? piece : NULL;
}

/* ---- Holders -------------------------------------------------------------------------------- */

bool trace_is_there(const struct trace_block *block, size_t event)
{
    return block->from <= event && block->to > event;
}

/* Largest first; of equal ones who came first, so that the order is the same each time. */
static int by_bytes(const void *a, const void *b)
{
    const struct trace_holder *x = a, *y = b;

    if (x->bytes != y->bytes)
        return x->bytes > y->bytes ? -1 : 1;
    return x->first < y->first ? -1 : x->first > y->first;
}

struct trace_holder *trace_holders(const struct trace_memory *memory, unsigned device, size_t event,
                                   size_t *ret_count)
{
    struct trace_holder *holders;
    struct table table;
    size_t count = 0, blocks = 0;

    *ret_count = 0;
    for (size_t i = 0; i < memory->block_count; i++)
        blocks += memory->blocks[i].device == device && trace_is_there(&memory->blocks[i], event);
    holders = malloc((blocks + 1) * sizeof *holders);
    if (!table_make(&table, blocks) || !holders) {
        free(table.places);
        free(holders);
        no_memory();
        return NULL;
    }
    for (size_t i = 0; i < memory->block_count; i++) {
        const struct trace_block *block = &memory->blocks[i];
        uint64_t key = block->stack ? block->stack : block->size ^ UINT64_C(1) << 63;
        struct place *place;

        if (block->device != device || !trace_is_there(block, event))
            continue;
        place = table_at(&table, key);
        if (!place->block) {
            holders[count++] = (struct trace_holder){.first = i};
            *place = (struct place){key, count};
        }
        holders[place->block - 1].bytes += block->size;
        holders[place->block - 1].count++;
        holders[place->block - 1].last = i;
    }
    free(table.places);
    qsort(holders, count, sizeof *holders, by_bytes);
    *ret_count = count;
    return holders;
}
