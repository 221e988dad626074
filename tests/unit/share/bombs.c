/* Descriptors that are sent to do harm (bombs.h). */
#include "bombs.h"
#include "tests/children.h"
#include "tests/system.h"

#include <netinet/in.h>
#include <sys/epoll.h>

#define LINGER_S 600
#define ENDS_MAX 700

const char *const bomb_names[BOMBS] = {"lingering socket",
                                       "socket with a lingering one in it",
                                       "pipe",
                                       "memfd that shrinks",
                                       "pidfd",
                                       "epoll",
                                       "/dev/null"};

static int ends[ENDS_MAX]; /* other ends of sockets, whose data nobody takes */
static unsigned end_count;
static int unsent[ENDS_MAX];
static unsigned unsent_count;

static void must(bool holds, const char *what)
{
    if (holds)
        return;
    perror(what);
    abort();
}

/* ---- Sockets -------------------------------------------------------------------------------- */

static void keep_end(int fd)
{
    must(end_count < ENDS_MAX, "too many bombs");
    ends[end_count++] = fd;
}

static int lingering_new(void)
{
    const struct linger linger = {1, LINGER_S};
    const int small = 2048;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    static char data[65536];
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0),
        fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    must(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 1) == 0 &&
             getsockname(listener, (struct sockaddr *)&at, &size) == 0 &&
             connect(fd, (struct sockaddr *)&at, sizeof at) == 0,
         "a connection to oneself");
    keep_end(accept4(listener, NULL, NULL, SOCK_CLOEXEC));
    close(listener);
    while (send(fd, data, sizeof data, MSG_DONTWAIT | MSG_NOSIGNAL) > 0)
        continue;
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
    return fd;
}

static void send_along(int socket, int fd)
{
    char control[CMSG_SPACE(sizeof fd)] __attribute__((aligned(sizeof(struct cmsghdr)))) = {0};
    struct iovec part = {(void *)"x", 1};
    struct msghdr header = {.msg_iov = &part,
                            .msg_iovlen = 1,
                            .msg_control = control,
                            .msg_controllen = sizeof control};
    struct cmsghdr *c = CMSG_FIRSTHDR(&header);

    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(c), &fd, sizeof fd);
    must(sendmsg(socket, &header, 0) == 1, "a socket in a socket");
}

static int nested_new(void)
{
    int pair[2], fd = lingering_new();

    must(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0, "socketpair");
    send_along(pair[0], fd);
    close(fd);
    close(pair[0]);
    return pair[1];
}

/* ---- All ------------------------------------------------------------------------------------ */

int bomb_new(enum bomb kind)
{
    int pipes[2], fd = -1;

    switch (kind) {
    case BOMB_LINGER:
        fd = lingering_new();
        break;
    case BOMB_NESTED:
        fd = nested_new();
        break;
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

static void wake(int number)
{
}

/* Whoever got it may have closed it first: then this close is the last one, and is held up until a
 * signal comes. */
static void close_briefly(int fd)
{
    const struct itimerspec soon = {.it_interval = {0, 20000000}, .it_value = {0, 20000000}};
    struct sigaction act = {.sa_handler = wake};
    struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGURG};
    timer_t timer;

    event._sigev_un._tid = (pid_t)syscall(SYS_gettid);
    sigaction(SIGURG, &act, NULL);
    must(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0, "timer");
    timer_settime(timer, 0, &soon, NULL);
    close(fd);
    timer_delete(timer);
}

void bomb_gone(enum bomb kind, int fd)
{
    if (kind == BOMB_MEMORY)
        must(ftruncate(fd, 4096) == 0, "shrink");
    close_briefly(fd);
}

void bomb_unsent(int fd)
{
    must(unsent_count < ENDS_MAX, "too many bombs");
    unsent[unsent_count++] = fd;
}

void bombs_end(void)
{
    while (end_count > 0)
        close(ends[--end_count]);
    while (unsent_count > 0)
        close(unsent[--unsent_count]);
}
