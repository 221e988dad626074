/*
 * Exporter: its broker (broker.c has the picture): finding one, starting it where there is none,
 * answering what it asks, and going on without it.
 *
 * What is to be left with a broker stands in one list, in the order in which handles were given
 * out, but for what got a name, for which somebody waits; the broker was told of what lies before
 * `next`. It asks for one thing at a time and is told one thing at a time, so nothing piles up for
 * one that does not ask. That something was taken back (confirm.c) comes with the next answer.
 */
#include "core/base/list.h"
#include "core/share/cluster.h"
#include "core/share/discard.h"

#include <string.h>

#define AWAIT_NS        (3 * GS_NS_PER_S)  /* one that was started, or takes no connection now, */
#define AWAIT_LOOK_NS   (2 * GS_NS_PER_MS) /* looked for so often, and less often as that takes */
#define AWAIT_LOOK_PART 8                  /* longer: after this part of the time */
#define SILENT_NS       GS_NS_PER_S        /* a broker that asks nothing for so long is told of, */
#define SILENT_AGAIN_NS (60 * GS_NS_PER_S) /* and then so often */
#define LOOK_FIRST_NS   GS_NS_PER_S /* for another broker, and then twice as late each time, but */
#define LOOK_LAST_NS    (64 * GS_NS_PER_S)

/* ---- What it is to have ---------------------------------------------------------------------- */

static bool is_to_be_left(const struct gs_export *export)
{
    return !export->freed_ns || (export->far && export->far->held);
}

void gs_broker_offer_locked(struct gs_share *share, struct gs_export *export)
{
    if (export->offered_before)
        return;
    DL_APPEND2(share->exporter.offered, export, offered_before, offered_behind);
    if (!share->link.next)
        share->link.next = export;
    if (share->link.asks || share->link.fd < 0)
        gs_thread_wake(share);
}

void gs_broker_offer_first_locked(struct gs_share *share, struct gs_export *export)
{
    struct gs_export *next = share->link.next;

    if (!export->offered_before || export->slot || !next || next == export)
        return;
    DL_DELETE2(share->exporter.offered, export, offered_before, offered_behind);
    DL_PREPEND_ELEM2(share->exporter.offered, next, export, offered_before, offered_behind);
    share->link.next = export;
}

static void revoke_locked(struct gs_share *share, struct gs_export *export)
{
    if (share->link.given == export)
        share->link.given = NULL;
    if (!export->slot)
        return;
    gs_confirm_revoke_locked(share, export);
    if (!share->link.revoked && share->link.asks)
        gs_thread_wake(share);
    share->link.revoked = true;
}

void gs_broker_take_back_locked(struct gs_share *share, struct gs_export *export)
{
    if (!export->offered_before)
        return;
    revoke_locked(share, export);
    if (share->link.next == export)
        share->link.next = export->offered_behind;
    DL_DELETE2(share->exporter.offered, export, offered_before, offered_behind);
    export->offered_before = NULL;
}

/* ---- The connection ------------------------------------------------------------------------- */

/* Who this is, whose it may be when this process has ended, and what of it. On a new connection
 * there is room for that. */
static int greet(struct gs_share *share, int fd)
{
    const struct gs_share_options *options = &share->options;
    union gs_wire_message message;
    int error, pidfd = gs_alive_own_pidfd(), memory;

    gs_wire_hello(&message, share->instance);
    error = gs_wire_send(fd, &message, pidfd);
    gs_fd_drop(pidfd);
    if (error)
        return error;
    gs_wire_start(&message, GS_WIRE_PUBLISH, 0);
    message.publish.uid_count = options->uid_count;
    message.publish.gid_count = options->gid_count;
    memcpy(message.publish.uids, options->uids, options->uid_count * sizeof *options->uids);
    memcpy(message.publish.gids, options->gids, options->gid_count * sizeof *options->gids);
    memory = gs_confirm_start(share);
    if (memory < 0)
        return memory;
    error = gs_wire_send(fd, &message, memory);
    gs_fd_drop(memory);
    return error;
}

/* A greeted connection to a broker of a user who may be trusted with the memory, or an errno. Waits
 * for nobody: importers would wait meanwhile. */
