/*
 * Opener: the pieces of a strip (core/share/strip.c). They are fetched some at a time, each is mapped
 * behind the one before it, and neither its descriptor nor its handle is kept: so a strip of any number
 * of pieces takes no more descriptors than one message brings.
 */
#include "core/share/discard.h"
#include "core/share/memory.h"
#include "core/share/opener.h"

#include <string.h>

#define FLIGHT_NS      GS_NS_PER_S /* where too many descriptors are under way one asks again, */
#define FLIGHT_STEP_NS (5 * GS_NS_PER_MS) /* after this */

static void say_senseless(struct gs_share *share)
{
    gs_log_line(&share->log, GS_LOG_WARNING,
                "the exporter of shared memory gave pieces that make no sense; refused");
}

/* Why there is no answer; the connection may be gone. */
static gs_status unanswered(struct gs_share *share, struct gs_remote *remote, bool asked, int error)
{
    if (error == -ETIMEDOUT || error == -EMFILE) {
        remote->conn.abandoned += asked;
        gs_remote_watch(share, remote); /* somebody must take its answer */
    }
    if (error == -EMFILE) {
        gs_say_unreachable(share, "this process has too few descriptors left; raise its limit "
                                  "(ulimit -n)");
        return (gs_status)CUDA_ERROR_OPERATING_SYSTEM;
    }
    if (error == -EPROTO || error == -EPROTONOSUPPORT) {
        say_senseless(share);
        return GS_UNREACHABLE;
    }
    if (error != -ETIMEDOUT)
        gs_remote_lost(share, remote);
    gs_say_unreachable(share, error == -ETIMEDOUT
                                  ? "the process that shared it does not answer"
                                  : "the process that shared it has ended" GS_BROKER_HELPS);
    return GS_UNREACHABLE;
}

/* One question, and what came in answer. */
static gs_status ask(struct gs_share *share, struct gs_remote *remote,
                     const struct gs_wire_grant *grant, uint32_t first,
                     union gs_wire_message *ret_message, struct gs_wire_fds *ret_fds)
{
    uint32_t left = grant->pieces - first;
    union gs_wire_message message;
    bool asked;
    int error;

    gs_wire_start(&message, GS_WIRE_FETCH, ++remote->conn.request);
    message.fetch.block_id = grant->block_id;
    message.fetch.first = first;
    message.fetch.count = left < GS_PIECES_MAX ? left : GS_PIECES_MAX;
    error = gs_remote_send(remote, &message, -1, remote->deadline_ns);
    asked = error == 0;
    remote->conn.sent_ns = gs_now_ns();
    if (asked)
        error = gs_remote_answer(share, remote, remote->deadline_ns, ret_message, ret_fds);
    return error ? unanswered(share, remote, asked, error) : GS_OK;
}

/* Whether they are those that were asked for, and fit into what is left of the strip. */
static bool are_valid(const struct gs_wire_grant *grant, uint32_t first, uint64_t left,
                      const union gs_wire_message *message, const struct gs_wire_fds *fds)
{
    const struct gs_wire_pieces *pieces = &message->pieces;

    if (message->head.type != GS_WIRE_PIECES || pieces->block_id != grant->block_id ||
        pieces->first != first || pieces->count != fds->count || pieces->count == 0 ||
        pieces->count > grant->pieces - first)
        return false;
    for (uint32_t i = 0; i < pieces->count; i++) {
        if (pieces->sizes[i] == 0 || pieces->sizes[i] % GS_PAGE_SIZE || pieces->sizes[i] > left)
            return false;
        left -= pieces->sizes[i];
    }
    return (first + pieces->count == grant->pieces) == (left == 0);
}

/* Asks until it is answered, or refused for good. */
static gs_status fetch(struct gs_share *share, struct gs_remote *remote,
                       const struct gs_wire_grant *grant, uint32_t first, uint64_t left,
                       union gs_wire_message *ret_message, struct gs_wire_fds *ret_fds)
{
    const uint64_t end = gs_now_ns() + FLIGHT_NS;
    gs_status status;

