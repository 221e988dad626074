/*
 * What a program sees of the driver, by every way of asking, against the stub driver.
 *
 * usage: lookup CASE LIBCUDA [CTOR_LIBRARY or third.c's]. "native" and "absent" hold without the
 * shim as well and are run that way too: they say what the shim has to look like when it is off.
 */
#include "../../shim/cuda_exact.h"
#include "check.h"
#include "stub_libcuda.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <signal.h>
#include <sys/wait.h>

static const char *libcuda, *ctor_library;

typedef __typeof__(&cuMemAlloc_v2) alloc_fn;
typedef __typeof__(&cuMemFree_v2) free_fn;
typedef __typeof__(&cuGetProcAddress_v2) find_fn;

static void *open_driver(int flags)
{
    void *handle = dlopen(libcuda, flags);
    CHECK(handle, "%s", dlerror());
    return handle;
}

static int driver_calls(void *handle, enum stub_call call)
{
    stub_calls_fn *calls = (stub_calls_fn *)dlsym(handle, "stub_calls");
    CHECK(calls, "%s", dlerror());
    return calls(call);
}

/* An allocation and a free through what was found reach the driver once each. */
static void call_through(void *handle, void *alloc, void *release)
{
    CUdeviceptr pointer = 0;
    int allocs = driver_calls(handle, STUB_ALLOC), frees = driver_calls(handle, STUB_FREE);
    CHECK(((alloc_fn)alloc)(&pointer, 100) == CUDA_SUCCESS && pointer, "cuMemAlloc_v2");
    CHECK(((free_fn)release)(pointer) == CUDA_SUCCESS, "cuMemFree_v2");
    CHECK(driver_calls(handle, STUB_ALLOC) == allocs + 1, "the driver's cuMemAlloc_v2");
    CHECK(driver_calls(handle, STUB_FREE) == frees + 1, "the driver's cuMemFree_v2");
}

static void *proc(find_fn find, const char *name, int version, cuuint64_t flags)
{
    void *function = (void *)1;
    CUdriverProcAddressQueryResult status;
    CUresult result = find(name, &function, version, flags, &status);
    CHECK((result == CUDA_SUCCESS) == (function != NULL), "%s: result %d", name, result);
    return function;
}

static void by_handle(void)
{
    void *handle = open_driver(RTLD_NOW);
    errno = 77;
    void *alloc = dlsym(handle, "cuMemAlloc_v2");
    CHECK(errno == 77, "the first look-up set errno to %d", errno);
    CHECK(is_hook(alloc), "cuMemAlloc_v2 is in %s", object_of(alloc));
    CHECK(is_hook(dlsym(handle, "cuMemFree_v2")), "cuMemFree_v2");
    CHECK(is_driver(dlsym(handle, "cuInit")), "cuInit");
    CHECK(is_driver(dlsym(handle, "cuMemGetInfo")), "the 32-bit cuMemGetInfo");
    CHECK(is_driver(dlsym(handle, "cuDeviceTotalMem_v2")), "cuDeviceTotalMem_v2 without a limit");
    call_through(handle, alloc, dlsym(handle, "cuMemFree_v2"));

    dlerror();
    CHECK(!dlsym(handle, "cuMemSetMemPool"), "a driver of CUDA 12.0 has no cuMemSetMemPool");
    const char *error = dlerror();
    CHECK(error && strstr(error, "undefined symbol: cuMemSetMemPool"), "%s", error);

    void *libc = dlopen("libc.so.6", RTLD_NOW);
    CHECK(libc && !dlsym(libc, "cuMemAlloc_v2"), "libc has cuMemAlloc_v2");
    error = dlerror();
    CHECK(error && strstr(error, "undefined symbol: cuMemAlloc_v2"), "%s", error);
}

static void by_soname(void)
{
    open_driver(RTLD_NOW); /* where the dynamic linker finds it under its soname, too */
    void *handle = dlopen("libcuda.so.1", RTLD_NOW);
    CHECK(handle && is_hook(dlsym(handle, "cuMemAlloc_v2")), "by soname");
}

