/*
 * How core says something that no caller can be told by a status: a callback filled in by whoever
 * starts core. Lines are finished, without a newline.
 */
#ifndef GS_CORE_LOG_H
#define GS_CORE_LOG_H

enum gs_log_level { GS_LOG_ERROR = 1, GS_LOG_WARNING = 2, GS_LOG_INFO = 3, GS_LOG_DEBUG = 4 };

struct gs_log {
    void (*line)(enum gs_log_level level, const char *text); /* never NULL; any thread */
};

void gs_log_line(const struct gs_log *log, enum gs_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
