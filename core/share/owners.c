/*
 * Importer: whose memory this process has open, in answer to QUERY. What an owner that has ended
 * left open is told of by nobody else: the memory stays as long as it is mapped here.
 */
#include "core/share/importer.h"

/* Its connection is looked at between the calls of those who work with it. */
void gs_owner_note_locked(struct gs_remote *remote)
{
    remote->owner_ended = remote->conn.by_broker || (remote->conn.fd < 0 && !remote->astray);
}

static uint64_t mapped(const struct gs_remote *remote)
{
    uint64_t bytes = 0;

    for (const struct gs_import *import = remote->imports; import; import = import->next)
        bytes += import->span.size;
    return bytes;
}

static void describe(const struct gs_remote *remote, struct gs_wire_opened *ret)
{
    ret->owner_ended = remote->owner_ended;
    ret->owner_pid = remote->owner_pid > 0 ? (uint64_t)remote->owner_pid : 0;
    ret->owner_blocks = remote->opened_count;
    ret->owner_mapped = mapped(remote);
    for (const struct gs_import *import = remote->imports; import; import = import->next)
        for (unsigned i = 0; i < import->count; i++)
            ret->owner_bytes += import->sorted[i]->size;
    if (ret->owner_bytes > ret->owner_mapped) /* handles of one strip have the same bytes */
        ret->owner_bytes = ret->owner_mapped;
}

void gs_owners_tell(struct gs_share *share, uint32_t index, struct gs_wire_opened *ret)
{
    struct gs_remote *remote, *next;
    GS_HOLDING(&share->importer.lock);

    HASH_ITER(hh, share->importer.remotes, remote, next) {
        if (!remote->imports)
            continue;
        if (!remote->busy)
            gs_owner_note_locked(remote);
        ret->bytes += mapped(remote);
        ret->ended_bytes += remote->owner_ended ? mapped(remote) : 0;
        if (ret->owners++ == index)
            describe(remote, ret);
    }
}
