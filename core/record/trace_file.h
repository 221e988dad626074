/*
 * The file of a recording (core/record/trace.h): blocks are appended whole, one after the other.
 */
#ifndef GS_CORE_BASE_TRACE_FILE_H
#define GS_CORE_BASE_TRACE_FILE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "core/base/latch.h"
#include "core/base/log.h"
#include "core/record/trace_format.h"

/* Opens it and writes its header. NULL, or why not. */
const char *gs_trace_file_open(const char *path, bool has_stacks, const struct gs_log *log,
                               uint64_t *ret_began_ns);
/* Appends a block; one that says that the process has ended comes last again whatever else comes
 * yet. False: nothing can be written any more; that was said when it began. `exiting`: as
 * gs_trace_take. */
bool gs_trace_file_put(const struct gs_trace_block *block, bool exiting);
/* In a child just forked: closes it. */
void gs_trace_file_forked(void);

/* Takes a lock on the way out of the process, maybe in a signal handler. False: it cannot be had,
 * since it is this thread's, which was interrupted, or that of one which has been killed alone. */
bool gs_trace_take(struct gs_latch *lock, const pid_t *owner);

/* The modules that can be executed, as a block of the file, if there are others than at the last
 * time (core/record/trace_modules.c). */
void gs_trace_modules_put(bool exiting);
/* The next time they are written in any case. */
void gs_trace_modules_forget(void);
/* As names (core/record/trace_names.c). */
void gs_trace_names_forget(void);
/* A block of the calling thread's that waits for no other, unless nothing is recorded any more
 * (core/record/trace.c). */
void gs_trace_put_now(const struct gs_trace_block *block);

#endif
