/*
 * What large memory costs in the driver alone, without the shim: creating and releasing by size, and
 * memory that another process gave back just before. Prints lines "FACT name = answer" in
 * milliseconds, asserts nothing.
 *
 *   cc -O1 -o big_costs big_costs.c -ldl && ./big_costs
 *
 * The other process is a child with a context of its own, driven by one-letter commands.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "costs.h"

#include <sys/wait.h>
#include <time.h>

#define GIB       ((size_t)1 << 30)
#define PARTS_MAX 512

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static const CUmemAllocationProp properties = {
    .type = CU_MEM_ALLOCATION_TYPE_PINNED,
    .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
    .location.type = CU_MEM_LOCATION_TYPE_DEVICE, /* the first one */
    .allocFlags.gpuDirectRDMACapable = 1,
};
static const CUmemAccessDesc access_all = {
    .location.type = CU_MEM_LOCATION_TYPE_DEVICE,
    .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
};

/* A range of one or several handles. */
struct range {
    CUdeviceptr at;
    size_t size, part;
    unsigned count;
    CUmemGenericAllocationHandle handles[PARTS_MAX];
};
enum { CREATE, MAP, ACCESS, UNMAP, RELEASE, STEPS };

static void start(void)
{
    CUcontext context;

    MUST(D(cuInit)(0));
    MUST(D(cuDevicePrimaryCtxRetain)(&context, 0));
    MUST(D(cuCtxSetCurrent)(context));
}

/* Whether there was memory. */
static int range_make(struct range *range, size_t size, size_t part, double *ms)
{
    double t[4] = {now()};

    range->size = size;
    range->part = part;
    range->count = (unsigned)(size / part);
    for (unsigned i = 0; i < range->count; i++)
        if (D(cuMemCreate)(&range->handles[i], part, &properties, 0) != CUDA_SUCCESS) {
            while (i-- > 0)
                MUST(D(cuMemRelease)(range->handles[i]));
            return 0;
        }
    t[1] = now();
    MUST(D(cuMemAddressReserve)(&range->at, size, 0, 0, 0));
    for (unsigned i = 0; i < range->count; i++)
        MUST(D(cuMemMap)(range->at + i * part, part, 0, range->handles[i], 0));
    t[2] = now();
    MUST(D(cuMemSetAccess)(range->at, size, &access_all, 1));
    t[3] = now();
    for (int i = 0; i < 3; i++)
        ms[CREATE + i] = t[i + 1] - t[i];
    return 1;
}

static void range_drop(struct range *range, double *ms)
{
    double t[3] = {now()};

    MUST(D(cuMemUnmap)(range->at, range->size));
    MUST(D(cuMemAddressFree)(range->at, range->size));
    t[1] = now();
    for (unsigned i = 0; i < range->count; i++)
        MUST(D(cuMemRelease)(range->handles[i]));
    t[2] = now();
    ms[UNMAP] = t[1] - t[0];
    ms[RELEASE] = t[2] - t[1];
}

static double wipe(CUdeviceptr at, size_t size)
{
    double began = now();

    MUST(D(cuMemsetD32Async)(at, 0, size / 4, NULL));
    MUST(D(cuStreamSynchronize)(NULL));
    return now() - began;
}

/* ---- the other process --------------------------------------------------------------------- */

static struct range theirs;

/* a: allocate; A: in parts; f: free; w: wipe. Answers each. */
static void serve(int socket, size_t size, size_t part)
{
    double ms[STEPS];
    char command;

    start();
    while (read(socket, &command, 1) == 1) {
        switch (command) {
        case 'a':
        case 'A':
            if (!range_make(&theirs, size, command == 'a' ? size : part, ms))
                _exit(1);
            wipe(theirs.at, theirs.size);
            break;
        case 'w':
            printf("FACT other process: wipe = %.2f\n", wipe(theirs.at, theirs.size));
            break;
        case 'f':
            range_drop(&theirs, ms);
            printf("FACT other process: unmap %.2f, release %.2f\n", ms[UNMAP], ms[RELEASE]);
            break;
        default:
            _exit(0);
        }
        fflush(stdout);
        if (write(socket, &command, 1) != 1)
            _exit(1);
    }
    _exit(0);
}

static void tell(int socket, char command)
{
    if (write(socket, &command, 1) != 1 || (command != 'q' && read(socket, &command, 1) != 1))
        exit(1);
}

/* ---- what is asked ------------------------------------------------------------------------- */