static int connect_broker(struct gs_share *share)
{
    struct gs_conn_who who;
    char name[GS_BROKER_NAME_SIZE];
    int error, fd;

    gs_broker_name(name);
    fd = gs_directory_connect(share->place.directory, &share->options, name, 0);
    if (fd < 0)
        return fd;
    who = gs_conn_who(fd);
    if (who.uid == (uid_t)-1 || !gs_process_is_listed(&share->options, who.uid, who.gid)) {
        gs_log_line(&share->log, share->link.pause_ns ? GS_LOG_DEBUG : GS_LOG_WARNING,
                    "the broker is of user %u, who is not to be trusted with memory; name them "
                    "(share.uids), or let it run as this user",
                    (unsigned)who.uid);
        error = -EPERM;
    } else {
        error = greet(share, fd);
    }
    if (error == -EPIPE || error == -ECONNRESET)
        error = 0; /* it has hung up: the share thread finds that, and reads why (say_lost) */
    if (!error)
        error = gs_watch(share, GS_WATCH_ADD, fd, GS_WATCH_READ, GS_WATCH_BROKER, 0);
    if (error) {
        gs_hang_up(fd);
        return error;
    }
    return fd;
}

/* All that lose a broker lose it at once: up to half as late again, so that one starts the next. */
static void pause_looking(struct gs_share *share)
{
    uint64_t pause = 2 * share->link.pause_ns;

    share->link.pause_ns = pause < LOOK_FIRST_NS  ? LOOK_FIRST_NS
                           : pause > LOOK_LAST_NS ? LOOK_LAST_NS
                                                  : pause;
    share->link.retry_ns =
        gs_now_ns() + share->link.pause_ns + share->link.pause_ns / 512 * share->instance[0];
}

/* What it was told counts no more: whoever is found next is told all anew. Nothing of it is
 * confirmed any more: the broker may see both ends at once, that of the connection and later that
 * of the process. */
static void forget(struct gs_share *share)
{
    struct gs_export *export;
    GS_HOLDING(&share->lock);

    share->link.asks = false;
    DL_FOREACH2(share->exporter.offered, export, offered_behind)
        revoke_locked(share, export);
    gs_confirm_end_locked(share);
    share->link.revoked = false;
    share->link.fd = -1;
    share->link.absent = true;
    share->link.again_ns = 0;
    share->link.next = share->exporter.offered;
    gs_names_forget_locked(share);
}

static void look_for_next(struct gs_share *share)
{
    if (gs_now_ns() - share->link.found_ns >= LOOK_LAST_NS)
        share->link.pause_ns = 0; /* it was a good one */
    pause_looking(share);
}

/* Whether there is a connection. The program may have closed it, and its number may be another
 * file's. */
static bool is_connected(struct gs_share *share)
{
    if (share->link.fd < 0 || gs_fd_is_there(&share->link.fd_is))
        return share->link.fd >= 0;
    forget(share);
    look_for_next(share);
    gs_log_line(&share->log, GS_LOG_INFO,
                "the program has closed the connection to the broker: all that is shared is left "
                "there again");
    return false;
}

/* Whether it is to be looked for again soon, and others are served meanwhile. Where there is none
 * one is started; *fd is then why it cannot be. */
static bool is_awaited(struct gs_share *share, int *fd)
{
    uint64_t now = gs_now_ns();

    if (*fd != -ENOENT && *fd != -ECONNREFUSED && *fd != -EAGAIN)
        return false;
    if (!share->link.awaited_ns) {
        int error = *fd == -EAGAIN ? 0 : gs_broker_start(share);

        if (error) {
            *fd = error;
            return false;
        }
        share->link.awaited_ns = now;
    }
    share->link.retry_ns = now + AWAIT_LOOK_NS + (now - share->link.awaited_ns) / AWAIT_LOOK_PART;
    return now < share->link.awaited_ns + AWAIT_NS;
}

/* One look, of which an attempt has several where a broker is awaited. A failure is said at the
 * first attempt. */
static void find_broker(struct gs_share *share)
{
    bool again = share->link.pause_ns > 0;
    int fd = connect_broker(share);

    if (is_awaited(share, &fd))
        return;
    share->link.awaited_ns = 0;
    gs_lock_take(&share->lock);
    share->link.absent = fd < 0;
    if (fd >= 0) {
        share->link.fd = fd;
        share->link.fd_is = gs_fd_keep(fd);
    }
    gs_cond_wake_all(&share->exporter.names_told);
    gs_lock_release(&share->lock);
    if (fd < 0) {
        pause_looking(share);
        gs_log_line(&share->log, again ? GS_LOG_DEBUG : GS_LOG_WARNING,
                    "no broker (%s, program %s): memory is shared as long as this process runs; "
                    "start gpushim-broker, or name its program (share.broker)",
                    strerror(-fd), share->options.broker_program);
        return;
    }
    share->link.found_ns = gs_now_ns();
    share->link.silent_ns = share->link.found_ns + SILENT_NS;
    if (again)
        gs_log_line(&share->log, GS_LOG_INFO,
                    "there is a broker: all that is shared is left with it");
}

