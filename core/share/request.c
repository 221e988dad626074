/*
 * Importer: asking an exporter for a block, and judging what it answers. Nothing that comes from it
 * is believed before it was checked. All that one call waits for, of the exporter and of a broker,
 * is over at the call's one deadline (remote->deadline_ns).
 */
#include "core/share/discard.h"
#include "core/share/memory.h"
#include "core/share/importer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SPIN_NS    (500 * GS_NS_PER_MS / 1000) /* an answer takes 20 to 360 us (measured) */
/* Who has looked in vain sleeps at once for this long: the one waited for may need the very CPU, or
 * it takes longer anyway. */
#define REST_NS    (20 * GS_NS_PER_MS)
#define YIELDED_NS (20 * GS_NS_PER_MS / 1000) /* where a look takes longer, others had the CPU */

/* Sends, waiting for room up to the call's deadline. */
static int send_to(const struct gs_remote *remote, const union gs_wire_message *message, int fd)
{
    for (;;) {
        int error = gs_fd_is_there(&remote->conn.kept_fd)
                        ? gs_wire_send(remote->conn.fd, message, fd)
                        : -EBADF;

        if (error != -EAGAIN)
            return error;
        if (gs_conn_wait(remote->conn.fd, -1, true, remote->deadline_ns) == GS_CONN_OVER)
            return -ETIMEDOUT;
    }
}

static int send_hello(struct gs_share *share, struct gs_remote *remote, uint32_t holds)
{
    union gs_wire_message message;
    /* Where the kernel told who the exporter is it tells that who this is. */
    int error, pidfd = remote->conn.pidfd >= 0 ? -1 : gs_alive_own_pidfd();

    gs_wire_hello(&message, remote->instance);
    memcpy(message.hello.from, share->instance, GS_INSTANCE_SIZE);
    message.hello.holds = holds;
    message.hello.number = __atomic_add_fetch(&share->importer.hellos, 1, __ATOMIC_RELAXED);
    error = send_to(remote, &message, pidfd);
    if (error == -ETOOMANYREFS) /* the kernel mostly tells who this is */
        error = send_to(remote, &message, -1);
    gs_fd_drop(pidfd);
    if (error || !__atomic_load_n(&share->importer.forked, __ATOMIC_SEQ_CST))
        return error;
    gs_wire_start(&message, GS_WIRE_FORKED, 0);
    remote->conn.fork_told = true;
    return send_to(remote, &message, -1);
}

struct lease {
    uint64_t block_id;
    uint32_t generation;
};

/* What this process has of the remote, also of one that was given up: over the connection that is
 * greeted it goes back. How many blocks; *ret_leases is the caller's, NULL: no host memory, or
 * none. */
static uint32_t held_locked(struct gs_share *share, const struct gs_remote *remote,
                            struct lease **ret_leases)
{
    const uint32_t most = remote->opened_count;
    struct gs_opened *opened, *next;
    uint32_t count = 0;

    *ret_leases = most ? calloc(most, sizeof **ret_leases) : NULL;
    if (!*ret_leases)
        return 0;
    HASH_ITER(hh, share->importer.opened, opened, next) {
        if (opened->remote != remote || count == most)
            continue;
        opened->connection = remote->connection;
        (*ret_leases)[count++] = (struct lease){opened->key.id, opened->generation};
    }
    return count;
}

/* Says over a new connection who this is, and what it holds: all else goes back by that, and where
 * a CLOSE of it goes still, that means nothing. 0, or a negative errno: the connection is of no
 * use. */
