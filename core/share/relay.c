/*
 * Passing on what another process shared: an importer's program gets a handle of a block that it
 * has open, a third process opens that.
 *
 *   exporter A          importer B                       third C
 *   lives               token of A's, unchanged ------>  opens at A, a lease of its own
 *   has ended           the same  -------------------->  A's socket is dead: opens at B, which
 *                       has kept A's descriptor          passes it on ("<A>.<B>" in the directory)
 *
 * Why no byte is reused under C: while A lives C holds A's lease itself, whatever becomes of B. B
 * serves only when A has ended, and then nobody is left who could hand the memory out; the driver
 * keeps it for as long as anyone has it mapped. So C needs no lease from B, hangs up as soon as it
 * has the memory, and keeps it when B ends. C can pass it on in turn. With a broker C asks that
 * first.
 *
 * When B's program closes a block that it has passed on, B holds on to it for share.grace, as A
 * does with a block that nobody has opened yet.
 *
 * Descriptors: an import keeps its own while the process has few such (a sixteenth of its limit),
 * one that is passed on while it has twice as many; then it can be opened at A only.
 */
#include "core/share/discard.h"
#include "core/share/exporter.h"
#include "core/share/opener.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define KEPT_SHARE 16   /* one descriptor in so many of the process's limit, */
#define KEPT_MAX   1024 /* and never more */
#define RELAYS_MAX 32   /* that a third asks */

struct gs_relay_name {
    char name[GS_RELAY_NAME_SIZE];
    struct gs_relay_name *next;
};

static void relay_name(const struct gs_share *share, const unsigned char *instance,
                       char ret_name[GS_RELAY_NAME_SIZE])
{
    gs_instance_name(instance, ret_name);
    ret_name[GS_SOCKET_NAME_SIZE - 1] = '.';
    memcpy(ret_name + GS_SOCKET_NAME_SIZE, share->name, GS_SOCKET_NAME_SIZE);
}

unsigned gs_import_fds_max(bool passed_on)
{
    struct rlimit limit;
    unsigned most = KEPT_MAX;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur / KEPT_SHARE < KEPT_MAX)
        most = (unsigned)(limit.rlim_cur / KEPT_SHARE);
    return passed_on ? 2 * most : most;
}

bool gs_import_keep_fd(struct gs_share *share, struct gs_import *import, int fd, bool passed_on)
{
    unsigned kept, most = gs_import_fds_max(passed_on);

    kept = __atomic_add_fetch(&share->kept_fds, 1, __ATOMIC_RELAXED);
    if (kept > most) {
        __atomic_sub_fetch(&share->kept_fds, 1, __ATOMIC_RELAXED);
        return false;
    }
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    import->kept_fd = gs_fd_keep(fd);
    __atomic_store_n(&import->fd, fd, __ATOMIC_RELEASE);
    return true;
}

void gs_import_close_fd(struct gs_share *share, struct gs_import *import)
{
    if (import->fd < 0)
        return;
    gs_fd_close(&import->kept_fd);
    import->fd = -1;
    __atomic_sub_fetch(&share->kept_fds, 1, __ATOMIC_RELAXED);
}

/* ---- Passing on ----------------------------------------------------------------------------- */

/* Gives this process's socket the name that openers of the exporter's memory look for. */
static bool put_up(struct gs_share *share, const struct gs_peer *peer)
{
    struct gs_relay_name *entry = calloc(1, sizeof *entry), *known;

    if (!entry)
        return false;
    relay_name(share, peer->instance, entry->name);
    if (linkat(share->directory, share->name, share->directory, entry->name, 0) != 0 &&
        errno != EEXIST) {
        gs_log_line(&share->log, GS_LOG_INFO,
                    "what is passed on can be opened while the process that shared it runs: no "
                    "name for it in %s: %s",
                    gs_directory_words(&share->options), strerror(errno));
        free(entry);
        return false;
    }
    gs_lock_take(&share->lock);
    for (known = share->relay_names; known && strcmp(known->name, entry->name) != 0;)
        known = known->next;
    if (!known) {
        entry->next = share->relay_names;
        __atomic_store_n(&share->relay_names, entry, __ATOMIC_RELEASE);
    }
    gs_lock_release(&share->lock);
    if (known)
        free(entry);
    return true;
}

/* Asks for the descriptor that was not kept, where there is room for it: to be closed again it would
 * have to wait for others. The peer is busy, by this thread. */
