/* Process that shares: fabric handles of its chunks, and what its broker is told of those that other
 * machines hold (core/share/afar.h). */
#include "core/gpu/device.h"
#include "core/share/afar.h"

#include <stdlib.h>

void gs_afar_prepare(struct gs_share *share, struct gs_export *export)
{
    struct gs_far *far;
    CUresult result;

    if (!share->options.cluster || export->far || gs_export_is_strip(export))
        return;
    far = calloc(1, sizeof *far);
    if (!far)
        return;
    result = gs_device_fabric(share->driver, export->source.handle, far->fabric);
    if (result != CUDA_SUCCESS) { /* memory of a device that makes none: it was said */
        gs_log_line(&share->log, GS_LOG_DEBUG, "block %llu has no fabric handle: driver error %d",
                    (unsigned long long)export->key.id, (int)result);
        free(far);
        return;
    }
    gs_lock_take(&share->lock);
    export->far = far;
    gs_lock_release(&share->lock);
}

bool gs_afar_next_locked(struct gs_share *share, union gs_wire_message *ret_message)
{
    const struct gs_export *export = share->exporter.afar_due;

    if (!export)
        return false;
    gs_wire_start(ret_message, export->far->answer_due ? GS_WIRE_HELD_AFAR : GS_WIRE_RECALL, 0);
    ret_message->hold_afar.block_id = export->key.id; /* of a RECALL it is in the same place */
    if (export->far->answer_due)
        ret_message->hold_afar.hold = export->far->held;
    return true;
}

void gs_afar_told_locked(struct gs_share *share)
{
    struct gs_export *export = share->exporter.afar_due;
    bool *due = export->far->answer_due ? &export->far->answer_due : &export->far->recall_due;

    *due = false;
    if (!export->far->recall_due)
        gs_afar_gone_locked(share, export);
}