static int greet(struct gs_share *share, struct gs_remote *remote)
{
    union gs_wire_message message;
    struct lease *leases;
    uint32_t count;
    int error = 0;

    gs_lock_take(&share->importer.lock);
    gs_cache_lost_locked(share, remote); /* before all of it belongs to this connection */
    count = held_locked(share, remote, &leases);
    if (remote->opened_count > 0 && !leases)
        error = -ENOMEM;
    gs_lock_release(&share->importer.lock);
    if (!error)
        error = send_hello(share, remote, count);
    for (uint32_t i = 0; !error && i < count; i++) {
        gs_wire_start(&message, GS_WIRE_RESUME, leases[i].generation);
        message.resume.block_id = leases[i].block_id;
        error = send_to(remote, &message, -1);
    }
    free(leases);
    remote->conn.owed += count;
    remote->conn.may_hold |= count > 0;
    remote->conn.greeted = error == 0;
    if (error && remote->conn.fd >= 0)
        gs_conn_shut(remote->conn.fd);
    return error;
}

gs_status gs_remote_resume(struct gs_share *share, struct gs_remote *remote)
{
    if (gs_remote_connect_again(share, remote) != 0)
        return GS_UNREACHABLE;
    if (greet(share, remote) != 0) {
        gs_remote_hang_up(remote);
        return GS_UNREACHABLE;
    }
    remote->astray = false;
    remote->conn.resumed = true;
    gs_log_line(&share->log, GS_LOG_DEBUG,
                "the program has closed a connection of the library's: there is another");
    return GS_OK;
}

static gs_status connect_or_resume(struct gs_share *share, struct gs_remote *remote)
{
    if (remote->astray) {
        gs_status status = gs_remote_resume(share, remote);

        if (status == GS_OK || remote->astray)
            return status;
    }
    return gs_remote_connect(share, remote);
}

static int send_open(struct gs_share *share, struct gs_remote *remote,
                     const struct gs_request *request)
{
    union gs_wire_message message;
    int error = 0;

    if (!remote->conn.greeted)
        error = greet(share, remote);
    if (error)
        return error;
    gs_wire_start(&message, GS_WIRE_OPEN, ++remote->conn.request);
    memcpy(message.open.ipc_handle, &request->ipc_handle, GS_IPC_HANDLE_SIZE);
    message.open.want_fd = request->wants;
    message.open.first = request->first;
    message.open.cluster = share->options.cluster && remote->conn.by_broker;
    remote->conn.may_hold = true;
    return send_to(remote, &message, -1);
}

static bool may_spin(struct gs_share *share, const struct gs_remote *remote)
{
    return share->spins && remote->conn.sent_ns >=
                               __atomic_load_n(&share->importer.sleep_until_ns, __ATOMIC_RELAXED);
}

/* Whether to look for the answer once more before one sleeps. The exporter's thread may wait for
 * the very CPU that this one looks on, so it gets that. Where others have had it for some time and
 * there is no answer still, one sleeps. */
static bool look_again(struct gs_share *share, uint64_t *looked, uint64_t *until)
{
    uint64_t now = gs_now_ns();

    if (now < *until && now - *looked < YIELDED_NS) {
        gs_yield();
        *looked = now;
        return true;
    }
    if (*until)
        __atomic_store_n(&share->importer.sleep_until_ns, now + REST_NS, __ATOMIC_RELAXED);
    *until = 0;
    return false;
}

static void fds_discard(struct gs_wire_fds *fds)
{
    for (unsigned i = 0; i < fds->count; i++)
        gs_discard(fds->fd[i]);
    fds->count = 0;
}

void gs_fds_done(struct gs_wire_fds *fds, bool used)
{
    if (!used) {
        fds_discard(fds);
        return;
    }
    for (unsigned i = 0; i < fds->count; i++)
        gs_fd_drop(fds->fd[i]);
    fds->count = 0;
}

/* What is no answer to the last request. */
static void take_other(struct gs_share *share, struct gs_remote *remote,
                       const union gs_wire_message *message, struct gs_wire_fds *fds)
{
    fds_discard(fds);
    gs_remote_take_other(share, remote, message, -1);
}

