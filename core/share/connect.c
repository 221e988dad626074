/*
 * Importer: connecting to an exporter, or to who serves what it had shared; to the same again where
 * the program has closed the connection; and hanging up.
 */
#include "core/share/discard.h"
#include "core/share/importer.h"

#include <stdio.h>
#include <string.h>

#define ABSENT_NS (30 * GS_NS_PER_S) /* who is not there is given up after this, even if it runs */
#define LAST_MAX  64                 /* messages that are read of who has hung up */

static void forget_pidfd(struct gs_remote *remote)
{
    gs_fd_close(&remote->conn.kept_pidfd);
    remote->conn.kept_pidfd = (struct gs_fd){0};
    remote->conn.pidfd = -1;
}

static void forget_socket(struct gs_remote *remote)
{
    remote->conn.fd = -1;
    remote->conn.kept_fd = (struct gs_fd){0};
    remote->conn.watched = false;
}

/* What was held over it is lost. */
static void set_disconnected(struct gs_remote *remote)
{
    forget_socket(remote);
    forget_pidfd(remote);
    remote->astray = remote->conn.may_hold = false;
    remote->absent_ns = 0;
    remote->connection++;
}

void gs_remote_look(struct gs_remote *remote)
{
    if (remote->conn.fd >= 0 && !gs_fd_is_there(&remote->conn.kept_fd)) {
        forget_socket(remote);
        remote->astray = true;
    } else if (remote->conn.pidfd >= 0 && !gs_fd_is_there(&remote->conn.kept_pidfd))
        remote->conn.pidfd = -1;
}

/* An answer that was not waited for may have come with a reference. */
static void say_bye(const struct gs_remote *remote)
{
    union gs_wire_message message;

    gs_wire_start(&message, GS_WIRE_BYE, 0);
    if (remote->conn.greeted && remote->opened_count == 0)
        gs_wire_send(remote->conn.fd, &message, -1);
}

void gs_remote_disconnect(struct gs_share *share, struct gs_remote *remote)
{
    gs_remote_look(remote);
    if (remote->astray)
        set_disconnected(remote);
    if (remote->conn.fd < 0)
        return;
    if (remote->conn.watched)
        gs_unwatch(share, remote->conn.fd);
    say_bye(remote);
    gs_hang_up(remote->conn.fd); /* a forked child may hold the socket: the exporter must know */
    set_disconnected(remote);
}

/* ---- What the other side has ended ---------------------------------------------------------- */

void gs_remote_note_end(struct gs_remote *remote, const union gs_wire_message *message)
{
    remote->conn.refused |=
        remote->conn.resumed && message->head.type == GS_WIRE_REFUSE && message->head.request == 0;
    if (message->head.type == GS_WIRE_BYE && !remote->conn.refused)
        remote->conn.may_hold = false;
}

/* What it said last may not be read yet. Where it had not read all, an error lies before that
 * once. */
static void hear_last(struct gs_remote *remote)
{
    union gs_wire_message message;

    for (int i = 0, errors = 0; i < LAST_MAX && errors < 2; i++) {
        if (gs_wire_receive(remote->conn.fd, &message, NULL) == 0)
            gs_remote_note_end(remote, &message);
        else
            errors++;
    }
}

/* Whether the process that has the memory runs, whatever it does with connections. */
static bool is_running(const struct gs_remote *remote)
{
    if (gs_fd_is_there(&remote->conn.kept_pidfd))
        return !gs_alive_exited(remote->conn.pidfd);
    return remote->conn.pid > 0 && gs_alive_runs(remote->conn.pid);
}

/* Whether it runs, or nothing shows that: then it is looked for, for a while. */
static bool may_run(const struct gs_remote *remote)
{
    return is_running(remote) ||
           (remote->conn.pid <= 0 && !gs_fd_is_there(&remote->conn.kept_pidfd));
}

/*
 * What is held is said over another connection, if the process that has the memory lives: it may
 * have lost this one as a program loses it, which closes what it does not know, or have thought
 * that nobody reads here. It is told as well where that is nothing, unless it has said so itself.
 */
void gs_remote_lost(struct gs_share *share, struct gs_remote *remote)
{
    gs_remote_look(remote);
    if (remote->astray)
        return;
    if (remote->conn.fd >= 0)
        hear_last(remote);
    if (remote->conn.fd < 0 ||
        (remote->opened_count == 0 && !(remote->conn.may_hold && may_run(remote)))) {
        gs_remote_disconnect(share, remote);
        return;
    }
    if (remote->conn.watched)
        gs_unwatch(share, remote->conn.fd);
    gs_remote_hang_up(remote);
    remote->astray = true;
}

