/* Process that shares: fabric handles of its chunks, and what its broker has it hold for other
 * machines (core/share/cluster.h). */
#include "core/gpu/device.h"
#include "core/share/cluster.h"

#include <stdlib.h>
#include <string.h>

void gs_cluster_prepare(struct gs_share *share, struct gs_export *export)
{
    unsigned char fabric[GS_FABRIC_SIZE];
    struct gs_far *far;
    CUresult result;

    if (!share->options.cluster || export->far || gs_export_is_strip(export))
        return;
    result = gs_device_fabric(share->driver, export->source.handle, fabric);
    if (result != CUDA_SUCCESS) { /* memory of a device that makes none: it was said */
        gs_log_line(&share->log, GS_LOG_DEBUG, "block %llu has no fabric handle: driver error %d",
                    (unsigned long long)export->key.id, (int)result);
        return;
    }
    far = calloc(1, sizeof *far);
    if (!far) {
        gs_log_line(&share->log, GS_LOG_WARNING,
                    "no host memory is left to share block %llu with other machines",
                    (unsigned long long)export->key.id);
        return;
    }
    memcpy(far->fabric, fabric, sizeof fabric);
    GS_HOLDING(&share->lock);
    export->far = far;
}

static struct gs_export *find_locked(struct gs_share *share, uint64_t block_id)
{
    struct gs_export *export = gs_export_find_locked(share, share->instance, block_id);

    return export && export->far ? export : NULL;
}

static void hold_locked(struct gs_share *share, struct gs_export *export)
{
    if (!export->far->held) {
        export->far->held = true;
        export->references++;
        export->opened = true;
        __atomic_store_n(&share->exporter.ever_opened, true, __ATOMIC_RELAXED);
        gs_limbo_note_locked(share, export);
    }
    export->recalled = false;
    if (export->freed_ns || export->wanted)
        gs_export_recall_locked(share, export);
}

/* One that is going is not held: its broker hears of that. */
static void on_open(struct gs_share *share, const struct gs_wire_open *open)
{
    struct gs_export *export = NULL;
    struct gs_ipc_handle read;
    GS_HOLDING(&share->lock);

    if (gs_ipc_handle_read(open->ipc_handle, &read) == GS_OK)
        export = find_locked(share, read.block_id);
    if (export && !gs_export_is_stale(share, export))
        hold_locked(share, export);
    if (export) {
        export->far->answer_due = true;
        gs_cluster_due_locked(share, export);
    }
}

static void on_close(struct gs_share *share, const struct gs_wire_close *close)
{
    struct gs_export *export;
    bool ends;

    gs_lock_take(&share->lock);
    export = find_locked(share, close->block_id);
    ends = export && export->far->held;
    if (ends)
        export->far->held = false;
    gs_lock_release(&share->lock);
    if (ends)
        gs_export_drop(share, export);
}

void gs_cluster_hold_came(struct gs_share *share, const union gs_wire_message *message)
{
    if (message->head.type == GS_WIRE_OPEN)
        on_open(share, &message->open);
    else
        on_close(share, &message->close);
}

bool gs_cluster_next_locked(struct gs_share *share, union gs_wire_message *ret_message)
{
    const struct gs_export *export = share->exporter.cluster_due;

    if (!export)
        return false;
    gs_wire_start(ret_message,
                  !export->far->answer_due ? GS_WIRE_RECALL
                  : export->far->held      ? GS_WIRE_GRANT
                                           : GS_WIRE_CLOSE,
                  0);
    ret_message->close.block_id = export->key.id; /* of a GRANT it is in the same place */
    return true;
}

void gs_cluster_told_locked(struct gs_share *share)
{
    struct gs_export *export = share->exporter.cluster_due;
    bool *due = export->far->answer_due ? &export->far->answer_due : &export->far->recall_due;

    *due = false;
    if (!export->far->recall_due)
        gs_cluster_gone_locked(share, export);
}
