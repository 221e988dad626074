/*
 * Recording what becomes of a process's GPU memory (general.record): events of each thread in a
 * buffer of its own, and the buffers' way into one file (core/record/trace_format.h).
 *
 *   a call ──► the thread's buffer ──► the file      when the buffer is full, or a second old; when
 *                                                    the thread ends; when the process exits
 *
 * Nothing is lost but what is in buffers when the process ends by a signal, and what is called in a
 * signal handler that interrupts the recorder. Who fills a buffer while the file is slow waits for
 * it, and the next block says how long. Where the file cannot be written any more, one warning says
 * so, and recording ends.
 *
 * In a process that records nothing a call pays for one look at gs_trace_on. Nothing here is called
 * with a lock of core's held.
 */
#ifndef GS_CORE_BASE_TRACE_H
#define GS_CORE_BASE_TRACE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/log.h"
#include "core/record/trace_format.h"

#define GS_TRACE_FRAMES_MAX 64
#define GS_TRACE_BUFFER     ((uint32_t)64 << 10) /* a block with its struct is no larger */

#define GS_TRACE_INSIDE __attribute__((visibility("hidden"))) /* no look at the GOT */

/* Atomic. */
GS_TRACE_INSIDE extern bool gs_trace_on;

static inline bool gs_tracing(void)
{
    return __builtin_expect(__atomic_load_n(&gs_trace_on, __ATOMIC_RELAXED), 0);
}

/* How the thread's allocation under way came by its memory (enum gs_trace_outcome): whoever knows
 * says so, the last word counts. */
GS_TRACE_INSIDE extern _Thread_local unsigned char gs_trace_outcome;

/*
 * Starts recording to a file: %p in its name is the process id, and `log` outlives it. A file that
 * is there is written over if it is empty or a recording that no process is at. `frames`: whether
 * events have return addresses. NULL, or why not.
 */
const char *gs_trace_start(const char *path, bool frames, const struct gs_log *log);

/* When a call began, and what the thread had recorded by then. */
struct gs_trace_mark {
    uint64_t began_ns; /* gs_now_ns */
    uint32_t block, at;
};

struct gs_trace_mark gs_trace_begin(void);
/* Records an event that began at the mark, in the order of the begins: its op, device, outcome,
 * frames and union are the caller's, and took_ns where that is not 0: the call has ended before.
 * Waits for the file where the buffer is full. */
void gs_trace_put(const struct gs_trace_mark *mark, struct gs_trace_event *event,
                  const uint64_t *frames);
/* A frame of that name (core/record/trace_format.h), which is in the file from now on. No lock is
 * held. */
uint64_t gs_trace_name(const char *function, const char *file, unsigned line);
/* A device that the events name, at once. */
void gs_trace_device(const struct gs_trace_device *device);

/* The program exits: writes what all threads have, and that nothing is missing. What is recorded
 * afterwards is written at once. May be called in a signal handler. */
void gs_trace_at_exit(void);
/* In a child just forked: it leaves its parent's file alone, and records to one of its own from its
 * first event on if the file's name has %p, else nothing. */
void gs_trace_forked(void);

#endif
