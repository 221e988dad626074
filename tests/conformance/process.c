/* The process around the calls: fork, errno, signals, descriptors, stdout. */
#include "peer.h"

#include <criterion/criterion.h>

TestSuite(process, .init = conform_start, .timeout = 60);

struct child_saw {
    CUresult alloc, free, async, info, range, attribute, open;
};

/* In the forked child: no Criterion, no stdio, and out by _exit. */
static _Noreturn void child(int out, CUdeviceptr ptr, const CUipcMemHandle *handle)
{
    struct child_saw saw;
    CUdeviceptr fresh = 0;
    size_t a = 0, b = 0;
    unsigned int type = 0;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    saw.alloc = cuMemAlloc(&fresh, 4096);
    saw.async = cuMemAllocAsync(&fresh, 4096, CU_STREAM_LEGACY);
    saw.info = cuMemGetInfo(&a, &b);
    saw.range = cuMemGetAddressRange(&fresh, &a, ptr);
    saw.attribute = cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, ptr);
    saw.open = cuIpcOpenMemHandle(&fresh, *handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    saw.free = cuMemFree(ptr);
    _exit(write(out, &saw, sizeof saw) == (ssize_t)sizeof saw ? 0 : 1);
}

Test(process, a_forked_child_is_refused_and_the_parent_goes_on)
{
    struct peer *peer = peer_start(-1);
    CUdeviceptr ptr = 0, there = 0;
    CUipcMemHandle handle;
    struct child_saw saw;
    struct pollfd ready;
    int out[2];
    pid_t pid;

    ptr = filled(4 * MIB, 1);
    OK(cuIpcGetMemHandle(&handle, ptr));
    OK(peer_open(peer, &handle, &there));
    cr_assert_eq(pipe2(out, O_CLOEXEC), 0);
    pid = fork();
    if (pid == 0)
        child(out[1], ptr, &handle);
    cr_assert_gt(pid, 0);
    close(out[1]);
    ready = (struct pollfd){.fd = out[0], .events = POLLIN};
    if (poll(&ready, 1, 15000) <= 0)
        kill(pid, SIGKILL);
    cr_assert_eq(read(out[0], &saw, sizeof saw), (ssize_t)sizeof saw, "the child hangs or died");
    cr_assert_eq(waitpid(pid, NULL, 0), pid);
    probe("forked_child", "alloc %s async %s info %s range %s attribute %s open %s free %s",
          result_name(saw.alloc), result_name(saw.async), result_name(saw.info),
          result_name(saw.range), result_name(saw.attribute), result_name(saw.open),
          result_name(saw.free));
    FAILS(saw.alloc);
    FAILS(saw.async);
    FAILS(saw.info);
    FAILS(saw.open);
    FAILS(saw.free);
    /* The parent, its memory, and what it shares are as before. */
    cr_assert_eq(words_other(ptr, 1, MIB), 0);
    cr_assert_eq(peer_other(peer, there, 1, MIB), 0);
    OK(peer_fill(peer, there, 2, MIB));
    cr_assert_eq(words_other(ptr, 2, MIB), 0);
    OK(peer_close(peer, there));
    OK(peer_open(peer, &handle, &there));
    peer_quit(peer);
}

/* A child that lives on while the parent shares and frees: nothing of it is the child's. */
Test(process, a_forked_child_that_stays_holds_nothing)
{
    struct peer *peer = peer_start(-1);
    CUdeviceptr ptr = 0, there = 0, fresh = 0;
    pid_t pid;

    ptr = filled(4 * MIB, 3);
    there = peer_opens(peer, ptr);
    pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        pause();
        _exit(0);
    }
    cr_assert_gt(pid, 0);
    OK(peer_close(peer, there));
    OK(cuMemFree(ptr));
    for (int i = 0; i < 10; i++) {
        fresh = filled(4 * MIB, 4);
        cr_assert_eq(words_other(fresh, 4, MIB), 0);
        there = peer_opens(peer, fresh);
        OK(peer_close(peer, there));
        OK(cuMemFree(fresh));
    }
    kill(pid, SIGKILL);
    cr_assert_eq(waitpid(pid, NULL, 0), pid);
    peer_quit(peer);
}

/* ---- errno, and signals ---- */

/* What the thread holds back, and what of it is pending. */
static struct signals {
    sigset_t blocked, pending;
} signals;

static void look_at_signals(struct signals *ret_now)
{
    memset(ret_now, 0, sizeof *ret_now);
    cr_assert_eq(pthread_sigmask(SIG_BLOCK, NULL, &ret_now->blocked), 0);
    cr_assert_eq(sigpending(&ret_now->pending), 0);
}

