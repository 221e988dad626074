/*
 * How core says something that no caller can be told by a status: a callback filled in by whoever
 * starts core. Lines are finished, without a newline. What others call themselves stands in them as
 * it came: who writes a line makes it printable (printable.h).
 */
#ifndef GS_CORE_BASE_LOG_H
#define GS_CORE_BASE_LOG_H

#include <stdbool.h>

enum gs_log_level {
    GS_LOG_OFF, /* a threshold that shows nothing; no line has it */
    GS_LOG_ERROR,
    GS_LOG_WARNING,
    GS_LOG_INFO,
    GS_LOG_DEBUG,
    GS_LOG_REPORT, /* no threshold: a report in JSON, for a file of its own (pool.oom_report) */
};

struct gs_log {
    /* Never NULL; called from any thread. `place` is the same for all lines of one place in the
     * code, so that what repeats can be capped. */
    void (*line)(enum gs_log_level level, const void *place, const char *text);
    /* Atomic, and may change at any time: lines above this level would not be shown, and are not
     * even put together. NULL: there is no such level. */
    int *level;
};

static inline bool gs_log_wants(const struct gs_log *log, enum gs_log_level level)
{
    return !log->level || (int)level <= __atomic_load_n(log->level, __ATOMIC_RELAXED);
}

void gs_log_line(const struct gs_log *log, enum gs_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
