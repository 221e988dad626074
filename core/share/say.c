/* What is said of sharing as a whole, once at warning level. */
#include "core/share/internal.h"

void gs_say_used(struct gs_share *share)
{
    if (!__atomic_load_n(&share->exporter.used, __ATOMIC_RELAXED) &&
        !__atomic_exchange_n(&share->exporter.used, true, __ATOMIC_SEQ_CST))
        __atomic_store_n(&share->exporter.refusal_said, false, __ATOMIC_RELAXED);
}

/* Where nobody wants to share it, it is said once to who looks for it, however often it is
 * tried. */
gs_status gs_say_not_exported(struct gs_share *share, const char *reason)
{
    bool used = __atomic_load_n(&share->exporter.used, __ATOMIC_RELAXED);
    bool said = __atomic_exchange_n(&share->exporter.refusal_said, true, __ATOMIC_RELAXED);

    if (used || !said)
        gs_log_line(&share->log, said || !used ? GS_LOG_DEBUG : GS_LOG_WARNING,
                    "memory cannot be shared: %s", reason);
    return GS_NOT_OFFERED;
}

void gs_say_unopened(struct gs_share *share)
{
    uint64_t handles = __atomic_load_n(&share->exporter.next_export, __ATOMIC_RELAXED);

    if (handles == 0 || share->options.broker || share->options.is_broker ||
        __atomic_load_n(&share->exporter.ever_opened, __ATOMIC_RELAXED) ||
        __atomic_exchange_n(&share->exporter.unopened_said, true, __ATOMIC_RELAXED))
        return;
    gs_log_line(&share->log, GS_LOG_WARNING,
                "%llu IPC handle%s given out and none was ever opened: is the library loaded "
                "(LD_PRELOAD) in the processes that open them, and have they the same share.dir?",
                (unsigned long long)handles, handles == 1 ? " was" : "s were");
}

gs_status gs_say_unreachable(struct gs_share *share, const char *reason)
{
    bool said = __atomic_exchange_n(&share->importer.unreachable_said, true, __ATOMIC_RELAXED);

    gs_log_line(&share->log, said ? GS_LOG_DEBUG : GS_LOG_WARNING,
                "another process's memory cannot be opened: %s", reason);
    return GS_UNREACHABLE;
}

gs_status gs_say_senseless(struct gs_share *share)
{
    gs_log_line(&share->log, GS_LOG_WARNING,
                "the exporter of shared memory gave an answer that makes no sense; refused");
    return GS_UNREACHABLE;
}