/* One that a write of the library's may raise (core/base/quiet.h), and one more. The others of
 * those would end this process. */
static void hold_signals_back(void)
{
    static const int some[] = {SIGPIPE, SIGUSR2};
    sigset_t set;

    look_at_signals(&signals);
    for (int i = 1; i < NSIG; i++)
        cr_assert_neq(sigismember(&signals.blocked, i), 1, "signal %d is held back", i);
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof some / sizeof *some; i++)
        sigaddset(&set, some[i]);
    cr_assert_eq(pthread_sigmask(SIG_BLOCK, &set, NULL), 0);
    for (size_t i = 0; i < sizeof some / sizeof *some; i++)
        cr_assert_eq(pthread_kill(pthread_self(), some[i]), 0);
    look_at_signals(&signals);
}

static bool signals_stay(void)
{
    struct signals now;

    look_at_signals(&now);
    for (int i = 1; i < NSIG; i++)
        if (sigismember(&now.blocked, i) != sigismember(&signals.blocked, i) ||
            sigismember(&now.pending, i) != sigismember(&signals.pending, i))
            return false;
    return true;
}

/* A call that the shim answers itself. */
#define KEEPS_ERRNO(call)                                             \
    do {                                                              \
        PASSES_ERRNO(call);                                           \
        if (under_shim())                                             \
            cr_expect_eq(errno, EXDEV, "%s: errno %d", #call, errno); \
    } while (0)

/* A call that is the driver's, and so is what it does to errno. */
#define PASSES_ERRNO(call)         \
    do {                           \
        errno = EXDEV;             \
        (void)(call);              \
        changed += errno != EXDEV; \
        SIGNALS_STAY(call);        \
    } while (0)

/* Whoever answers. errno is looked at again behind this. */
#define SIGNALS_STAY(call)                                                     \
    do {                                                                       \
        int after = errno;                                                     \
                                                                               \
        cr_expect(signals_stay(), "%s: signals held back, or pending", #call); \
        errno = after;                                                         \
    } while (0)

Test(process, calls_leave_errno_and_signals_alone)
{
    struct peer *peer = peer_start(-1);
    CUdeviceptr ptr = 0, small = 0, async = 0, pitched = 0, theirs = 0, opened = 0, base;
    CUstream stream = new_stream();
    CUipcMemHandle handle, junk;
    CUmemGenericAllocationHandle allocation;
    size_t pitch, size;
    unsigned int type;
    struct rlimit room, no_room; /* for files: a write of the library's fails and raises a signal */
    int changed = 0;

    cr_assert_eq(getrlimit(RLIMIT_FSIZE, &room), 0);
    no_room = (struct rlimit){0, room.rlim_max};
    memset(&junk, 0xab, sizeof junk);
    OK(peer_alloc(peer, MEMORY_PLAIN, &theirs, 4 * MIB));
    OK(launch_spin(stream, 20 * MILLISECOND));
    hold_signals_back();
    KEEPS_ERRNO(cuMemAlloc(&ptr, 40 * MIB));
    KEEPS_ERRNO(cuMemAlloc(&small, 512));
    KEEPS_ERRNO(cuMemAlloc(&base, 0));
    PASSES_ERRNO(cuMemAlloc(&base, (size_t)1 << 50));
    KEEPS_ERRNO(cuMemAllocPitch(&pitched, &pitch, 1000, 10, 4));
    KEEPS_ERRNO(cuMemAllocAsync(&async, MIB, stream));
    KEEPS_ERRNO(cuMemGetInfo(&pitch, &size));
    KEEPS_ERRNO(cuMemGetAddressRange(&base, &size, ptr));
    PASSES_ERRNO(cuMemGetAddressRange(&base, &size, NOWHERE));
    KEEPS_ERRNO(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, ptr));
    PASSES_ERRNO(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, NOWHERE));
    KEEPS_ERRNO(cuMemRetainAllocationHandle(&allocation, (void *)(uintptr_t)ptr));
    KEEPS_ERRNO(cuIpcGetMemHandle(&handle, ptr));
    OK(peer_open(peer, &handle, &opened));
    KEEPS_ERRNO(cuIpcOpenMemHandle(&base, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    PASSES_ERRNO(cuIpcOpenMemHandle(&base, junk, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    OK(peer_share(peer, theirs, &handle));
    KEEPS_ERRNO(cuIpcOpenMemHandle(&base, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    KEEPS_ERRNO(cuIpcCloseMemHandle(base));
    PASSES_ERRNO(cuIpcCloseMemHandle(NOWHERE));
    PASSES_ERRNO(cuMemFree(NOWHERE));
    KEEPS_ERRNO(cuMemFreeAsync(async, stream));
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &no_room), 0);
    for (int i = 0; i < 2000; i++) { /* more than a buffer of a recording has room for */
        KEEPS_ERRNO(cuMemFree(small));
        KEEPS_ERRNO(cuMemAlloc(&small, 512));
    }
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &room), 0);
    KEEPS_ERRNO(cuMemFree(small));
    KEEPS_ERRNO(cuMemFree(pitched));
    KEEPS_ERRNO(cuMemFree(ptr));
    PASSES_ERRNO(cuGetProcAddress("cuMemAlloc", &(void *){NULL}, 12000, 0, NULL));
    probe("calls_that_change_errno", "%d", changed);
    peer_quit(peer);
}

/* ---- descriptors ---- */

/* Whether a setting of the library's names the file, or the folder that it is in. */
static bool is_set(const char *path)
{
    for (char **variable = environ; *variable; variable++) {
        const char *value = strchr(*variable, '=');

        if (strncmp(*variable, "GPUSHIM_", 8) == 0 && value && value[1] == '/' &&
            strncmp(path, value + 1, strcspn(value + 1, "%")) == 0)
            return true;
    }
    return false;
}

/* Descriptors that a program executed now would have. Those of the log and of a recording are there
 * from the beginning on. */
static unsigned count_inherited(void)
{
    unsigned count = 0;

    for (int fd = STDERR_FILENO + 1; fd < 1024; fd++) {
        int flags = fcntl(fd, F_GETFD);
        char link[64], path[PATH_MAX] = "";

        if (flags < 0 || flags & FD_CLOEXEC)
            continue;
        count++;
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        cr_assert_geq(readlink(link, path, sizeof path - 1), 0);
        cr_assert_not(is_set(path), "%s", path);
    }
    return count;
}

Test(process, no_descriptor_is_left_to_what_it_executes)
{
    CUdeviceptr ptr = 0, theirs = 0, opened = 0, there;
    CUevent event;
    CUipcEventHandle handle;
    struct peer *peer;
    unsigned before;

    if (!software_driver())
        cr_skip_test("what a real driver opens is its own affair");
    peer = peer_start(-1);
    before = count_inherited();
    OK(peer_alloc(peer, MEMORY_PLAIN, &theirs, 4 * MIB));
    ptr = filled(4 * MIB, 1);
    for (int i = 0; i < 2; i++) {
        there = peer_opens(peer, ptr);
        opened = opened_from(peer, theirs);
        cr_assert_eq(count_inherited(), before, "with memory open");
        OK(peer_close(peer, there));
        OK(cuIpcCloseMemHandle(opened));
    }
    OK(cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
    OK(cuIpcGetEventHandle(&handle, event));
    cr_assert_eq(count_inherited(), before, "with an event shared");
    OK(cuEventDestroy(event));
    OK(cuMemFree(ptr));
    cr_assert_eq(count_inherited(), before, "at the end");
    peer_quit(peer);
}

/* ---- stdout ---- */

Test(process, nothing_is_written_to_stdout)
{
    CUdeviceptr ptr = 0, theirs = 0, opened = 0, mine = 0;
    CUipcMemHandle junk;
    struct peer *peer;
    char byte;
    int out[2];

    cr_assert_eq(pipe2(out, O_CLOEXEC), 0);
    peer = peer_start(out[1]);
    close(out[1]);
    memset(&junk, 0xab, sizeof junk);
    for (int kind = MEMORY_PLAIN; kind <= MEMORY_PITCH; kind++) {
        OK(peer_alloc(peer, (enum memory_kind)kind, &ptr, 4 * MIB));
        OK(peer_fill(peer, ptr, 1, MIB));
        OK(peer_free(peer, (enum memory_kind)kind, ptr));
    }
    FAILS(peer_free(peer, MEMORY_PLAIN, NOWHERE));
    FAILS(peer_alloc(peer, MEMORY_PLAIN, &ptr, (size_t)1 << 50));
    FAILS(peer_open(peer, &junk, &opened));
    FAILS(peer_close(peer, NOWHERE));
    OK(peer_alloc(peer, MEMORY_PLAIN, &theirs, MIB));
    opened = opened_from(peer, theirs);
    OK(cuMemAlloc(&mine, MIB));
    ptr = peer_opens(peer, mine);
    peer_quit(peer);
    cr_assert_eq(read(out[0], &byte, 1), 0, "something was written to stdout");
}
