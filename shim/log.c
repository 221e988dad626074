/*
 * Log lines; see log.h.
 */
#include "log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* How often one place may warn. */
#define REPEATS 5

static _Atomic int threshold = GS_LOG_WARNING;
static _Atomic int target = STDERR_FILENO;

static const char *const level_names[] = {"error", "warning", "info", "debug"};

/* Places that warned, told apart by their format's address. A place that finds no room here is not
 * capped. */
static struct {
    _Atomic(const char *) format;
    atomic_uint count;
} places[64];

/* How often this place has warned before. */
static unsigned earlier(const char *format)
{
    size_t size = sizeof(places) / sizeof(places[0]);
    size_t start = ((uintptr_t)format >> 3) % size;
    for (size_t i = 0; i < size; i++) {
        size_t at = (start + i) % size;
        const char *seen = NULL;
        if (atomic_compare_exchange_strong(&places[at].format, &seen, format) || seen == format)
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

void gs_log(enum gs_log_level level, const char *format, ...)
{
    if ((int)level > atomic_load_explicit(&threshold, memory_order_relaxed))
        return;
    unsigned before = level <= GS_LOG_WARNING ? earlier(format) : 0;
    if (before >= REPEATS)
        return;
    int saved_errno = errno;
    char line[1100];
    size_t used = (size_t)snprintf(line, sizeof(line), "gpushim[%d]: %s: ", (int)getpid(),
                                   level_names[level]);
    size_t room = 1001;
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line + used, room, format, arguments);
    va_end(arguments);
    if (length > 0)
        used += (size_t)length < room ? (size_t)length : room - 1;
    const char *end = before + 1 == REPEATS ? " (and so on; not shown again)\n" : "\n";
    memcpy(line + used, end, strlen(end));
    used += strlen(end);
    ssize_t written = write(atomic_load_explicit(&target, memory_order_relaxed), line, used);
    (void)written; /* a full disk or a closed stderr is not the program's problem */
    errno = saved_errno;
}
