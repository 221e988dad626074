/*
 * Exporter: publishing exports to a broker (broker.c has the picture): finding one, starting it
 * where there is none, telling it what is exported and what is not any more, and going on without
 * it.
 */
#include "core/share/afar.h"
#include "core/share/discard.h"

#include <string.h>

#define SEND_BUFFER    8192 /* 22 messages (measured): see below */
#define SEND_WAIT_MS   500 /* for a broker that does not answer or read: openers wait meanwhile */
#define ROOM_NS        (10 * GS_NS_PER_MS) /* for room is looked again after this */
#define PUBLISH_MAX      16 /* of those that were put off, in one round */
#define RETRY_NS       (20 * GS_NS_PER_MS) /* where too many descriptors are under way */
#define START_WAIT_NS  (3 * GS_NS_PER_S)
#define START_AGAIN_NS (50 * GS_NS_PER_MS)
#define FULL_SAID_NS   GS_NS_PER_S /* a broker that reads nothing for so long is told of, */
#define FULL_AGAIN_NS  (60 * GS_NS_PER_S) /* and then so often */
#define LOOK_FIRST_NS  GS_NS_PER_S /* for another broker, and then twice as late each time, but */
#define LOOK_LAST_NS   (64 * GS_NS_PER_S)

/* ---- The connection ------------------------------------------------------------------------- */

/* Sends, waiting a little for room: share thread only. */
static int send_waiting(int fd, const union gs_wire_message *message, int attached)
{
    uint64_t looked = gs_now_ns(), waited = 0;
    int error;

    while ((error = gs_wire_send(fd, message, attached)) == -EAGAIN || error == -ETOOMANYREFS) {
        waited += gs_look_counts(&looked);
        if (waited >= SEND_WAIT_MS * GS_NS_PER_MS)
            return error;
        if (error == -ETOOMANYREFS) /* descriptors under way, a limit of the user's */
            gs_rest_ns(GS_NS_PER_MS);
        else
            gs_conn_wait(fd, -1, true, looked + ROOM_NS);
    }
    return error;
}

static int greet(struct gs_share *share, int fd)
{
    union gs_wire_message message;
    int error, pidfd = gs_alive_own_pidfd();

    gs_wire_start(&message, GS_WIRE_HELLO, 0);
    memcpy(message.hello.instance, share->instance, GS_INSTANCE_SIZE);
    message.hello.stack = gs_alive_own_stack();
    message.hello.pid = (uint64_t)gs_alive_own_pid();
    strncpy(message.hello.name, program_invocation_short_name, sizeof message.hello.name - 1);
    error = send_waiting(fd, &message, pidfd);
    gs_fd_drop(pidfd);
    return error;
}

/* Whose it may be when this process has ended, and what of it. */
static int send_publish(struct gs_share *share, int fd)
{
    const struct gs_share_options *options = &share->options;
    union gs_wire_message message;
    int error, memory;

    gs_wire_start(&message, GS_WIRE_PUBLISH, 0);
    message.publish.uid_count = options->uid_count;
    message.publish.gid_count = options->gid_count;
    memcpy(message.publish.uids, options->uids, options->uid_count * sizeof *options->uids);
    memcpy(message.publish.gids, options->gids, options->gid_count * sizeof *options->gids);
    memory = gs_confirm_start(share, &message.publish.slots);
    if (memory < 0)
        return memory;
    error = send_waiting(fd, &message, memory);
    gs_fd_drop(memory);
    return error;
}

/*
 * A greeted connection to a broker of a user who may be trusted with the memory, or an errno. What
 * it does not read stays under way, and descriptors that are under way are counted for the user:
 * beyond a limit none goes from any of his processes to any other. So a broker that is stopped has
 * few of each process's there.
 */
