/*
 * Processes of one user that share a GPU: who runs out of memory asks the others to give back what
 * they only keep for later.
 *
 *   full process                                        process that caches
 *   gs_neighbour_ask ── writes what it wants ──► page ◄── its decay thread sleeps on it
 *        └────────── sees who has answered ◄──── page ◄── gives idle chunks to the driver, answers
 *
 * The page is a file in the runtime directory, mode 0600: it works between containers that share
 * the directory, needs no thread and no socket, and other users cannot reach it, whoever is let into
 * the sockets. Who listens holds a lock on a byte of its own in the file, which the kernel ends with
 * the process: so nobody waits for one that was killed, and the last one removes the file. The page
 * is mapped to sleep on and never read or written through the mapping, which a file that somebody
 * cuts short would make fatal.
 *
 * Nothing exists before a process has a decay thread, or runs out of memory. Nobody is waited for
 * longer than a bound, and a process that does not answer is not waited for again until it does.
 */
#ifndef GS_CORE_PROCESS_NEIGHBOUR_H
#define GS_CORE_PROCESS_NEIGHBOUR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <cuda.h>

#include "core/base/fd.h"
#include "core/share/page.h"

struct gs_core;
struct gs_device;

/* Atomic. */
struct gs_neighbour_counts {
    uint64_t asked;    /* times this process asked, */
    uint64_t got;      /* and bytes that others said they gave back then */
    uint64_t answered; /* times others asked this process, */
    uint64_t given;    /* and bytes that it gave back then */
};

struct gs_neighbour {
    struct gs_neighbour_counts counts;
    /* Written by the decay thread before `joined`. */
    bool joined; /* atomic */
    pid_t pid;   /* a forked child keeps away */
    struct gs_fd fd;
    unsigned slot;
    const char *page;
    /* The decay thread's own. */
    bool failed;   /* to join, and that was said */
    uint32_t seen; /* the last request that was looked at */
    struct gs_page_slot answer;   /* the last one */
    uint64_t gave_ns;             /* when it gave something, */
    uint64_t gave_grown, gave_asked; /* and how often it had grown and asked others by then */
    uint64_t pause_ns;            /* until the next time, at least */
    /* Of who asks; atomic, only ever guesses. */
    uint64_t asked_ns, wanted, quiet_until_ns;
    unsigned silent; /* who listened and did not answer the last time, */
    int silent_pid;  /* and one of them */
};

/* The decay thread: from now on others can ask. Where that cannot be, a debug line says why, and it
 * may be tried again. */
void gs_neighbour_join(struct gs_core *core);

/*
 * The decay thread: sleeps until *state is not `expected`, somebody asks, or `ns` are over. Where
 * the kernel cannot wait for both, it is `deaf` to who asks, or else sees the state late. May
 * return early.
 */
void gs_neighbour_sleep(struct gs_core *core, int *state, int expected, uint64_t ns, bool deaf);
/* The decay thread: whether a request is there that was not looked at. */
bool gs_neighbour_wanted(struct gs_core *core);
/* The decay thread: gives what was asked for as far as it is idle, and answers. */
void gs_neighbour_answer(struct gs_core *core);

/* Wakes the decay thread out of gs_neighbour_sleep; *state has changed. */
void gs_neighbour_wake(struct gs_core *core, int *state);

/* The process ends, or core does: removes the file where no other listens. No driver call. */
void gs_neighbour_leave(struct gs_core *core);
/* After the decay thread's end. */
void gs_neighbour_free(struct gs_core *core);

/*
 * The device is full and this process has given up what it can: asks the others for `size` bytes.
 * No lock is held. True: somebody has given something, or may have; the driver is worth another
 * try. `context` is one of the device. Waits for WAIT_MS (neighbour_ask.c) where others listen and
 * do not answer.
 */
bool gs_neighbour_ask(struct gs_core *core, const struct gs_device *device, CUcontext context,
                      size_t size);

#endif
