/* The gate of a process that sleeps (gate.h). */
#include "gate.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "core/base/cancel.h"
#include "core/base/clock.h"
#include "core/process/own.h"
#include "core/process/sleep.h"
#include "shim/lookup/names.h"
#include "shim/start.h"

#define TASKS         "/proc/self/task"
#define REST_NS_FIRST UINT64_C(20000) /* between looks at the marks, */
#define REST_NS_MOST  UINT64_C(2000000)
#define FACTOR        UINT64_C(0x9e3779b97f4a7c15) /* odd */
#define USE_NS        (30 * GS_NS_PER_S)           /* a call waits for the GPU's memory, */
#define AGAIN_NS \
    (10 * GS_NS_PER_MS) /* and for who wakes the process already, before it looks again */

__thread struct gs_gate_mark gs_gate_mark;

static _Atomic(const char *) unknown; /* a call that was looked up and is in no list */

void gs_gate_unknown(const char *symbol)
{
    const char *none = NULL;
    const size_t size = strlen(symbol) + 1;
    char *copy = atomic_load(&unknown) ? NULL : malloc(size);

    if (copy)
        memcpy(copy, symbol, size);
    if (copy && !atomic_compare_exchange_strong(&unknown, &none, copy))
        free(copy);
}

static bool knows_all(struct gs_sleep_why *ret_why)
{
    const char *call = atomic_load(&unknown);

    return !call || gs_sleep_refuse(ret_why, ENOTSUP,
                                    "the program uses %s, which is newer than this library: it "
                                    "would not stop",
                                    call);
}

/* ---- Who comes ------------------------------------------------------------------------------- */

static int (*wake_by_use)(uint64_t until_ns);
static _Atomic uint64_t used_ns;

void gs_gate_watch(void)
{
    gs_state_open = GS_STATE_WATCHED;
    atomic_store(&used_ns, gs_now_ns());
}

void gs_gate_wakes_by(int (*wake)(uint64_t until_ns))
{
    wake_by_use = wake;
}

/* Threads that call all the time do not write all the time. */
static void note_use(void)
{
    const uint64_t now = gs_now_ns();

    if (now - atomic_load_explicit(&used_ns, memory_order_relaxed) > GS_NS_PER_MS)
        atomic_store_explicit(&used_ns, now, memory_order_relaxed);
}

uint64_t gs_gate_idle_ns(void)
{
    const uint64_t used = atomic_load(&used_ns), now = gs_now_ns();

    return atomic_load(&gs_state) == GS_STATE_WATCHED && now > used ? now - used : 0;
}

/* Whether a call may say that there is no memory: natively it can, and its hook asks (made.h,
 * GS_WITH_ROOM). */
