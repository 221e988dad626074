/*
 * The parts of sleep and wake (core/process/sleep.h): what goes (sleep_plan.c), and its way off the GPU
 * and back (sleep_move.c). The gate is closed, one thread is at it.
 */
#ifndef GS_CORE_PROCESS_SLEEP_PARTS_H
#define GS_CORE_PROCESS_SLEEP_PARTS_H

#include "core/process/context.h"

/* A piece that goes, or whose memory is away. */
struct gs_away {
    struct gs_piece *piece;
    struct gs_arena *arena;
    CUcontext context; /* in which it is copied */
    CUmemGenericAllocationHandle handle;
    bool made, mapped;
    size_t first_range, ranges;
};

/* What of it is live. */
struct gs_away_range {
    uint64_t address;
    size_t size, offset; /* in the store */
};

/* A context whose stack limit was lowered. */
struct gs_low_stack {
    CUcontext context;
    size_t limit;
    bool low;
    CUdevice device;
    size_t freed; /* of the device by that, as the driver tells it */
};

/* False, and why. */
bool gs_sleep_refused_by_driver(struct gs_sleep_why *why, const char *call, gs_status status);

/* ---- What goes (sleep_plan.c) -------------------------------------------------------------------- */

/* All pieces with something live that may go, and where each range is in the store, whose size is
 * *ret_size. They stay in their arenas until gs_sleep_plan_none or gs_sleep_joins. False: no host memory. */
bool gs_sleep_plan(struct gs_core *core, size_t *ret_size);
/* None is to go, and nothing is known of them. */
void gs_sleep_plan_none(struct gs_core *core);
/* One is not to go after all: another has its place in the list, one behind it. */
void gs_sleep_keep(struct gs_core *core, struct gs_away *away, enum gs_stays why);

/* ---- Their way (sleep_move.c) ------------------------------------------------------------------- */

/* All that is live, to the store or back; nothing is at either memory any more afterwards. */
bool gs_sleep_copy(struct gs_core *core, bool out, struct gs_sleep_why *why);
void gs_sleep_free_store(struct gs_core *core);
/* Off the GPU: what the driver does not unmap stays. */
void gs_sleep_unmap(struct gs_core *core);
void gs_sleep_lower_stacks(struct gs_core *core);
/* Back: all of it, or none. */
bool gs_sleep_map(struct gs_core *core, uint64_t until_ns, struct gs_sleep_why *why);
/* As before the try to wake. What cannot be unmapped waits for the next one as it is. */
void gs_sleep_fall_back(struct gs_core *core);
/* All pieces are their arenas' as before. */
void gs_sleep_join(struct gs_core *core);

#endif
