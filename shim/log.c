/*
 * Log lines; see log.h.
 */
#include "log.h"

#include "core/base/cancel.h"
#include "core/base/printable.h"
#include "core/base/quiet.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

/* How often one place may warn. */
#define REPEATS   5
#define LINE_SIZE 1000

/* How long a line waits for a target that takes none at the moment: a full pipe, a terminal that
 * was stopped. Its reader ends the wait; a program that natively would have written nothing waits
 * so once, and until the target takes a line again, lines are left out at once. */
#define WAIT_MS 100

int gs_log_level = GS_LOG_WARNING;
static _Atomic int target = STDERR_FILENO;

/* Where a target that is not stderr was opened ("": stderr), and what was there: the program may
 * close the descriptor, and have another file under its number. */
static struct {
    char path[4096];
    dev_t device;
    ino_t number;
} opened;

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

/* A log goes to a regular file, a terminal, or a pipe that somebody made for it: other devices do
 * more with a line than keep it. 0, or an errno value. */
static int look_at(int fd, struct stat *ret_status)
{
    if (fstat(fd, ret_status) != 0)
        return errno;
    if (S_ISREG(ret_status->st_mode) || S_ISFIFO(ret_status->st_mode))
        return 0;
    if (S_ISCHR(ret_status->st_mode) &&
        (isatty(fd) || ret_status->st_rdev == makedev(1, 3))) /* /dev/null */
        return 0;
    return ENODEV;
}

/* A descriptor, or -1 with errno. */
static int open_target(const char *path, struct stat *ret_status)
{
    /* NOFOLLOW: where others may put names, a link leads a log to where they like. NONBLOCK:
     * neither the opening of a pipe that nobody reads waits, nor a write into it. */
    int fd =
        open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY | O_NOFOLLOW | O_NONBLOCK,
             0600);
    int error = fd < 0 ? 0 : look_at(fd, ret_status);

    if (error) {
        close(fd);
        errno = error;
        fd = -1;
    }
    return fd;
}

static const char *why_not(int error)
{
    return error == ELOOP    ? "it is a symbolic link"
           : error == ENXIO  ? "nobody reads this pipe"
           : error == ENODEV ? "it is neither a file nor a terminal nor a pipe"
                             : strerror(error);
}

/*
 * Whether descriptor 2 is standard error, and not a file of the program's that got its number when
 * that was closed: such a one is mostly for this process alone. Where there was none at the
 * beginning there is none later.
 */
static bool is_stderr(void)
{
    int kept = fcntl(STDERR_FILENO, F_GETFD);

    return kept >= 0 && !(kept & FD_CLOEXEC);
}

const char *gs_log_configure(enum gs_log_level level, const char *path)
{
    int fd = -1;
    struct stat status = {0};

    __atomic_store_n(&gs_log_level, (int)level, __ATOMIC_RELAXED);
    if (path) {
        fd = open_target(path, &status);
        if (fd < 0)
            return why_not(errno);
    } else if (is_stderr()) {
        fd = STDERR_FILENO;
    }
    snprintf(opened.path, sizeof opened.path, "%s", path ? path : "");
    opened.device = status.st_dev;
    opened.number = status.st_ino;
    atomic_store(&target, fd);
    return NULL;
}

static bool is_target(int fd)
{
    struct stat status;

    return fd >= 0 && fstat(fd, &status) == 0 && status.st_dev == opened.device &&
           status.st_ino == opened.number;
}

/* The descriptor to write to: the target's, opened again where the program has closed it; -1 where
 * that cannot be. Of several threads that see this at once, one opens it. */