static int await_answer(struct gs_share *share, struct gs_remote *remote,
                        union gs_wire_message *ret_message, struct gs_wire_fds *ret_fds)
{
    const uint64_t deadline = remote->deadline_ns;
    uint64_t until = may_spin(share, remote) ? remote->conn.sent_ns + SPIN_NS : 0,
             looked = gs_now_ns();

    for (;;) {
        /* Meanwhile the program may have closed it, and another connection may have its number. */
        int error = gs_fd_is_there(&remote->conn.kept_fd)
                        ? gs_wire_receive_all(remote->conn.fd, ret_message, ret_fds)
                        : -EBADF;

        if (error == -EAGAIN && look_again(share, &looked, &until))
            continue;
        if (!error && gs_now_ns() >= deadline &&
            ret_message->head.request != remote->conn.request) {
            /* It talks on about something else. */
            take_other(share, remote, ret_message, ret_fds);
            return -ETIMEDOUT;
        }
        if (error == -EAGAIN) {
            enum gs_conn_event event =
                gs_conn_wait(remote->conn.fd, remote->conn.pidfd, false, deadline);

            if (event == GS_CONN_READY)
                continue;
            return event == GS_CONN_EXITED ? -ENOTCONN : -ETIMEDOUT;
        }
        if (error)
            return error;
        gs_remote_note_end(remote, ret_message);
        if ((ret_message->head.request && ret_message->head.request == remote->conn.request) ||
            (ret_message->head.type == GS_WIRE_REFUSE && ret_message->head.request == 0))
            return 0;
        take_other(share, remote, ret_message, ret_fds);
    }
}

static gs_status refused(struct gs_share *share, const struct gs_wire_refuse *refuse)
{
    const char *text = gs_wire_reason_text(refuse->reason);

    if (refuse->reason == GS_REFUSED_HANDLE || refuse->reason == GS_REFUSED_DRIVER ||
        refuse->reason == GS_REFUSED_EARLY || refuse->reason == GS_REFUSED_FLIGHT ||
        refuse->reason == GS_REFUSED_ASLEEP) /* for now: said when the time is over */
        gs_log_line(&share->log, GS_LOG_DEBUG, "the exporter refused: %s, driver's error %u", text,
                    (unsigned)refuse->driver_error);
    else
        gs_say_unreachable(share, text); /* something that its user or ours can change */
    switch (refuse->reason) {
    case GS_REFUSED_HANDLE:
    case GS_REFUSED_UNHEARD:
        return GS_STALE;
    case GS_REFUSED_USER:
        return GS_BAD_HANDLE;
    case GS_REFUSED_DRIVER:
        return refuse->driver_error > 0 && refuse->driver_error < CUDA_ERROR_UNKNOWN
                   ? (gs_status)refuse->driver_error
                   : (gs_status)CUDA_ERROR_UNKNOWN;
    default:
        return GS_UNREACHABLE;
    }
}

/* Where the block lies. A strip is one block, whole pages in each piece. */
static bool place_valid(const struct gs_wire_grant *grant)
{
    if (grant->pieces == 0 || grant->pieces > grant->chunk_size / GS_PAGE_SIZE || grant->own > 1)
        return false;
    if (grant->own)
        return grant->ends && grant->size == grant->chunk_size && grant->offset < grant->size &&
               grant->offset % GS_PAGE_SIZE == 0;
    return grant->size <= grant->chunk_size && grant->offset <= grant->chunk_size - grant->size;
}

/* Memory of the host is whole pages of a memfd, all of them granted. */
static bool behind_valid(const struct gs_wire_grant *grant)
{
    if (!grant->host)
        return grant->fd_offset == 0;
    return grant->host == 1 && grant->pieces == 1 && grant->offset == 0 && grant->ends &&
           gs_memory_is_pages(grant->fd_offset, grant->size) &&
           grant->fd_offset <= UINT64_C(1) << 62;
}

