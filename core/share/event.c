/* Events of several processes (core/share/event.h): their files, given to whom the handle lets
 * in. */
#include "core/share/event.h"

#include <stdlib.h>
#include <string.h>

#include "core/base/list.h"
#include "core/share/discard.h"
#include "core/share/exporter.h"
#include "core/share/memory.h"

#define NO_PID  0x7f000000u /* from here on there are no processes: pids have 22 bits */
#define REQUEST 1

_Static_assert(sizeof(struct gs_event_handle) == 64, "it is a CUipcEventHandle");

/* A file of this process's. */
struct gs_event_file {
    uint64_t number;
    struct gs_fd fd;
    unsigned char secret[GS_SECRET_SIZE];
    struct gs_event_file *next;
};

/* Another's. */
struct gs_event_import {
    struct gs_event_key {
        uint64_t number;
        unsigned char instance[GS_INSTANCE_SIZE], secret[GS_SECRET_SIZE];
    } key;
    uint32_t pid; /* that the driver knows it by */
    bool mapped;
    UT_hash_handle hh;
};

/* ---- Exporter ------------------------------------------------------------------------------- */

/* The one of the number that is this file. */
static struct gs_event_file *file_locked(struct gs_share *share, uint64_t number,
                                         const struct gs_fd *fd)
{
    struct gs_event_file *file;

    LL_FOREACH(share->exporter.ipc_events.files, file)
        if (file->number == number && file->fd.inode == fd->inode && file->fd.device == fd->device)
            return file;
    return NULL;
}

/* The secret of a file, which is new or was given out before; or new in place of one that has
 * gone. */
static gs_status secret_of(struct gs_share *share, uint64_t number, const struct gs_fd *fd,
                           unsigned char ret_secret[GS_SECRET_SIZE])
{
    struct gs_event_file *made = calloc(1, sizeof *made), *file;

    if (!made)
        return GS_NO_HOST_MEMORY;
    made->number = number;
    made->fd = *fd;
    if (!gs_random(made->secret, sizeof made->secret)) {
        free(made);
        return GS_NO_RANDOM;
    }
    gs_lock_take(&share->lock);
    file = file_locked(share, number, fd);
    if (!file) {
        file = made;
        LL_PREPEND(share->exporter.ipc_events.files, made);
        made = NULL;
    }
    memcpy(ret_secret, file->secret, sizeof file->secret);
    gs_lock_release(&share->lock);
    free(made);
    return GS_OK;
}

gs_status gs_event_export(struct gs_share *share, const struct gs_fd *fd,
                          struct gs_event_handle *handle)
{
    static const struct gs_event_handle none;
    struct gs_event_handle whole = *handle;
    gs_status status;

    if (memcmp(&handle->magic, &none.magic, sizeof none - offsetof(struct gs_event_handle, magic)))
        return GS_NOT_OURS;
    if (!share->options.enable)
        return GS_NOT_OFFERED;
    gs_say_used(share);
    status = gs_share_serve(share);
    if (status == GS_OK)
        status = secret_of(share, handle->number, fd, whole.secret);
    if (status != GS_OK)
        return status;
    whole.magic = GS_EVENT_MAGIC;
    memcpy(whole.instance, share->instance, sizeof whole.instance);
    *handle = whole;
    return GS_OK;
}

/* The file's descriptor, if that is still there; -1 and why not. */
static int fd_for(struct gs_share *share, const struct gs_client *client,
                  const struct gs_wire_query *query, enum gs_wire_reason *ret_reason)
{
    const struct gs_event_file *file;

    *ret_reason = GS_REFUSED_USER;
    if (!gs_user_is_own(client->uid))
        return -1;
    *ret_reason = GS_REFUSED_HANDLE;
    GS_HOLDING(&share->lock);
    LL_FOREACH(share->exporter.ipc_events.files, file)
        if (file->number == query->number && gs_fd_is_there(&file->fd) &&
            gs_bytes_equal(file->secret, query->secret, sizeof file->secret))
            return file->fd.fd;
    return -1;
}