/* ---- Connecting ----------------------------------------------------------------------------- */

#define GS_FORBIDS "forbids it: a security module (ausearch -m avc, dmesg), or a filter (seccomp)"

static gs_status connect_failed(struct gs_share *share, int error)
{
    char reason[GS_REASON_SIZE];

    if (error == -ENOENT || error == -ECONNREFUSED)
        snprintf(reason, sizeof reason,
                 "the process that shared it has ended, or uses another directory than "
                 "%s" GS_BROKER_HELPS,
                 gs_directory_words(&share->options));
    else
        snprintf(reason, sizeof reason, "no connection: %s", strerror(-error));
    gs_say_unreachable(share, reason);
    return error == -EMFILE || error == -ENFILE ? (gs_status)CUDA_ERROR_OPERATING_SYSTEM
                                                : GS_UNREACHABLE;
}

/* Whether the process at the other end is one to take memory from, and alive: a child that it
 * forked may hold its socket. Finds its pidfd where the kernel gives one. */
static int check_exporter(struct gs_share *share, int fd, int *ret_pidfd)
{
    const struct gs_conn_who who = gs_conn_who(fd);
    int error;

    *ret_pidfd = -1;
    if (who.uid == (uid_t)-1 || !gs_process_is_listed(&share->options, who.uid, who.gid)) {
        gs_say_unreachable(share,
                           who.uid == (uid_t)-1
                               ? "the system does not say whose process it is (getsockopt); "
                                 "see what " GS_FORBIDS
                               : "it is another user's; name them in share.uids, or their group "
                                 "in share.gids");
        return -EPERM;
    }
    *ret_pidfd = gs_conn_pidfd(fd, &error);
    if (*ret_pidfd < 0)
        return error == -ESRCH ? -ECONNREFUSED : 0;
    if (!gs_alive_exited(*ret_pidfd))
        return 0;
    gs_fd_drop(*ret_pidfd);
    *ret_pidfd = -1;
    return -ECONNREFUSED;
}

/* Of a connection to one who may be believed the descriptor, else a negative errno; -EPERM: it is
 * another user's, or forbidden (logged), -ECONNREFUSED: it has ended. `fd` may be such an errno
 * already. */
static int checked(struct gs_share *share, int fd, int *ret_pidfd)
{
    int error = fd < 0 ? 0 : check_exporter(share, fd, ret_pidfd);

    if (error) {
        gs_hang_up(fd);
        return error;
    }
    return fd;
}

static bool is_absent(int error)
{
    return error == -ENOENT || error == -ECONNREFUSED;
}

int gs_connect_anywhere(struct gs_share *share, const char *name, uint64_t deadline_ns,
                        char ret_reason[GS_REASON_SIZE])
{
    unsigned place = 0;
    int fd = -ENOENT, directory = -1;
    bool looked = false;

    while (is_absent(fd) &&
           (directory = gs_directory_next(&share->options, &place, ret_reason)) >= 0) {
        struct gs_fd kept = gs_fd_keep(directory); /* that may take a while */
        uint64_t now = gs_now_ns();

        fd = gs_directory_connect(directory, &share->options, name,
                                  now < deadline_ns ? deadline_ns - now : 0);
        if (fd == -EACCES || fd == -EPERM)
            fd = gs_directory_may_connect(directory, name) ? -EPERM : -EACCES;
        gs_fd_close(&kept);
        looked = true;
    }
    if (looked)
        ret_reason[0] = 0;
    return is_absent(fd) && directory < -1 ? directory : fd;
}

static int connect_checked(struct gs_share *share, const struct gs_remote *remote, const char *name,
                           int *ret_pidfd, char ret_reason[GS_REASON_SIZE])
{
    int fd = gs_connect_anywhere(share, name, remote->deadline_ns, ret_reason);

    if (fd == -EPERM)
        gs_say_unreachable(share, "this process may not connect to its socket, though its user "
                                  "may; see what " GS_FORBIDS);
    else if (fd == -EACCES)
        gs_say_unreachable(share, "its socket is another user's; name this user in the other's "
                                  "share.uids or share.gids, and the other here");
    return checked(share, fd == -EACCES ? -EPERM : fd, ret_pidfd);
}

/* What the last connection was asked, nobody waits for any more; the thread looks at that of busy
 * remotes too. */
