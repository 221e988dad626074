/* Process that shares: what its broker has it hold for other machines (core/share/afar.h). */
#include "core/share/afar.h"

#include <string.h>

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
void gs_afar_hold_came(struct gs_share *share, const struct gs_wire_hold_afar *message)
{
    struct gs_export_key key = {.id = message->block_id};
    struct gs_export *export;
    bool ends = false;

    memcpy(key.instance, share->instance, sizeof key.instance);
    gs_lock_take(&share->lock);
    HASH_FIND(hh, share->exporter.exports, &key, sizeof key, export);
    if (export && export->far && message->hold) {
        if (!gs_export_is_stale(share, export))
            hold_locked(share, export);
        export->far->answer_due = true;
        gs_afar_due_locked(share, export);
    } else if (export && export->far && export->far->held) {
        export->far->held = false;
        ends = true;
    }
    gs_lock_release(&share->lock);
    if (ends)
        gs_export_drop(share, export);
}
