/*
 * Exporter: what its broker may serve when this process has ended. It stands in memory of this
 * process's, a slot for each block with the block's id in it, which the broker reads then. So
 * taking a block back is one store: whether the broker runs, is stopped or has gone, the block's
 * memory may be used again at once. It is told that there is something to read, so that it lets go
 * of the memory.
 *
 * There is new memory for each connection: whatever a broker before was told counts no more.
 */
#include "core/share/exporter.h"
#include "core/share/memory.h"

#include <stdlib.h>

struct gs_confirmed {
    uint64_t *ids; /* what the broker reads; atomic, and never read here */
    uint32_t count, free_count;
    uint32_t free[]; /* slots: from 1 on, 0 is none */
};

/* As many as the broker keeps of one process. */
static uint32_t slots_of(const struct gs_share *share)
{
    uint32_t most = share->options.published_max / 2 + share->options.published_max % 2;

    return most > 0 ? most : 1;
}

static size_t size_of(uint32_t count)
{
    return ((size_t)count + 1) * sizeof(uint64_t);
}

int gs_confirm_start(struct gs_share *share)
{
    uint32_t count = slots_of(share);
    struct gs_confirmed *confirmed = malloc(sizeof *confirmed + count * sizeof *confirmed->free);
    int fd = confirmed ? gs_memory_new(size_of(count), &confirmed->ids) : -ENOMEM;

    if (fd < 0) {
        free(confirmed);
        return fd;
    }
    confirmed->count = confirmed->free_count = count;
    for (uint32_t i = 0; i < count; i++)
        confirmed->free[i] = count - i;
    GS_HOLDING(&share->lock);
    gs_confirm_end_locked(share);
    share->link.confirmed = confirmed;
    return fd;
}

void gs_confirm_end_locked(struct gs_share *share)
{
    struct gs_confirmed *confirmed = share->link.confirmed;

    if (confirmed)
        gs_memory_free(confirmed->ids, size_of(confirmed->count));
    free(confirmed);
    share->link.confirmed = NULL;
}

bool gs_confirm_has_room_locked(const struct gs_share *share)
{
    return share->link.confirmed && share->link.confirmed->free_count > 0;
}

void gs_confirm_locked(struct gs_share *share, struct gs_export *export)
{
    struct gs_confirmed *confirmed = share->link.confirmed;

    export->slot = confirmed->free[--confirmed->free_count];
    __atomic_store_n(&confirmed->ids[export->slot], export->key.id, __ATOMIC_RELEASE);
}

void gs_confirm_revoke_locked(struct gs_share *share, struct gs_export *export)
{
    struct gs_confirmed *confirmed = share->link.confirmed;

    /* Before the block's memory is anybody else's: the arena's locks are behind this. */
    __atomic_store_n(&confirmed->ids[export->slot], 0, __ATOMIC_SEQ_CST);
    confirmed->free[confirmed->free_count++] = export->slot;
    export->slot = 0;
}
