/*
 * Exporter: strips, memory that the program mapped itself (cuMemCreate, cuMemMap), in any number of
 * pieces side by side. The program unmaps and releases it as it likes, and nothing here may keep it
 * from that, or the memory from the driver afterwards. So nothing is kept: who opens a strip is
 * granted it and then fetches its pieces, some at a time,
 *
 *   FETCH ─► the handle that is mapped there now (cuMemRetainAllocationHandle), a descriptor of it,
 *            the handle released ─► PIECES, and the descriptors are closed
 *
 * and from then on has the memory by its own imports. Between the grant and the last piece the
 * program may unmap some of it: then the rest is refused, and the open with it. What is mapped at a
 * piece's place is the piece as long as no call is under way that may change that (`going`, said
 * before the driver's call) and none has (`freed_ns`): both are looked at after the handle was taken.
 *
 * A block that lies across pieces of the library's is given in the same way. It is held by its
 * references, as other blocks are, so what is mapped there is its pieces. A broker has their descriptors.
 *
 * A reference of a strip holds nothing here. It is there to be called back when the memory has gone
 * (an opener that only keeps it for its next open lets it go at once), and to say who has it.
 */
#include "core/gpu/device.h"
#include "core/share/exporter.h"

#include <string.h>

void gs_share_strip_going(struct gs_share *share, struct gs_export *export)
{
    gs_lock_take(&share->lock);
    export->going++;
    gs_lock_release(&share->lock);
}

void gs_share_strip_stays(struct gs_share *share, struct gs_export *export)
{
    gs_lock_take(&share->lock);
    export->going--;
    gs_lock_release(&share->lock);
}

void gs_share_strip_gone(struct gs_share *share, struct gs_export *export)
{
    bool due;

    gs_lock_take(&share->lock);
    export->freed_ns = gs_now_ns();
    gs_export_recall_locked(share, export);
    gs_limbo_note_locked(share, export);
    due = gs_names_end_locked(share, export);
    gs_export_end_strip_locked(share, export);
    gs_lock_release(&share->lock);
    if (due)
        gs_thread_wake(share);
}

/* ---- Giving pieces --------------------------------------------------------------------------- */

/* It is held, and so is there; from now on it stays, whoever else lets go of it. */
static void pin(struct gs_share *share, struct gs_export *export)
{
    gs_lock_take(&share->lock);
    gs_export_pin_locked(share, export);
    gs_lock_release(&share->lock);
}

/* Some pieces on their way: the program may close their descriptors at any moment. */
struct batch {
    struct gs_wire_fds fds;
    struct gs_fd kept[GS_PIECES_MAX];
};

static void batch_close(const struct batch *batch)
{
    for (unsigned i = 0; i < batch->fds.count; i++)
        gs_fd_close(&batch->kept[i]);
}

static bool batch_is_whole(const struct batch *batch)
{
    for (unsigned i = 0; i < batch->fds.count; i++)
        if (!gs_fd_is_there(&batch->kept[i]))
            return false;
    return batch->fds.count > 0;
}

/* As many descriptors as there are to be had, of `most`. An error only where there is none. */
static CUresult make_batch(struct gs_share *share, const struct gs_export *export, uint32_t first,
                           unsigned most, struct batch *batch)
{
    CUresult result = CUDA_SUCCESS;
    unsigned count = 0;

    for (; count < most && result == CUDA_SUCCESS; count += result == CUDA_SUCCESS) {
        result = gs_piece_fd(share, export, first + count, &batch->kept[count]);
        batch->fds.fd[count] = batch->kept[count].fd;
    }
    batch->fds.count = count;
    if (result == CUDA_ERROR_OPERATING_SYSTEM && count > 0)
        return CUDA_SUCCESS; /* the rest when these are closed */
    if (result != CUDA_SUCCESS)
        batch_close(batch);
    return result;
}

static int send_batch(struct gs_share *share, struct gs_client *client,
                      const struct gs_export *export, const struct gs_wire_fetch *fetch,
                      const struct batch *batch)
{
    union gs_wire_message message;

    gs_wire_start(&message, GS_WIRE_PIECES, fetch->head.request);
    message.pieces.block_id = export->key.id;
    message.pieces.first = fetch->first;
    message.pieces.count = batch->fds.count;
    memcpy(message.pieces.sizes, &export->source.strip->sizes[fetch->first],
           batch->fds.count * sizeof *message.pieces.sizes);
    return gs_client_send_all(share, client, &message, &batch->fds);
}

static enum gs_wire_reason give(struct gs_share *share, struct gs_client *client,
                                const struct gs_export *export, const struct gs_wire_fetch *fetch,
                                CUresult *ret_driver_error, int *ret_error)
{
    unsigned most = fetch->count < GS_PIECES_MAX ? fetch->count : GS_PIECES_MAX;
    struct batch batch;

    if (__atomic_load_n(&share->ending, __ATOMIC_ACQUIRE))
        return GS_REFUSED_ENDING;
    most = gs_client_may_send(share, client, most);
    if (most == 0)
        return GS_REFUSED_FLIGHT;
    *ret_driver_error = make_batch(share, export, fetch->first, most, &batch);
    if (*ret_driver_error == CUDA_ERROR_INVALID_HANDLE) {
        *ret_driver_error = CUDA_SUCCESS;
        return GS_REFUSED_HANDLE;
    }
    if (*ret_driver_error != CUDA_SUCCESS)
        return *ret_driver_error == CUDA_ERROR_OPERATING_SYSTEM ? GS_REFUSED_FDS
                                                                : GS_REFUSED_DRIVER;
    *ret_error = batch_is_whole(&batch) ? send_batch(share, client, export, fetch, &batch) : -EMFILE;
    batch_close(&batch);
    return *ret_error ? gs_reason_of_send(*ret_error) : 0;
}

bool gs_strip_fetch_came(struct gs_share *share, struct gs_client *client,
                         const struct gs_wire_fetch *fetch)
{
    CUresult driver_error = CUDA_SUCCESS;
    struct gs_reference *reference;
    struct gs_export *export;
    enum gs_wire_reason reason;
    int error = 0;

    HASH_FIND(hh, client->references, &fetch->block_id, sizeof fetch->block_id, reference);
    if (!reference && client->over.has_lost)
        return gs_client_refuse(share, client, fetch->head.request, GS_REFUSED_HANDLE, 0);
    if (!reference)
        return gs_client_fault(client, "it wants pieces of what it does not hold");
    export = reference->export;
    if (!gs_export_is_strip(export) || fetch->count == 0 ||
        fetch->first >= export->source.strip->pieces ||
        fetch->count > export->source.strip->pieces - fetch->first)
        return gs_client_fault(client, "it wants pieces that there are not");
    pin(share, export);
    reason = give(share, client, export, fetch, &driver_error, &error);
    share->exporter.served_ns = gs_now_ns();
    gs_thread_expect(share, share->exporter.served_ns);
    gs_export_unpin(share, export, false);
    if (error == -EAGAIN || error == -EPIPE || error == -ECONNRESET)
        return false;
    return !reason || gs_client_refuse(share, client, fetch->head.request, reason,
                                       (uint32_t)driver_error);
}
