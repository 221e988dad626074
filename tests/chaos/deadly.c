/*
 * Where the library itself makes a system call, an actor of the chaos program can be killed
 * (chaos.h): the library finds these functions of the program before libc's. CHAOS_DIE is
 * "NAME:before:N" or "NAME:after:N", the n-th call of one of them. Anything else behaves as ever.
 */
#include <stdatomic.h>
#include <sys/epoll.h>

#include "chaos.h"

#define EXPORTED __attribute__((visibility("default")))

static _Atomic unsigned calls[CHAOS_DEADLY];

const char *const chaos_deadly_names[CHAOS_DEADLY] = {
    [DEADLY_SENDMSG] = "sendmsg",   [DEADLY_RECVMSG] = "recvmsg", [DEADLY_ACCEPT] = "accept4",
    [DEADLY_CONNECT] = "connect",   [DEADLY_BIND] = "bind",       [DEADLY_LISTEN] = "listen",
    [DEADLY_RENAME] = "renameat",   [DEADLY_UNLINK] = "unlinkat", [DEADLY_EPOLL] = "epoll_ctl",
    [DEADLY_SHUTDOWN] = "shutdown",
};

/* Whether this is the call, on this side of it. No libc state is touched but the environment, which
 * nobody changes in an actor. */
static void die_here(enum chaos_deadly call, const char *side)
{
    const char *order = getenv("CHAOS_DIE");
    const char *name = chaos_deadly_names[call];
    size_t length = strlen(name), side_length = strlen(side);
    unsigned count;

    if (!order || strncmp(order, name, length) != 0 || order[length] != ':' ||
        strncmp(order + length + 1, side, side_length) != 0)
        return;
    count = atomic_fetch_add(&calls[call], 1) + 1;
    if (count == (unsigned)strtoul(order + length + 1 + side_length + 1, NULL, 10))
        kill(getpid(), SIGKILL);
}

#define AROUND(call, ...)          \
    long result;                   \
    die_here(call, "before");      \
    result = syscall(__VA_ARGS__); \
    die_here(call, "after")

EXPORTED ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    AROUND(DEADLY_SENDMSG, SYS_sendmsg, fd, message, flags);
    return result;
}

EXPORTED ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
    AROUND(DEADLY_RECVMSG, SYS_recvmsg, fd, message, flags);
    return result;
}

EXPORTED int accept4(int fd, struct sockaddr *address, socklen_t *size, int flags)
{
    AROUND(DEADLY_ACCEPT, SYS_accept4, fd, address, size, flags);
    return (int)result;
}

EXPORTED int connect(int fd, const struct sockaddr *address, socklen_t size)
{
    AROUND(DEADLY_CONNECT, SYS_connect, fd, address, size);
    return (int)result;
}

EXPORTED int bind(int fd, const struct sockaddr *address, socklen_t size)
{
    AROUND(DEADLY_BIND, SYS_bind, fd, address, size);
    return (int)result;
}

EXPORTED int listen(int fd, int backlog)
{
    AROUND(DEADLY_LISTEN, SYS_listen, fd, backlog);
    return (int)result;
}

EXPORTED int renameat(int from, const char *name, int to, const char *new_name)
{
    AROUND(DEADLY_RENAME, SYS_renameat2, from, name, to, new_name, 0);
    return (int)result;
}

EXPORTED int unlinkat(int fd, const char *name, int flags)
{
    AROUND(DEADLY_UNLINK, SYS_unlinkat, fd, name, flags);
    return (int)result;
}

EXPORTED int epoll_ctl(int epoll, int op, int fd, struct epoll_event *event)
{
    AROUND(DEADLY_EPOLL, SYS_epoll_ctl, epoll, op, fd, event);
    return (int)result;
}

EXPORTED int shutdown(int fd, int how)
{
    AROUND(DEADLY_SHUTDOWN, SYS_shutdown, fd, how);
    return (int)result;
}
