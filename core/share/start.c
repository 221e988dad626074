/* What the first use starts, whichever thread that comes from: the share thread, the socket. */
#include "core/share/alive.h"
#include "core/share/internal.h"

/* Until another thread has started it. One that a filter of system calls has killed meanwhile
 * (SECCOMP_RET_KILL_THREAD) never will; whatever it had made stays as it is, and is not built on. */
static void await_start_locked(struct gs_share *share, enum gs_start *state)
{
    while (*state == GS_STARTING) {
        if (gs_cond_wait_until(&share->started, &share->lock, gs_now_ns() + GS_NS_PER_S) ||
            *state != GS_STARTING || gs_alive_has_thread(share->starter))
            continue;
        *state = GS_GIVEN_UP;
        gs_cond_wake_all(&share->started);
        gs_log_line(&share->log, GS_LOG_WARNING,
                    "memory cannot be shared any more: the thread that began with it was killed");
    }
}

/*
 * Runs `start` once, for all callers: the first does it, without the lock since it opens files, the
 * others wait for it: as long as that takes with a folder, a socket and a thread, each of which is
 * made or not, or a second longer than that thread lives. After a failure the next caller tries
 * again.
 */
gs_status gs_start_once(struct gs_share *share, enum gs_start *state,
                        gs_status (*start)(struct gs_share *))
{
    gs_status status = GS_OK;

    gs_lock_take(&share->lock);
    await_start_locked(share, state);
    if (*state == GS_GIVEN_UP)
        status = GS_NOT_OFFERED;
    if (*state == GS_NOT_STARTED) {
        *state = GS_STARTING;
        share->starter = gs_alive_own_thread();
        gs_lock_release(&share->lock);
        status = start(share);
        gs_lock_take(&share->lock);
        *state = status == GS_OK ? GS_STARTED : GS_NOT_STARTED;
        gs_cond_wake_all(&share->started);
    }
    gs_lock_release(&share->lock);
    return status;
}