    for (;;) {
        status = ask(share, remote, grant, first, ret_message, ret_fds);
        if (status != GS_OK)
            return status;
        if (ret_message->head.type != GS_WIRE_REFUSE)
            break;
        if (ret_message->refuse.reason != GS_REFUSED_FLIGHT || gs_now_ns() >= end ||
            gs_now_ns() >= remote->deadline_ns)
            return gs_remote_refused(share, &ret_message->refuse);
        gs_rest_ns(FLIGHT_STEP_NS);
    }
    if (are_valid(grant, first, left, ret_message, ret_fds))
        return GS_OK;
    gs_remote_discard(remote, ret_fds);
    say_senseless(share);
    return GS_UNREACHABLE;
}

/* Maps one piece; of it nothing but the mapping stays. `fd` stays the caller's. */
static gs_status map_piece(struct gs_share *share, int fd, CUdeviceptr address, size_t size)
{
    const struct gs_driver *driver = share->driver;
    CUmemGenericAllocationHandle handle;
    gs_status status;

    if (!gs_memory_may_be_drivers(fd)) {
        say_senseless(share);
        return GS_UNREACHABLE;
    }
    status = driver->mem_import(&handle, (void *)(uintptr_t)fd,
                                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (status != GS_OK)
        return status;
    status = driver->mem_map(address, size, 0, handle, 0);
    driver->mem_release(handle);
    return status;
}

/* Some more pieces; how many bytes were mapped is added, also on failure. */
static gs_status map_some(struct gs_share *share, const struct gs_remote *remote,
                          const struct gs_wire_pieces *pieces, struct gs_wire_fds *fds,
                          CUdeviceptr base, size_t *mapped)
{
    gs_status status = GS_OK;

    for (unsigned i = 0; i < fds->count; i++) {
        if (status == GS_OK)
            status = map_piece(share, fds->fd[i], base + *mapped, pieces->sizes[i]);
        if (status == GS_OK)
            *mapped += pieces->sizes[i];
        if (status == GS_OK)
            gs_fd_drop(fds->fd[i]); /* the driver's: it has taken it */
        else
            gs_discard(fds->fd[i], gs_conn_who(remote->conn.fd).uid);
    }
    return status;
}

/* All of them from `base` on. On failure nothing is mapped there. */
static gs_status map_all(struct gs_share *share, struct gs_remote *remote,
                         const struct gs_wire_grant *grant, CUdeviceptr base)
{
    uint64_t connection = remote->connection;
    union gs_wire_message message;
    struct gs_wire_fds fds;
    gs_status status = GS_OK;
    uint32_t first = 0;
    size_t mapped = 0;

    remote->fetching = grant->block_id;
    remote->fetch_recalled = false;
    while (status == GS_OK && first < grant->pieces) {
        if (remote->connection != connection) { /* what was granted went with it */
            gs_say_unreachable(share, "the connection to the process that shared it was lost");
            status = GS_UNREACHABLE;
            break;
        }
        status = fetch(share, remote, grant, first, grant->chunk_size - mapped, &message, &fds);
        if (status != GS_OK)
            break;
        first += message.pieces.count;
        status = map_some(share, remote, &message.pieces, &fds, base, &mapped);
    }
    remote->fetching = 0;
    if (status != GS_OK && mapped > 0)
        share->driver->mem_unmap(base, mapped);
    return status;
}

gs_status gs_strip_map(struct gs_share *share, struct gs_remote *remote,
                       const struct gs_wire_grant *grant, CUdevice device, struct gs_room *room,
                       struct gs_open_steps *steps, struct gs_import **ret_import)
{
    struct gs_import *import;
    gs_status status = gs_import_begin(share, grant, room, &import);

    if (status != GS_OK)
        return status;
    status = map_all(share, remote, grant, import->span.base);
    steps->imported = gs_now_ns();
    if (status == GS_OK) {
        status = gs_import_allow(share, import, device);
        if (status == GS_OK) {
            *ret_import = import;
            return GS_OK;
        }
        share->driver->mem_unmap(import->span.base, import->span.size);
    }
    gs_import_abandon(share, import);
    return status;
}
