/*
 * Exporter: one descriptor for a chunk, made once and kept for its next importers, since the driver
 * takes 24 to 1,100 us to make one (measured on an H200). A kept descriptor keeps the memory: it
 * goes before the chunk does. How many are kept is a share of the process's limit of descriptors,
 * looked up each time since programs change it; the least recently used goes first.
 *
 * A forked child has copies of them (and of those that import.c keeps) until it execs or ends, and
 * closes none: the lists may be half changed by a thread that the child lacks, and what a number
 * means may have changed between the copies of descriptors and of memory.
 */
#include "core/share/exporter.h"

#include "core/gpu/device.h"

#include <stdlib.h>

#define LIMIT_SHARE 8    /* one descriptor in so many of the process's limit */
#define KEPT_MAX    4096 /* and never more */

struct gs_chunk_fd {
    uint64_t chunk_id;
    struct gs_fd fd; /* the program may have closed it, and another file may have its number */
    uint64_t used;   /* share->exporter.chunk_fd_uses at its last use */
    UT_hash_handle hh;
};

static unsigned chunk_fds_max(void)
{
    uint64_t part = gs_fd_limit() / LIMIT_SHARE;

    return part < KEPT_MAX ? (unsigned)part : KEPT_MAX;
}

/* Takes the least recently used out until no more than `keep` are left; closes them. False: there
 * were none. */
static bool shrink(struct gs_share *share, unsigned keep)
{
    for (bool any = false;; any = true) {
        struct gs_chunk_fd *entry, *next, *oldest = NULL;

        gs_lock_take(&share->lock);
        if (HASH_COUNT(share->exporter.chunk_fds) > keep) {
            HASH_ITER(hh, share->exporter.chunk_fds, entry, next) {
                if (!oldest || entry->used < oldest->used)
                    oldest = entry;
            }
            HASH_DEL(share->exporter.chunk_fds, oldest);
        }
        gs_lock_release(&share->lock);
        if (!oldest)
            return any;
        gs_fd_close(&oldest->fd);
        free(oldest);
    }
}

static struct gs_fd find(struct gs_share *share, uint64_t chunk_id)
{
    struct gs_fd fd = {.fd = -1};
    struct gs_chunk_fd *entry;
    GS_HOLDING(&share->lock);

    HASH_FIND(hh, share->exporter.chunk_fds, &chunk_id, sizeof chunk_id, entry);
    if (entry && gs_fd_is_there(&entry->fd)) {
        entry->used = ++share->exporter.chunk_fd_uses;
        fd = entry->fd;
    } else if (entry) {
        HASH_DEL(share->exporter.chunk_fds, entry);
        free(entry);
    }
    return fd;
}

/* The id of the chunk that it is, whose descriptor is kept; 0: none is. */
static uint64_t kept_as(const struct gs_export *export, uint32_t piece)
{
    const struct gs_share_strip *strip = export->source.strip;

    if (strip)
        return strip->ids ? strip->ids[piece] : 0;
    return export->source.chunk_id;
}

void gs_piece_fd_keep(struct gs_share *share, const struct gs_export *export, uint32_t piece,
                      const struct gs_fd *fd)
{
    struct gs_chunk_fd *entry = NULL;
    uint64_t id = kept_as(export, piece);
    unsigned max = id ? chunk_fds_max() : 0;
    bool kept = false;

    if (max > 0)
        entry = calloc(1, sizeof *entry);
    if (entry) {
        shrink(share, max - 1);
        entry->chunk_id = id;
        entry->fd = *fd;
        gs_lock_take(&share->lock);
        entry->used = ++share->exporter.chunk_fd_uses;
        HASH_ADD(hh, share->exporter.chunk_fds, chunk_id, sizeof entry->chunk_id, entry);
        kept = entry->hh.tbl != NULL;
        gs_lock_release(&share->lock);
    }
    if (kept)
        return;
    free(entry);
    gs_fd_close(fd);
}

