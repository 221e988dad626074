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

#include <string.h>

/* Asks for the descriptor that was not kept, where there is room for it: to be closed again it would
 * have to wait for others. The peer is busy, by this thread. */
static void fetch_fd(struct gs_share *share, struct gs_peer *peer, struct gs_import *import,
                     const unsigned char *bytes)
{
    struct gs_wire_grant grant;
    struct gs_token token;
    int fd = -1;

    if (__atomic_load_n(&share->opener.kept_fds, __ATOMIC_RELAXED) >= gs_import_fds_max(true) ||
        gs_token_read(bytes, &token) != GS_OK ||
        gs_peer_request(share, peer, &token, bytes, true, NULL, &grant, &fd) != GS_OK)
        return;
    gs_peer_return(peer, token.block_id);
    if (grant.chunk_id != import->chunk_id || grant.chunk_size != import->span.size ||
        !gs_import_keep_fd(share, import, fd, true))
        gs_discard(fd, gs_conn_who(peer->conn.fd).uid);
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
        peer->passes_on = gs_relay_put_up(share, peer);
}

gs_status gs_share_pass_on(struct gs_share *share, CUdeviceptr address,
                           unsigned char ret_token[GS_TOKEN_SIZE])
{
    int saved = errno;
    const uint64_t deadline = gs_now_ns() + share->options.timeout_ns;
    struct gs_opened *opened;
    struct gs_peer *peer;

    gs_lock_take(&share->opener.lock);
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
        gs_lock_release(&share->opener.lock);
        pass_on(share, peer, opened->import, ret_token);
        gs_lock_take(&share->opener.lock);
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

    gs_lock_take(&share->opener.lock);
    peer = gs_peer_find_locked(share, instance);
    knows = peer && peer->passes_on;
    gs_lock_release(&share->opener.lock);
    return knows;
}

/* Whether the exporter may still be there, as far as its connection tells. */
static bool is_connected_locked(const struct gs_peer *peer)
{
    return peer->busy || (peer->conn.fd >= 0 && !peer->conn.by_broker && !gs_peer_hung_up(peer));
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
    gs_lock_take(&share->opener.lock);
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
        *ret_fd = reason ? -1 : gs_fd_copy(import->fd);
        if (!reason && *ret_fd < 0)
            reason = GS_REFUSED_FDS;
    }
    gs_lock_release(&share->opener.lock);
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
    if (!reason && !gs_directory_is_gone(share->place.directory, &share->options, name))
        reason = GS_REFUSED_EARLY;
    if (!reason)
        error = gs_client_send(share, client, &message, fd);
    gs_fd_drop(fd);
    if (error == -ETOOMANYREFS) /* for the moment: he asks again */
        reason = GS_REFUSED_FLIGHT;
    if (reason)
        return gs_client_refuse(share, client, open->head.request, reason, 0);
    return error == 0;
}