bool gs_events_came(struct gs_share *share, struct gs_client *client,
                    const struct gs_wire_query *query)
{
    union gs_wire_message answer;
    enum gs_wire_reason reason;
    int error, fd = fd_for(share, client, query, &reason);

    if (fd < 0)
        return gs_client_refuse(share, client, query->head.request, reason, 0);
    gs_wire_start(&answer, GS_WIRE_REPORT, query->head.request);
    error = gs_client_send(share, client, &answer, fd);
    if (!error)
        gs_log_line(&share->log, GS_LOG_DEBUG, "the file of events %llu was given to %d",
                    (unsigned long long)query->number, (int)client->pid);
    if (error == 0 || error == -EAGAIN || gs_client_has_gone(error))
        return error != -EAGAIN;
    return gs_client_refuse(share, client, query->head.request, gs_reason_of_send(error), 0);
}

/* ---- Importer ------------------------------------------------------------------------------- */

/* A connection to the process that has the file, or a negative errno. */
static int reach(struct gs_share *share, const unsigned char *instance, uint64_t deadline_ns)
{
    char name[GS_SOCKET_NAME_SIZE], reason[GS_REASON_SIZE];
    int fd;

    gs_instance_name(instance, name);
    fd = gs_directory_connect_at_once(&share->options, name);
    return fd < 0 ? gs_connect_anywhere(share, name, deadline_ns, reason) : fd;
}

/* Its answer, or a negative errno. */
static int await_answer(const struct gs_fd *socket, int pidfd, uint64_t deadline_ns,
                        union gs_wire_message *ret_answer, int *ret_fd)
{
    enum gs_conn_event event;
    int error;

    for (;;) {
        error = gs_fd_is_there(socket) ? gs_wire_receive(socket->fd, ret_answer, ret_fd) : -EBADF;
        if (error != -EAGAIN)
            return error;
        event = gs_conn_wait(socket->fd, pidfd, false, deadline_ns);
        if (event != GS_CONN_READY) /* a child may hold its socket */
            return event == GS_CONN_EXITED ? -ESRCH : -ETIMEDOUT;
    }
}

/* The file; or -1 and why not. *ret_again: it is to be tried again. */
static int file_in(const union gs_wire_message *answer, int error, int fd, bool *ret_again,
                   const char **ret_reason)
{
    *ret_again = false;
    if (!error && answer->head.type == GS_WIRE_REPORT && answer->head.request == REQUEST &&
        gs_memory_is_in_shm(fd, GS_EVENT_FILE_SIZE))
        return fd;
    if (!error && fd >= 0)
        gs_discard(fd);
    if (error == -ETIMEDOUT)
        *ret_reason = "the process that made it does not answer";
    else if (error == -EMFILE)
        *ret_reason = "this process has no descriptor left; raise its limit (ulimit -n)";
    else if (error == -EPROTONOSUPPORT)
        *ret_reason = "the process that made it has another version of this library";
    else if (error)
        *ret_reason = "the process that made it has ended";
    else if (answer->head.type == GS_WIRE_REFUSE)
        *ret_reason = gs_wire_reason_text(answer->refuse.reason);
    else
        *ret_reason = "the process that made it gave an answer that makes no sense";
    *ret_again =
        !error && answer->head.type == GS_WIRE_REFUSE && answer->refuse.reason == GS_REFUSED_FLIGHT;
    return -1;
}

/* Asks over a connection. */
static int ask(const struct gs_fd *socket, const struct gs_event_key *key, uint64_t deadline_ns,
               bool *ret_again, const char **ret_reason)
{
    const struct gs_conn_who who = gs_conn_who(socket->fd);
    union gs_wire_message message, answer;
    int fd = -1, error, pidfd;

    *ret_again = false;
    if (!gs_user_is_own(who.uid)) {
        *ret_reason =
            "it is another user's, and events are shared within one user's processes alone";
        return -1;
    }
    pidfd = gs_conn_pidfd(socket->fd, &error);
    gs_wire_start(&message, GS_WIRE_QUERY, REQUEST);
    message.query.about = GS_ABOUT_EVENTS;
    message.query.number = key->number;
    memcpy(message.query.secret, key->secret, sizeof message.query.secret);
    if (error != -ESRCH)
        error = gs_wire_send(socket->fd, &message, -1);
    if (!error)
        error = await_answer(socket, pidfd, deadline_ns, &answer, &fd);
    gs_fd_drop(pidfd);
    return file_in(&answer, error, fd, ret_again, ret_reason);
}

