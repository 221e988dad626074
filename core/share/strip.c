/*
 * Exporter: strips, memory that the program mapped itself (cuMemCreate, cuMemMap), in any number of
 * pieces side by side. The program unmaps and releases it as it likes, and nothing here may keep it
 * from that, or the memory from the driver afterwards. So nothing is kept: who opens a strip is
 * granted it with some of its pieces, and then asks for the others, some at a time,
 *
 *   OPEN ─► the handle that is mapped there now (cuMemRetainAllocationHandle), a descriptor of
 *           it, the handle released ─► GRANT, and the descriptors are closed
 *
 * and from then on has the memory by its own imports. Between the grant and the last piece the
 * program may unmap some of it: then the rest is refused, and the open with it. What is mapped at a
 * piece's place is the piece until a call that may change that was begun (`freed_ns`, said before the
 * driver's call), which is looked at after the handle was taken.
 *
 * All memory is given in this way. A block of the library's is held by its references, so what is
 * mapped there is its piece, or pieces that it lies across, whose descriptors are kept
 * (chunk_fds.c). A broker has them, and external memory has one.
 *
 * A reference of a strip holds nothing here. It is there to be called back when the memory has gone
 * (an importer that only keeps it for its next open lets it go at once), and to say who has it.
 */
#include "core/gpu/device.h"
#include "core/share/exporter.h"

#include <string.h>

void gs_batch_end(struct gs_share *share, const struct gs_export *export, struct gs_batch *batch)
{
    for (unsigned i = 0; i < batch->fds.count; i++)
        if (batch->fresh[i])
            gs_piece_fd_keep(share, export, batch->first + i, &batch->is[i]);
    batch->fds.count = 0;
}

/* As many descriptors as there are to be had, of `most`. An error only where there is none. */
static CUresult make_batch(struct gs_share *share, const struct gs_export *export, unsigned most,
                           struct gs_batch *batch)
{
    CUresult result = CUDA_SUCCESS;

    for (unsigned i = 0; i < most && result == CUDA_SUCCESS; i++) {
        result = gs_piece_fd(share, export, batch->first + i, &batch->is[i], &batch->fresh[i]);
        batch->fds.fd[i] = batch->is[i].fd;
        batch->fds.count += result == CUDA_SUCCESS;
    }
    if (result == CUDA_ERROR_OPERATING_SYSTEM && batch->fds.count > 0)
        return CUDA_SUCCESS; /* the rest when these are closed */
    return result;
}

static bool batch_is_whole(const struct gs_batch *batch)
{
    for (unsigned i = 0; i < batch->fds.count; i++)
        if (!gs_fd_is_there(&batch->is[i]))
            return false;
    return true;
}

enum gs_wire_reason gs_batch_make(struct gs_share *share, struct gs_client *client,
                                  const struct gs_export *export, uint32_t first,
                                  struct gs_batch *ret_batch, CUresult *ret_driver_error)
{
    const uint32_t left = gs_export_pieces(export) - first;
    const unsigned most = !gs_user_is_own(client->uid) ? 1 /* quota.c says why */
                          : left < GS_BATCH            ? left
                                                       : GS_BATCH;
    CUresult result;

    ret_batch->first = first;
    ret_batch->fds.count = 0;
    if (__atomic_load_n(&share->ending, __ATOMIC_ACQUIRE))
        return GS_REFUSED_ENDING;
    result = make_batch(share, export, most, ret_batch);
    if (result == CUDA_SUCCESS && batch_is_whole(ret_batch))
        return 0;
    gs_batch_end(share, export, ret_batch);
    if (result == CUDA_ERROR_INVALID_HANDLE)
        return GS_REFUSED_HANDLE;
    if (result == CUDA_SUCCESS || result == CUDA_ERROR_OPERATING_SYSTEM)
        return GS_REFUSED_FDS;
    *ret_driver_error = result;
    return GS_REFUSED_DRIVER;
}

void gs_batch_write(const struct gs_export *export, const struct gs_batch *batch,
                    struct gs_wire_batch *ret)
{
    const uint64_t whole = export->source.chunk_size;
    const uint64_t *sizes = export->source.strip ? export->source.strip->sizes : &whole;

    ret->first = batch->first;
    ret->count = batch->fds.count;
    memcpy(ret->sizes, &sizes[batch->first], batch->fds.count * sizeof *sizes);
}
