/* What tests of sleep have a puppet call (tests/puppet.c) beside the driver and the library. */
#include <cuda.h>
#include <stdatomic.h>

#include "shim/gpushim.h"
#include "tests/conformance/kernels.h"
#include "tests/conformance/plain.h"
#include "tests/system.h"

#define SIZE    ((size_t)5 << 20)
#define WORDS   (SIZE / 4)
#define LONG_NS UINT64_C(30000000000)
#define SOON_NS UINT64_C(20000000)

static CUfunction fill, copy_words;
static atomic_bool stop;
static atomic_uint rounds, signals;
static int within;

#pragma GCC visibility push(default)

/* ---- Work on several threads ----------------------------------------------------------------- */

void load_kernels(void);
void load_kernels(void)
{
    CUmodule module;

    OK(cuModuleLoadData(&module, kernels_ptx));
    OK(cuModuleGetFunction(&fill, module, "fill"));
    OK(cuModuleGetFunction(&copy_words, module, "copy_words"));
}

void launch_fill(CUdeviceptr block, unsigned value, CUstream stream, unsigned long long count);
void launch_fill(CUdeviceptr block, unsigned value, CUstream stream, unsigned long long count)
{
    void *arguments[] = {&block, &value, &count};

    OK(cuLaunchKernel(fill, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL));
}

/* Whether all words of the block are that. */
bool is_all(CUdeviceptr block, size_t size, unsigned value);
bool is_all(CUdeviceptr block, size_t size, unsigned value)
{
    unsigned *host = malloc(size);
    bool all = true;

    OK(cuMemcpyDtoH(host, block, size));
    for (size_t i = 0; i < size / 4; i++)
        all = all && host[i] == value;
    free(host);
    return all;
}

/* Allocates, fills, copies, launches and frees, and looks at each result, until it is to stop. */
void work(unsigned number);
void work(unsigned number)
{
    const unsigned seed = number << 16;
    CUdeviceptr kept;
    CUstream stream;

    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc(&kept, SIZE));
    OK(cuMemsetD32Async(kept, seed, WORDS, stream));
    for (unsigned i = 1; !atomic_load(&stop); i++) {
        CUdeviceptr a, b;
        unsigned long long count = WORDS;
        void *arguments[] = {&b, &a, &count};

        OK(cuMemAlloc(&a, SIZE));
        OK(cuMemAllocAsync(&b, SIZE, stream));
        launch_fill(a, seed + i, stream, WORDS);
        OK(cuLaunchKernel(copy_words, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL));
        OK(cuMemcpyDtoDAsync(a, kept, SIZE / 2, stream));
        OK(cuStreamSynchronize(stream));
        if (!is_all(b, SIZE, seed + i) || !is_all(kept, SIZE, seed))
            FAIL("thread %u has other memory than it had", number);
        OK(cuMemFreeAsync(b, stream));
        OK(cuMemFree(a));
        atomic_fetch_add(&rounds, 1);
    }
    OK(cuStreamSynchronize(stream));
}

unsigned rounds_done(void);
unsigned rounds_done(void)
{
    return atomic_load(&rounds);
}

void stop_work(void);
void stop_work(void)
{
    atomic_store(&stop, true);
}

/* ---- Signals, callbacks, small stacks -------------------------------------------------------- */

static void count_signal(int number)
{
    atomic_fetch_add(&signals, 1);
}

unsigned signals_counted(void);
unsigned signals_counted(void)
{
    const struct sigaction action = {.sa_handler = count_signal}; /* nothing is begun anew */

    sigaction(SIGUSR1, &action, NULL);
    return atomic_load(&signals);
}

static int try_sleep(uint64_t timeout_ns)
{
    const struct gpushim_sleep_how how = {.size = sizeof how, .timeout_ns = timeout_ns};

    return gpushim_sleep(&how, NULL);
}

static atomic_uint pause_us;
static atomic_bool pauses;

/* It calls another hook, as who ends a registration does. */
static void freed(void *unused, uint64_t address, size_t size)
{
    CUstream stream;

    atomic_store(&pauses, pause_us > 0);
    usleep(pause_us);
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuStreamDestroy(stream));
    within = try_sleep(SOON_NS);
}

/* What sleep says to who is within a free of the block. */
int sleep_within_free(CUdeviceptr block);
int sleep_within_free(CUdeviceptr block)
{
    static const struct gpushim_listener listener = {.size = sizeof listener, .freed = freed};

    OK((CUresult)gpushim_listen(&listener));
    OK(cuMemFree(block));
    return within;
}

void free_slowly(CUdeviceptr block);
void free_slowly(CUdeviceptr block)
{
    atomic_store(&pause_us, 500000);
    OK(cuMemFree(block));
}

int is_freeing_slowly(void);
int is_freeing_slowly(void)
{
    return atomic_load(&pauses);
}

/* ---- Threads that end and begin while all are listed ----------------------------------------- */

static _Atomic pid_t hidden, ending, begun;
static atomic_bool goes;
static pthread_t one_that_goes, one_in_a_call;