/* Ended by the exporter's answer or end, or by debug.timeout: natively nobody is asked. */
static int fetch(struct gs_share *share, const struct gs_event_key *key, const char **ret_reason)
{
    const uint64_t deadline = gs_now_ns() + share->options.timeout_ns;
    bool again = false;
    int fd;

    do {
        struct gs_fd socket = {0};

        if (again)
            gs_rest_ns(GS_REFUSED_NS);
        fd = reach(share, key->instance, deadline);
        if (fd < 0) {
            *ret_reason = fd == -EACCES || fd == -EPERM
                              ? "its socket is another user's"
                              : "the process that made it has ended, or uses another directory";
            return -1;
        }
        socket = gs_fd_keep(fd);
        fd = ask(&socket, key, deadline, &again, ret_reason);
        if (gs_fd_is_there(&socket))
            gs_hang_up(socket.fd);
    } while (again && gs_now_ns() < deadline);
    return fd;
}

static struct gs_event_import *import_locked(struct gs_share *share, const struct gs_event_key *key)
{
    struct gs_event_import *import;

    HASH_FIND(hh, share->exporter.ipc_events.imports, key, sizeof *key, import);
    return import;
}

/* The one of a file that was had, made where there is none. NULL: no host memory. */
static struct gs_event_import *enter_locked(struct gs_share *share, const struct gs_event_key *key)
{
    struct gs_event_import *import = import_locked(share, key);

    if (import)
        return import;
    import = calloc(1, sizeof *import);
    if (!import)
        return NULL;
    import->key = *key;
    HASH_ADD(hh, share->exporter.ipc_events.imports, key, sizeof import->key, import);
    if (!import->hh.tbl) {
        free(import);
        return NULL;
    }
    import->pid = NO_PID + ++share->exporter.ipc_events.last;
    return import;
}

static struct gs_event_key key_of(const struct gs_event_handle *handle)
{
    struct gs_event_key key = {.number = handle->number};

    memcpy(key.instance, handle->instance, sizeof key.instance);
    memcpy(key.secret, handle->secret, sizeof key.secret);
    return key;
}

gs_status gs_event_open(struct gs_share *share, bool again, struct gs_event_handle *handle,
                        int *ret_fd, const char **ret_reason)
{
    const struct gs_event_key key = key_of(handle);
    struct gs_event_import *import;

    *ret_reason = NULL;
    if (handle->magic != GS_EVENT_MAGIC || !share->options.enable ||
        memcmp(handle->instance, share->instance, sizeof handle->instance) == 0)
        return GS_NOT_OURS;
    gs_lock_take(&share->lock);
    import = import_locked(share, &key);
    if (import && import->mapped && !again) {
        handle->pid = import->pid;
        *ret_fd = -1;
        gs_lock_release(&share->lock);
        return GS_OK;
    }
    gs_lock_release(&share->lock);
    *ret_fd = fetch(share, &key, ret_reason);
    if (*ret_fd < 0)
        return GS_UNREACHABLE;
    gs_lock_take(&share->lock);
    import = enter_locked(share, &key);
    if (import)
        handle->pid = import->pid;
    gs_lock_release(&share->lock);
    if (import)
        return GS_OK;
    gs_fd_drop(*ret_fd);
    *ret_reason = "no host memory is left";
    return GS_NO_HOST_MEMORY;
}

void gs_event_opened(struct gs_share *share, const struct gs_event_handle *handle)
{
    const struct gs_event_key key = key_of(handle);
    struct gs_event_import *import;
    GS_HOLDING(&share->lock);

    import = import_locked(share, &key);
    if (import)
        import->mapped = true;
}

void gs_events_free(struct gs_share *share)
{
    struct gs_event_import *import, *next;
    struct gs_event_file *file, *next_file;

    HASH_ITER(hh, share->exporter.ipc_events.imports, import, next) {
        HASH_DEL(share->exporter.ipc_events.imports, import);
        free(import);
    }
    LL_FOREACH_SAFE(share->exporter.ipc_events.files, file, next_file)
        free(file);
    share->exporter.ipc_events.files = NULL;
}
