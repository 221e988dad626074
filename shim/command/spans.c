/*
 * Ranges by address (spans.h). Their starts and ends cut all addresses into cells, each of which is one
 * range's or nobody's. The last range takes its cells first, and the others what is left: a cell that
 * is taken leads to the next that may be free, so that none is passed twice.
 */
#include "shim/command/spans.h"

#include <stdlib.h>

#include "shim/command/command.h"

struct spans_cell {
    uint64_t from;
    uint32_t what, next; /* itself: the cell is free */
    bool any;
};

static int by_from(const void *a, const void *b)
{
    const struct spans_cell *x = a, *y = b;

    return x->from < y->from ? -1 : x->from > y->from;
}

/* How many cells begin at or below the address. */
static size_t up_to(const struct spans *spans, uint64_t address)
{
    size_t low = 0, high = spans->count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (spans->cells[middle].from <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static uint32_t next_free(struct spans_cell *cells, uint32_t at)
{
    while (cells[at].next != at) {
        cells[at].next = cells[cells[at].next].next;
        at = cells[at].next;
    }
    return at;
}

static void cut(struct spans *spans, const struct span *all, size_t count)
{
    size_t bounds = 0, cells = 0;

    for (size_t i = 0; i < count; i++) {
        spans->cells[bounds++].from = all[i].start;
        spans->cells[bounds++].from = all[i].end;
    }
    if (bounds > 0)
        qsort(spans->cells, bounds, sizeof *spans->cells, by_from);
    for (size_t i = 0; i < bounds; i++) {
        struct spans_cell cell = {.from = spans->cells[i].from, .next = (uint32_t)cells};

        if (i == 0 || cell.from != spans->cells[cells - 1].from)
            spans->cells[cells++] = cell;
    }
    spans->count = cells;
}

static void take(struct spans *spans, const struct span *span)
{
    uint32_t at, end;

    if (span->start >= span->end)
        return;
    at = next_free(spans->cells, (uint32_t)up_to(spans, span->start) - 1);
    end = (uint32_t)up_to(spans, span->end) - 1;
    for (; at < end; at = next_free(spans->cells, at)) {
        spans->cells[at].what = span->what;
        spans->cells[at].any = true;
        spans->cells[at].next = at + 1;
    }
}

void spans_make(struct spans *ret_spans, const struct span *all, size_t count)
{
    *ret_spans = (struct spans){.cells = command_need(malloc((2 * count + 1) * sizeof *ret_spans->cells))};
    cut(ret_spans, all, count);
    for (size_t i = count; i-- > 0;)
        take(ret_spans, &all[i]);
}

void spans_free(struct spans *spans)
{
    free(spans->cells);
    *spans = (struct spans){0};
}

bool spans_find(const struct spans *spans, uint64_t address, uint32_t *ret_what)
{
    size_t above = up_to(spans, address);

    if (above == 0 || !spans->cells[above - 1].any)
        return false;
    *ret_what = spans->cells[above - 1].what;
    return true;
}
