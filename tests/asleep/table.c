/*
 * The gate of a process that sleeps is whole: every row of the table of entry points is called by
 * another thread of a sleeping process. What only asks answers at once, and as in a process that is
 * awake. All else waits, before it reaches the driver, and answers so after the wake. Whether a
 * call waits or not, errno stays, and what signals the thread holds back and has pending.
 *
 * Each row is called in two processes of its own, one awake and one asleep, with arguments that are
 * all 0: what it makes of them is the driver's affair, which may also be to crash, but the same in
 * both.
 *
 * usage: table [NAME], under the library on the software driver
 */
#include "../../shim/cuda_exact.h"

#include <stdatomic.h>

#include "../../shim/entry_points.h"
#include "../../shim/gpushim.h"
#include "../conformance/plain.h"
#include "tests/system.h"

#define SIZE          ((size_t)3 << 20)
#define WAKE_NS       UINT64_C(20000000000)
#define CHILD_SECONDS 60
#define SKIPPED       77

/* More words than any call takes, a struct by value among them: 0 each. */
#define ZEROS \
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0
typedef uintptr_t call_fn(uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t,
                          uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t,
                          uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t,
                          uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t,
                          uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t);

/* Weak: no driver has them all. Under the library each is there. */
#define GS_ENTRY(symbol, ...)                               \
    extern __typeof__(symbol) symbol __attribute__((weak)); \
    static call_fn *find_##symbol(void)                     \
    {                                                       \
        return (call_fn *)(void (*)(void))symbol;           \
    }
GS_ENTRIES(GS_ENTRY)
#undef GS_ENTRY
#define GS_ENTRY(symbol, ...)                       \
    extern void symbol(void) __attribute__((weak)); \
    static call_fn *find_##symbol(void)             \
    {                                               \
        return (call_fn *)symbol;                   \
    }
GS_LIBRARY_ENTRIES(GS_ENTRY)
#undef GS_ENTRY

static const struct row {
    const char *name;
    bool stops;
    call_fn *(*find)(void);
} rows[] = {
#define STOPS                                    true
#define GOES                                     false
#define ABOUT                                    false /* where it is about no memory */
#define GS_ENTRY(symbol, since, what, gate, ...) {#symbol, gate, find_##symbol},
    GS_ENTRIES(GS_ENTRY) GS_LIBRARY_ENTRIES(GS_ENTRY)
#undef GS_ENTRY
#undef STOPS
#undef GOES
#undef ABOUT
};
#define ROWS (sizeof rows / sizeof *rows)

/* What becomes of a call; shared with the process that looks at it. */
struct outcome {
    _Atomic pid_t thread; /* that makes it */
    atomic_bool done;
    int result;
    int errno_after;
    bool signals_stayed; /* the mask, and what was pending */
    bool waited, woken;
    bool reached; /* the driver, while it waited */
};

static struct outcome *outcome;
static CUcontext context;
static call_fn *call;

static struct {
    __typeof__(&gpushim_sleep) sleep;
    __typeof__(&gpushim_wake) wake;
} gpushim;

/* What the program holds back, and what of it is pending. */
struct signals {
    sigset_t blocked, pending;
};

static struct signals look_at_signals(void)
{
    struct signals now;

    sigemptyset(&now.blocked);
    sigemptyset(&now.pending);
    pthread_sigmask(SIG_BLOCK, NULL, &now.blocked);
    sigpending(&now.pending);
    return now;
}

/* One that a write of the library's may raise (core/base/quiet.h), and one more. */
static struct signals hold_back(void)
{
    static const int some[] = {SIGPIPE, SIGUSR2};
    struct signals before = look_at_signals();
    sigset_t set;

    for (int signal = 1; signal < NSIG; signal++)
        if (sigismember(&before.blocked, signal) == 1)
            FAIL("signal %d is held back before", signal);
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof some / sizeof *some; i++)
        sigaddset(&set, some[i]);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    for (size_t i = 0; i < sizeof some / sizeof *some; i++)
        pthread_kill(pthread_self(), some[i]);
    return look_at_signals();
}

static bool are_same(const struct signals *a, const struct signals *b)
{
    for (int signal = 1; signal < NSIG; signal++)
        if (sigismember(&a->blocked, signal) != sigismember(&b->blocked, signal) ||
            sigismember(&a->pending, signal) != sigismember(&b->pending, signal))
            return false;
    return true;
}

static void *make_call(void *unused)
{
    struct signals before, after;

    OK(cuCtxSetCurrent(context));
    before = hold_back();
    atomic_store(&outcome->thread, (pid_t)syscall(SYS_gettid));
    errno = EXDEV;
    outcome->result = (int)call(ZEROS);
    outcome->errno_after = errno;
    after = look_at_signals();
    outcome->signals_stayed = are_same(&before, &after);
    atomic_store(&outcome->done, true);
    return NULL;
}

/* Whether the thread stands in a futex's wait. */
static bool stands(pid_t thread)
{
    char path[64], text[32] = "";
    int fd;

    snprintf(path, sizeof path, "/proc/self/task/%d/syscall", (int)thread);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    if (read(fd, text, sizeof text - 1) < 0)
        text[0] = 0;
    close(fd);
    return text[0] != 'r' && strtol(text, NULL, 10) == SYS_futex;
}