/* ---- Answers --------------------------------------------------------------------------------- */

/* False: that does not go now. */
static bool answer_locked(struct gs_share *share, union gs_wire_message *message, int fd)
{
    message->head.request = share->link.revoked;
    if (!gs_fd_is_there(&share->link.fd_is) || gs_wire_send(share->link.fd, message, fd) != 0) {
        share->link.again_ns = gs_now_ns() + GS_ROOM_NS;
        return false;
    }
    share->link.asks = share->link.revoked = false;
    share->link.silent_ns = gs_now_ns() + SILENT_NS;
    return true;
}

/* What goes without a descriptor; false: there is nothing of that. */
static bool say_locked(struct gs_share *share)
{
    union gs_wire_message message;
    struct gs_name *name;

    if (gs_cluster_next_locked(share, &message)) {
        if (answer_locked(share, &message, -1))
            gs_cluster_told_locked(share);
        return true;
    }
    name = gs_names_next_locked(share, &message);
    if (name && answer_locked(share, &message, -1))
        gs_names_told_locked(share, name);
    return name != NULL;
}

/* The one of which it asks for a piece; or the next. NULL: there is none, or no room for it. What
 * was put first while the one behind it was on its way comes back to that. */
static struct gs_export *next_locked(struct gs_share *share)
{
    if (share->link.given)
        return share->link.given;
    while (share->link.next && (share->link.next->slot || !is_to_be_left(share->link.next)))
        share->link.next = share->link.next->offered_behind;
    return gs_confirm_has_room_locked(share) ? share->link.next : NULL;
}

/* Its descriptor is not to be had: later, since none is left, or never. */
static void pass_over(struct gs_share *share, struct gs_export *export, CUresult error)
{
    if (error == CUDA_ERROR_OPERATING_SYSTEM) {
        share->link.again_ns = gs_now_ns() + GS_ROOM_NS;
        return;
    }
    gs_log_line(
        &share->log, GS_LOG_WARNING,
        "a block is shared without the broker: the driver does not export all of its memory");
    GS_HOLDING(&share->lock);
    revoke_locked(share, export);
    if (share->link.next == export)
        share->link.next = export->offered_behind;
}

static void give_locked(struct gs_share *share, struct gs_export *export, uint32_t piece, int fd)
{
    const struct gs_share_strip *strip = export->source.strip;
    union gs_wire_message message;
    bool first = !export->slot;

    if (first)
        gs_confirm_locked(share, export);
    gs_share_message_start(&message, export, export->far && export->far->held);
    message.share.slot = export->slot;
    if (strip) {
        message.share.pieces = strip->pieces;
        message.share.piece = piece;
        message.share.piece_size = strip->sizes[piece];
    }
    if (answer_locked(share, &message, fd))
        share->link.given = export;
    else if (first)
        gs_confirm_revoke_locked(share, export); /* it has not heard of it */
}

/* What is pinned, or a piece of it. */
static void give(struct gs_share *share, struct gs_export *export)
{
    uint32_t piece = export->slot ? share->link.piece : 0;
    CUresult result;
    bool fresh;
    struct gs_fd fd;

    gs_cluster_prepare(share, export);
    result = gs_piece_fd(share, export, piece, &fd, &fresh);
    if (result != CUDA_SUCCESS) {
        pass_over(share, export, result);
        return;
    }
    gs_lock_take(&share->lock);
    if (!gs_fd_is_there(&fd)) /* the program may have closed it meanwhile */
        share->link.again_ns = gs_now_ns() + GS_ROOM_NS;
    else
        give_locked(share, export, piece, fd.fd);
    gs_lock_release(&share->lock);
    if (fresh)
        gs_piece_fd_keep(share, export, piece, &fd);
}

/* The broker has asked. What is to be done comes first, then what is to be had, then that there is
 * something to read. False: there is nothing. */
static bool answer(struct gs_share *share)
{
    union gs_wire_message message;
    struct gs_export *export = NULL;

    gs_lock_take(&share->lock);
    if (!say_locked(share)) {
        export = next_locked(share);
        if (export) {
            gs_export_pin_locked(share, export);
        } else if (share->link.revoked) {
            gs_wire_start(&message, GS_WIRE_RING, 0);
            answer_locked(share, &message, -1);
        }
    }
    gs_lock_release(&share->lock);
    if (!export)
        return false;
    give(share, export);
    gs_export_unpin(share, export, false);
    return true;
}

