/*
 * Importer: mapping what was granted. It is of pieces, of which the first came with the grant and
 * the others are asked for, some at a time (core/share/strip.c). What came is mapped while the
 * exporter makes descriptors of the next. Each is mapped behind the one before it, and neither its
 * descriptor nor its handle is kept: so memory of any number of pieces takes no more descriptors
 * than one message brings.
 */
#include "core/share/discard.h"
#include "core/share/memory.h"
#include "core/share/importer.h"

#include <string.h>

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
            gs_say_senseless(share);
        if (status != GS_OK)
            return status;
        *mapped += batch->sizes[i];
    }
    return GS_OK;
}

void gs_pieces_map(struct gs_share *share, struct gs_remote *remote, struct gs_pieces *pieces)
{
    if (pieces->fds->count == 0)
        return;
    pieces->status =
        map_some(share, remote, pieces->batch, pieces->fds, pieces->base, &pieces->mapped);
    gs_fds_done(pieces->fds, pieces->status == GS_OK);
}

static size_t bytes_of(const struct gs_wire_batch *batch)
{
    size_t bytes = 0;

    for (unsigned i = 0; i < batch->count; i++)
        bytes += batch->sizes[i];
    return bytes;
}

/* Those that came with the grant, and the others: each time the block is granted anew, with some
 * more, and meanwhile those that came before are mapped. */
static gs_status map_each(struct gs_share *share, struct gs_remote *remote,
                          struct gs_request *request, struct gs_wire_grant *grant,
                          struct gs_pieces *pieces)
{
    struct gs_wire_grant more;
    struct gs_wire_fds fds;

    request->pieces = pieces;
    request->left = grant->chunk_size;
    while ((request->left -= bytes_of(&grant->batch)) > 0) {
        gs_status status;

        request->first += grant->batch.count;
        remote->conn.owed++; /* a RECALL of what was granted before may come */
        status = gs_remote_request(share, remote, request, &more, &fds);
        if (status != GS_OK)
            return status;
        grant->head.request = more.head.request;
        grant->batch = more.batch;
        *pieces->fds = fds;
        if (pieces->status != GS_OK)
            return pieces->status;
    }
    gs_pieces_map(share, remote, pieces);
    return pieces->status;
}

/* Another machine's chunk by its fabric handle, which is of all of it. */
static gs_status map_cluster(struct gs_share *share, const struct gs_remote *remote,
                             CUdeviceptr base, size_t size)
{
    CUmemFabricHandle handle;

    memcpy(&handle, remote->fabric, sizeof handle);
    return map_piece(share, &handle, CU_MEM_HANDLE_TYPE_FABRIC, base, size);
}

static gs_status map_all(struct gs_share *share, struct gs_remote *remote,
                         struct gs_request *request, struct gs_wire_grant *grant,
                         struct gs_wire_fds *fds, CUdeviceptr base)
{
    struct gs_pieces pieces = {.batch = &grant->batch, .fds = fds, .base = base};
    gs_status status;

    if (remote && remote->cluster)
        return map_cluster(share, remote, base, grant->chunk_size);
    status = remote ? map_each(share, remote, request, grant, &pieces)
                    : map_some(share, NULL, &grant->batch, fds, base, &pieces.mapped);
    if (status != GS_OK && pieces.mapped > 0)
        share->driver->mem_unmap(base, pieces.mapped);
    return status;
}

/* Access for those that had it. */
static gs_status give_again(struct gs_share *share, struct gs_import *import)
{
    const uint64_t had = __atomic_exchange_n(&import->devices, 0, __ATOMIC_RELAXED);
    gs_status status = GS_OK;

    for (uint64_t left = had; status == GS_OK && left; left &= left - 1)
        status = gs_import_give(share, import, __builtin_ctzll(left));
    __atomic_store_n(&import->devices, had, __ATOMIC_RELAXED);
    return status;
}

gs_status gs_import_map_again(struct gs_share *share, struct gs_remote *remote,
                              struct gs_request *request, struct gs_wire_grant *grant,
                              struct gs_wire_fds *fds, struct gs_import *import)
{
    gs_status status;

    if (grant->chunk_size != import->span.size ||
        memcmp(grant->uuid, import->uuid, sizeof import->uuid) != 0 || grant->host ||
        remote->cluster)
        return gs_say_senseless(share);
    status = map_all(share, remote, request, grant, fds, import->span.base);
    if (status == GS_OK) {
        status = give_again(share, import);
        if (status != GS_OK)
            share->driver->mem_unmap(import->span.base, import->span.size);
    }
    return status;
}

static gs_status map_device(struct gs_share *share, struct gs_remote *remote,
                            struct gs_request *request, struct gs_wire_grant *grant,
                            struct gs_wire_fds *fds, CUdevice device, struct gs_import *import)
{
    gs_status status = gs_room_take(share, &request->room, &import->span);

    if (status != GS_OK)
        return status;
    status = map_all(share, remote, request, grant, fds, import->span.base);
    if (status == GS_OK) {
        status = gs_import_allow(share, import, device);
        if (status == GS_OK)
            return GS_OK;
        share->driver->mem_unmap(import->span.base, import->span.size);
    }
    share->driver->mem_address_free(import->span.base, import->span.size);
    return status;
}

gs_status gs_import_map(struct gs_share *share, struct gs_remote *remote,
                        struct gs_request *request, struct gs_wire_grant *grant,
                        struct gs_wire_fds *fds, CUdevice device, struct gs_import **ret_import)
{
    struct gs_import *import = gs_import_new(share, grant);
    gs_status status;

    if (!import)
        return GS_NO_HOST_MEMORY;
    status = grant->host ? gs_import_map_host(share, grant, fds->fd[0], import)
                         : map_device(share, remote, request, grant, fds, device, import);
    if (status == GS_OK) {
        *ret_import = import;
        return GS_OK;
    }
    GS_HOLDING(&share->importer.lock);
    gs_import_recycle_locked(share, import);
    return status;
}