/* Until the call is done, or waits. */
static void await(void)
{
    pid_t thread;

    while (!atomic_load(&outcome->done)) {
        thread = atomic_load(&outcome->thread);
        if (thread && stands(thread)) {
            outcome->waited = !atomic_load(&outcome->done);
            return;
        }
        usleep(500);
    }
}

static unsigned long driver_calls(const char *name)
{
    unsigned long (*calls)(const char *) =
        (unsigned long (*)(const char *))dlsym(dlopen("libcuda.so.1", RTLD_NOW), "softcuda_calls");

    return calls ? calls(name) : 0;
}

static void is_right(CUdeviceptr block)
{
    unsigned char *host = malloc(SIZE);

    OK(cuMemcpyDtoH_v2(host, block, SIZE));
    for (size_t i = 0; i < SIZE; i++)
        if (host[i] != 0x5a)
            FAIL("byte %zu is %x after the wake", i, host[i]);
    free(host);
}

/* In a process of its own. */
static void run(const struct row *row, bool asleep)
{
    const struct rlimit no_core = {0, 0};
    struct gpushim_asleep state = {.size = sizeof state};
    const struct gpushim_sleep_how how = {.size = sizeof how, .timeout_ns = WAKE_NS};
    unsigned long calls;
    CUdeviceptr block;
    pthread_t thread;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setrlimit(RLIMIT_CORE, &no_core);
    alarm(CHILD_SECONDS);
    call = row->find();
    if (!call)
        FAIL("%s is not exported", row->name);
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    OK(cuMemAlloc_v2(&block, SIZE));
    OK(cuMemsetD8_v2(block, 0x5a, SIZE));
    OK(cuCtxSynchronize());
    if (asleep && gpushim.sleep(&how, &state))
        FAIL("%s: %s", row->name, state.text);
    calls = driver_calls(row->name);
    if (pthread_create(&thread, NULL, make_call, NULL))
        FAIL("no thread");
    if (asleep) {
        await();
        outcome->reached = outcome->waited && driver_calls(row->name) != calls;
        outcome->woken = true;
        if (gpushim.wake(WAKE_NS, &state))
            FAIL("%s: %s", row->name, state.text);
    }
    pthread_join(thread, NULL);
    if (asleep && !row->stops) /* else it may have ended the context */
        is_right(block);
    _exit(0);
}

/* How the process ended: its call's result, or the signal that it died of. */
static int outcome_of(const struct row *row, bool asleep, struct outcome *ret)
{
    pid_t child;
    int status;

    memset(outcome, 0, sizeof *outcome);
    child = fork();
    if (child == 0)
        run(row, asleep);
    if (child < 0 || waitpid(child, &status, 0) != child)
        FAIL("no process");
    memcpy(ret, outcome, sizeof *ret);
    if (WIFSIGNALED(status))
        return -WTERMSIG(status);
    if (WEXITSTATUS(status))
        FAIL("%s, %s: the process failed", row->name, asleep ? "asleep" : "awake");
    return ret->result;
}

static unsigned fault(const char *name, const char *text, int a, int b)
{
    printf("%s: %s (%d, %d)\n", name, text, a, b);
    return 1;
}

/* A call that ended the process kept nothing, and changed nothing for anybody. Verbs say why they
 * fail by errno. */
static bool keeps_errno(const struct row *row, const struct outcome *its)
{
    return !its->done || its->errno_after == EXDEV || strncmp(row->name, "ibv_", 4) == 0;
}

static bool keeps_signals(const struct outcome *its)
{
    return !its->done || its->signals_stayed;
}

static unsigned try(const struct row *row)
{
    struct outcome awake, asleep;
    const int expected = outcome_of(row, false, &awake), got = outcome_of(row, true, &asleep);
    unsigned faults = 0;

    if (asleep.waited != row->stops)
        faults += fault(row->name, row->stops ? "does not wait" : "waits", got, expected);
    if (asleep.reached)
        faults += fault(row->name, "reaches the driver while it waits", got, expected);
    if (row->stops && !asleep.woken)
        faults += fault(row->name, "ends the process before the wake", got, expected);
    if (!keeps_errno(row, &awake) || !keeps_errno(row, &asleep))
        faults += fault(row->name, "changes errno", asleep.errno_after, awake.errno_after);
    if (!keeps_signals(&awake) || !keeps_signals(&asleep))
        faults += fault(row->name, "changes which signals are held back, or pending",
                        asleep.signals_stayed, awake.signals_stayed);
    if (got != expected)
        faults +=
            fault(row->name, "has another result than in a process that was awake", got, expected);
    return faults;
}

int main(int argc, char **argv)
{
    unsigned faults = 0, stopping = 0, tried = 0;

    gpushim.sleep = (__typeof__(&gpushim_sleep))dlsym(RTLD_DEFAULT, "gpushim_sleep");
    gpushim.wake = (__typeof__(&gpushim_wake))dlsym(RTLD_DEFAULT, "gpushim_wake");
    if (!gpushim.sleep || !gpushim.wake)
        FAIL("it is to run under the library");
    outcome =
        mmap(NULL, sizeof *outcome, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (outcome == MAP_FAILED)
        FAIL("no memory");
    for (size_t i = 0; i < ROWS; i++) {
        if (argc > 1 && strcmp(argv[1], rows[i].name) != 0)
            continue;
        tried++;
        stopping += rows[i].stops;
        faults += try(&rows[i]);
    }
    printf("%u rows, %u that stop, %u faults\n", tried, stopping, faults);
    return faults > 0 || tried == 0;
}
