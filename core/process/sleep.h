/*
 * Sleep and wake (core/process/README.md).
 *
 *            wait for all contexts       copy what is live        unmap, release
 *   awake ─────────────────────────► … ─────────────────────► … ───────────────► asleep
 *     ▲                                                                            │
 *     └──────── copy back ◄──────── map, give access ◄──────── all memory, or none ┘
 *
 * Who calls this has closed the gate (shim/gate.h), and opens it when the process is awake. Nothing
 * is half done: whatever fails, the process is asleep or awake afterwards, and can be woken, or put
 * to sleep, again.
 *
 * Processes that share among themselves go in two steps, each step of all before the next one of
 * any, so that nobody's memory is mapped anywhere when it goes, and all of it is there when others
 * map it:
 *
 *   awake ── let_go ──► here: asleep, its own memory on the GPU, ── sleep ──► asleep
 *     ▲                 nothing of theirs mapped                                │
 *     └──── wake ────── here ◄──────────────────── return ──────────────────────┘
 */
#ifndef GS_CORE_PROCESS_SLEEP_H
#define GS_CORE_PROCESS_SLEEP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/background.h"
#include "core/gpu/driver.h"
#include "core/process/peers.h"
#include "core/process/sleep_store.h"

struct gs_core;

/* Why a piece stays on the GPU. */
enum gs_stays {
    GS_STAYS_SHARED,     /* others may have a block of it open, or there is a dma-buf of it */
    GS_STAYS_REGISTERED, /* with a network card or storage, in use */
    GS_STAYS_ENDING,     /* its context has ended, or is about to */
    GS_STAYS_REFUSED,    /* the driver did not unmap it */
    GS_STAYS_OWN, /* the program's own, of a kind that does not move: in a multicast object, say */
    GS_STAYS_REASONS
};

/* What is asleep, or what came of it. */
struct gs_asleep {
    uint64_t since_ns; /* 0: awake */
    size_t away;       /* bytes of the GPU's memory that were given back, but for what was free */
    size_t copied;     /* of these, what is kept on the host */
    size_t stays[GS_STAYS_REASONS];
};

#define GS_SLEEP_TEXT 320

/* 0, or an errno and why in words. */
struct gs_sleep_why {
    int error;
    char text[GS_SLEEP_TEXT];
};
/* False, and why. */
__attribute__((format(printf, 3, 4))) bool gs_sleep_refuse(struct gs_sleep_why *why, int error,
                                                           const char *format, ...);

/* What a sleep, or a wake, is at. */
enum gs_sleep_phase {
    GS_SLEEP_WAITING,     /* for what was submitted */
    GS_SLEEP_SHARING,     /* what others share goes, or comes */
    GS_SLEEP_KEEPING,     /* what is free goes to the driver; what goes is listed */
    GS_SLEEP_STORING,     /* the host's memory or a file is made, written out, or given back */
    GS_SLEEP_REGISTERING, /* with the driver, or no more */
    GS_SLEEP_COPYING,
    GS_SLEEP_UNMAPPING,
    GS_SLEEP_RELEASING,
    GS_SLEEP_STACKS,
    GS_SLEEP_CREATING,
    GS_SLEEP_RESTING, /* the GPU is full */
    GS_SLEEP_MAPPING,
    GS_SLEEP_PHASES
};

/* Whatever passes between two looks is one phase's. */
struct gs_sleep_watch {
    uint64_t looked_ns, took_ns[GS_SLEEP_PHASES];
};

struct gs_away; /* memory that is away: a piece's, or the program's own */

/* Of a context's stacks while the process is asleep. */
struct gs_low_stack {
    bool low;
    size_t limit; /* what it was; */
    size_t freed; /* and of the device by that, as the driver tells it */
};

/* The host's copy of what is back goes while the program goes on already. */
struct gs_sleep_freeing {
    struct gs_background background;
    bool started; /* to be joined */
    struct gs_sleep_store store;
};

/* Of a process. One thread at a time is at it; the figures are read by any. */
struct gs_sleep {
    struct gs_away *pieces; /* all of a context one after the other */
    struct gs_sleep_store store;
    struct gs_sleep_freeing freeing;
    unsigned discards;    /* a tag; 0: none */
    CUstream stream;      /* by which a context's memory is being copied */
    CUcontext registered; /* in which the store was registered with CUDA; NULL: it is not; */
    size_t parts_there, parts_registered; /* and how many of its parts */
    struct gs_sleep_watch watch;          /* of the last of the calls */
    bool ends;                            /* atomic: the program does */
    bool is_here;                         /* asleep, with its own memory on the GPU */
    bool others_away;                     /* what others share, some of it, is not mapped */
    struct gs_asleep figures;             /* atomic */
    size_t away[GS_DEVICES_MAX];          /* bytes, atomic; */
    size_t pieces_away[GS_DEVICES_MAX];   /* of these, of the arenas' pieces */
};

/* EALREADY; ENOTSUP, of this driver; ENOENT: nothing ever had the tag; EBUSY: a stream captures. */
bool gs_core_can_sleep(struct gs_core *core, const char *discard, struct gs_sleep_why *ret_why);
/* All that was submitted. False: EBUSY, it does not end before then, or a stream captures; EIO. */
bool gs_core_await_work(struct gs_core *core, uint64_t until_ns, struct gs_sleep_why *ret_why);
/* Off the GPU. `directory`: the contents go to a file there, which has no name; NULL: to memory of
 * this process. `discard`: what bears that tag comes back with contents that are anything. As both
 * above; ENOMEM, ENOSPC: no room on the host; EIO: the driver refused. */
bool gs_core_sleep(struct gs_core *core, const char *directory, const char *discard,
                   uint64_t until_ns, struct gs_sleep_why *ret_why);
/* The first of two steps: what others shared is mapped no more, as far as that goes. It may be
 * "here" already, of a sleep or a wake that came so far. EALREADY, ENOENT: the second would find
 * that too late; ENOTSUP, EBUSY, EIO. */
bool gs_core_let_go(struct gs_core *core, const char *discard, uint64_t until_ns,
                    struct gs_sleep_why *ret_why);
/* Of its way back: its own memory is there, for others as well; it sleeps on. As gs_core_wake. */
bool gs_core_return(struct gs_core *core, uint64_t until_ns, struct gs_sleep_why *ret_why);
/* Back, from either step. EALREADY; ENOMEM: the GPU has not enough memory before `until_ns`, the
 * log says who has it; ETIMEDOUT: a process whose memory it had open sleeps still (it is "here"
 * then); EIO. What is kept on the host goes meanwhile, and is gone before the next sleep, or once
 * it was awaited. */
bool gs_core_wake(struct gs_core *core, uint64_t until_ns, struct gs_sleep_why *ret_why);
void gs_core_await_freed(struct gs_core *core);
/* The program ends: a wake that waits gives up. From any thread. */
void gs_core_sleep_ends(struct gs_core *core);

/* Where the time of the last of the two went: "took 312 ms: waiting 2, copying 180 ...". By who
 * called it. */
void gs_core_sleep_took(const struct gs_core *core, char *ret_text, size_t size);

struct gs_sleep_order;
/* Others ask for it (struct gs_share_events); false: it does not sleep. */
bool gs_core_asked_to_sleep(struct gs_core *core, struct gs_sleep_order *order);

/* From any thread, without waiting; and of one device what is away. */
void gs_core_asleep(const struct gs_core *core, struct gs_asleep *ret);
size_t gs_core_away(const struct gs_core *core, int device);
/* Of the current context's. */
size_t gs_core_away_here(struct gs_core *core);

#endif
