/*
 * Opener: connections to exporters, one for each that this process has opened memory of.
 *
 * A connection is this process's lease, so it is kept while anything is held over it, whatever
 * else goes wrong with it: an answer that comes too late is taken when it comes and its hold given
 * back. Only the exporter's hang-up or exit ends it.
 */
#include "core/share/internal.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

static void name_of(const unsigned char *instance, char ret_name[GS_SOCKET_NAME_SIZE])
{
    static const char digits[] = "0123456789abcdef";

    for (unsigned i = 0; i < GS_INSTANCE_SIZE; i++) {
        ret_name[2 * i] = digits[instance[i] >> 4];
        ret_name[2 * i + 1] = digits[instance[i] & 15];
    }
    ret_name[GS_SOCKET_NAME_SIZE - 1] = 0;
}

struct gs_peer *gs_peer_find_locked(struct gs_share *share, const unsigned char *instance)
{
    struct gs_peer *peer;

    HASH_FIND(hh, share->peers, instance, GS_INSTANCE_SIZE, peer);
    return peer;
}

struct gs_peer *gs_peer_new_locked(struct gs_share *share, const unsigned char *instance)
{
    struct gs_peer *peer = calloc(1, sizeof *peer);

    if (!peer)
        return NULL;
    memcpy(peer->instance, instance, sizeof peer->instance);
    peer->id = ++share->next_peer;
    peer->fd = peer->pidfd = -1;
    HASH_ADD(hh, share->peers, instance, sizeof peer->instance, peer);
    if (peer->hh.tbl)
        return peer;
    free(peer);
    return NULL;
}

void gs_peer_reap_locked(struct gs_share *share, struct gs_peer *peer)
{
    if (peer->busy || peer->fd >= 0 || peer->opened_count > 0 || peer->imports || peer->unsent)
        return;
    HASH_DEL(share->peers, peer);
    free(peer);
}

void gs_peer_disconnect(struct gs_share *share, struct gs_peer *peer)
{
    if (peer->fd < 0)
        return;
    gs_unwatch(share, peer->fd);
    close(peer->fd);
    peer->fd = -1;
    if (peer->pidfd >= 0)
        close(peer->pidfd);
    peer->pidfd = -1;
    peer->connection++;
    peer->abandoned = 0;
}

/* A hang-up is always reported; answers that nobody waits for any more are read by the thread. */
static void watch(struct gs_share *share, const struct gs_peer *peer, int op)
{
    gs_watch(share, op, peer->fd, EPOLLONESHOT | (peer->abandoned ? EPOLLIN : 0), GS_WATCH_PEER,
             peer->id);
}

/* ---- Connecting --------------------------------------------------------------------------- */

static void say_unreachable(struct gs_share *share, const char *reason)
{
    bool said = __atomic_exchange_n(&share->unreachable_said, true, __ATOMIC_RELAXED);

    gs_log_line(&share->log, said ? GS_LOG_DEBUG : GS_LOG_WARNING,
                "another process's memory cannot be opened: %s", reason);
}

static gs_status connect_failed(struct gs_share *share, int error)
{
    char reason[GS_REASON_SIZE];

    if (error == -ENOENT || error == -ECONNREFUSED)
        snprintf(reason, sizeof reason,
                 "the process that shared it has ended, or uses another directory than %s",
                 share->options.dir);
    else
        snprintf(reason, sizeof reason, "no connection: %s", strerror(-error));
    say_unreachable(share, reason);
    return error == -EMFILE || error == -ENFILE ? (gs_status)CUDA_ERROR_OPERATING_SYSTEM
                                                : GS_UNREACHABLE;
}

/* Whether the process at the other end is one to take memory from, and alive: a child that it
 * forked may hold its socket. Finds its pidfd where the kernel gives one. */
static bool check_exporter(struct gs_share *share, int fd, int *ret_pidfd)
{
    struct ucred who = {.uid = (uid_t)-1};
    socklen_t size = sizeof who, pidfd_size = sizeof *ret_pidfd;

    *ret_pidfd = -1;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size) != 0 ||
        !gs_user_is_listed(&share->options, who.uid)) {
        say_unreachable(share, "it is another user's; name him as one to share with");
        return false;
    }
    if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, ret_pidfd, &pidfd_size) == 0)
        return true;
    *ret_pidfd = -1;
    return errno != EINVAL && errno != ESRCH && errno != ENODATA;
}