static void by_default(void)
{
    void *handle = open_driver(RTLD_NOW | RTLD_GLOBAL);
    CHECK(is_hook(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2")), "RTLD_DEFAULT");
    CHECK(is_hook(dlsym(RTLD_NEXT, "cuMemAlloc_v2")), "RTLD_NEXT");
    void *self = dlopen(NULL, RTLD_NOW);
    CHECK(is_hook(dlsym(self, "cuMemAlloc_v2")), "the program's own handle");
    CHECK(!dlsym(RTLD_DEFAULT, "cuMemSetMemPool"), "RTLD_DEFAULT of what the driver lacks");
    CHECK(dlerror(), "no error after it");
    CHECK(!dlsym(RTLD_NEXT, "cuMemSetMemPool"), "RTLD_NEXT of what the driver lacks");
    CHECK(dlerror(), "no error after it");
    CHECK(is_driver(dlsym(RTLD_DEFAULT, "cuInit")), "cuInit");
    call_through(handle, dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"), dlsym(RTLD_NEXT, "cuMemFree_v2"));
}

static void by_proc_address(void)
{
    void *handle = open_driver(RTLD_NOW);
    find_fn find = (find_fn)dlsym(handle, "cuGetProcAddress_v2");
    CHECK(is_hook((void *)find), "cuGetProcAddress_v2");
    CHECK(is_hook(dlsym(handle, "cuGetProcAddress")), "cuGetProcAddress");
    CHECK(proc(find, "cuMemAlloc", 12000, 0) == dlsym(handle, "cuMemAlloc_v2"), "cuMemAlloc");
    CHECK(proc(find, "cuMemAllocAsync", 12000, 0) == dlsym(handle, "cuMemAllocAsync"), "async");
    CHECK(proc(find, "cuMemAllocAsync", 12000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) ==
              dlsym(handle, "cuMemAllocAsync_ptsz"),
          "async, per thread");
    CHECK(proc(find, "cuGetProcAddress", 12000, 0) == (void *)find, "itself");
    void *old_find = proc(find, "cuGetProcAddress", 11030, 0);
    CHECK(old_find == dlsym(handle, "cuGetProcAddress"), "its older form");
    CHECK(is_hook(proc(find, "cuMemGetInfo", 12000, 0)), "cuMemGetInfo");
    CHECK(is_driver(proc(find, "cuMemGetInfo", 2000, 0)), "the 32-bit cuMemGetInfo");
    CHECK(is_driver(proc(find, "cuInit", 12000, 0)), "cuInit");
    CHECK(!proc(find, "cuMemAllocAsync", 11000, 0), "cuMemAllocAsync before its version");
    CHECK(!proc(find, "cuMemSetMemPool", 13000, 0), "what the driver lacks");

    void *function = NULL;
    CUresult result = ((__typeof__(&cuGetProcAddress))old_find)("cuMemAlloc", &function, 11030, 0);
    CHECK(result == CUDA_SUCCESS && is_hook(function), "through the older form");
    call_through(handle, function, proc(find, "cuMemFree", 12000, 0));

    CUipcMemHandle token;
    CUdeviceptr pointer = 0;
    for (size_t i = 0; i < sizeof(token.reserved); i++)
        token.reserved[i] = (char)i;
    __typeof__(&cuIpcOpenMemHandle_v2) open_handle =
        (__typeof__(&cuIpcOpenMemHandle_v2))proc(find, "cuIpcOpenMemHandle", 12000, 0);
    CHECK(is_hook((void *)open_handle), "cuIpcOpenMemHandle");
    CHECK(open_handle(&pointer, token, 42) == CUDA_SUCCESS && pointer == 42, "a token by value");
}

/* A form that is newer than the library goes to the driver, and one line says so. */
static void newer_form(void)
{
    typedef CUresult CUDAAPI newer_fn(CUdeviceptr *, size_t, unsigned int);
    void *handle = open_driver(RTLD_NOW | RTLD_GLOBAL);
    find_fn find = (find_fn)dlsym(handle, "cuGetProcAddress_v2");
    char line[1024] = "";
    CUdeviceptr pointer = 0;
    int ends[2], kept = dup(2);
    CHECK(pipe(ends) == 0 && kept >= 0 && dup2(ends[1], 2) == 2, "stderr into a pipe");
    close(ends[1]);
    newer_fn *newer = (newer_fn *)proc(find, "cuMemAlloc", 99000, 0);
    proc(find, "cuMemGetInfo", 2000, 0);
    proc(find, "cuInit", 99000, 0);
    CHECK(is_driver(proc(find, "cuDeviceTotalMem", 12000, 0)),
          "without a limit this one is not led");
    CHECK(dup2(kept, 2) == 2, "stderr back");
    ssize_t length = read(ends[0], line, sizeof(line) - 1);
    CHECK(is_driver((void *)newer), "the newer form is in %s", object_of((void *)newer));
    CHECK(newer(&pointer, 100, 7) == CUDA_SUCCESS, "its third argument was lost");
    CHECK(length > 0 && strstr(line, "cuMemAlloc for CUDA 99.0 is newer than this library"),
          "the log says %s", line);
    CHECK(strchr(line, '\n') == line + length - 1, "more than one line: %s", line);
    CHECK(is_hook(proc(find, "cuMemAlloc", 13000, 0)), "the form that is known");
}

/* From a library whose scope alone has the driver. */
static void from_third(bool led)
{
    typedef void *look_up_fn(const char *);
    void *third = dlopen(ctor_library, RTLD_NOW);
    CHECK(third, "%s", dlerror());
    look_up_fn *ways[] = {(look_up_fn *)dlsym(third, "third_default"),
                          (look_up_fn *)dlsym(third, "third_next")};
    for (int i = 0; i < 2; i++) {
        void *alloc = ways[i]("cuMemAlloc_v2");
        CHECK(led ? is_hook(alloc) : is_driver(alloc), "way %d: %s", i, object_of(alloc));
        CHECK(is_driver(ways[i]("cuInit")), "way %d: cuInit", i);
        CHECK(ways[i]("getenv") == (void *)getenv, "way %d: getenv", i);
        dlerror();
        CHECK(!ways[i]("cuMemSetMemPool") && dlerror(), "way %d: what the driver lacks", i);
        call_through(third, alloc, ways[i]("cuMemFree_v2"));
    }
    CHECK(!ways[1]("third_next"), "its own is after itself");
    void *(*linked)(void) = (void *(*)(void))dlsym(third, "third_linked");
    CHECK(!led || is_hook(linked()), "linked: %s", object_of(linked()));
}

static void third(void)
{
    from_third(true);
}

static void third_native(void)
{
    from_third(false);
}

/* dlvsym, which finds only what has a version. */
static void versioned(void)
{
    void *handle = open_driver(RTLD_NOW | RTLD_GLOBAL);
    void *scopes[] = {handle, RTLD_DEFAULT, RTLD_NEXT};
    for (int i = 0; i < 3; i++) {
        CHECK(is_hook(dlvsym(scopes[i], "cuMemAlloc_v2", "STUB_1")), "dlvsym in scope %d", i);
        CHECK(is_hook(dlsym(scopes[i], "cuMemAlloc_v2")), "dlsym in scope %d", i);
        CHECK(is_hook(dlsym(scopes[i], "cuMemFree_v2")), "dlsym of another in scope %d", i);
        CHECK(is_driver(dlvsym(scopes[i], "cuInit", "STUB_1")), "cuInit in scope %d", i);
    }
    dlerror();
    CHECK(!dlvsym(handle, "cuMemAlloc_v2", "STUB_2"), "a version that the driver has not");
    CHECK(dlerror(), "no error after it");
    call_through(handle, dlvsym(handle, "cuMemAlloc_v2", "STUB_1"),
                 dlvsym(handle, "cuMemFree_v2", "STUB_1"));
}

/* libcuda is in the process, and everything is the driver's own. */
static void native(void)
{
    void *handle = open_driver(RTLD_NOW | RTLD_GLOBAL);
    find_fn find = (find_fn)dlsym(handle, "cuGetProcAddress_v2");
    CHECK(is_driver((void *)find), "cuGetProcAddress_v2 is in %s", object_of((void *)find));
    CHECK(is_driver(proc(find, "cuMemAlloc", 12000, 0)), "through cuGetProcAddress");
    CHECK(proc(find, "cuGetProcAddress", 12000, 0) == (void *)find, "itself");
    CHECK(is_driver(dlsym(handle, "cuMemAlloc_v2")), "by handle");
    CHECK(is_driver(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2")), "RTLD_DEFAULT");
    CHECK(is_driver(dlsym(RTLD_NEXT, "cuMemAlloc_v2")), "RTLD_NEXT");
    CHECK(!dlsym(RTLD_DEFAULT, "cuMemSetMemPool"), "what the driver lacks");
    call_through(handle, dlsym(handle, "cuMemAlloc_v2"), dlsym(handle, "cuMemFree_v2"));
}

/* There is no libcuda in the process. */
static void absent(void)
{
    void *scopes[] = {RTLD_DEFAULT, RTLD_NEXT, dlopen(NULL, RTLD_NOW)};
    for (int i = 0; i < 3; i++) {
        dlerror();
        CHECK(!dlsym(scopes[i], "cuMemAlloc_v2"), "scope %d has cuMemAlloc_v2", i);
        const char *error = dlerror();
        CHECK(error && strstr(error, "undefined symbol: cuMemAlloc_v2"), "scope %d: %s", i, error);
        CHECK(!dlvsym(scopes[i], "cuMemAlloc_v2", "any"), "scope %d, dlvsym", i);
        error = dlerror();
        CHECK(error && strstr(error, "undefined symbol: cuMemAlloc_v2"), "scope %d: %s", i, error);
    }
    CHECK(!dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), "libcuda came into the process");
}

/* Asking before there is a libcuda spoils nothing. */
static void absent_then_there(void)
{
    absent();
    by_handle();
}

static void closed_and_opened_again(void)
{
    void *handle = open_driver(RTLD_NOW);
    void *alloc = dlsym(handle, "cuMemAlloc_v2");
    CHECK(is_hook(alloc), "first");
    CHECK(dlclose(handle) == 0, "%s", dlerror());
    /* The library's threads may be in the driver, so it stays. */
    CUdeviceptr pointer = 0;
    CHECK(((alloc_fn)alloc)(&pointer, 100) == CUDA_SUCCESS && pointer, "while it is closed");
    handle = open_driver(RTLD_NOW);
    CHECK(dlsym(handle, "cuMemAlloc_v2") == alloc, "again");
    call_through(handle, alloc, dlsym(handle, "cuMemFree_v2"));
}

static void in_child(void (*function)(void))
{
    pid_t pid = fork();
    CHECK(pid >= 0, "fork");
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        function();
        _exit(0);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0, "the child's status is %d", status);
}

static void *parents_alloc, *parents_free, *parents_handle;

static void pass_on_in_child(void)
{
    native();
    call_through(parents_handle, parents_alloc, parents_free);
}

static void forked(void)
{
    in_child(by_handle); /* from an unborn process: the child's own beginning */
    parents_handle = open_driver(RTLD_NOW | RTLD_GLOBAL);
    parents_alloc = dlsym(parents_handle, "cuMemAlloc_v2");
    parents_free = dlsym(parents_handle, "cuMemFree_v2");
    CHECK(is_hook(parents_alloc), "in the parent");
    in_child(pass_on_in_child);
    CHECK(dlsym(parents_handle, "cuMemAlloc_v2") == parents_alloc, "the parent after the fork");
}

/* A forked child of a process with threads cannot go on under a sanitizer: locks of its runtime,
 * the allocator's among them, stay held. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define FORKS 0
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define FORKS 0
#endif
#endif
#ifndef FORKS
#define FORKS 20
#endif

#define THREADS 64
static pthread_barrier_t together;
static void *shared_handle;
static atomic_bool stop_forking;

/* Every fourth thread arrives in the constructor of a library that it loads, under the dynamic
 * linker's lock, which the others need to find the driver. */
static void *first_call(void *argument)
{
    long number = (long)argument;
    void *alloc;
    pthread_barrier_wait(&together);
    if (number % 4 == 0) {
        void *handle = dlopen(ctor_library, RTLD_NOW);
        CHECK(handle, "%s", dlerror());
        void *(*found)(void) = (void *(*)(void))dlsym(handle, "ctor_lookup_found");
        CHECK(found, "%s", dlerror());
        alloc = found();
    } else {
        alloc = dlsym(shared_handle, "cuMemAlloc_v2");
    }
    CHECK(is_hook(alloc), "thread %ld got one in %s", number, object_of(alloc));
    CUdeviceptr pointer;
    CHECK(((alloc_fn)alloc)(&pointer, 100) == CUDA_SUCCESS, "cuMemAlloc_v2");
    CHECK(((free_fn)dlsym(shared_handle, "cuMemFree_v2"))(pointer) == CUDA_SUCCESS, "cuMemFree_v2");
    return NULL;
}

/* Children forked while the threads load: whatever was half done then, theirs is a driver that
 * works. */
static void *fork_meanwhile(void *argument)
{
    pthread_barrier_wait(&together);
    for (int i = 0; i < FORKS && !atomic_load(&stop_forking); i++) {
        pid_t pid = fork();
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            alarm(60);
            CUdeviceptr pointer;
            alloc_fn alloc = (alloc_fn)dlsym(shared_handle, "cuMemAlloc_v2");
            _exit(!alloc || alloc(&pointer, 100) != CUDA_SUCCESS);
        }
        int status;
        CHECK(waitpid(pid, &status, 0) == pid && status == 0, "a child's status is %d", status);
    }
    return NULL;
}

static void threads_at_once(void)
{
    pthread_t threads[THREADS], forker;
    shared_handle = open_driver(RTLD_NOW);
    pthread_barrier_init(&together, NULL, THREADS + 1);
    CHECK(pthread_create(&forker, NULL, fork_meanwhile, NULL) == 0, "a thread");
    for (long i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, first_call, (void *)i) == 0, "thread %ld", i);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    atomic_store(&stop_forking, true);
    pthread_join(forker, NULL);
    CHECK(driver_calls(shared_handle, STUB_ALLOC) == THREADS, "allocations reached the driver");
    CHECK(driver_calls(shared_handle, STUB_FREE) == THREADS, "frees reached the driver");
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } cases[] = {
        {"handle", by_handle},
        {"soname", by_soname},
        {"default", by_default},
        {"proc-address", by_proc_address},
        {"newer-form", newer_form},
        {"third", third},
        {"third-native", third_native},
        {"versioned", versioned},
        {"native", native},
        {"absent", absent},
        {"absent-then-there", absent_then_there},
        {"reopen", closed_and_opened_again},
        {"fork", forked},
        {"threads", threads_at_once},
    };
    CHECK(argc >= 3, "usage: lookup CASE LIBCUDA [CTOR_LIBRARY]");
    libcuda = argv[2];
    ctor_library = argc > 3 ? argv[3] : NULL;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (strcmp(cases[i].name, argv[1]) == 0) {
            cases[i].run();
            return 0;
        }
    }
    CHECK(false, "no case %s", argv[1]);
}
