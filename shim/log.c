/*
 * Log lines; see log.h.
 */
#include "log.h"

#include "core/cancel.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* How often one place may warn. */
#define REPEATS 5
#define LINE_SIZE 1000

static _Atomic int threshold = GS_LOG_WARNING;
static _Atomic int target = STDERR_FILENO;

static const char *const level_names[] = {"off", "error", "warning", "info", "debug"};

/* Places that warned, told apart by their formats' addresses. A place that finds no room here is
 * not capped. */
static struct {
    _Atomic(const void *) id;
    atomic_uint count;
} places[64];

/* How often this place has warned before. */
static unsigned earlier(const void *place)
{
    size_t size = sizeof(places) / sizeof(places[0]);
    size_t start = ((uintptr_t)place >> 3) % size;
    for (size_t i = 0; i < size; i++) {
        size_t at = (start + i) % size;
        const void *seen = NULL;
        if (atomic_compare_exchange_strong(&places[at].id, &seen, place) || seen == place)
            return atomic_fetch_add(&places[at].count, 1);
    }
    return 0;
}

int gs_log_configure(enum gs_log_level level, const char *path)
{
    atomic_store(&threshold, level);
    int fd = STDERR_FILENO;
    if (path) {
        fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY, 0600);
        if (fd < 0)
            return errno;
    }
    atomic_store(&target, fd);
    return 0;
}

/* Whether a line is to be written; *ret_last: it is the last one of its place. */
static bool wanted(enum gs_log_level level, const void *place, bool *ret_last)
{
    unsigned before;

    if ((int)level > atomic_load_explicit(&threshold, memory_order_relaxed))
        return false;
    before = place && level <= GS_LOG_WARNING ? earlier(place) : 0;
    *ret_last = before + 1 == REPEATS;
    return before < REPEATS;
}

static void write_line(enum gs_log_level level, bool last, const char *text)
{
    char line[LINE_SIZE + 100];
    int length = snprintf(line, sizeof line, "gpushim[%d]: %s: %.*s%s\n", (int)getpid(),
                          level_names[level], LINE_SIZE, text,
                          last ? " (and so on; not shown again)" : "");
    GS_UNCANCELLED; /* a lock of core's may be held */
    /* A full disk or a closed stderr is not the program's problem. */
    ssize_t written = write(atomic_load_explicit(&target, memory_order_relaxed), line,
                            (size_t)length);
    (void)written;
}

void gs_log_text(enum gs_log_level level, const void *place, const char *text)
{
    int saved_errno = errno;
    bool last;

    if (wanted(level, place, &last))
        write_line(level, last, text);
    errno = saved_errno;
}

void gs_log(enum gs_log_level level, const char *format, ...)
{
    int saved_errno = errno;
    char text[LINE_SIZE + 1];
    va_list arguments;
    bool last;

    if (!wanted(level, format, &last))
        return;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    write_line(level, last, text);
    errno = saved_errno;
}