static void set_connected(struct gs_share *share, struct gs_remote *remote, int fd, int pidfd)
{
    remote->conn = (struct gs_connection){.fd = fd,
                                          .pidfd = pidfd,
                                          .pid = gs_conn_who(fd).pid,
                                          .kept_fd = gs_fd_keep(fd),
                                          .kept_pidfd = gs_fd_keep(pidfd),
                                          .request = remote->conn.request,
                                          .by_broker = remote->conn.by_broker,
                                          .may_hold = remote->conn.may_hold};
    remote->absent_ns = 0;
    GS_HOLDING(&share->importer.lock);
    if (!remote->conn.by_broker)
        remote->owner_pid = remote->conn.pid;
    remote->flush_number = 0;
}

bool gs_remote_owner_runs(const struct gs_remote *remote)
{
    return remote->owner_started && gs_alive_started(remote->owner_pid) == remote->owner_started &&
           gs_alive_runs(remote->owner_pid);
}

/* With all patience: to the process itself, and where it is absent to the broker that it left
 * something with, which serves nothing of one that runs. As gs_connect_anywhere. */
static int connect_patiently(struct gs_share *share, struct gs_remote *remote, bool itself,
                             bool broker, int *ret_pidfd, char ret_reason[GS_REASON_SIZE])
{
    char name[GS_BROKER_NAME_SIZE];
    int fd = -ENOENT;

    gs_instance_name(remote->instance, name);
    if (itself)
        fd = connect_checked(share, remote, name, ret_pidfd, ret_reason);
    remote->conn.by_broker = broker && fd < 0;
    if (!broker || !is_absent(fd) || gs_remote_owner_runs(remote))
        return fd;
    gs_broker_name(name);
    return connect_checked(share, remote, name, ret_pidfd, ret_reason);
}

/* Nobody is where its socket was. It puts that up again within a second, if it gets the CPU. */
static bool has_ended(struct gs_remote *remote)
{
    if (!remote->absent_ns)
        remote->absent_ns = gs_now_ns();
    return !may_run(remote) || gs_now_ns() - remote->absent_ns >= ABSENT_NS;
}

/* A broker has its name from the one before it, which may be going down still, and knows nothing of
 * what that had. Who cannot be told from another is taken for one: what it has is held until this
 * process's end then. */
static bool is_another(const struct gs_remote *remote, int fd, int pidfd)
{
    bool has_pidfd = gs_fd_is_there(&remote->conn.kept_pidfd);
    pid_t pid = gs_conn_who(fd).pid;

    if (!remote->conn.by_broker)
        return false;
    if (has_pidfd && gs_alive_exited(remote->conn.pidfd))
        return true;
    if (pid > 0 && remote->conn.pid > 0)
        return pid != remote->conn.pid;
    return !has_pidfd || pidfd < 0 || !gs_alive_is_same(pidfd, remote->conn.pidfd);
}

/* To whom it was connected to, who knows what is held. Where that was a broker and nothing is, to
 * the process itself if it is there by now: of one that lives a broker has granted nothing. */
int gs_remote_connect_again(struct gs_share *share, struct gs_remote *remote)
{
    const bool by_broker = remote->conn.by_broker;
    char reason[GS_REASON_SIZE];
    int pidfd, fd = connect_patiently(share, remote, !by_broker || remote->opened_count == 0,
                                      by_broker, &pidfd, reason);

    if (fd >= 0 && is_another(remote, fd, pidfd)) {
        gs_fd_drop(pidfd);
        gs_hang_up(fd);
        set_disconnected(remote);
        return -ENOENT;
    }
    if (!is_absent(fd))
        remote->absent_ns = 0;
    else if (has_ended(remote))
        set_disconnected(remote);
    if (fd < 0)
        return fd;
    forget_pidfd(remote);
    set_connected(share, remote, fd, pidfd);
    return 0;
}

void gs_remote_hang_up(struct gs_remote *remote)
{
    gs_remote_look(remote);
    if (remote->conn.fd >= 0)
        gs_hang_up(remote->conn.fd);
    forget_socket(remote);
}

gs_status gs_remote_connect(struct gs_share *share, struct gs_remote *remote)
{
    char name[GS_SOCKET_NAME_SIZE], reason[GS_REASON_SIZE] = "";
    int fd, pidfd;

    gs_instance_name(remote->instance, name);
    remote->conn.by_broker = false;
    fd = checked(share, gs_directory_connect_at_once(&share->options, name), &pidfd);
    if (fd < 0 && fd != -EPERM)
        fd = connect_patiently(share, remote, true, true, &pidfd, reason);
    if (fd == -EPERM)
        return GS_UNREACHABLE;
    if (fd < 0)
        return reason[0] ? gs_say_unreachable(share, reason) : connect_failed(share, fd);
    set_connected(share, remote, fd, pidfd);
    return GS_OK;
}
