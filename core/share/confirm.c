/*
 * Exporter: what its broker may serve when this process has ended. It stands in memory of this
 * process's, a slot for each block with the block's id in it, which the broker reads then and no
 * sooner. So taking a block back is one store: whether the broker runs, is stopped or has gone, the
 * block's memory may be used again at once. The UNSHARE that follows only lets the broker give up
 * its descriptor; what does not go is kept here until the broker reads again.
 *
 * There is new memory for each connection: whatever a broker before was told counts no more.
 */
#include "core/share/exporter.h"
#include "core/share/memory.h"

#include <stdlib.h>

struct gs_confirmed {
    uint64_t *ids; /* what the broker reads; atomic, and never read here */
    uint32_t count, used; /* slots that there are, and that were ever used */
    uint32_t *free;       /* those of them that are not now */
    uint32_t free_count;
    uint64_t *untold; /* blocks that were taken back, and the broker was not told */
    uint32_t untold_count;
    uint64_t untold_bytes;
};

/* As many as the broker keeps of one process. */
static uint32_t slots_of(const struct gs_share *share)
{
    uint32_t most = share->options.published_max / 2 + share->options.published_max % 2;

    return most > 0 ? most : 1;
}

static void confirmed_free(struct gs_confirmed *confirmed)
{
    if (!confirmed)
        return;
    if (confirmed->ids)
        gs_memory_free(confirmed->ids, confirmed->count * sizeof *confirmed->ids);
    free(confirmed->free);
    free(confirmed->untold);
    free(confirmed);
}

int gs_confirm_start(struct gs_share *share, uint32_t *ret_slots)
{
    struct gs_confirmed *confirmed = calloc(1, sizeof *confirmed);
    int fd = -ENOMEM;

    if (confirmed) {
        confirmed->count = slots_of(share);
        confirmed->free = calloc(confirmed->count, sizeof *confirmed->free);
        confirmed->untold = calloc(confirmed->count, sizeof *confirmed->untold);
    }
    if (confirmed && confirmed->free && confirmed->untold)
        fd = gs_memory_new(confirmed->count * sizeof *confirmed->ids, &confirmed->ids);
    if (fd < 0) {
        confirmed_free(confirmed);
        return fd;
    }
    *ret_slots = confirmed->count;
    gs_lock_take(&share->lock);
    gs_confirm_end_locked(share);
    share->link.confirmed = confirmed;
    gs_lock_release(&share->lock);
    return fd;
}

void gs_confirm_forget_locked(struct gs_share *share)
{
    const struct gs_confirmed *confirmed = share->link.confirmed;

    for (uint32_t i = 0; confirmed && i < confirmed->used; i++)
        __atomic_store_n(&confirmed->ids[i], 0, __ATOMIC_SEQ_CST);
    gs_confirm_end_locked(share);
}

void gs_confirm_end_locked(struct gs_share *share)
{
    confirmed_free(share->link.confirmed);
    share->link.confirmed = NULL;
}

bool gs_confirm_locked(struct gs_share *share, struct gs_export *export)
{
    struct gs_confirmed *confirmed = share->link.confirmed;

    if (!confirmed || (confirmed->free_count == 0 && confirmed->used == confirmed->count))
        return false;
    export->slot = confirmed->free_count > 0 ? confirmed->free[--confirmed->free_count]
                                            : confirmed->used++;
    __atomic_store_n(&confirmed->ids[export->slot], export->key.id, __ATOMIC_RELEASE);
    return true;
}

void gs_confirm_cancel_locked(struct gs_share *share, struct gs_export *export)
{
    struct gs_confirmed *confirmed = share->link.confirmed;

    /* Before the block's memory is anybody else's: the arena's locks are behind this. */
    __atomic_store_n(&confirmed->ids[export->slot], 0, __ATOMIC_SEQ_CST);
    confirmed->free[confirmed->free_count++] = export->slot;
}

void gs_confirm_revoke_locked(struct gs_share *share, struct gs_export *export)
{
    struct gs_confirmed *confirmed = share->link.confirmed;

    gs_confirm_cancel_locked(share, export);
    /* There is room: a place is given only where the broker was told all of this, under the same
     * lock, and by then no more than `count` was confirmed. */
    confirmed->untold[confirmed->untold_count++] = export->key.id;
    confirmed->untold_bytes += export->source.size;
}

uint32_t gs_confirm_untold_locked(const struct gs_share *share, uint64_t *ret_bytes)
{
    *ret_bytes = share->link.confirmed ? share->link.confirmed->untold_bytes : 0;
    return share->link.confirmed ? share->link.confirmed->untold_count : 0;
}

int gs_confirm_tell_locked(struct gs_share *share)
{
    struct gs_confirmed *confirmed = share->link.confirmed;
    union gs_wire_message message;
    /* The program may have closed it. */
    int error = gs_fd_is_there(&share->link.fd_is) ? 0 : -EBADF;

    while (!error && confirmed && confirmed->untold_count > 0) {
        gs_wire_start(&message, GS_WIRE_UNSHARE, 0);
        message.unshare.block_id = confirmed->untold[confirmed->untold_count - 1];
        error = gs_wire_send(share->link.fd, &message, -1);
        if (!error)
            confirmed->untold_count--;
    }
    if (confirmed && confirmed->untold_count == 0)
        confirmed->untold_bytes = 0;
    return error;
}