static bool may_refuse(uint32_t call)
{
    static const bool rows[GS_DRIVER_ROWS] = {
#define BY_HAND false
#define PLAIN   true
#define LEGACY  true
#define THREAD  true
#define STREAM  true
#define PTSZ    true
#define GS_ENTRY(symbol, since, what, gate, how, ...) \
    [GS_ROW_##symbol] =                               \
        GS_DOES_##what < GS_DOES_NEVER_FULL &&        \
        (how || GS_DOES_##what == GS_DOES_ROOM || GS_DOES_##what == GS_DOES_MAKES_CONTEXT),
        GS_ENTRIES(GS_ENTRY)
#undef GS_ENTRY
    };

    return call > 0 && call <= GS_DRIVER_ROWS && rows[call - 1];
}

static void await_change(uint64_t most_ns)
{
    const struct timespec most = {0, (long)most_ns};

    syscall(SYS_futex, &gs_state, FUTEX_WAIT_PRIVATE, GS_STATE_CLOSED, most_ns ? &most : NULL, NULL,
            0);
}

static void wake_all(void)
{
    syscall(SYS_futex, &gs_state, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* ---- Who waits ------------------------------------------------------------------------------- */

static atomic_uint waiting;
static atomic_bool one_may_pass;
static bool (*_Atomic still_holds)(void); /* set before the gate closes */

/* By who waits and is marked already. */
static bool may_pass(void)
{
    return atomic_load(&one_may_pass) && atomic_exchange(&one_may_pass, false);
}

/* A thread that does not come to it stands still, or is at a signal. */
bool gs_gate_let_pass(void)
{
    const uint64_t end = gs_now_ns() + AGAIN_NS;

    atomic_store(&one_may_pass, true);
    while (atomic_load(&waiting) > 0 && atomic_load(&one_may_pass) && gs_now_ns() < end) {
        wake_all();
        gs_rest_ns(REST_NS_FIRST);
    }
    return !atomic_exchange(&one_may_pass, false);
}

/* Until the gate changes, one may pass, or it is time to look whether it is held too long. */
static void await_pass(uint64_t most_ns)
{
    atomic_fetch_add(&waiting, 1);
    await_change(most_ns);
    atomic_fetch_sub(&waiting, 1);
}

/* Signals run their handlers meanwhile and the wait goes on: what they interrupt is no call of the
 * kernel that the program knows of. */
bool gs_gate_wait(uint32_t call)
{
    const int saved = errno;
    uint64_t until = 0;
    bool refused = false, passes_once = false;
    int state;

    while ((state = atomic_load_explicit(&gs_state, memory_order_acquire)) == GS_STATE_CLOSED &&
           !refused && !passes_once && gs_gate_mark.passing == 0) {
        const bool held = atomic_load(&still_holds)();
        int error = 0;

        gs_gate_mark.call = 0;
        if (wake_by_use && !held) {
            until = until ? until : gs_now_ns() + USE_NS;
            error = wake_by_use(until);
            refused = error && error != EBUSY && error != EALREADY && may_refuse(call);
        }
        if (!refused && (error || held || !wake_by_use))
            await_pass(error || held ? AGAIN_NS : 0);
        gs_gate_mark.call = call;
        __asm__ volatile("" ::: "memory");
        passes_once = may_pass();
    }
    if (state == GS_STATE_WATCHED)
        note_use();
    errno = saved;
    return !refused;
}

bool gs_gate_stop(uint32_t call)
{
    gs_gate_mark.refused = !gs_gate_wait(call);
    return !gs_gate_mark.refused && gs_state_enter();
}

bool gs_gate_stop_about(uint32_t call, uint64_t address)
{
    if (atomic_load_explicit(&gs_state, memory_order_acquire) == GS_STATE_CLOSED &&
        (gs_ours(address) || gs_own_has(gs_core_own(gs_core), address)))
        return gs_gate_stop(call);
    return gs_state_enter();
}

/* ---- Marks of other threads ------------------------------------------------------------------ */

/*
 * The variable lies as far from a thread's list of robust mutexes, which glibc has for each thread
 * beside its pointer, as it does in this thread: the kernel tells where that is. It is read by the
 * kernel as well, for a thread that ends takes its memory along.
 */
struct finder {
    intptr_t from_list; /* to the mark */
};

static bool find_list(pid_t thread, uintptr_t *ret_list)
{
    size_t size;
    void *list = NULL;

    if (syscall(SYS_get_robust_list, thread, &list, &size) != 0)
        return false;
    *ret_list = (uintptr_t)list;
    return true;
}

/* False also where /proc is another PID namespace's, and has other numbers of threads. */
static bool finder_init(struct finder *finder)
{
    uintptr_t list;
    char self[64];

    snprintf(self, sizeof self, TASKS "/%d", (int)syscall(SYS_gettid));
    if (faccessat(AT_FDCWD, self, F_OK, 0) != 0 || !find_list(0, &list) || list == 0)
        return false;
    finder->from_list = (intptr_t)((uintptr_t)&gs_gate_mark - list);
    return true;
}

enum look { LOOK_NONE, LOOK_MARKED, LOOK_GONE, LOOK_BLIND };

static enum look look_at(const struct finder *finder, pid_t thread, struct gs_gate_mark *ret)
{
    /* By the process's number it is the main thread's memory, which is none once that has ended. */
    const pid_t self = (pid_t)syscall(SYS_gettid);
    struct iovec to = {ret, sizeof *ret}, from = {.iov_len = sizeof *ret};
    uintptr_t list;

    if (!find_list(thread, &list))
        return errno == ESRCH ? LOOK_GONE : LOOK_BLIND;
    if (list == 0) /* it has not begun, or is none of libc's */
        return LOOK_NONE;
    from.iov_base = (void *)(list + (uintptr_t)finder->from_list);
    if (syscall(SYS_process_vm_readv, self, &to, 1, &from, 1, 0) != (long)sizeof *ret)
        return errno == EFAULT ? LOOK_GONE : LOOK_BLIND;
    return ret->call != 0 || ret->passing != 0 ? LOOK_MARKED : LOOK_NONE;
}

struct seen {
    pid_t thread; /* one that is marked, */
    uint32_t call;
};

/* All threads, as one number: of the same ones it is the same. With a finder all but this one are
 * looked at, until one is found to be marked. */
static enum look list_all(const struct finder *finder, uint64_t *ret, struct seen *ret_seen)
{
    const pid_t self = (pid_t)syscall(SYS_gettid);
    const int fd = open(TASKS, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *tasks = fd < 0 ? NULL : fdopendir(fd);
    enum look result = LOOK_NONE;
    struct dirent *entry;

    *ret = 0;
    if (!tasks) {
        if (fd >= 0)
            close(fd);
        return LOOK_BLIND;
    }
    while (result == LOOK_NONE && (entry = readdir(tasks))) {
        const pid_t thread = (pid_t)strtoull(entry->d_name, NULL, 10);
        struct gs_gate_mark mark;

        if (thread <= 0)
            continue;
        *ret = *ret * FACTOR + (uint64_t)thread;
        if (thread == self || !finder)
            continue;
        result = look_at(finder, thread, &mark);
        if (result == LOOK_MARKED)
            *ret_seen = (struct seen){thread, mark.call};
    }
    closedir(tasks);
    return result;
}

/*
 * Looks at all threads but this one. One that ends while they are listed may hide another, and how
 * many there are does not tell, for a third may begin. So they are listed once more: who is there
 * still has not ended before, and hidden none.
 */
static enum look look_at_all(const struct finder *finder, struct seen *ret)
{
    uint64_t looked_at, now;
    enum look result = list_all(finder, &looked_at, ret);

    if (result == LOOK_NONE)
        result = list_all(NULL, &now, NULL);
    if (result == LOOK_NONE && now != looked_at)
        result = LOOK_GONE;
    return result;
}

/* ---- Closing and opening --------------------------------------------------------------------- */

static void set_state(int state)
{
    atomic_store(&gs_state, state);
    wake_all();
}

/* After it no thread runs on with the state as it was before, but for those that are marked. */
static bool fence_all(void)
{
    return syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0 ||
           (syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0 &&
            syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0) ||
           syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) == 0;
}

static const char *name_of(uint32_t call)
{
    if (call == 0)
        return "a call of a library that registers memory";
    return call <= GS_ROWS ? gs_row_names[call - 1] : "a function of gpushim.h";
}

bool gs_gate_await(uint64_t until_ns, struct gs_sleep_why *ret_why)
{
    GS_UNCANCELLED;
    struct finder finder;
    const bool found = finder_init(&finder);
    struct seen seen = {0};
    uint64_t rest = REST_NS_FIRST;

    for (;; gs_rest_ns(rest), rest = rest < REST_NS_MOST ? 2 * rest : rest) {
        switch (found ? look_at_all(&finder, &seen) : LOOK_BLIND) {
        case LOOK_NONE:
            ret_why->error = 0;
            ret_why->text[0] = 0;
            return knows_all(ret_why); /* looked up since it closed: who did waits, or has passed */
        case LOOK_BLIND:
            return gs_sleep_refuse(
                ret_why, ENOTSUP,
                "its threads cannot be looked at: /proc is not there, or another PID namespace's, "
                "get_robust_list or process_vm_readv is refused, no descriptor is left, or this "
                "libc keeps no list of robust mutexes");
        case LOOK_MARKED:
            gs_sleep_refuse(ret_why, EBUSY, "thread %d is in %s still", (int)seen.thread,
                            name_of(seen.call));
            break;
        case LOOK_GONE:
            gs_sleep_refuse(ret_why, EBUSY, "threads begin and end all the time");
            rest = REST_NS_FIRST;
        }
        if (gs_now_ns() >= until_ns)
            return false;
    }
}

bool gs_gate_close(bool (*holds)(void), struct gs_sleep_why *ret_why)
{
    if (!knows_all(ret_why))
        return false;
    atomic_store(&still_holds, holds);
    set_state(GS_STATE_CLOSED);
    if (fence_all())
        return true;
    gs_gate_open();
    return gs_sleep_refuse(ret_why, ENOTSUP, "this kernel has no membarrier");
}

void gs_gate_open(void)
{
    int closed = GS_STATE_CLOSED;

    if (atomic_compare_exchange_strong(&gs_state, &closed,
                                       gs_state_open)) /* else the process ends */
        wake_all();
}

void gs_gate_end(void)
{
    set_state(GS_STATE_DISABLED);
}
