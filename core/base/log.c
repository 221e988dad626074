/* core/base/log.h: formats a line into a bounded buffer and hands it on. */
#include "core/base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

void gs_log_line(const struct gs_log *log, enum gs_log_level level, const char *format, ...)
{
    char text[512];
    va_list arguments;
    int saved = errno;

    if (!gs_log_wants(log, level))
        return;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    log->line(level, format, text);
    errno = saved;
}
