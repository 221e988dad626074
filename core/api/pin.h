/* Registering GPU memory with a device, whosever memory it is. */
#ifndef GS_CORE_API_PIN_H
#define GS_CORE_API_PIN_H

#include "core/api/core.h"

struct gs_pin {
    struct gs_reg_key key;
    uint64_t base;
    size_t size; /* bytes */
    bool keep;   /* it may outlive its use */
    bool exact;  /* the device's answer tells the range, so it has to be this one */
    void *arg;   /* for the backend's pin function */
};

/*
 * A registration of the range, kept or new, in use until gs_regcache_release. Memory of the arena
 * is registered in whole 64 KiB, and a small piece as a whole, unless the range is to be exact.
 *
 * GS_NOT_OURS: no GPU memory, nothing was done. GS_NOT_LIVE: memory that the program has freed or
 * closed, or more than the pages of one allocation. GS_INVALID: more than one opened block.
 * GS_NO_HOST_MEMORY. Another status is the backend's errno value.
 */
gs_status gs_core_pin(struct gs_core *core, const struct gs_pin *pin, struct gs_reg **ret_reg);

/* Enters a registration in use that its user has moved to another range; as gs_core_pin, and
 * nothing is pinned. GS_NOT_OURS: it is of no GPU memory now, and forgotten. */
gs_status gs_core_repin(struct gs_core *core, struct gs_reg *reg, const struct gs_pin *pin);

/* Whether a range that is to be pinned lies in several of the driver's allocations: most devices'
 * drivers take one at a time, and refuse it. */
bool gs_core_pin_crosses(struct gs_core *core, uint64_t base, size_t size);
/* A dma-buf of it, which is the caller's, and where the range begins in it; -1: there is none.
 * `live` is an address in the live block that it is pinned for. */
int gs_core_pin_dmabuf(struct gs_core *core, uint64_t live, uint64_t base, size_t size,
                       uint64_t *ret_offset);

/* Something will pin memory that takes one of the driver's allocations and no dma-buf: no block
 * lies across several, in contexts that have no memory yet. */
void gs_core_pin_apart(struct gs_core *core);

/* Memory of the driver's own that starts at or covers the address is about to be freed or
 * unmapped: what is kept over it goes first. `size` 0: all of the allocation there. */
void gs_core_foreign_going(struct gs_core *core, CUdeviceptr address, size_t size);

/* A context is about to be ended, and with it what the driver allocated in it: what is kept over
 * memory of the driver's own goes first, all of it, as this is rare. */
void gs_core_context_going(struct gs_core *core);

/* From now on `unmapping` is called before a piece of an arena is unmapped, with no lock held. */
void gs_core_on_unmap(struct gs_core *core, void (*unmapping)(uint64_t address, size_t size));

struct gs_regcache *gs_core_regcache(struct gs_core *core);

#endif
