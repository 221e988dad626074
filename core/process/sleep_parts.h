/* The parts of sleep and wake (core/process/sleep.h). The gate is closed, one thread is at it. */
#ifndef GS_CORE_PROCESS_SLEEP_PARTS_H
#define GS_CORE_PROCESS_SLEEP_PARTS_H

#include "core/base/list.h"
#include "core/process/context.h"

struct gs_own_handle;

/* What of memory that goes is live. */
struct gs_away_range {
    uint64_t address;
    size_t size, offset; /* in the store */
};

/* Where it is mapped. */
struct gs_away_place {
    uint64_t base;
    size_t size, offset;    /* in the memory */
    uint64_t reads, writes; /* bit d: device d may */
    bool mapped;
};

/* Memory that goes, or is away. */
struct gs_away {
    struct gs_away *prev, *next;
    struct gs_piece *piece; /* whose it is; NULL: the program's own: */
    struct gs_own_handle *own;
    CUdevice device;
    size_t size;
    CUcontext context; /* in which it is copied */
    CUmemGenericAllocationHandle handle;
    unsigned references;   /* of it, that are to be given back */
    bool made, anew;       /* it is there; after a wake, which made it */
    bool exports;          /* blocks of it have handles, which are of this piece: it keeps its id */
    size_t ranges, places; /* how many there are */
    struct gs_away_range *range;
    struct gs_away_place *place;
};

/* False, and why. */
bool gs_sleep_refused_by_driver(struct gs_sleep_why *why, const char *call, gs_status status);

/* What passed since the last look was for that. */
void gs_sleep_was_at(struct gs_sleep *sleep, enum gs_sleep_phase phase);

/* ---- What goes (sleep_plan.c, sleep_own.c) --------------------------------------------------- */

/* All pieces with something live that may go, and where each range is in the store, whose size is
 * *ret_size. They stay in their arenas until gs_sleep_plan_none. False: no host memory. */
bool gs_sleep_plan(struct gs_core *core, size_t *ret_size);
static inline bool gs_sleep_discards(const struct gs_sleep *sleep, unsigned tag)
{
    return tag && tag == sleep->discards;
}
/* For that: so much more stays; one more goes, zeroed but for room for so many places and ranges
 * (NULL: no host memory); what the program has made itself is listed as well. */
void gs_sleep_stays(struct gs_core *core, enum gs_stays why, size_t size);
struct gs_away *gs_sleep_add(struct gs_sleep *sleep, size_t places, size_t ranges);
bool gs_sleep_plan_own(struct gs_core *core);
/* One of those is the program's again, as it is now. */
void gs_sleep_own_back(struct gs_core *core, struct gs_away *away);
/* None is to go, and nothing is known of them. */
void gs_sleep_plan_none(struct gs_core *core);
/* One is not to go after all: it is in the list no more. */
void gs_sleep_keep(struct gs_core *core, struct gs_away *away, enum gs_stays why);

/* ---- Their contents (sleep_copy.c) ----------------------------------------------------------- */

/* All that is live, to the store or back; nothing is at either memory any more afterwards. */
bool gs_sleep_copy(struct gs_core *core, bool out, struct gs_sleep_why *why);
void gs_sleep_free_store(struct gs_core *core);
/* Frees the store in a thread that is awaited by gs_core_await_freed: nobody is at it any more. */
void gs_sleep_free_store_behind(struct gs_core *core);

/* ---- Their way (sleep_move.c) ---------------------------------------------------------------- */

/* Off the GPU, also after a try to wake. What the driver does not unmap stays, and waits for the
 * wake as it is. */
void gs_sleep_leave(struct gs_core *core);
/* Back: all of it, or none. */
bool gs_sleep_map(struct gs_core *core, uint64_t until_ns, struct gs_sleep_why *why);
/* All pieces are their arenas' as before. */
void gs_sleep_join(struct gs_core *core);

#endif
