/*
 * Opener: mapping what was granted. It is of pieces, of which the first came with the grant and the others are
 * fetched, some at a time (core/share/strip.c). Each is mapped behind the one before it, and neither its
 * descriptor nor its handle is kept: so memory of any number of pieces takes no more descriptors than one
 * message brings.
 */
#include "core/share/discard.h"
#include "core/share/memory.h"
#include "core/share/opener.h"

#include <string.h>

static void say_senseless(struct gs_share *share)
{
    gs_log_line(&share->log, GS_LOG_WARNING,
                "the exporter of shared memory gave pieces that make no sense; refused");
}

/* Why there is no answer; the connection may be gone. */
static gs_status unanswered(struct gs_share *share, struct gs_remote *remote, bool asked, int error)
{
    if (error == -ETIMEDOUT || error == -EMFILE) {
        remote->conn.owed += asked;
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

/* Asks until it is answered, or refused for good. */
static gs_status fetch(struct gs_share *share, struct gs_remote *remote,
                       const struct gs_wire_grant *grant, uint32_t first, uint64_t left,
                       union gs_wire_message *ret_message, struct gs_wire_fds *ret_fds)
{
    gs_status status;

    for (;;) {
        status = ask(share, remote, grant, first, ret_message, ret_fds);
        if (status != GS_OK)
            return status;
        if (ret_message->head.type != GS_WIRE_REFUSE)
            break;
        if (ret_message->refuse.reason != GS_REFUSED_FLIGHT || gs_now_ns() >= remote->deadline_ns)
            return gs_remote_refused(share, &ret_message->refuse);
        gs_rest_ns(GS_REFUSED_NS);
    }
    if (ret_message->head.type == GS_WIRE_PIECES &&
        ret_message->pieces.block_id == grant->block_id &&
        gs_wire_batch_is_valid(&ret_message->pieces.batch, ret_fds, grant->pieces, first, left))
        return GS_OK;
    gs_fds_discard(ret_fds);
    say_senseless(share);
    return GS_UNREACHABLE;
}

/* Maps one piece; of it nothing but the mapping stays. `shareable` stays the caller's. */
static gs_status map_piece(struct gs_share *share, void *shareable, CUmemAllocationHandleType type,
                       CUdeviceptr address, size_t size)
{
    const struct gs_driver *driver = share->driver;
    CUmemGenericAllocationHandle handle;
    gs_status status = driver->mem_import(&handle, shareable, type);

    if (status != GS_OK)
        return status;
    status = driver->mem_map(address, size, 0, handle, 0);
    driver->mem_release(handle);
    return status;
}

/* Some more pieces; how many bytes were mapped is added, also on failure. */
static gs_status map_some(struct gs_share *share, const struct gs_remote *remote,
                          const struct gs_wire_batch *batch, const struct gs_wire_fds *fds,
                          CUdeviceptr base, size_t *mapped)
{
    for (unsigned i = 0; i < batch->count; i++) {
        gs_status status = GS_UNREACHABLE;

        if (gs_memory_may_be_drivers(fds->fd[i]))
            status = map_piece(share, (void *)(uintptr_t)fds->fd[i],
                                  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, base + *mapped,
                                  batch->sizes[i]);
        else if (remote)
            say_senseless(share);
        if (status != GS_OK)
            return status;
        *mapped += batch->sizes[i];
    }
    return GS_OK;
}

/* Those that did not come with the grant. */
static gs_status map_rest(struct gs_share *share, struct gs_remote *remote,
                          const struct gs_wire_grant *grant, CUdeviceptr base, size_t *mapped)
{
    uint64_t connection = remote->connection;
    uint32_t first = grant->batch.count;
    union gs_wire_message message;
    struct gs_wire_fds fds;
    gs_status status = GS_OK;

    while (status == GS_OK && first < grant->pieces) {
        if (remote->connection != connection) { /* what was granted went with it */
            gs_say_unreachable(share, "the connection to the process that shared it was lost");
            return GS_UNREACHABLE;
        }
        status = fetch(share, remote, grant, first, grant->chunk_size - *mapped, &message, &fds);
        if (status != GS_OK)
            return status;
        first += message.pieces.batch.count;
        status = map_some(share, remote, &message.pieces.batch, &fds, base, mapped);
        gs_fds_done(&fds, status == GS_OK);
    }
    return status;
}

/* One behind the other. On failure nothing is mapped there. */
static gs_status map_all(struct gs_share *share, struct gs_remote *remote,
                         const struct gs_wire_grant *grant, const struct gs_wire_fds *fds,
                         CUdeviceptr base)
{
    size_t mapped = 0;
    gs_status status;

    if (remote) {
        remote->fetching = grant->block_id;
        remote->fetch_recalled = false;
    }
    status = map_some(share, remote, &grant->batch, fds, base, &mapped);
    if (status == GS_OK && remote)
        status = map_rest(share, remote, grant, base, &mapped);
    if (remote)
        remote->fetching = 0;
    if (status != GS_OK && mapped > 0)
        share->driver->mem_unmap(base, mapped);
    return status;
}

/* Another machine's chunk by its fabric handle, which is of all of it. */
static gs_status map_afar(struct gs_share *share, const struct gs_remote *remote,
                          CUdeviceptr base, size_t size)
{
    CUmemFabricHandle handle;

    memcpy(&handle, remote->fabric, sizeof handle);
    return map_piece(share, &handle, CU_MEM_HANDLE_TYPE_FABRIC, base, size);
}

gs_status gs_import_map(struct gs_share *share, struct gs_remote *remote,
                        const struct gs_wire_grant *grant, const struct gs_wire_fds *fds,
                        CUdevice device, struct gs_room *room, struct gs_open_steps *steps,
                        struct gs_import **ret_import)
{
    struct gs_import *import;
    gs_status status;

    if (grant->host)
        return gs_import_map_host(share, grant, fds->fd[0], steps, ret_import);
    status = gs_import_begin(share, grant, room, &import);
    if (status != GS_OK)
        return status;
    status = remote && remote->afar
                 ? map_afar(share, remote, import->span.base, import->span.size)
                 : map_all(share, remote, grant, fds, import->span.base);
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