/* Whether what the exporter says makes sense and is about the block that was asked for. */
static bool grant_valid(const struct gs_wire_grant *grant, const struct gs_ipc_handle *ipc_handle)
{
    const uint64_t limit = UINT64_C(1) << GS_MAP_ADDRESS_BITS;

    return grant->block_id == ipc_handle->block_id && grant->chunk_id == ipc_handle->chunk_id &&
           grant->size == ipc_handle->size && grant->size > 0 && grant->chunk_size <= limit &&
           grant->chunk_size % GS_PAGE_SIZE == 0 && grant->read_only <= 1 && grant->ends <= 1 &&
           place_valid(grant) && behind_valid(grant);
}

static gs_status use_answer(struct gs_share *share, struct gs_remote *remote,
                            const struct gs_request *request, const union gs_wire_message *message,
                            const struct gs_wire_fds *fds)
{
    bool is_grant = message->head.type == GS_WIRE_GRANT;
    bool cluster = is_grant && message->grant.far;

    if (message->head.type == GS_WIRE_REFUSE)
        return refused(share, &message->refuse);
    if (is_grant && grant_valid(&message->grant, &request->ipc_handle) &&
        (request->wants == GS_OPEN_WANTS && !cluster
             ? gs_wire_batch_is_valid(&message->grant.batch, fds, message->grant.pieces,
                                      request->first,
                                      request->first ? request->left : message->grant.chunk_size)
             : fds->count == 0) &&
        !(cluster && (request->first > 0 || message->grant.pieces > 1 || message->grant.host ||
                      message->grant.own || !remote->conn.by_broker))) {
        remote->cluster = cluster;
        if (cluster)
            memcpy(remote->fabric, message->grant.fabric, sizeof remote->fabric);
        return GS_OK;
    }
    if (is_grant)
        gs_remote_return(share, remote, &message->grant);
    return gs_say_senseless(share);
}

static gs_status say_version(struct gs_share *share, const union gs_wire_message *message)
{
    char reason[GS_REASON_SIZE];

    snprintf(reason, sizeof reason,
             "the process that shared it has " GS_WIRE_VERSION_TEXT "; use the same for both",
             (unsigned)message->head.version, GS_WIRE_VERSION);
    return gs_say_unreachable(share, reason);
}

/* It takes what comes when nobody waits for it, and starts while the exporter answers. Where it
 * cannot be had what was asked for goes back by BYE: nothing else is held over the connection. */
static gs_status start_thread(struct gs_share *share, struct gs_remote *remote)
{
    gs_status status = gs_thread_start(share);

    if (status == GS_UNREACHABLE)
        gs_say_unreachable(share, "this process can have no thread more for it; raise its limits "
                                  "(ulimit -u, ulimit -n)");
    if (status != GS_OK)
        gs_remote_disconnect(share, remote);
    return status;
}

/* One attempt; -1 where the connection was over before it could answer. */
static int attempt(struct gs_share *share, struct gs_remote *remote, struct gs_request *request,
                   union gs_wire_message *ret_message, struct gs_wire_fds *ret_fds,
                   gs_status *ret_status)
{
    int error = send_open(share, remote, request);
    bool sent = error == 0;

    remote->conn.sent_ns = gs_now_ns();
    *ret_status = start_thread(share, remote);
    if (*ret_status != GS_OK)
        return 0;
    if (sent && request->wants == GS_OPEN_WANTS && request->first == 0)
        gs_room_make(share, request->ipc_handle.size, &request->room);
    if (request->pieces)
        gs_pieces_map(share, remote, request->pieces);
    if (sent || error == -EPIPE || error == -ECONNRESET) /* a refusal may lie there */
        error = await_answer(share, remote, ret_message, ret_fds);
    if (error == -ETIMEDOUT) {
        remote->conn.owed += sent; /* the thread takes its answer and gives it back */
        *ret_status = gs_say_unreachable(share, "the process that shared it does not answer");
    } else if (error == -EMFILE) {
        remote->conn.owed += sent; /* it is taken and given back when there is room */
        gs_say_unreachable(share,
                           "this process has no descriptor left; raise its limit (ulimit -n)");
        *ret_status = (gs_status)CUDA_ERROR_OPERATING_SYSTEM;
    } else if (error == -EPROTONOSUPPORT) {
        *ret_status = say_version(share, ret_message);
    } else if (error == -EPROTO) {
        *ret_status = gs_say_senseless(share);
    } else if (error) {
        gs_remote_lost(share, remote);
        return -1;
    } else {
        *ret_status = use_answer(share, remote, request, ret_message, ret_fds);
        if (*ret_status != GS_OK)
            fds_discard(ret_fds);
    }
    return 0;
}

