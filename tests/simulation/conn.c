/* Sockets as the kernel has them (core/share/conn.h): SOCK_SEQPACKET of the local domain. */
#include "core/share/conn.h"

#include <errno.h>
#include <string.h>

#include "core/base/fd.h"
#include "core/share/wire.h"
#include "simulation.h"

#define OVERHEAD 512 /* what the kernel counts for a message besides its bytes */

static struct file *socket_of(int fd)
{
    return fd_file(fd, FILE_SOCKET);
}

struct gs_conn_who gs_conn_who(int socket)
{
    const struct file *file = socket_of(socket);

    if (!file)
        return (struct gs_conn_who){.uid = (uid_t)-1, .gid = (gid_t)-1};
    return (struct gs_conn_who){.pid = life_is_seen(file->life) ? file->life->pid : 0};
}

int gs_conn_pidfd(int socket, int *ret_error)
{
    struct file *file = socket_of(socket), *made;
    int fd;

    *ret_error = 0;
    if (!file || (file->life->exited && world.kernel == KERNEL_PEER_PIDFDS)) {
        *ret_error = -ESRCH;
        return -1;
    }
    if (world.kernel != KERNEL_PEER_PIDFDS) {
        *ret_error = -ENOTSUP;
        return -1;
    }
    made = file_new(FILE_PIDFD);
    made->life = file->life;
    fd = fd_new(process_here(), made);
    if (fd < 0)
        *ret_error = -EMFILE;
    return fd;
}

int gs_conn_accept(int listener)
{
    struct file *file = fd_file(listener, FILE_LISTENER), *caller;
    int fd;

    if (!file)
        return -EBADF;
    caller = file->first_caller;
    if (!caller)
        return -EAGAIN;
    fd = fd_new(process_here(), caller);
    if (fd < 0)
        return -EMFILE;
    file->first_caller = caller->next_caller;
    file->callers--;
    file_unref(caller); /* the queue had it */
    return fd;
}

/* Of each ten worlds one has sockets that take a few messages, so that a stopped process is
 * soon behind with what it is told. */
size_t conn_limit(size_t limit)
{
    const size_t few = (4 + world.seed / 10 % 8) * (OVERHEAD + sizeof(struct gs_wire_close));

    return world.seed % 10 == 1 && !world.cluster && few < limit ? few : limit;
}

void gs_conn_limit(int socket, int bytes)
{
    struct file *file = socket_of(socket);

    if (file)
        file->limit = conn_limit(2 * (size_t)bytes);
}

/* As poll tells: only while three quarters are free. */
bool gs_conn_has_room(int socket)
{
    const struct file *file = socket_of(socket);

    return file && (!file->peer || file->shut || 4 * file->peer->unread <= file->limit);
}

bool gs_conn_has_more(int socket)
{
    const struct file *file = socket_of(socket);

    return !file || file->first || !file->peer || file->shut;
}

bool gs_conn_hung_up(int socket)
{
    const struct file *file = socket_of(socket);

    return !file || !file->peer || file->shut;
}

bool gs_conn_is_read(int socket)
{
    const struct file *file = socket_of(socket);

    return !file || !file->peer || file->peer->unread == 0;
}

void gs_conn_shut(int socket)
{
    struct file *file = socket_of(socket);

    if (!file)
        return;
    file->shut = true;
    if (file->peer) {
        file->peer->shut = true;
        if (file->peer->holder)
            file->peer->holder->lost_ns = world.now_ns;
        file_changed(file->peer);
    }
}

enum gs_conn_event gs_conn_wait(int socket, int pidfd, bool to_send, uint64_t deadline_ns)
{
    const struct file *file = pidfd < 0 ? NULL : fd_file(pidfd, FILE_PIDFD);
    const struct life *life = file ? file->life : NULL; /* whatever becomes of the descriptor */

    if (world.current->held_count > 0)
        sim_fail("locks: process %u waits for a message with one held", process_here()->index);
    for (;;) {
        if (to_send ? gs_conn_has_room(socket) : gs_conn_has_more(socket))
            return GS_CONN_READY;
        if (life && life->exited)
            return GS_CONN_EXITED;
        if (world.now_ns >= deadline_ns)
            return GS_CONN_OVER;
        fibre_wait(process_here(), deadline_ns);
    }
}

void gs_conn_wait_any(const int *sockets, unsigned count, uint64_t ns)
{
    const uint64_t end = world.now_ns + ns;

    for (;;) {
        for (unsigned i = 0; i < count; i++)
            if (gs_conn_has_more(sockets[i]))
                return;
        if (world.now_ns >= end)
            return;
        fibre_wait(process_here(), end);
    }
}

/* ---- Messages ------------------------------------------------------------------------------- */

static const char *name_of(unsigned type)
{
#define NAME(name, number, shape, ways) [name] = #name,
    static const char *const names[GS_WIRE_TYPES] = {GS_WIRE_MESSAGES(NAME)};

    return type < GS_WIRE_TYPES && names[type] ? &names[type][sizeof "GS_WIRE_" - 1] : "something";
}

