/*
 * The shim's log lines: when, which process and thread; one
 * write(2) a line to stderr or a file, never stdout, errno preserved, nothing allocated. A warning
 * or error that comes again and again from the same place is capped.
 *
 * What got the number of a closed stderr is the program's own file: nothing is written to it where
 * stderr was closed when the library began, or the file is close-on-exec, as no stderr is. Any
 * other is taken for it.
 *
 * What the program does not notice: no signal reaches it, whatever becomes of the target, no thread
 * ends here by pthread_cancel, and none waits longer than a tenth of a second for a target that
 * takes no line at the moment. Such lines are lost.
 */
#ifndef GPUSHIM_SHIM_LOG_H
#define GPUSHIM_SHIM_LOG_H

#include <stddef.h>

#include "core/base/log.h" /* the levels; a level shows itself and what stands above it */

/* Until this is called: warnings and errors, to stderr. path: a file to append to, made readable
 * for its owner alone where it is not there, a terminal, or a pipe that is there and read; NULL
 * means stderr. The descriptor is close-on-exec and stays open for the life of the process. Returns
 * NULL, or why the path is none to write a log to; level is set and the target is as it was then.
 * Call it before other threads log. */
const char *gs_log_configure(enum gs_log_level level, const char *path);

/* Atomic: lines above this level are not written. gs_log_configure sets it, and so may core
 * (struct gs_log). */
__attribute__((visibility("hidden"))) extern int gs_log_level;

/* Whether lines of this level are written. */
bool gs_log_shows(enum gs_log_level level);
/* Appends to a file of another purpose, which is opened for it and is to be what a log may be.
 * NULL, or why that cannot be. */
const char *gs_log_append(const char *path, const char *bytes, size_t length);

/* One line, without its newline, of at most 1,000 characters; what is longer is cut. Error first
 * names the cause, then the way out. */
void gs_log(enum gs_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Logs a finished text. `place` stands for where in the code it comes from, and what comes
 * again and again from one place is capped; NULL: never capped. */
void gs_log_text(enum gs_log_level level, const void *place, const char *text);

#endif