/* A refusal for now: the broker has not seen yet that the exporter, which cannot be reached, has
 * ended; or the descriptor could not be sent, which others of the user's can bring about; or it
 * sleeps. */
static bool is_for_now(const struct gs_remote *remote, const union gs_wire_message *message,
                       gs_status status)
{
    if (status != GS_UNREACHABLE || message->head.type != GS_WIRE_REFUSE)
        return false;
    return message->refuse.reason == GS_REFUSED_FLIGHT ||
           message->refuse.reason == GS_REFUSED_ASLEEP ||
           (remote->conn.by_broker && message->refuse.reason == GS_REFUSED_EARLY);
}

/* Nobody is where its socket was, and its exit is not known: its sockets go before that. Either its
 * exit, after which its broker is asked, or its new socket ends this, or the call's deadline. */
static bool may_come_yet(const struct gs_remote *remote)
{
    return remote->astray && remote->absent_ns && gs_now_ns() < remote->deadline_ns;
}

gs_status gs_remote_request(struct gs_share *share, struct gs_remote *remote,
                            struct gs_request *request, struct gs_wire_grant *ret_grant,
                            struct gs_wire_fds *ret_fds)
{
    union gs_wire_message message = {0};
    uint64_t connection = remote->connection;
    gs_status status;

    ret_fds->count = 0;
    /* An exporter hangs up on a connection that has long been idle: that one is made anew. */
    for (int lost = 0;;) {
        gs_remote_look(remote);
        status = remote->conn.fd < 0 ? connect_or_resume(share, remote) : GS_OK;
        if (request->wants != GS_OPEN_WANTS &&
            remote->connection != connection) /* the caller's mapping went with that */
            return GS_UNREACHABLE;
        if (status != GS_OK && may_come_yet(remote)) {
            gs_rest_ns(GS_REFUSED_NS);
            continue;
        }
        if (status != GS_OK && remote->astray)
            gs_say_unreachable(share, "the process that shared it has closed the connection, and "
                                      "does not answer at another");
        if (status != GS_OK)
            return status;
        if (attempt(share, remote, request, &message, ret_fds, &status) == 0) {
            if (!is_for_now(remote, &message, status))
                break;
            if (gs_now_ns() >= remote->deadline_ns ||
                __atomic_load_n(&share->ending, __ATOMIC_ACQUIRE)) {
                gs_say_unreachable(share, gs_wire_reason_text(message.refuse.reason));
                break;
            }
            if (message.refuse.reason == GS_REFUSED_EARLY && remote->opened_count == 0)
                gs_remote_disconnect(share, remote); /* it is asked first, if it can be by now */
            gs_rest_ns(GS_REFUSED_NS);
            continue;
        }
        if (request->wants != GS_OPEN_WANTS &&
            !remote->astray) /* the caller's mapping went with it: the caller asks again */
            return GS_UNREACHABLE;
        if (lost++ > 0)
            return gs_say_unreachable(share,
                                      "the process that shared it has ended" GS_BROKER_HELPS);
    }
    if (status == GS_STALE && remote->conn.by_broker && message.refuse.reason == GS_REFUSED_HANDLE)
        gs_say_unreachable(share, "the process that shared it has ended, and the broker does not "
                                  "have it" GS_BROKER_HELPS);
    if (status == GS_OK)
        *ret_grant = message.grant;
    return status;
}