bool gs_chunk_fd_wanted(struct gs_share *share, const struct gs_export *export)
{
    unsigned max = chunk_fds_max();
    struct gs_chunk_fd *entry;
    GS_HOLDING(&share->lock);

    HASH_FIND(hh, share->exporter.chunk_fds, &export->source.chunk_id, sizeof entry->chunk_id,
              entry);
    return !entry && HASH_COUNT(share->exporter.chunk_fds) < max;
}

/* ---- Making one ------------------------------------------------------------------------------ */

static bool is_stale(struct gs_share *share, const struct gs_export *export)
{
    GS_HOLDING(&share->lock);

    return gs_strip_is_stale_locked(export);
}

/* Where a piece begins. */
static uint64_t address_of(const struct gs_export *export, uint32_t piece)
{
    uint64_t address = export->source.address;

    if (!gs_export_is_own(export))
        address -= export->source.offset;
    for (uint32_t i = 0; i < piece; i++)
        address += export->source.strip->sizes[i];
    return address;
}

/* Of what is mapped there. */
static CUresult export_piece(struct gs_share *share, const struct gs_export *export, uint32_t piece,
                             int *ret_fd)
{
    CUmemGenericAllocationHandle handle;
    CUresult result =
        share->driver->mem_retain(&handle, (void *)(uintptr_t)address_of(export, piece));

    if (is_stale(share, export)) {
        if (result == CUDA_SUCCESS)
            share->driver->mem_release(handle);
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (result != CUDA_SUCCESS)
        return result;
    result = gs_device_export(share->driver, handle, ret_fd);
    share->driver->mem_release(handle);
    return result == CUDA_ERROR_INVALID_HANDLE ? CUDA_ERROR_UNKNOWN : result;
}

static CUresult export_it(struct gs_share *share, const struct gs_export *export, uint32_t piece,
                          int *ret_fd)
{
    return gs_export_is_strip(export)
               ? export_piece(share, export, piece, ret_fd)
               : gs_device_export(share->driver, export->source.handle, ret_fd);
}

static CUresult make(struct gs_share *share, const struct gs_export *export, uint32_t piece,
                     struct gs_fd *ret_fd)
{
    int fd;
    CUresult result = export_it(share, export, piece, &fd);

    /* No descriptor is left: the kept ones are the first to go. */
    if (result == CUDA_ERROR_OPERATING_SYSTEM && shrink(share, 0))
        result = export_it(share, export, piece, &fd);
    if (result != CUDA_SUCCESS)
        return result;
    *ret_fd = gs_fd_keep(fd); /* from here on: while it is sent the program may close it */
    if (ret_fd->any)
        return CUDA_SUCCESS;
    gs_fd_drop(fd); /* one that cannot be told from the program's own is not sent */
    return CUDA_ERROR_OPERATING_SYSTEM;
}

CUresult gs_piece_fd(struct gs_share *share, const struct gs_export *export, uint32_t piece,
                     struct gs_fd *ret_fd, bool *ret_fresh)
{
    *ret_fresh = false;
    *ret_fd = (struct gs_fd){.fd = -1};
    if (export->source.behind) /* it has one, which is kept for as long as the export */
        *ret_fd = export->source.behind->fd;
    else if (share->options.is_broker)
        *ret_fd = gs_fd_keep(gs_broker_fd(export, piece));
    else
        *ret_fd = find(share, kept_as(export, piece));
    if (ret_fd->any)
        return gs_fd_is_there(ret_fd) ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
    if (export->source.behind || share->options.is_broker)
        return CUDA_ERROR_OPERATING_SYSTEM;
    *ret_fresh = true;
    return make(share, export, piece, ret_fd);
}

void gs_share_chunk_gone(struct gs_share *share, uint64_t chunk_id)
{
    int saved = errno;
    struct gs_chunk_fd *entry;

    gs_lock_take(&share->lock);
    HASH_FIND(hh, share->exporter.chunk_fds, &chunk_id, sizeof chunk_id, entry);
    if (entry)
        HASH_DEL(share->exporter.chunk_fds, entry);
    gs_lock_release(&share->lock);
    if (entry) {
        gs_fd_close(&entry->fd);
        free(entry);
    }
    errno = saved;
}

void gs_chunk_fds_free(struct gs_share *share)
{
    shrink(share, 0);
}
