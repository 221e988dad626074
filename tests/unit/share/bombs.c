/* Descriptors that are sent to do harm (bombs.h). */
#include "bombs.h"
#include "tests/children.h"
#include "tests/system.h"

#include <linux/fuse.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/mount.h>

#define LINGER_S 600
#define ENDS_MAX 700
#define INODE    2 /* of the one file */

const char *const bomb_names[BOMBS] = {"lingering socket",
                                       "socket with a lingering one in it",
                                       "file that does not close",
                                       "pipe",
                                       "memfd that shrinks",
                                       "pidfd",
                                       "epoll",
                                       "/dev/null"};

static int ends[ENDS_MAX]; /* other ends of sockets, whose data nobody takes */
static unsigned end_count;
static int unsent[ENDS_MAX];
static unsigned unsent_count;
static char mountpoint[64];
static pid_t server;

static void must(bool holds, const char *what)
{
    if (holds)
        return;
    perror(what);
    abort();
}

/* ---- A file system that answers all but the closing of its file ------------------------------ */

static void fuse_answer(int fuse, const struct fuse_in_header *in, int error, const void *body,
                        size_t size)
{
    char out[sizeof(struct fuse_out_header) + 256];
    struct fuse_out_header head = {.len = (uint32_t)(sizeof head + size),
                                   .error = error,
                                   .unique = in->unique};

    memcpy(out, &head, sizeof head);
    if (size)
        memcpy(out + sizeof head, body, size);
    must(write(fuse, out, head.len) == (ssize_t)head.len || errno == ENOENT, "fuse");
}

static struct fuse_attr fuse_attributes(uint64_t inode)
{
    return (struct fuse_attr){.ino = inode,
                              .size = 4096,
                              .nlink = 1,
                              .blksize = 4096,
                              .mode = inode == FUSE_ROOT_ID ? S_IFDIR | 0755 : S_IFREG | 0644};
}

static void fuse_serve(int fuse)
{
    static char in[1 << 17];
    const struct fuse_in_header *head = (const struct fuse_in_header *)in;

    while (read(fuse, in, sizeof in) > 0) {
        if (head->opcode == FUSE_INIT) {
            struct fuse_init_out init = {.major = FUSE_KERNEL_VERSION,
                                         .minor = 23,
                                         .max_write = 4096};

            fuse_answer(fuse, head, 0, &init, FUSE_COMPAT_22_INIT_OUT_SIZE);
        } else if (head->opcode == FUSE_LOOKUP) {
            struct fuse_entry_out entry = {.nodeid = INODE,
                                           .entry_valid = 3600,
                                           .attr_valid = 3600,
                                           .attr = fuse_attributes(INODE)};

            fuse_answer(fuse, head, 0, &entry, sizeof entry);
        } else if (head->opcode == FUSE_GETATTR) {
            struct fuse_attr_out attr = {.attr_valid = 3600, .attr = fuse_attributes(head->nodeid)};

            fuse_answer(fuse, head, 0, &attr, sizeof attr);
        } else if (head->opcode == FUSE_OPEN) {
            struct fuse_open_out opened = {.fh = 1};

            fuse_answer(fuse, head, 0, &opened, sizeof opened);
        } else if (head->opcode != FUSE_FLUSH && head->opcode != FUSE_FORGET &&
                   head->opcode != FUSE_BATCH_FORGET && head->opcode != FUSE_INTERRUPT) {
            fuse_answer(fuse, head, -ENOSYS, NULL, 0);
        }
    }
    _exit(0);
}

static bool fuse_begin(void)
{
    char options[128];
    pid_t parent = getpid();
    int fuse = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    bool mounted;

    if (fuse < 0)
        return false;
    snprintf(mountpoint, sizeof mountpoint, "/tmp/gpushim-fuse-%d", (int)parent);
    must(mkdir(mountpoint, 0755) == 0 || errno == EEXIST, "mkdir");
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other",
             fuse);
    mounted = mount("gpushim-test", mountpoint, "fuse", MS_NOSUID | MS_NODEV, options) == 0;
    if (mounted) {
        server = fork_child();
        must(server >= 0, "fork");
        if (server == 0) {
            fuse_serve(fuse);
        }
    } else {
        rmdir(mountpoint);
    }
    close(fuse);
    return mounted;
}

static void fuse_end(void)
{
    if (!server)
        return;
    kill(server, SIGKILL); /* whoever waits for it gets an error */
    waitpid(server, NULL, 0);
    server = 0;
    umount2(mountpoint, MNT_DETACH);
    rmdir(mountpoint);
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

bool bombs_begin(enum bomb kind)
{
    return kind != BOMB_FUSE || fuse_begin();
}

int bomb_new(enum bomb kind)
{
    char path[sizeof mountpoint + 8];
    int pipes[2], fd = -1;

    switch (kind) {
    case BOMB_LINGER:
        fd = lingering_new();
        break;
    case BOMB_NESTED:
        fd = nested_new();
        break;
    case BOMB_FUSE:
        snprintf(path, sizeof path, "%s/file", mountpoint);
        fd = open(path, O_RDWR | O_CLOEXEC);
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
    if (kind == BOMB_FUSE)
        bomb_unsent(fd);
    else
        close_briefly(fd);
}

void bomb_unsent(int fd)
{
    must(unsent_count < ENDS_MAX, "too many bombs");
    unsent[unsent_count++] = fd;
}

void bombs_end(enum bomb kind)
{
    if (kind == BOMB_FUSE)
        fuse_end();
    while (end_count > 0)
        close(ends[--end_count]);
    while (unsent_count > 0)
        close(unsent[--unsent_count]);
}
