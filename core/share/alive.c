/* Whether a process runs, and what (core/share/alive.h). */
#include "core/share/alive.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef P_PIDFD
#define P_PIDFD 3
#endif

#ifndef PID_FS_MAGIC
#define PID_FS_MAGIC 0x50494446
#endif

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

bool gs_alive_exited(int pidfd)
{
    struct pollfd exit = {.fd = pidfd, .events = POLLIN};

    return poll(&exit, 1, 0) > 0; /* a signal of the program's may come in between */
}

bool gs_alive_is_pidfd(int fd)
{
    siginfo_t ignored;

    return waitid((idtype_t)P_PIDFD, (id_t)fd, &ignored, WEXITED | WNOHANG | WNOWAIT) == 0 ||
           errno == ECHILD;
}

/* From then on pidfds have a file system of their own, in which each process has one number. */
static bool has_number(int pidfd, struct stat *ret_stat)
{
    struct statfs system;

    return fstatfs(pidfd, &system) == 0 && system.f_type == PID_FS_MAGIC &&
           fstat(pidfd, ret_stat) == 0;
}

bool gs_alive_is_same(int pidfd, int other)
{
    struct stat one, two;

    return has_number(pidfd, &one) && has_number(other, &two) && one.st_ino == two.st_ino;
}

/* Reads the process's file of that name; its size, or -1 with errno. *ret_opened: there is one. */
static ssize_t read_file(pid_t pid, const char *name, void *to, size_t size, bool *ret_opened)
{
    char path[32];
    ssize_t got;
    int error, fd;

    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    *ret_opened = fd >= 0;
    if (fd < 0)
        return -1;
    got = read(fd, to, size);
    error = errno;
    close(fd);
    errno = error;
    return got;
}

/* What of a process's stat comes behind its name, which may hold anything; NULL, with errno where it
 * could not be read, and 0 where it says nothing. *ret_opened: there is one. */
static const char *read_stat(pid_t pid, char text[1024], bool *ret_opened)
{
    const ssize_t size = read_file(pid, "stat", text, 1023, ret_opened);
    const char *name_end;

    if (size < 0)
        return NULL;
    text[size] = 0;
    name_end = (errno = 0, strrchr(text, ')'));
    return name_end ? name_end + 1 : NULL;
}

bool gs_alive_runs(pid_t pid)
{
    char text[1024], state;
    const char *fields;
    long threads;
    bool opened;

    if (kill(pid, 0) != 0 && errno == ESRCH)
        return false;
    fields = read_stat(pid, text, &opened);
    if (!fields)
        return !opened || errno != ESRCH;
    if (sscanf(fields, " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %ld",
               &state, &threads) != 2)
        return true;
    return (state != 'Z' && state != 'X') || threads > 1;
}

bool gs_alive_is_stopped(pid_t pid)
{
    char text[1024];
    bool opened;
    const char *fields = read_stat(pid, text, &opened);

    return fields && fields[0] == ' ' && (fields[1] == 'T' || fields[1] == 't');
}

pid_t gs_alive_pid_of(int pidfd)
{
    char name[32], text[1024];
    const char *line;
    bool opened;
    ssize_t size;
    int pid = 0;

    snprintf(name, sizeof name, "fdinfo/%d", pidfd);
    size = read_file(getpid(), name, text, sizeof text - 1, &opened);
    text[size > 0 ? size : 0] = 0;
    line = strstr(text, "\nPid:");
    return line && sscanf(line, "\nPid: %d", &pid) == 1 && pid > 0 ? pid : 0;
}

uint64_t gs_alive_started(pid_t pid)
{
    char text[1024];
    bool opened;
    const char *at = read_stat(pid, text, &opened);

    for (int i = 0; at && i < 19; i++)
        at = strchr(at + 1, ' ');
    return at ? strtoull(at, NULL, 10) : 0;
}

pid_t gs_alive_own_pid(void)
{
    return getpid();
}

int gs_alive_own_pidfd(void)
{
    return (int)syscall(SYS_pidfd_open, getpid(), 0);
}

pid_t gs_alive_own_thread(void)
{
    return (pid_t)syscall(SYS_gettid);
}

bool gs_alive_has_thread(pid_t thread)
{
    return syscall(SYS_tgkill, getpid(), thread, 0) == 0 || errno != ESRCH;
}