static void *stay_until_it_goes(void *unused)
{
    atomic_store(&ending, (pid_t)syscall(SYS_gettid));
    while (!atomic_load(&goes))
        usleep(100);
    return NULL;
}

static void *stay(void *unused)
{
    atomic_store(&begun, (pid_t)syscall(SYS_gettid));
    for (;;)
        pause();
    return NULL;
}

static void *make_stream(void *context)
{
    CUstream stream;

    OK(cuCtxSetCurrent(context));
    atomic_store(&hidden, (pid_t)syscall(SYS_gettid));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return NULL;
}

/* A thread makes a stream. The first time that it would be listed it is not: one that was listed
 * before it has ended, and another one has begun. */
void make_stream_hidden(void);
void make_stream_hidden(void)
{
    CUcontext context;

    OK(cuCtxGetCurrent(&context));
    if (pthread_create(&one_that_goes, NULL, stay_until_it_goes, NULL) ||
        pthread_create(&one_in_a_call, NULL, make_stream, context))
        FAIL("no thread");
}

bool was_hidden(void);
bool was_hidden(void)
{
    pthread_join(one_in_a_call, NULL);
    return atomic_load(&begun) != 0;
}

static _Atomic pid_t halts_at, halted_at;

/* Who comes to list that thread stands there until it is 0 again. */
void halt_listing(pid_t thread);
void halt_listing(pid_t thread)
{
    atomic_store(&halts_at, thread);
}

pid_t is_halted_at(void);
pid_t is_halted_at(void)
{
    return atomic_load(&halted_at);
}

/* Before that of libc. */
struct dirent64 *readdir64(DIR *folder)
{
    static struct dirent64 instead;
    struct dirent64 *(*real)(DIR *folder) =
        (struct dirent64 * (*)(DIR *)) dlsym(RTLD_NEXT, "readdir64");
    struct dirent64 *entry = real(folder);
    pid_t thread = entry ? (pid_t)atoi(entry->d_name) : 0;
    pthread_t other;

    while (thread && atomic_load(&halts_at) == thread) {
        atomic_store(&halted_at, thread);
        usleep(100);
    }
    if (!thread || !atomic_compare_exchange_strong(&hidden, &thread, 0))
        return entry;
    atomic_store(&goes, true);
    pthread_join(one_that_goes, NULL);
    while (syscall(SYS_tgkill, getpid(), atomic_load(&ending), 0) == 0) /* /proc has it a while */
        usleep(100);
    if (pthread_create(&other, NULL, stay, NULL))
        FAIL("no thread");
    while (!atomic_load(&begun))
        usleep(100);
    instead = *entry;
    snprintf(instead.d_name, sizeof instead.d_name, "%d", (int)atomic_load(&begun));
    return &instead;
}

struct filling {
    CUcontext context;
    CUdeviceptr block;
};

static void *fill_it(void *arg)
{
    const struct filling *filling = arg;

    OK(cuCtxSetCurrent(filling->context));
    OK(cuMemsetD32(filling->block, 9, WORDS));
    return NULL;
}

void fill_on_small_stack(CUdeviceptr block);
void fill_on_small_stack(CUdeviceptr block)
{
    struct filling filling = {.block = block};
    pthread_attr_t attributes;
    pthread_t thread;

    OK(cuCtxGetCurrent(&filling.context));
    pthread_attr_init(&attributes);
    if (pthread_attr_setstacksize(&attributes, 16384) ||
        pthread_create(&thread, &attributes, fill_it, &filling))
        FAIL("no thread");
    pthread_join(thread, NULL);
    pthread_attr_destroy(&attributes);
}

/* ---- Ends ------------------------------------------------------------------------------------ */

static CUdeviceptr left_over;

static void free_at_exit(void)
{
    cuMemFree(left_over);
    cuDevicePrimaryCtxRelease(0);
}

/* Frees the block as the process ends; or wants to sleep then, which nobody does any more. */
static void sleep_at_exit(void)
{
    if (try_sleep(LONG_NS) != ESHUTDOWN)
        _exit(1);
    cuMemFree(left_over);
}

void at_the_end(CUdeviceptr block, bool sleeps);
void at_the_end(CUdeviceptr block, bool sleeps)
{
    left_over = block;
    atexit(sleeps ? sleep_at_exit : free_at_exit);
}

void at_a_quick_end(CUdeviceptr block);
void at_a_quick_end(CUdeviceptr block)
{
    left_over = block;
    at_quick_exit(free_at_exit);
}

/* A child has nothing of it: whatever it says, a free does not wait. */
int free_in_child(CUdeviceptr block);
int free_in_child(CUdeviceptr block)
{
    struct gpushim_asleep state = {.size = sizeof state};

    cuMemFree(block);
    /* Without what a GPU's driver does at the end of a process that is none of its. */
    _exit(gpushim_asleep(&state) == ENODEV ? 7 : 1);
}

#pragma GCC visibility pop