static void fetch_fd(struct gs_share *share, struct gs_peer *peer, struct gs_import *import,
                     const unsigned char *bytes)
{
    struct gs_wire_grant grant;
    struct gs_token token;
    int fd = -1;

    if (__atomic_load_n(&share->kept_fds, __ATOMIC_RELAXED) >= gs_import_fds_max(true) ||
        gs_token_read(bytes, &token) != GS_OK ||
        gs_peer_request(share, peer, &token, bytes, true, NULL, &grant, &fd) != GS_OK)
        return;
    gs_peer_return(peer, token.block_id);
    if (grant.chunk_id != import->chunk_id || grant.chunk_size != import->span.size ||
        !gs_import_keep_fd(share, import, fd, true))
        gs_discard(fd, gs_socket_user(peer->fd));
}

static void pass_on(struct gs_share *share, struct gs_peer *peer, struct gs_import *import,
                    const unsigned char *bytes)
{
    if (gs_socket_start(share) != GS_OK)
        return;
    if (import->fd < 0)
        fetch_fd(share, peer, import, bytes);
    if (import->fd < 0)
        gs_log_line(&share->log, GS_LOG_INFO,
                    "a block that is passed on can be opened while the process that shared it "
                    "runs: no descriptor is left for it; raise the limit (ulimit -n)");
    else if (!peer->passes_on)
        peer->passes_on = put_up(share, peer);
}

gs_status gs_share_pass_on(struct gs_share *share, CUdeviceptr address,
                           unsigned char ret_token[GS_TOKEN_SIZE])
{
    int saved = errno;
    const uint64_t deadline = gs_now_ns() + share->options.timeout_ns;
    struct gs_opened *opened;
    struct gs_peer *peer;

    gs_lock_take(&share->opener_lock);
    while ((opened = gs_opened_at_locked(share, address)) && !opened->passed_on &&
           opened->peer->busy && gs_peer_await_locked(share, deadline))
        continue;
    if (opened)
        memcpy(ret_token, opened->token, GS_TOKEN_SIZE);
    /* Where others wait for its exporter still, it can be opened there alone. */
    if (opened && !opened->passed_on && !opened->peer->busy) {
        opened->passed_on = true;
        peer = opened->peer;
        peer->busy = true; /* so nothing of it is unmapped meanwhile */
        peer->deadline_ns = deadline;
        gs_lock_release(&share->opener_lock);
        pass_on(share, peer, opened->import, ret_token);
        gs_lock_take(&share->opener_lock);
        gs_peer_release_locked(share, peer);
    }
    gs_opener_release(share);
    errno = saved;
    return opened ? GS_OK : GS_NOT_OURS;
}

bool gs_relay_knows(struct gs_share *share, const unsigned char *instance)
{
    const struct gs_peer *peer;
    bool knows;

    gs_lock_take(&share->opener_lock);
    peer = gs_peer_find_locked(share, instance);
    knows = peer && peer->passes_on;
    gs_lock_release(&share->opener_lock);
    return knows;
}

/* Whether the exporter may still be there, as far as its connection tells. */
static bool is_connected_locked(const struct gs_peer *peer)
{
    return peer->busy || (peer->fd >= 0 && !peer->by_broker && !gs_peer_hung_up(peer));
}

/* A descriptor of the block's chunk, and what there is to say about it; or why not. */
static enum gs_wire_reason find_passed_on(struct gs_share *share, const unsigned char *bytes,
                                          struct gs_wire_grant *ret_grant, int *ret_fd)
{
    enum gs_wire_reason reason = GS_REFUSED_TOKEN;
    struct gs_opened *opened;
    struct gs_token token;

    if (gs_token_read(bytes, &token) != GS_OK)
        return reason;
    gs_lock_take(&share->opener_lock);
    opened = gs_opened_find_locked(share, &token);
    if (opened && opened->passed_on && !opened->leaving && opened->import->fd >= 0 &&
        gs_fd_is_there(&opened->import->kept_fd) &&
        gs_bytes_equal(opened->token, bytes, GS_TOKEN_SIZE)) {
        const struct gs_import *import = opened->import;

        ret_grant->block_id = token.block_id;
        ret_grant->chunk_id = import->chunk_id;
        ret_grant->chunk_size = import->span.size;
        ret_grant->offset = opened->address - import->span.base;
        ret_grant->size = opened->size;
        ret_grant->read_only = import->read_only;
        memcpy(ret_grant->uuid, import->uuid, sizeof ret_grant->uuid);
        reason = is_connected_locked(opened->peer) ? GS_REFUSED_EARLY : 0;
        *ret_fd = reason ? -1 : fcntl(import->fd, F_DUPFD_CLOEXEC, 0);
        if (!reason && *ret_fd < 0)
            reason = GS_REFUSED_FDS;
    }
    gs_lock_release(&share->opener_lock);
    return reason;
}

