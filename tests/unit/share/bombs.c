/* Descriptors that are sent to do harm (bombs.h). */
#include "bombs.h"
#include "tests/children.h"
#include "tests/system.h"

#include <sys/epoll.h>

const char *const bomb_names[BOMBS] = {"pipe", "memfd that shrinks", "pidfd", "epoll", "/dev/null"};

static void must(bool holds, const char *what)
{
    if (holds)
        return;
    perror(what);
    abort();
}

int bomb_new(enum bomb kind)
{
    int pipes[2], fd = -1;

    switch (kind) {
    case BOMB_PIPE:
        must(pipe2(pipes, O_CLOEXEC) == 0, "pipe");
        close(pipes[1]);
        fd = pipes[0];
        break;
    case BOMB_MEMORY:
        fd = memfd_create("memory", MFD_CLOEXEC);
        must(ftruncate(fd, 2 << 20) == 0, "memfd");
        break;
    case BOMB_PIDFD:
        fd = (int)syscall(SYS_pidfd_open, getppid(), 0);
        break;
    case BOMB_EPOLL:
        fd = epoll_create1(EPOLL_CLOEXEC);
        break;
    default:
        fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    }
    must(fd >= 0, bomb_names[kind]);
    return fd;
}

void bomb_gone(enum bomb kind, int fd)
{
    if (kind == BOMB_MEMORY)
        must(ftruncate(fd, 4096) == 0, "shrink");
    close(fd);
}