static gs_status peer_connect(struct gs_share *share, struct gs_peer *peer)
{
    char reason[GS_REASON_SIZE], name[GS_SOCKET_NAME_SIZE];
    int fd, pidfd, directory = gs_directory_open(&share->options, false, reason);

    if (directory < 0) {
        say_unreachable(share, reason);
        return GS_UNREACHABLE;
    }
    name_of(peer->instance, name);
    fd = gs_directory_connect(directory, &share->options, name);
    close(directory);
    if (fd < 0)
        return connect_failed(share, fd);
    if (!check_exporter(share, fd, &pidfd)) {
        close(fd);
        return GS_UNREACHABLE;
    }
    peer->fd = fd;
    peer->pidfd = pidfd;
    peer->greeted = false;
    watch(share, peer, EPOLL_CTL_ADD);
    return GS_OK;
}

/* ---- Asking ------------------------------------------------------------------------------- */

/* Sends, waiting for room up to `deadline`. */
static int send_by(const struct gs_peer *peer, const union gs_wire_message *message, int fd,
                   uint64_t deadline)
{
    for (;;) {
        struct pollfd room = {.fd = peer->fd, .events = POLLOUT};
        int error = gs_wire_send(peer->fd, message, fd);
        uint64_t now = gs_now();

        if (error != -EAGAIN)
            return error;
        if (now >= deadline)
            return -ETIMEDOUT;
        poll(&room, 1, (int)((deadline - now) / GS_NS_PER_MS) + 1);
    }
}

static int send_hello(struct gs_peer *peer, uint64_t deadline)
{
    union gs_wire_message message;
    int error, pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0);

    gs_wire_start(&message, GS_WIRE_HELLO, 0);
    memcpy(message.hello.instance, peer->instance, GS_INSTANCE_SIZE);
    message.hello.pid = (uint64_t)getpid();
    strncpy(message.hello.name, program_invocation_short_name, sizeof message.hello.name - 1);
    error = send_by(peer, &message, pidfd, deadline);
    if (pidfd >= 0)
        close(pidfd);
    return error;
}

static int send_open(struct gs_peer *peer, const unsigned char *bytes, bool want_fd,
                     uint64_t deadline)
{
    union gs_wire_message message;
    int error = 0;

    if (!peer->greeted)
        error = send_hello(peer, deadline);
    if (error)
        return error;
    peer->greeted = true;
    gs_wire_start(&message, GS_WIRE_OPEN, ++peer->request);
    memcpy(message.open.token, bytes, GS_TOKEN_SIZE);
    message.open.want_fd = want_fd;
    return send_by(peer, &message, -1, deadline);
}

void gs_peer_return(struct gs_peer *peer, uint64_t block_id)
{
    union gs_wire_message message;

    gs_wire_start(&message, GS_WIRE_CLOSE, 0);
    message.close.block_id = block_id;
    if (peer->fd >= 0)
        gs_wire_send(peer->fd, &message, -1);
}

/* An answer to a request that was given up. */
static void take_late(struct gs_peer *peer, const union gs_wire_message *message, int fd)
{
    if (peer->abandoned > 0)
        peer->abandoned--;
    if (message->head.type == GS_WIRE_GRANT)
        gs_peer_return(peer, message->grant.block_id);
    if (fd >= 0)
        close(fd);
}

/* Waits for something to read. False: the time is over, or the exporter exited without a word. */
static bool wait_readable(const struct gs_peer *peer, uint64_t deadline, bool *ret_exited)
{
    uint64_t now = gs_now();
    struct pollfd both[2] = {{.fd = peer->fd, .events = POLLIN},
                             {.fd = peer->pidfd, .events = POLLIN}};

    *ret_exited = false;
    if (now >= deadline)
        return false;
    if (poll(both, 2, (int)((deadline - now) / GS_NS_PER_MS) + 1) > 0 && !both[0].revents)
        *ret_exited = true;
    return !*ret_exited;
}

