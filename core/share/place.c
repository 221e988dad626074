/*
 * When this process's socket is put up (socket.c says how): at the first export, soon after the
 * first open, or as soon as there is enough memory to be asked for; and again wherever it can be
 * when it has gone. Folders go: /run/user/UID when its user logs out, one in /tmp when somebody
 * clears that.
 */
#include "core/share/alive.h"
#include "core/share/internal.h"

#include <stdio.h>
#include <string.h>

#define SWEEP_AFTER_NS (20 * GS_NS_PER_MS) /* the first importers are served before */
#define SERVE_AFTER_NS GS_NS_PER_MS        /* an open has its answer by then */
#define AWAIT_NS       (20 * GS_NS_PER_MS) /* what an exit waits at most */

/* ---- Once ----------------------------------------------------------------------------------- */

/* Until another thread has started it. One that a filter of system calls has killed meanwhile
 * (SECCOMP_RET_KILL_THREAD) never will; whatever it had made stays as it is, and is not built
 * on. */
static void await_start_locked(struct gs_share *share, enum gs_start *state)
{
    while (*state == GS_STARTING) {
        if (gs_cond_wait_until(&share->started, &share->lock, gs_now_ns() + GS_NS_PER_S) ||
            *state != GS_STARTING || gs_alive_has_thread(share->starter))
            continue;
        __atomic_store_n(state, GS_GIVEN_UP, __ATOMIC_RELAXED);
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

    if (__atomic_load_n(state, __ATOMIC_ACQUIRE) == GS_STARTED)
        return GS_OK;
    gs_lock_take(&share->lock);
    await_start_locked(share, state);
    if (*state == GS_GIVEN_UP)
        status = GS_NOT_OFFERED;
    if (*state == GS_NOT_STARTED) {
        __atomic_store_n(state, GS_STARTING, __ATOMIC_SEQ_CST); /* gs_share_at_exit looks */
        share->starter = gs_alive_own_thread();
        gs_lock_release(&share->lock);
        status = start(share);
        gs_lock_take(&share->lock);
        __atomic_store_n(state, status == GS_OK ? GS_STARTED : GS_NOT_STARTED, __ATOMIC_RELEASE);
        gs_cond_wake_all(&share->started);
    }
    gs_lock_release(&share->lock);
    return status;
}

void gs_thread_wake_any(struct gs_share *share)
{
    gs_lock_take(&share->importer.lock); /* with it the pipe is made, and made anew */
    gs_thread_wake(share);
    gs_lock_release(&share->importer.lock);
}

/* ---- The spare descriptor -------------------------------------------------------------------- */

/* A copy of the end that is read: one of the other would keep the thread from being told that the
 * program has closed that, and who writes into a pipe that nobody reads is sent a signal. */
void gs_spare_take(struct gs_share *share)
{
    if (share->place.spare_fd < 0 && gs_fd_is_there(&share->loop.woken_kept))
        share->place.spare_fd = gs_fd_copy(share->loop.woken);
}

/* The program may have closed it, and its number may be another file's. */
void gs_spare_give(struct gs_share *share)
{
    struct gs_fd spare = share->loop.woken_kept; /* the same pipe, */

    spare.fd = share->place.spare_fd; /* by another number */
    gs_fd_close(&spare);
    share->place.spare_fd = -1;
}

/* ---- Putting it up -------------------------------------------------------------------------- */

static void say_again(struct gs_share *share)
{
    bool used = __atomic_load_n(&share->exporter.used, __ATOMIC_RELAXED);

    gs_log_line(&share->log, used ? GS_LOG_WARNING : GS_LOG_DEBUG,
                "the socket for those who open this process's memory had been removed: there is "
                "another now, %s",
                share->place.seat.path);
}

static gs_status put_up(struct gs_share *share)
{
    char reason[GS_REASON_SIZE];
    bool again = share->place.listener >= 0;
    int directory = -1, listener, error;

    if (__atomic_load_n(&share->ending, __ATOMIC_SEQ_CST)) /* nobody would take it down */
        return gs_say_not_exported(share, "this process is ending");
    listener = gs_directory_put_up(&share->options, share->name, share->options.is_broker,
                                   &directory, reason);
    if (listener < 0)
        return gs_say_not_exported(share, reason);
    if (!again) /* else it is the share thread's */
        gs_spare_take(share);
    error = gs_socket_adopt(share, directory, listener);
    if (error) {
        snprintf(reason, sizeof reason, "its socket cannot be watched: %s", strerror(-error));
        gs_socket_take_down(share);
        return gs_say_not_exported(share, reason);
    }
    if (__atomic_load_n(&share->ending, __ATOMIC_ACQUIRE)) /* it was waited for no longer */
        gs_directory_unlink(share->place.directory, share->name);
    else if (again)
        say_again(share);
    __atomic_store_n(&share->place.sweep_ns, gs_now_ns() + SWEEP_AFTER_NS, __ATOMIC_RELEASE);
    gs_thread_wake(share); /* or it sleeps until somebody connects */
    return GS_OK;
}

gs_status gs_share_serve(struct gs_share *share)
{
    if (gs_thread_start(share) != GS_OK)
        return GS_NOT_OFFERED;
    if (gs_socket_is_lost(share)) {
        gs_lock_take(&share->lock);
        if (share->socket_start == GS_STARTED)
            __atomic_store_n(&share->socket_start, GS_NOT_STARTED, __ATOMIC_RELAXED);
        __atomic_store_n(&share->exporter.refusal_said, false, __ATOMIC_RELAXED);
        gs_lock_release(&share->lock);
    }
    return gs_start_once(share, &share->socket_start, put_up);
}

void gs_share_serve_soon(struct gs_share *share)
{
    if (__atomic_load_n(&share->socket_start, __ATOMIC_RELAXED) == GS_STARTED ||
        __atomic_load_n(&share->place.serve_ns, __ATOMIC_RELAXED) != GS_NEVER)
        return;
    gs_lock_take(&share->importer.lock); /* as gs_thread_wake_any: who starts later sees it so */
    __atomic_store_n(&share->place.serve_ns, gs_now_ns() + SERVE_AFTER_NS, __ATOMIC_RELEASE);
    gs_thread_wake(share);
    gs_lock_release(&share->importer.lock);
}

void gs_socket_await(struct gs_share *share)
{
    const uint64_t end = gs_now_ns() + AWAIT_NS;

    while (__atomic_load_n(&share->socket_start, __ATOMIC_SEQ_CST) == GS_STARTING &&
           gs_now_ns() < end)
        gs_rest_ns(AWAIT_NS / 200);
}

/* ---- The share thread ----------------------------------------------------------------------- */

/* Who exits while the share thread is at it sweeps as well: what that has begun ends with it. */
void gs_sweep(struct gs_share *share)
{
    if (__atomic_load_n(&share->place.sweep_ns, __ATOMIC_ACQUIRE) == GS_NEVER)
        return;
    if (!share->options.is_broker)
        gs_directory_sweep(share->place.directory, &share->options);
    __atomic_store_n(&share->place.sweep_ns, GS_NEVER, __ATOMIC_RELEASE);
}

/* Not at once: whoever clears a folder can remove it as well. */
void gs_socket_look(struct gs_share *share)
{
    if (share->place.look_ns == GS_NEVER)
        share->place.look_ns = gs_now_ns() + GS_LOOK_NS;
}

/* Where it cannot be had the next open tries again. */
static uint64_t serve_tick(struct gs_share *share, uint64_t now)
{
    uint64_t due = __atomic_load_n(&share->place.serve_ns, __ATOMIC_ACQUIRE);

    if (due > now)
        return due;
    gs_share_serve(share);
    __atomic_store_n(&share->place.serve_ns, GS_NEVER, __ATOMIC_RELEASE);
    return GS_NEVER;
}

static uint64_t stay_tick(struct gs_share *share, uint64_t now)
{
    uint64_t due = __atomic_load_n(&share->place.sweep_ns, __ATOMIC_ACQUIRE);

    if (due <= now) {
        gs_sweep(share);
        if (gs_socket_is_lost(share)) /* before anybody was to be told */
            gs_socket_look(share);
        due = GS_NEVER;
    }
    if (__atomic_load_n(&share->place.listener, __ATOMIC_ACQUIRE) < 0 || gs_socket_is_given(share))
        return due;
    if (share->place.touch_ns == 0)
        share->place.touch_ns = now + GS_TOUCH_S * GS_NS_PER_S;
    if (now >= share->place.touch_ns) {
        share->place.touch_ns = now + GS_TOUCH_S * GS_NS_PER_S;
        gs_directory_touch(share->place.directory, share->name);
        __atomic_store_n(&share->place.sweep_ns, now, __ATOMIC_RELEASE);
        due = now;
    }
    if (now >= share->place.look_ns) {
        bool there = gs_share_serve(share) == GS_OK;

        share->place.look_ns = there ? GS_NEVER : gs_now_ns() + GS_LOOK_NS;
    }
    return due < share->place.look_ns ? due : share->place.look_ns;
}

uint64_t gs_socket_tick(struct gs_share *share, uint64_t now)
{
    uint64_t due = serve_tick(share, now);

    gs_sooner(&due, stay_tick(share, now));
    return due;
}
