/*
 * Cutting a segment into blocks: spans in the order of their addresses, first fit, neighbours that
 * are free are one. A span freed in a stream's order is free for that stream at once and for all
 * when the free's place in the stream is reached.
 */
#include "internal.h"

struct sd_piece *sd_piece_new(struct sd_segment *segment)
{
    struct sd_piece *piece = calloc(1, sizeof *piece);
    struct sd_span *span = calloc(1, sizeof *span);

    if (!piece || !span) {
        free(piece);
        free(span);
        return NULL;
    }
    span->base = segment->base;
    span->size = segment->size;
    piece->segment = segment;
    piece->spans = span;
    return piece;
}

void sd_piece_free(struct sd_piece *piece)
{
    for (struct sd_span *span = piece->spans, *next; span; span = next) {
        next = span->next;
        sd_op_unref(span->freed_by);
        free(span);
    }
    free(piece);
}

static bool span_clean(struct sd_span *span)
{
    if (span->freed_by && span->freed_by->done) {
        sd_op_unref(span->freed_by);
        span->freed_by = NULL;
        span->freed_in = 0;
    }
    return !span->used && !span->freed_by;
}

static void settle(struct sd_piece *piece)
{
    for (struct sd_span *span = piece->spans; span; span = span->next) {
        bool clean = span_clean(span);
        while (clean && span->next && span_clean(span->next)) {
            struct sd_span *next = span->next;
            span->size += next->size;
            span->next = next->next;
            free(next);
        }
    }
}

/* What is left over behind the first `size` bytes is a span of its own, in the same state. */
static bool split(struct sd_span *span, size_t size)
{
    struct sd_span *rest;

    if (span->size == size)
        return true;
    rest = malloc(sizeof *rest);
    if (!rest)
        return false;
    *rest = *span;
    rest->base += size;
    rest->size -= size;
    if (rest->freed_by)
        sd_op_ref(rest->freed_by);
    span->next = rest;
    span->size = size;
    return true;
}

static bool free_for(const struct sd_span *span, const struct sd_queue *queue, bool behind)
{
    return !span->used && (!span->freed_by || behind || (queue && span->freed_in == queue->id));
}

/* From the span on: with `behind` also what lies beside it, else it alone. */
static size_t free_bytes(const struct sd_span *span, size_t size, const struct sd_queue *queue,
                         bool behind)
{
    size_t bytes = 0;

    for (; span && bytes < size && free_for(span, queue, behind); span = span->next) {
        bytes += span->size;
        if (!behind)
            break;
    }
    return bytes;
}

/* The span gets the next one, which is free as well. */
static void join_next(struct sd_span *span, struct sd_op *behind)
{
    struct sd_span *next = span->next;

    sd_op_after(behind, next->freed_by);
    sd_op_unref(next->freed_by);
    span->size += next->size;
    span->next = next->next;
    free(next);
}

/* The last span is cut before it is joined: its rest stays as it was. */
static bool gather(struct sd_span *span, size_t size, struct sd_op *behind)
{
    while (span->size < size) {
        if (span->next->size > size - span->size && !split(span->next, size - span->size))
            abort(); /* as in sd_op_after */
        join_next(span, behind);
    }
    return split(span, size);
}

uint64_t sd_piece_take(struct sd_piece *piece, size_t size, const struct sd_queue *queue,
                       struct sd_op *behind)
{
    if (size > piece->segment->size)
        return 0; /* rounded up it may be nothing */
    settle(piece);
    size = sd_round_up(size, SD_BLOCK_ALIGN);
    for (struct sd_span *span = piece->spans; span; span = span->next) {
        if (free_bytes(span, size, queue, behind != NULL) < size || !gather(span, size, behind))
            continue;
        if (behind)
            sd_op_after(behind, span->freed_by);
        sd_op_unref(span->freed_by);
        span->freed_by = NULL;
        span->freed_in = 0;
        span->used = true;
        return span->base;
    }
    return 0;
}

void sd_piece_give(struct sd_piece *piece, uint64_t base, struct sd_op *after,
                   const struct sd_queue *queue)
{
    struct sd_span *span = piece->spans;

    while (span->base != base)
        span = span->next;
    span->used = false;
    if (after && !after->done) {
        span->freed_by = sd_op_ref(after);
        span->freed_in = queue ? queue->id : 0;
    }
}

bool sd_piece_empty(struct sd_piece *piece)
{
    settle(piece);
    return !piece->spans->next && !piece->spans->used && !piece->spans->freed_by;
}