static void trace(const struct file *socket, const char *how, const union gs_wire_message *message)
{
    uint64_t about = 0;

    if (message->head.type == GS_WIRE_REFUSE)
        about = message->refuse.reason;
    else if (message->head.type != GS_WIRE_HELLO && message->head.type != GS_WIRE_OPEN &&
             message->head.size >= sizeof message->close)
        about = message->close.block_id;
    sim_trace("    %u %s %s %llu (request %u), with %d", process_here()->index, how,
              name_of(message->head.type), (unsigned long long)about, message->head.request,
              (int)socket->life->pid);
}

/* The kernel has no memory for one message between a process and its broker. */
static bool goes(enum gs_wire_type type)
{
    struct process *process = process_here();

    if (type != GS_WIRE_PULL && type != GS_WIRE_RING && type != GS_WIRE_SHARE &&
        type != GS_WIRE_NAME)
        return true;
    return process->sends_left == 0 || --process->sends_left > 0;
}

int gs_wire_send_all(int socket, const union gs_wire_message *message,
                     const struct gs_wire_fds *fds)
{
    struct file *file = socket_of(socket);
    struct message *sent;

    sim_point();
    file = socket_of(socket);
    if (!file)
        return -EBADF;
    if (!file->peer || file->shut)
        return -EPIPE;
    if (file->peer->unread >= file->limit)
        return -EAGAIN;
    if (fds->count > 0 && process_here()->no_flight)
        return -ETOOMANYREFS;
    if (!goes(message->head.type))
        return -ENOBUFS;
    for (unsigned i = 0; i < fds->count; i++)
        if (!process_here()->fds[fds->fd[i]].file)
            return -EBADF;
    if (message->head.type == GS_WIRE_GRANT)
        rule_granted(process_here(), file->life, message->grant.block_id);
    sent = sim_alloc(sizeof *sent + message->head.size);
    sent->size = message->head.size;
    sent->counts = message->head.size + OVERHEAD;
    sent->files = fds->count;
    sent->file = fds->count ? sim_alloc(fds->count * sizeof *sent->file) : NULL;
    for (unsigned i = 0; i < fds->count; i++) {
        sent->file[i] = process_here()->fds[fds->fd[i]].file;
        file_ref(sent->file[i]);
    }
    memcpy(sent->bytes, message, message->head.size);
    *file->peer->last = sent;
    file->peer->last = &sent->next;
    file->peer->unread += sent->counts;
    file->greeted |= message->head.type == GS_WIRE_HELLO;
    file_changed(file->peer);
    if (world.trace)
        trace(file, "says", message);
    return 0;
}

int gs_wire_send(int socket, const union gs_wire_message *message, int fd)
{
    return gs_wire_send_all(socket, message, &(struct gs_wire_fds){.count = fd >= 0, .fd = {fd}});
}

/* All that came along, or none. */
static bool take_files(const struct message *message, struct gs_wire_fds *ret_fds)
{
    for (unsigned i = 0; i < message->files; i++) {
        int fd = fd_new(process_here(), message->file[i]);

        if (fd < 0) {
            while (ret_fds->count > 0)
                gs_fd_drop(ret_fds->fd[--ret_fds->count]);
            return false;
        }
        ret_fds->fd[ret_fds->count++] = fd;
    }
    return true;
}

/* What comes along and finds no room leaves its message where it is. */
static int receive_message(int socket, union gs_wire_message *ret_message,
                           struct gs_wire_fds *ret_fds)
{
    struct file *file;
    struct message *first;

    if (ret_fds)
        ret_fds->count = 0;
    sim_point();
    file = socket_of(socket);
    if (!file)
        return -EBADF;
    first = file->first;
    if (!first)
        return !file->peer || file->shut ? -ENOTCONN : -EAGAIN;
    memcpy(ret_message, first->bytes, first->size);
    if (!gs_wire_valid(ret_message, first->size))
        return -EPROTO;
    if (first->files > 0 && !ret_fds)
        return -EPROTO;
    if (ret_fds && !take_files(first, ret_fds))
        return -EMFILE;
    file->first = first->next;
    if (!file->first)
        file->last = &file->first;
    file->unread -= first->counts;
    message_free(first);
    if (file->peer)
        file_changed(file->peer);
    if (world.trace)
        trace(file, "hears", ret_message);
    return 0;
}

int gs_wire_receive_all(int socket, union gs_wire_message *ret_message, struct gs_wire_fds *ret_fds)
{
    return receive_message(socket, ret_message, ret_fds);
}

int gs_wire_receive(int socket, union gs_wire_message *ret_message, int *ret_fd)
{
    struct gs_wire_fds fds = {0};
    int error = receive_message(socket, ret_message, ret_fd ? &fds : NULL);

    if (!ret_fd)
        return error;
    while (fds.count > 0 && ret_message->head.type == GS_WIRE_GRANT)
        gs_fd_drop(fds.fd[--fds.count]);
    *ret_fd = fds.count > 0 ? fds.fd[0] : -1;
    return error;
}