bool gs_relay_serve(struct gs_share *share, struct gs_client *client,
                    const struct gs_wire_open *open)
{
    char name[GS_SOCKET_NAME_SIZE];
    union gs_wire_message message;
    enum gs_wire_reason reason;
    int error = 0, fd = -1;

    gs_wire_start(&message, GS_WIRE_GRANT, open->head.request);
    reason = find_passed_on(share, open->token, &message.grant, &fd);
    gs_instance_name(client->instance, name);
    if (!reason && !gs_directory_is_gone(share->directory, &share->options, name))
        reason = GS_REFUSED_EARLY;
    if (!reason)
        error = gs_client_send(share, client, &message, fd);
    if (fd >= 0)
        close(fd);
    if (error == -ETOOMANYREFS) /* for the moment: he asks again */
        reason = GS_REFUSED_FLIGHT;
    if (reason)
        return gs_client_refuse(share, client, open->head.request, reason, 0);
    return error == 0;
}

void gs_relay_leave(struct gs_share *share, const struct gs_peer *peer)
{
    char name[GS_RELAY_NAME_SIZE];

    relay_name(share, peer->instance, name);
    unlinkat(share->directory, name, 0);
}

void gs_relay_put_up_again(struct gs_share *share)
{
    const struct gs_relay_name *entry = __atomic_load_n(&share->relay_names, __ATOMIC_ACQUIRE);

    for (; entry; entry = entry->next)
        if (linkat(share->directory, share->name, share->directory, entry->name, 0) != 0)
            gs_log_line(&share->log, GS_LOG_INFO, "no name for what is passed on: %s",
                        strerror(errno));
}

void gs_relay_at_exit(struct gs_share *share, int directory)
{
    const struct gs_relay_name *entry = __atomic_load_n(&share->relay_names, __ATOMIC_ACQUIRE);

    for (; entry; entry = entry->next)
        unlinkat(directory, entry->name, 0);
}

void gs_relay_free(struct gs_share *share)
{
    while (share->relay_names) {
        struct gs_relay_name *entry = share->relay_names;

        share->relay_names = entry->next;
        free(entry);
    }
}

/* ---- Opening what was passed on ------------------------------------------------------------- */

/* Those whose names stand in one directory, one after the other. Each that does not answer takes an
 * equal part of the time that is left, so one that is stopped does not keep the next from being
 * asked. */
static gs_status request_in(struct gs_share *share, int directory, const struct gs_token *token,
                            const unsigned char *bytes, uint64_t deadline_ns,
                            struct gs_wire_grant *ret_grant, int *ret_fd)
{
    char names[RELAYS_MAX][GS_RELAY_NAME_SIZE], instance[GS_SOCKET_NAME_SIZE];
    gs_status status = GS_UNREACHABLE;
    int count;

    gs_instance_name(token->instance, instance);
    count = gs_directory_relays(directory, instance, names, RELAYS_MAX);
    for (int i = 0; i < count && status != GS_OK; i++) {
        struct gs_peer relay = {.watched = true, .by_broker = true};
        uint64_t now = gs_now_ns();

        if (now >= deadline_ns)
            break;
        relay.deadline_ns = now + (deadline_ns - now) / (unsigned)(count - i);
        memcpy(relay.instance, token->instance, sizeof relay.instance);
        if (!gs_peer_connect_to(share, directory, names[i], &relay))
            continue;
        status = gs_peer_ask(share, &relay, token, bytes, true, NULL, ret_grant, ret_fd);
        gs_peer_disconnect(share, &relay);
    }
    return status;
}

gs_status gs_relay_request(struct gs_share *share, const struct gs_token *token,
                           const unsigned char *bytes, uint64_t deadline_ns,
                           struct gs_wire_grant *ret_grant, int *ret_fd)
{
    char reason[GS_REASON_SIZE];
    gs_status status = GS_UNREACHABLE;
    unsigned place = 0;
    int directory;

    while (status != GS_OK &&
           (directory = gs_directory_next(&share->options, &place, reason)) >= 0) {
        status = request_in(share, directory, token, bytes, deadline_ns, ret_grant, ret_fd);
        close(directory);
    }
    return status;
}
