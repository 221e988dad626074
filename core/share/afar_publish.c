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

static int tell_one(const struct gs_share *share, enum gs_wire_type type, const struct gs_export *export)
{
    union gs_wire_message message;

    gs_wire_start(&message, type, 0);
    message.hold_afar.block_id = export->key.id; /* of a RECALL it is in the same place */
    if (type == GS_WIRE_HELD_AFAR)
        message.hold_afar.hold = export->far->held;
    return gs_wire_send(share->link.fd, &message, -1);
}

int gs_afar_tell_locked(struct gs_share *share)
{
    struct gs_export *export;
    int error = share->exporter.afar_due && !gs_fd_is_there(&share->link.fd_is) ? -EBADF : 0;

    while (!error && (export = share->exporter.afar_due)) {
        struct gs_far *far = export->far;

        if (far->answer_due && !(error = tell_one(share, GS_WIRE_HELD_AFAR, export)))
            far->answer_due = false;
        if (!error && far->recall_due && !(error = tell_one(share, GS_WIRE_RECALL, export)))
            far->recall_due = false;
        if (!error)
            gs_afar_gone_locked(share, export);
    }
    return error;
}