/* The last one is done with, and what it was about may be told of. False: it asks for what there is
 * not. */
static bool on_pull(struct gs_share *share, const struct gs_wire_pull *pull)
{
    struct gs_export *given;
    bool sound = true;
    GS_HOLDING(&share->lock);

    gs_names_answered_locked(share, pull->kept == 1);
    given = share->link.given;
    if (given && given->key.id == pull->block_id) {
        sound = gs_export_is_strip(given) && pull->piece > 0 &&
                pull->piece < given->source.strip->pieces;
        share->link.piece = pull->piece;
    } else if (given) {
        share->link.given = NULL;
        if (given->freed_ns)
            gs_cluster_recall_locked(share, given); /* this broker does not know it */
    }
    share->link.asks = true;
    return sound;
}

/* ---- Its events ------------------------------------------------------------------------------ */

static void say_silent(struct gs_share *share, uint64_t now)
{
    share->link.silent_ns = now + SILENT_AGAIN_NS;
    gs_log_line(
        &share->log, GS_LOG_WARNING,
        "the broker (process %d) reads nothing: it keeps what was freed here since, so the driver does "
        "not get that back, and what is shared now is as long as this process runs; let it go on, or "
        "end it",
        (int)gs_conn_who(share->link.fd).pid);
}

/* What a broker that hangs up has said last. */
static void say_lost(struct gs_share *share, int error, const union gs_wire_message *said)
{
    if (error == -EPROTONOSUPPORT)
        gs_log_line(&share->log, share->link.pause_ns ? GS_LOG_DEBUG : GS_LOG_WARNING,
                    "the broker has " GS_WIRE_VERSION_TEXT
                    ": memory is shared as long as this process runs; use the same for both",
                    (unsigned)said->head.version, GS_WIRE_VERSION);
    else
        gs_log_line(
            &share->log, GS_LOG_WARNING,
            "the broker has ended%s%s: memory is shared as long as this process runs, until "
            "there is another",
            error == 0 && said->head.type == GS_WIRE_REFUSE ? ", saying: " : "",
            error == 0 && said->head.type == GS_WIRE_REFUSE
                ? gs_wire_reason_text(said->refuse.reason)
                : "");
}

bool gs_broker_event(struct gs_share *share, union gs_wire_message *ret_message)
{
    const struct gs_fd kept = share->link.fd_is;
    int fd = share->link.fd, error;

    if (!is_connected(share) || !gs_conn_has_more(fd))
        return false;
    error = gs_wire_receive(fd, ret_message, NULL);
    if (error == 0 && ret_message->head.type == GS_WIRE_PULL && on_pull(share, &ret_message->pull))
        return false;
    if (error == 0 &&
        (ret_message->head.type == GS_WIRE_OPEN || ret_message->head.type == GS_WIRE_CLOSE))
        return true;
    gs_unwatch(share, fd);
    forget(share);
    say_lost(share, error, ret_message);
    if (gs_fd_is_there(&kept)) /* the lock may have been waited for */
        gs_hang_up(fd);
    look_for_next(share);
    return false;
}

/* Whether there is more to be done at once. */
static bool serve(struct gs_share *share, uint64_t now)
{
    if (!share->link.asks || now < share->link.again_ns ||
        __atomic_load_n(&share->ending, __ATOMIC_ACQUIRE))
        return false;
    share->link.again_ns = 0;
    return answer(share) && share->link.asks && !share->link.again_ns;
}

static bool has_offered(struct gs_share *share)
{
    GS_HOLDING(&share->lock);

    return share->exporter.offered != NULL;
}

uint64_t gs_broker_look(struct gs_share *share, uint64_t now)
{
    if (!is_connected(share)) {
        if (now < share->link.retry_ns)
            return share->link.retry_ns;
        if (!share->link.awaited_ns && !has_offered(share))
            return GS_NEVER;
        find_broker(share);
        return share->link.fd < 0 ? share->link.retry_ns : share->link.silent_ns;
    }
    if (serve(share, now))
        return now;
    if (share->link.asks)
        return share->link.again_ns ? share->link.again_ns : GS_NEVER;
    if (now >= share->link.silent_ns)
        say_silent(share, now);
    return share->link.silent_ns;
}
