/*
 * A libgdrapi.so.2 without its kernel driver: pins are counted, refused across allocations of the
 * GPU's, and looked at when they end, whether their memory went before. Mapping one gives its own
 * address, as the memory is the host's here.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "pages.h"
#include "pin_counts.h"

#define EXPORT   __attribute__((visibility("default")))
#define GPU_PAGE ((uint64_t)64 << 10)

struct gdr {
    int pins;
};

struct pin {
    struct gdr *g;
    uint64_t base;
    size_t size;
    struct pages pages;
};

typedef struct {
    unsigned long h;
} handle_t;

static struct pin_counts counts;

EXPORT void gdr_stand_in_counts(struct pin_counts *ret_counts)
{
    *ret_counts = counts;
}

EXPORT struct gdr *gdr_open(void)
{
    return calloc(1, sizeof(struct gdr));
}

EXPORT int gdr_pin_buffer_v2(struct gdr *g, unsigned long addr, size_t size, uint32_t flags,
                             handle_t *handle)
{
    struct pin *pin = calloc(1, sizeof *pin);

    if (!size || !pages_behind(addr, size, &pin->pages) || !one_allocation(&pin->pages)) {
        free(pin);
        return EINVAL;
    }
    pin->g = g;
    pin->base = addr & ~(GPU_PAGE - 1);
    pin->size = size;
    pages_behind(pin->base, size, &pin->pages);
    g->pins++;
    counts.pinned++;
    counts.live++;
    handle->h = (unsigned long)(uintptr_t)pin;
    return 0;
}

EXPORT int gdr_pin_buffer(struct gdr *g, unsigned long addr, size_t size, uint64_t token,
                          uint32_t va_space, handle_t *handle)
{
    return gdr_pin_buffer_v2(g, addr, size, 0, handle);
}

EXPORT int gdr_unpin_buffer(struct gdr *g, handle_t handle)
{
    struct pin *pin = (struct pin *)(uintptr_t)handle.h;
    struct pages now;

    if (!pages_behind(pin->base, pin->size, &now) || memcmp(&now, &pin->pages, sizeof now) != 0)
        counts.wrong++;
    if (pin->g != g)
        counts.wrong++;
    g->pins--;
    counts.live--;
    free(pin);
    return 0;
}

EXPORT int gdr_map(struct gdr *g, handle_t handle, void **va, size_t size)
{
    *va = (void *)(uintptr_t)((struct pin *)(uintptr_t)handle.h)->base;
    return 0;
}

EXPORT int gdr_unmap(struct gdr *g, handle_t handle, void *va, size_t size)
{
    return 0;
}

EXPORT int gdr_close(struct gdr *g)
{
    counts.live -= (unsigned long)g->pins; /* it unpins what is left */
    counts.left_to_close += (unsigned long)g->pins;
    free(g);
    return 0;
}
