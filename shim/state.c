/*
 * The way from unborn to ready; state.h has the picture and what holds always.
 */
#include "state.h"
#include "core/record/trace.h"
#include "stack.h"
#include "shim/hooks/hook.h"
#include "shim/lookup/driver.h"

#include <limits.h>
#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

_Static_assert(GS_STATE_UNBORN == 0, "what a variable begins with");

/* Of the process that is loading, or loaded: a forked child finds another's here. */
static _Atomic pid_t loader_pid;

/* Set in the thread that runs gs_shim_start(): what it calls must not wait for it. */
static __thread bool in_start __attribute__((tls_model("initial-exec")));

/* What pthread_atfork is in glibc, callable without a symbol that newer ones alone have. Weak:
 * other libcs lack it, and must not be kept from loading us. */
extern int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void *)
    __attribute__((weak));
extern void *__dso_handle __attribute__((visibility("hidden")));

/* In the thread that forks, which may be in a signal handler. */
static void forking(void)
{
    GS_KEEP_ERRNO;
    if (gs_state_is_on())
        gs_shim_forking();
}

static void forked_child(void)
{
    gs_trace_forked();
    if (gs_state_is_on()) { /* the one thread that there is */
        atomic_store(&gs_state, GS_STATE_CHILD);
        gs_shim_forked();
    }
}

static void state_set(int state)
{
    atomic_store_explicit(&gs_state, state, memory_order_release);
    syscall(SYS_futex, &gs_state, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* Run by the one thread that moved the state from unborn to loading. */
static void load(void *const *row)
{
    GS_UNCANCELLED;
    gs_driver_adopt(row);
    if (__register_atfork)
        __register_atfork(forking, NULL, forked_child, &__dso_handle);
    in_start = true;
    bool enabled = gs_shim_start();
    in_start = false;
    state_set(enabled ? gs_state_open : GS_STATE_DISABLED);
    gs_stack_load();
}

/* Waits until the loading thread is done, which ends that by itself: it looks symbols up and reads
 * options, and waits for nobody but the dynamic linker, as natively the first call may. In a child
 * that was forked meanwhile there is no such thread: what it left half done is the child's to
 * finish, as far as passing on needs it. */
static void await_loaded(void *const *row)
{
    while (atomic_load_explicit(&gs_state, memory_order_acquire) == GS_STATE_LOADING) {
        if (atomic_load(&loader_pid) != getpid()) {
            gs_driver_adopt(row);
            int expected = GS_STATE_LOADING;
            atomic_compare_exchange_strong(&gs_state, &expected, GS_STATE_CHILD);
        } else {
            syscall(SYS_futex, &gs_state, FUTEX_WAIT_PRIVATE, GS_STATE_LOADING, NULL, NULL, 0);
        }
    }
}

static bool enter(bool may_load_driver)
{
    int state = atomic_load_explicit(&gs_state, memory_order_acquire);
    if (state == GS_STATE_DISABLED || state == GS_STATE_CHILD || in_start)
        return false;
    if (state < GS_STATE_READY) {
        void *row[GS_DRIVER_ROWS];
        int saved_errno = errno;
        if (gs_driver_find(may_load_driver, row)) {
            int expected = GS_STATE_UNBORN;
            if (state == GS_STATE_UNBORN) /* else it says whose loading this is, maybe not ours */
                atomic_store(&loader_pid, getpid());
            if (atomic_compare_exchange_strong(&gs_state, &expected, GS_STATE_LOADING))
                load(row);
            else
                await_loaded(row);
        }
        errno = saved_errno;
        state = atomic_load_explicit(&gs_state, memory_order_acquire);
    }
    return state >= GS_STATE_READY;
}

bool gs_state_enter_slow(void)
{
    return enter(true);
}

bool gs_state_enter_lookup(void)
{
    return enter(false);
}

bool gs_state_has_driver(void)
{
    int state = atomic_load_explicit(&gs_state, memory_order_acquire);
    return state != GS_STATE_UNBORN && (state != GS_STATE_LOADING || in_start);
}