/* The answer to the last request: 0 with a message, -ETIMEDOUT, or another negative errno when the
 * connection has ended. -EMFILE comes with the message, which lacks its descriptor. */
static int receive_answer(struct gs_peer *peer, uint64_t deadline,
                          union gs_wire_message *ret_message, int *ret_fd)
{
    bool reset = false, exited;

    for (;;) {
        int error = gs_wire_receive(peer->fd, ret_message, ret_fd);

        if (error == -EAGAIN) {
            if (wait_readable(peer, deadline, &exited))
                continue;
            return exited ? -ENOTCONN : -ETIMEDOUT;
        }
        if (error == -ECONNRESET && !reset) { /* what was said before may still be there */
            reset = true;
            continue;
        }
        if (error && error != -EMFILE)
            return error;
        if (ret_message->head.request == peer->request ||
            (ret_message->head.type == GS_WIRE_REFUSE && ret_message->head.request == 0))
            return error;
        take_late(peer, ret_message, *ret_fd);
    }
}

static gs_status refused(struct gs_share *share, const struct gs_wire_refuse *refuse)
{
    gs_log_line(&share->log, GS_LOG_DEBUG, "the exporter refused: reason %u, driver %u",
                (unsigned)refuse->reason, (unsigned)refuse->driver_error);
    switch (refuse->reason) {
    case GS_REFUSED_TOKEN:
    case GS_REFUSED_USER:
        return GS_BAD_TOKEN;
    case GS_REFUSED_DRIVER:
        return refuse->driver_error > 0 && refuse->driver_error < CUDA_ERROR_UNKNOWN
                   ? (gs_status)refuse->driver_error
                   : (gs_status)CUDA_ERROR_UNKNOWN;
    default:
        return GS_UNREACHABLE;
    }
}

/* Whether what the exporter says makes sense and is about the block that was asked for. */
static bool grant_valid(const struct gs_wire_grant *grant, const struct gs_token *token)
{
    const uint64_t limit = UINT64_C(1) << GS_MAP_ADDRESS_BITS;

    return grant->block_id == token->block_id && grant->chunk_id == token->chunk_id &&
           grant->size == token->size && grant->size > 0 && grant->chunk_size <= limit &&
           grant->chunk_size % GS_PAGE_SIZE == 0 && grant->size <= grant->chunk_size &&
           grant->offset <= grant->chunk_size - grant->size;
}

static gs_status use_answer(struct gs_share *share, struct gs_peer *peer,
                            const struct gs_token *token, const union gs_wire_message *message,
                            bool want_fd, int *fd)
{
    bool is_grant = message->head.type == GS_WIRE_GRANT;

    if (message->head.type == GS_WIRE_REFUSE)
        return refused(share, &message->refuse);
    if (is_grant && grant_valid(&message->grant, token) && want_fd == (*fd >= 0))
        return GS_OK;
    if (is_grant)
        gs_peer_return(peer, message->grant.block_id);
    gs_log_line(&share->log, GS_LOG_WARNING,
                "the exporter of shared memory gave an answer that makes no sense; refused");
    return GS_UNREACHABLE;
}

/* One attempt; -1 where the connection was over before it could answer. */
static int attempt(struct gs_share *share, struct gs_peer *peer, const struct gs_token *token,
                   const unsigned char *bytes, bool want_fd, union gs_wire_message *ret_message,
                   int *ret_fd, gs_status *ret_status)
{
    uint64_t deadline = gs_now() + share->options.timeout_ns;
    int error = send_open(peer, bytes, want_fd, deadline);
    bool sent = error == 0;

    if (sent || error == -EPIPE || error == -ECONNRESET) /* a refusal may lie there */
        error = receive_answer(peer, deadline, ret_message, ret_fd);
    if (error == -ETIMEDOUT) {
        peer->abandoned += sent;
        say_unreachable(share, "the process that shared it does not answer");
        *ret_status = GS_UNREACHABLE;
    } else if (error == -EMFILE) {
        if (ret_message->head.type == GS_WIRE_GRANT)
            gs_peer_return(peer, ret_message->grant.block_id);
        say_unreachable(share, "this process has no descriptor left; raise its limit (ulimit -n)");
        *ret_status = (gs_status)CUDA_ERROR_OPERATING_SYSTEM;
    } else if (error == -EPROTO) {
        gs_log_line(&share->log, GS_LOG_WARNING,
                    "the exporter of shared memory gave an answer that makes no sense; refused");
        *ret_status = GS_UNREACHABLE;
    } else if (error) {
        gs_peer_disconnect(share, peer);
        return -1;
    } else {
        *ret_status = use_answer(share, peer, token, ret_message, want_fd, ret_fd);
    }
    return 0;
}

