/*
 * The background thread, started when a process first holds a good deal. Twice in each decay time
 * it looks what was free all the time since the last look, which goes back to the driver. When
 * nothing changes any more it sleeps until memory is freed again.
 */
#ifndef GS_CORE_PROCESS_TRIMMER_H
#define GS_CORE_PROCESS_TRIMMER_H

#include <stdbool.h>

#include "core/base/background.h"

struct gs_core;

struct gs_trimmer {
    struct gs_background background;
    int state;    /* atomic: whether the thread runs */
    int wakes;    /* atomic, and what it sleeps on: how often it was woken */
    bool idle;    /* atomic: nothing changes any more, and what is freed wakes it */
    bool ending;  /* atomic: the process exits, no driver call is begun */
    bool busy;    /* atomic: the thread is at work, and may be in the driver */
    bool surplus; /* atomic: an arena may have more than its target, or its limit */
};

/* An arena has grown, or the program made memory itself: the thread is started where all of that
 * together is enough for it. No lock is held. */
void gs_trimmer_grown(struct gs_core *core);
/* Memory was freed (struct gs_arena_shared's activity). Any lock may be held. */
void gs_trimmer_activity(void *core);
bool gs_trimmer_is_there(const struct gs_core *core);
/* The process exits, or its core ends: no driver call is begun. */
bool gs_trimmer_is_ending(const struct gs_core *core);
/* An arena has more than its target or its limit, or other processes ask for memory: wakes the
 * thread for it; false: it is not there. Any lock may be held. */
bool gs_trimmer_wake(struct gs_core *core);
/* The thread: that goes, where there is any. */
void gs_trimmer_surplus(struct gs_core *core);
/* Whether the caller is the thread. */
bool gs_trimmer_is_this(const struct gs_core *core);
/* Ends the thread and waits for it. */
void gs_trimmer_stop(struct gs_core *core);
/* The process exits: waits a moment for a driver call under way, and lets none follow. */
void gs_trimmer_at_exit(struct gs_core *core);

#endif