static void by_size(size_t most)
{
    static struct range range;
    double ms[STEPS];

    for (size_t size = 64 * MIB; size <= most; size *= 4)
        for (int again = 0; again < 3; again++) {
            if (!range_make(&range, size, size, ms))
                return;
            range_drop(&range, ms);
            printf("FACT one handle of %zu MiB, %d: create %.3f, map %.3f, access %.3f, unmap "
                   "%.3f, release %.3f\n",
                   size / MIB, again, ms[CREATE], ms[MAP], ms[ACCESS], ms[UNMAP], ms[RELEASE]);
        }
    for (size_t part = 256 * MIB; part <= 16 * GIB; part *= 4) {
        if (!range_make(&range, most / part * part, part, ms))
            return;
        range_drop(&range, ms);
        printf("FACT %zu MiB of %zu MiB handles: create %.3f, map %.3f, access %.3f, unmap %.3f, "
               "release %.3f\n",
               range.size / MIB, part / MIB, ms[CREATE], ms[MAP], ms[ACCESS], ms[UNMAP],
               ms[RELEASE]);
    }
    fflush(stdout);
}

/* How long one's own allocation takes at some time after the other process freed as much. */
static void after_free(int socket, size_t size, size_t part, char how)
{
    static const unsigned pauses[] = {0, 50, 200, 500, 1000};
    static struct range range;
    double ms[STEPS], began;

    for (unsigned i = 0; i < sizeof pauses / sizeof *pauses; i++) {
        tell(socket, how);
        tell(socket, 'f');
        usleep(pauses[i] * 1000);
        began = now();
        if (!range_make(&range, size, part, ms)) {
            printf("FACT no memory %u ms after\n", pauses[i]);
            continue;
        }
        printf("FACT %u ms after the other freed %s: %zu MiB in parts of %zu: %.2f (create %.2f, "
               "map %.2f, access %.2f)\n",
               pauses[i], how == 'a' ? "one handle" : "parts", size / MIB, part / MIB,
               now() - began, ms[CREATE], ms[MAP], ms[ACCESS]);
        range_drop(&range, ms);
        usleep(600000);
    }
    fflush(stdout);
}

/* Making room for one size by giving up another, as a pool does. */
static void swap(size_t first, size_t second)
{
    static struct range range;
    double ms[STEPS], sum[STEPS] = {0};
    enum { TIMES = 20 };

    for (int i = 0; i < TIMES; i++) {
        if (!range_make(&range, i % 2 ? first : second, i % 2 ? first : second, ms))
            return;
        wipe(range.at, range.size);
        range_drop(&range, ms);
        for (int step = 0; step < STEPS; step++)
            sum[step] += ms[step] / TIMES;
    }
    printf("FACT turns of %zu and %zu MiB: create %.3f, map %.3f, access %.3f, unmap %.3f, release "
           "%.3f\n",
           first / MIB, second / MIB, sum[CREATE], sum[MAP], sum[ACCESS], sum[UNMAP],
           sum[RELEASE]);
    fflush(stdout);
}

int main(void)
{
    size_t left, total, size, part = GIB;
    int pair[2], ready[2];

    libcuda = dlopen("libcuda.so.1", RTLD_NOW);
    if (!libcuda || socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0 || pipe(ready) != 0) {
        printf("FACT stopped = %s\n", dlerror());
        return 1;
    }
    fflush(stdout);
    if (fork() == 0) { /* before any CUDA call here */
        close(pair[0]);
        if (read(ready[0], &size, sizeof size) == sizeof size)
            serve(pair[1], size, part);
        _exit(1);
    }
    close(pair[1]);
    start();
    MUST(D(cuMemGetInfo_v2)(&left, &total));
    size = total / 100 * 60 / part * part;
    printf("FACT memory = %zu MiB, of which 60 %% are %zu\n", total / MIB, size / MIB);
    if (write(ready[1], &size, sizeof size) != sizeof size)
        return 1;
    by_size(size);
    swap(256 * MIB, 192 * MIB);
    swap(64 * MIB, 48 * MIB);
    after_free(pair[0], size, size, 'a');
    after_free(pair[0], size, part, 'A');
    tell(pair[0], 'a');
    tell(pair[0], 'w');
    swap(256 * MIB, 192 * MIB);
    tell(pair[0], 'f');
    tell(pair[0], 'q');
    wait(NULL);
    return 0;
}