gs_status gs_peer_request(struct gs_share *share, struct gs_peer *peer,
                          const struct gs_token *token, const unsigned char *bytes, bool want_fd,
                          struct gs_wire_grant *ret_grant, int *ret_fd)
{
    union gs_wire_message message;
    gs_status status = GS_OK;

    *ret_fd = -1;
    /* An exporter hangs up on a connection that has long been idle: that one is made anew. */
    for (int i = 0; i < 2; i++) {
        if (peer->fd < 0)
            status = peer_connect(share, peer);
        if (status != GS_OK)
            return status;
        if (attempt(share, peer, token, bytes, want_fd, &message, ret_fd, &status) == 0)
            break;
        status = GS_OK;
        if (!want_fd) /* the caller's mapping went with the connection: he asks again */
            return GS_UNREACHABLE;
        if (i == 1) {
            say_unreachable(share, "the process that shared it has ended");
            return GS_UNREACHABLE;
        }
    }
    if (status != GS_OK && *ret_fd >= 0) {
        close(*ret_fd);
        *ret_fd = -1;
    }
    if (status == GS_OK)
        *ret_grant = message.grant;
    return status;
}

/* ---- Between requests ---------------------------------------------------------------------- */

static bool hung_up(const struct gs_peer *peer)
{
    struct pollfd end = {.fd = peer->fd};

    return poll(&end, 1, 0) > 0;
}

void gs_peer_release_locked(struct gs_share *share, struct gs_peer *peer)
{
    bool rearm = peer->lost || peer->abandoned;

    if (peer->fd >= 0 && peer->lost && hung_up(peer))
        gs_peer_disconnect(share, peer);
    if (peer->fd >= 0 && rearm)
        watch(share, peer, EPOLL_CTL_MOD);
    peer->lost = false;
    peer->busy = false;
    pthread_cond_broadcast(&share->opener_changed);
    gs_peer_reap_locked(share, peer);
}

static void drain(struct gs_peer *peer)
{
    union gs_wire_message message;
    int fd, error;

    for (unsigned i = 0; i <= peer->abandoned; i++) {
        error = gs_wire_receive(peer->fd, &message, &fd);
        if (error && error != -EMFILE)
            return;
        take_late(peer, &message, fd);
    }
}

void gs_peer_event(struct gs_share *share, uint64_t id)
{
    struct gs_peer *peer, *next;

    gs_lock_take(&share->opener_lock);
    HASH_ITER(hh, share->peers, peer, next)
    {
        if (peer->id != id)
            continue;
        if (peer->busy) {
            peer->lost = true; /* or has something to read: whoever is busy looks */
            break;
        }
        if (peer->fd < 0)
            break;
        if (hung_up(peer)) {
            gs_peer_disconnect(share, peer);
            gs_peer_flush_locked(share, peer);
            gs_peer_reap_locked(share, peer);
            break;
        }
        drain(peer);
        watch(share, peer, EPOLL_CTL_MOD);
        break;
    }
    gs_lock_release(&share->opener_lock);
}

bool gs_peer_flush_locked(struct gs_share *share, struct gs_peer *peer)
{
    while (peer->unsent) {
        struct gs_opened *opened = peer->unsent;
        union gs_wire_message message;

        gs_wire_start(&message, GS_WIRE_CLOSE, 0);
        message.close.block_id = opened->key.block_id;
        if (peer->fd >= 0 && opened->connection == peer->connection &&
            gs_wire_send(peer->fd, &message, -1) == -EAGAIN)
            return false;
        peer->unsent = opened->next;
        free(opened);
    }
    return true;
}