static int connect_broker(struct gs_share *share)
{
    struct gs_conn_who who;
    char name[GS_BROKER_NAME_SIZE];
    int error, fd;

    gs_broker_name(name);
    fd = gs_directory_connect(share->place.directory, &share->options, name,
                              SEND_WAIT_MS * GS_NS_PER_MS);
    if (fd < 0)
        return fd;
    gs_conn_limit(fd, SEND_BUFFER);
    who = gs_conn_who(fd);
    if (who.uid == (uid_t)-1 || !gs_process_is_listed(&share->options, who.uid, who.gid)) {
        gs_log_line(&share->log, share->link.pause_ns ? GS_LOG_DEBUG : GS_LOG_WARNING,
                    "the broker is of user %u, who is not to be trusted with memory; name him "
                    "(share.uids), or let it run as this user",
                    (unsigned)who.uid);
        error = -EPERM;
    } else {
        error = greet(share, fd);
    }
    if (!error)
        error = send_publish(share, fd);
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

/* To the broker that was started just now, as soon as it listens. The process's own start may wait
 * for that; later the next look finds one that was late, for others are served meanwhile. */
static int connect_started(struct gs_share *share, bool again)
{
    uint64_t end = gs_now_ns() + (again ? START_AGAIN_NS : START_WAIT_NS);
    int fd;

    do {
        gs_rest_ns(2 * GS_NS_PER_MS);
        fd = connect_broker(share);
    } while ((fd == -ENOENT || fd == -ECONNREFUSED) && gs_now_ns() < end &&
             !__atomic_load_n(&share->loop.stop, __ATOMIC_ACQUIRE));
    return fd;
}

/* All that lose a broker lose it at once: up to half as late again, so that one starts the next. */
static void pause_looking(struct gs_share *share)
{
    uint64_t pause = 2 * share->link.pause_ns;

    share->link.pause_ns = pause < LOOK_FIRST_NS  ? LOOK_FIRST_NS
                           : pause > LOOK_LAST_NS ? LOOK_LAST_NS
                                                  : pause;
    share->link.retry_ns = gs_now_ns() + share->link.pause_ns +
                           share->link.pause_ns / 512 * share->instance[0];
}

/* Whether it is to be published to a broker, and is not yet. */
static bool is_to_be_published(const struct gs_export *export)
{
    return export->given_out && !gs_export_is_brokered(export) &&
           (!export->freed_ns || (export->far && export->far->held));
}

/* The broker takes nothing for the moment. A list, since there may be very many: all of them asked
 * for again whenever it has read a few would be too much. */
static void put_off(struct gs_share *share, struct gs_export *export)
{
    gs_lock_take(&share->lock);
    if (!export->put_off_at && is_to_be_published(export)) {
        export->put_off_at = &share->link.put_off;
        export->put_off_next = share->link.put_off;
        if (share->link.put_off)
            share->link.put_off->put_off_at = &export->put_off_next;
        share->link.put_off = export;
    }
    gs_lock_release(&share->lock);
}

static void put_off_stop_locked(struct gs_export *export)
{
    if (!export->put_off_at)
        return;
    *export->put_off_at = export->put_off_next;
    if (export->put_off_next)
        export->put_off_next->put_off_at = export->put_off_at;
    export->put_off_at = NULL;
}

/* Some of those that were put off, since the broker takes them now; whether there were any. */
static bool leave_some(struct gs_share *share)
{
    struct gs_export *export;
    int count = 0;

    gs_lock_take(&share->lock);
    for (; count < PUBLISH_MAX && (export = share->link.put_off); count++) {
        put_off_stop_locked(export);
        if (is_to_be_published(export))
            gs_export_ask_locked(share, export, GS_WORK_CHUNK_FD);
    }
    gs_lock_release(&share->lock);
    return count > 0;
}

/* All that is exported, where another broker than the first was found. */
static void leave_all(struct gs_share *share)
{
    struct gs_export *export, *next;

    gs_lock_take(&share->lock);
    HASH_ITER(hh, share->exporter.exports, export, next)
    {
        if (is_to_be_published(export))
            gs_export_ask_locked(share, export, GS_WORK_CHUNK_FD);
    }
    gs_lock_release(&share->lock);
}

/* What it was told counts no more: whoever is found next is told all anew. */
static void forget(struct gs_share *share)
{
    struct gs_export *export, *next;

    gs_lock_take(&share->lock);
    share->link.slow_ns = 0;
    __atomic_store_n(&share->link.full, false, __ATOMIC_RELEASE);
    share->link.fd = -1;
    share->link.absent = true;
    HASH_ITER(hh, share->exporter.exports, export, next)
    export->sent = 0;
    gs_confirm_forget_locked(share);
    gs_names_forget_locked(share);
    gs_lock_release(&share->lock);
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

/* One attempt. A failure is said at the first. */
static void find_broker(struct gs_share *share)
{
    bool again = share->link.pause_ns > 0;
    int fd = connect_broker(share);

    if (fd == -ENOENT || fd == -ECONNREFUSED) {
        int error = gs_broker_start(share);

        fd = error ? error : connect_started(share, again);
    }
    gs_lock_take(&share->lock);
    share->link.absent = fd < 0;
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
    gs_lock_take(&share->lock);
    share->link.fd = fd;
    share->link.fd_is = gs_fd_keep(fd);
    gs_lock_release(&share->lock);
    share->link.found_ns = gs_now_ns();
    if (!again)
        return;
    gs_log_line(&share->log, GS_LOG_INFO, "there is a broker: all that is shared is left with it");
    leave_all(share);
}

/* Whether anything is to be published to a broker; a new export looks for one by itself. */
static bool has_exports(struct gs_share *share)
{
    struct gs_export *export, *next;
    bool has = false;

    gs_lock_take(&share->lock);
    HASH_ITER(hh, share->exporter.exports, export, next)
    {
        has = is_to_be_published(export);
        if (has)
            break;
    }
    gs_lock_release(&share->lock);
    return has;
}

/* The broker's socket is full: nobody waits, the kernel says when it has read. */
static void await_room(struct gs_share *share)
{
    if (share->link.full)
        return;
    share->link.full_ns = gs_now_ns() + FULL_SAID_NS;
    __atomic_store_n(&share->link.full, true, __ATOMIC_RELEASE);
    gs_watch(share, GS_WATCH_CHANGE, share->link.fd, GS_WATCH_READ | GS_WATCH_WRITE,
             GS_WATCH_BROKER, 0);
}

static void say_full(struct gs_share *share, uint64_t now)
{
    uint64_t bytes;
    uint32_t blocks;

    gs_lock_take(&share->lock);
    blocks = gs_confirm_untold_locked(share, &bytes);
    gs_lock_release(&share->lock);
    share->link.full_ns = now + FULL_AGAIN_NS;
    gs_log_line(&share->log, GS_LOG_WARNING,
                "the broker (process %d) reads nothing: %u blocks that were freed here, %llu KiB, "
                "are kept by it, so the driver does not get them back, and what is shared now is "
                "as long as this process runs; let it go on, or end it",
                (int)gs_conn_who(share->link.fd).pid, blocks,
                (unsigned long long)(bytes + 1023) / 1024);
}

/* Why something did not go. */
static void take_note(struct gs_share *share, int error)
{
    if (error == -EAGAIN)
        await_room(share);
    else if (gs_wire_goes_later(error) || error == -ETOOMANYREFS)
        share->link.slow_ns = gs_now_ns() + RETRY_NS;
}

/* It is told what it was not told yet: 0, or why that does not go now. */
static int tell_locked(struct gs_share *share)
{
    int error = gs_confirm_tell_locked(share);

    if (!error)
        error = gs_names_tell_locked(share);
    return error ? error : gs_afar_tell_locked(share);
}

static bool tell(struct gs_share *share)
{
    int error;

    gs_lock_take(&share->lock);
    error = tell_locked(share);
    gs_lock_release(&share->lock);
    take_note(share, error);
    return error == 0;
}

uint64_t gs_broker_look(struct gs_share *share, uint64_t now)
{
    bool connected = is_connected(share);

    if (connected && share->link.full) {
        if (now >= share->link.full_ns)
            say_full(share, now);
        return share->link.full_ns;
    }
    if (connected && now >= share->link.slow_ns) {
        share->link.slow_ns = 0;
        if (tell(share) && leave_some(share))
            return now;
    }
    if (connected)
        return share->link.full      ? share->link.full_ns
               : share->link.slow_ns ? share->link.slow_ns
                                     : GS_NEVER;
    if (!share->link.pause_ns)
        return GS_NEVER;
    if (now < share->link.retry_ns)
        return share->link.retry_ns;
    if (!has_exports(share))
        return GS_NEVER;
    find_broker(share);
    return share->link.fd < 0 ? share->link.retry_ns : GS_NEVER;
}

/* Whether the export has its place in what this process confirms. One lock for that and for telling
 * all before it: else what another thread takes back in between has no place to be noted. */
static bool confirm(struct gs_share *share, struct gs_export *export)
{
    bool confirmed;
    int error;

    gs_lock_take(&share->lock);
    error = tell_locked(share);
    confirmed = !error && gs_confirm_locked(share, export);
    gs_lock_release(&share->lock);
    take_note(share, error);
    if (error)
        put_off(share, export);
    else if (!confirmed)
        gs_log_line(&share->log, GS_LOG_DEBUG,
                    "a block is shared without the broker: it has as many of this process as it "
                    "keeps (share.broker_blocks)");
    return confirmed;
}

bool gs_broker_takes(struct gs_share *share, struct gs_export *export)
{
    bool takes = !share->link.full && !share->link.slow_ns;

    if (share->options.broker && !takes)
        put_off(share, export);
    return share->options.broker && takes;
}

static int send_share(struct gs_share *share, struct gs_export *export, int fd)
{
    const struct gs_share_source *source = &export->source;
    union gs_wire_message message;

    gs_afar_prepare(share, export);
    gs_wire_start(&message, export->far ? GS_WIRE_SHARE_AFAR : GS_WIRE_SHARE, 0);
    if (export->far) {
        memcpy(message.share_afar.fabric, export->far->fabric, GS_FABRIC_SIZE);
        message.share_afar.held = export->far->held;
    }
    memcpy(message.share.ipc_handle, export->ipc_handle, GS_IPC_HANDLE_SIZE);
    message.share.chunk_size = source->chunk_size;
    message.share.offset = source->offset;
    memcpy(message.share.uuid, source->uuid, sizeof message.share.uuid);
    message.share.read_only = export->read_only;
    message.share.slot = export->slot;
    message.share.pieces = source->strip ? source->strip->pieces : 0;
    return gs_wire_send(share->link.fd, &message, fd);
}

static int send_piece(struct gs_share *share, const struct gs_export *export, int fd)
{
    union gs_wire_message message;

    gs_wire_start(&message, GS_WIRE_SHARE_PIECE, 0);
    message.share_piece.block_id = export->key.id;
    message.share_piece.size = export->source.strip->sizes[export->sent - 1];
    return gs_wire_send(share->link.fd, &message, fd);
}

static void note_sent_locked(struct gs_share *share, struct gs_export *export)
{
    export->sent++;
    if (!gs_export_is_brokered(export)) { /* openers come in between; what was freed meanwhile is revoked */
        if (is_to_be_published(export))
            gs_export_ask_locked(share, export, GS_WORK_CHUNK_FD);
        return;
    }
    if (export->names)
        gs_names_are_due_locked(share);
    if (export->freed_ns)
        gs_afar_recall_locked(share, export); /* this broker does not know it */
}

void gs_broker_publish(struct gs_share *share, struct gs_export *export, const struct gs_fd *fd)
{
    bool first = fd->fd < 0 || !gs_export_is_strip(export);
    int error;

    if (!is_connected(share) && gs_now_ns() >= share->link.retry_ns)
        find_broker(share);
    if (share->link.fd < 0 || gs_export_is_brokered(export) || first != (export->sent == 0))
        return; /* the last: it is another broker meanwhile, and asked for anew */
    if (fd->fd >= 0 && !gs_fd_is_there(fd)) { /* the program may have closed it meanwhile */
        put_off(share, export);
        return;
    }
    if (export->sent == 0 && !confirm(share, export))
        return;
    error = export->sent ? send_piece(share, export, fd->fd) : send_share(share, export, fd->fd);
    take_note(share, error);
    if (share->link.full || share->link.slow_ns)
        put_off(share, export);
    else if (error)
        gs_log_line(&share->log, GS_LOG_WARNING,
                    "a block is shared without the broker, which does not take it: %s",
                    strerror(-error));
    gs_lock_take(&share->lock);
    if (!error)
        note_sent_locked(share, export);
    else if (export->sent == 0)
        gs_confirm_cancel_locked(share, export);
    gs_lock_release(&share->lock);
}

void gs_broker_publish_later(struct gs_share *share, struct gs_export *export, bool may_go)
{
    if (may_go) {
        take_note(share, -ETOOMANYREFS); /* after a while, as where too many are under way */
        put_off(share, export);
        return;
    }
    gs_log_line(&share->log, GS_LOG_WARNING,
                "a block is shared without the broker: the driver does not export all of its memory");
    gs_lock_take(&share->lock);
    gs_broker_take_back_locked(share, export);
    gs_lock_release(&share->lock);
}

void gs_broker_take_back_locked(struct gs_share *share, struct gs_export *export)
{
    put_off_stop_locked(export);
    if (!export->sent || share->link.fd < 0)
        return;
    export->sent = 0;
    gs_confirm_revoke_locked(share, export);
    if (!__atomic_load_n(&share->link.full, __ATOMIC_ACQUIRE) &&
        gs_wire_goes_later(gs_confirm_tell_locked(share)))
        gs_thread_wake(share);
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
        gs_log_line(&share->log, GS_LOG_WARNING,
                    "the broker has ended%s%s: memory is shared as long as this process runs, until "
                    "there is another",
                    error == 0 && said->head.type == GS_WIRE_REFUSE ? ", saying: " : "",
                    error == 0 && said->head.type == GS_WIRE_REFUSE
                        ? gs_wire_reason_text(said->refuse.reason)
                        : "");
}

/* The broker reads again. */
static void on_room(struct gs_share *share)
{
    __atomic_store_n(&share->link.full, false, __ATOMIC_RELEASE);
    gs_watch(share, GS_WATCH_CHANGE, share->link.fd, GS_WATCH_READ, GS_WATCH_BROKER, 0);
}

bool gs_broker_event(struct gs_share *share, struct gs_wire_hold_afar *ret_hold)
{
    const struct gs_fd kept = share->link.fd_is;
    int fd = share->link.fd, error;
    union gs_wire_message message;

    if (!is_connected(share))
        return false;
    if (!gs_conn_has_more(fd)) {
        if (share->link.full && gs_conn_has_room(fd))
            on_room(share);
        return false;
    }
    error = gs_wire_receive(fd, &message, NULL);
    if (error == 0 && message.head.type == GS_WIRE_KEPT) {
        gs_names_kept(share, &message.kept); /* if there is room by now, that is told again */
        return false;
    }
    if (error == 0 && message.head.type == GS_WIRE_HOLD_AFAR) {
        *ret_hold = message.hold_afar;
        return true;
    }
    gs_unwatch(share, fd);
    forget(share);
    say_lost(share, error, &message);
    if (gs_fd_is_there(&kept)) /* the lock may have been waited for */
        gs_hang_up(fd);
    look_for_next(share);
    return false;
}
