/*
 * Exporter: whether the process of a client has ended, or goes on with what it has open. A program
 * may close the library's connection like any descriptor that it does not know, and read on what it
 * has mapped; one that calls exec loses connection and memory alike. The process table tells these
 * apart, where it shows the process: by where the stack begins, which the opener says of itself.
 */
#include "core/share/exporter.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

/* The program may have closed it, and its number may be another file's. */
static bool has_pidfd(const struct gs_client *client)
{
    return client->pidfd >= 0 && gs_fd_is_there(&client->kept_pidfd);
}

bool gs_client_has_exited(const struct gs_client *client)
{
    struct pollfd exit = {.fd = client->pidfd, .events = POLLIN};

    return client->over.exited || (has_pidfd(client) && poll(&exit, 1, 0) > 0);
}

/* Whether the process is there and more than an entry that its parent has not read yet. One that
 * cannot be looked at is. */
static bool is_running(pid_t pid)
{
    char path[32], text[1024], state;
    const char *fields;
    ssize_t size;
    long threads;
    int fd;

    if (kill(pid, 0) != 0 && errno == ESRCH)
        return false;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return true;
    size = read(fd, text, sizeof text - 1);
    close(fd);
    if (size < 0)
        return errno != ESRCH;
    text[size] = 0;
    fields = strrchr(text, ')'); /* the name before it may hold anything */
    if (!fields || sscanf(fields + 1,
                          " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %ld",
                          &state, &threads) != 2)
        return true;
    return (state != 'Z' && state != 'X') || threads > 1;
}

/* Without a pidfd (before Linux 5.3, and 6.5 where HELLO came without one) the process table tells,
 * if the process is in it: one of another PID namespace may go on. */
bool gs_client_has_ended(const struct gs_client *client)
{
    if (client->over.exited || has_pidfd(client))
        return gs_client_has_exited(client);
    return client->is_seen && !is_running(client->pid);
}

/* Where the kernel put something on the stack of the program that the process runs; 0: it is not to
 * be seen. */
static uint64_t stack_of(pid_t pid)
{
    unsigned long entries[128];
    char path[32];
    ssize_t size;
    int fd;

    snprintf(path, sizeof path, "/proc/%d/auxv", (int)pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    size = read(fd, entries, sizeof entries);
    close(fd);
    for (size_t i = 0; size > 0 && i + 1 < (size_t)size / sizeof *entries; i += 2)
        if (entries[i] == AT_RANDOM)
            return entries[i + 1];
    return 0;
}

/* Where that cannot be told (another PID namespace, another user), the hang-up is taken for the end
 * of what was open, as of a program that called exec: it would be held until the process ends. */
static bool runs_the_same_program(const struct gs_client *client)
{
    return client->said.stack && client->is_seen && stack_of(client->pid) == client->said.stack;
}

static bool has_name(const struct gs_client *client)
{
    static const unsigned char none[GS_INSTANCE_SIZE];

    return memcmp(client->said.from, none, sizeof none) != 0;
}

bool gs_client_lives(const struct gs_client *client)
{
    return has_name(client) && !gs_client_has_ended(client) && runs_the_same_program(client);
}

bool gs_client_is_same(const struct gs_client *client, const struct gs_client *other)
{
    return has_name(client) && client->uid == other->uid && client->pid == other->pid &&
           memcmp(client->said.from, other->said.from, sizeof client->said.from) == 0 &&
           memcmp(client->instance, other->instance, sizeof client->instance) == 0;
}
