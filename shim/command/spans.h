/*
 * Which of many ranges an address lies in, which may overlap however they like: made in n log n, found
 * in log n.
 */
#ifndef GS_SHIM_COMMAND_SPANS_H
#define GS_SHIM_COMMAND_SPANS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct span {
    uint64_t start, end;
    uint32_t what;
};

struct spans { /* zeroed: none */
    struct spans_cell *cells;
    size_t count;
};

/* Where several have an address, the last of them counts. There are a billion at most. */
void spans_make(struct spans *ret_spans, const struct span *all, size_t count);
void spans_free(struct spans *spans);
/* False: none has it. */
bool spans_find(const struct spans *spans, uint64_t address, uint32_t *ret_what);

#endif