static int current_target(void)
{
    static atomic_flag opening = ATOMIC_FLAG_INIT;
    int fd = atomic_load_explicit(&target, memory_order_relaxed);
    struct stat status;

    if (!opened.path[0])
        return fd >= 0 && is_stderr() ? fd : -1;
    if (is_target(fd))
        return fd;
    if (atomic_flag_test_and_set(&opening))
        return -1;
    fd = atomic_load(&target);
    if (!is_target(fd)) { /* nor has another thread opened it meanwhile */
        fd = open_target(opened.path, &status);
        if (fd >= 0 && !is_target(fd)) {
            close(fd); /* it was removed, and something else is there */
            fd = -1;
        }
        atomic_store(&target, fd);
    }
    atomic_flag_clear(&opening);
    return fd;
}

bool gs_log_shows(enum gs_log_level level)
{
    return (int)level <= __atomic_load_n(&gs_log_level, __ATOMIC_RELAXED);
}

/* Whether a line is to be written; *ret_last: it is the last one of its place. */
static bool wanted(enum gs_log_level level, const void *place, bool *ret_last)
{
    unsigned before;

    if (!gs_log_shows(level))
        return false;
    before = place && level <= GS_LOG_WARNING ? earlier(place) : 0;
    *ret_last = before + 1 == REPEATS;
    return before < REPEATS;
}

static bool takes_a_line(int fd)
{
    static atomic_bool was_full;
    struct pollfd ready = {.fd = fd, .events = POLLOUT};
    int found = poll(&ready, 1, atomic_load(&was_full) ? 0 : WAIT_MS);

    if (found < 0 && errno == EINTR)
        found = poll(&ready, 1, 0);
    atomic_store(&was_full, found == 0);
    return found == 1 && !(ready.revents & (POLLERR | POLLNVAL));
}

static void write_unnoticed(int fd, const char *line, size_t length)
{
    struct gs_quiet quiet;
    ssize_t written;

    if (!gs_quiet_begin(&quiet))
        return;
    written = send(fd, line, length, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (written < 0 && errno == ENOTSOCK)
        written = write(fd, line, length);
    gs_quiet_end(&quiet, written < 0 ? errno : 0);
}

const char *gs_log_append(const char *path, const char *bytes, size_t length)
{
    struct stat status;
    int fd = open_target(path, &status);

    if (fd < 0)
        return why_not(errno);
    write_unnoticed(fd, bytes, length);
    close(fd);
    return NULL;
}

static unsigned year_days(unsigned year)
{
    return year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) ? 366 : 365;
}

static unsigned month_days(unsigned month, unsigned year)
{
    static const unsigned char lengths[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};

    return month == 1 && year_days(year) == 366 ? 29 : lengths[month];
}

/* The time in UTC, without libc's calendar, which takes a lock and reads files. */
static void write_time(char *text, size_t size)
{
    struct timespec now = {0};
    unsigned year = 1970, month = 0, second, days;

    clock_gettime(CLOCK_REALTIME, &now);
    days = (unsigned)(now.tv_sec / 86400);
    second = (unsigned)(now.tv_sec % 86400);
    for (; days >= year_days(year); year++)
        days -= year_days(year);
    for (; days >= month_days(month, year); month++)
        days -= month_days(month, year);
    snprintf(text, size, "%04u-%02u-%02uT%02u:%02u:%02u.%03ldZ", year, month + 1, days + 1,
             second / 3600, second / 60 % 60, second % 60, now.tv_nsec / 1000000);
}

static void write_line(enum gs_log_level level, bool last, const char *text)
{
    int pid = (int)getpid(), thread = (int)syscall(SYS_gettid), fd;
    char line[LINE_SIZE + 150], time[64];
    size_t length;

    write_time(time, sizeof time);
    length = (size_t)snprintf(line, sizeof line, "%s gpushim[%d/%d]: %s: ", time, pid, thread,
                              level_names[level]);
    length += gs_printable(text, strlen(text), line + length, LINE_SIZE + 1);
    length += (size_t)snprintf(line + length, sizeof line - length, "%s\n",
                               last ? " (and so on; not shown again)" : "");
    GS_UNCANCELLED; /* a lock of core's may be held */
    fd = current_target();
    if (fd >= 0 && takes_a_line(fd))
        write_unnoticed(fd, line, length);
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
