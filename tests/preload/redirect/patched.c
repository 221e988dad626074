/*
 * A program in whose process a library redirects the driver's allocation calls, as UCX and
 * libfabric do for their caches: by a jump over the first bytes of each, whose instructions it runs
 * elsewhere. It sees what it would see natively, once each, however the program found them, and the
 * calls do what they did. (A jump that is taken away for each call is in tests/rdma/own_cache.c.)
 *
 * usage: patched near|far; the shortest such jump, or the longest
 */
#include "../../../shim/cuda_exact.h"
#include "../check.h"
#include "tests/system.h"

#define JUMP_MAX 13
#define THREADS  4
#define ROUNDS   300
#define OK(call) CHECK((call) == CUDA_SUCCESS, "failed")

enum { ALLOC, FREE, ALLOC_ASYNC, FREE_ASYNC, TARGETS };
static const char *const names[TARGETS] = {"cuMemAlloc_v2", "cuMemFree_v2", "cuMemAllocAsync",
                                           "cuMemFreeAsync"};
static void *originals[TARGETS];
static unsigned seen[TARGETS]; /* atomic */
static CUdeviceptr freed;      /* what the driver said of the last one, before it went */
static size_t freed_size;

/* ---- The library that redirects -------------------------------------------------------------- */

static void *note(int which)
{
    __atomic_fetch_add(&seen[which], 1, __ATOMIC_SEQ_CST);
    return originals[which];
}

/* A cache that is told of a free asks how far the block goes. */
static void look(CUdeviceptr dptr)
{
    CUdeviceptr base = 0;
    size_t size = 0;

    cuMemGetAddressRange_v2(&base, &size, dptr);
    __atomic_store_n(&freed, base, __ATOMIC_SEQ_CST);
    __atomic_store_n(&freed_size, size, __ATOMIC_SEQ_CST);
}

static CUresult on_alloc(CUdeviceptr *dptr, size_t bytesize)
{
    return ((__typeof__(&cuMemAlloc_v2))note(ALLOC))(dptr, bytesize);
}

static CUresult on_free(CUdeviceptr dptr)
{
    look(dptr);
    return ((__typeof__(&cuMemFree_v2))note(FREE))(dptr);
}

static CUresult on_alloc_async(CUdeviceptr *dptr, size_t bytesize, CUstream hStream)
{
    return ((__typeof__(&cuMemAllocAsync))note(ALLOC_ASYNC))(dptr, bytesize, hStream);
}

static CUresult on_free_async(CUdeviceptr dptr, CUstream hStream)
{
    look(dptr);
    return ((__typeof__(&cuMemFreeAsync))note(FREE_ASYNC))(dptr, hStream);
}

/* The length of an instruction that may be run elsewhere, as far as such libraries know one; 0 for
 * all others. */
static size_t movable(const unsigned char *at)
{
    size_t rex = at[0] >= 0x40 && at[0] <= 0x4f ? 1 : 0;
    unsigned char opcode = at[rex];

    if (opcode >= 0x50 && opcode <= 0x57 && (!rex || at[0] == 0x41)) /* push */
        return rex + 1;
    if (!rex && opcode >= 0xb8 && opcode <= 0xbf) /* mov $imm32, %reg */
        return 5;
    if (at[0] == 0x48 && at[1] == 0x81 && at[2] == 0xec) /* sub $imm32, %rsp */
        return 7;
    if (at[0] == 0x48 && at[1] == 0x89 && at[2] == 0xe5) /* mov %rsp, %rbp */
        return 3;
    return 0;
}

/* The instructions that a jump of `length` covers, and a jump to what follows them. */
static void *move_start(const unsigned char *at, size_t length)
{
    static const unsigned char jump[] = {0xff, 0x25, 0, 0, 0, 0}; /* to the address after it */
    unsigned char *code =
        mmap(NULL, 64, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const unsigned char *next = at;

    while (next < at + length) {
        size_t one = movable(next);

        CHECK(one > 0, "its first instructions cannot be moved");
        next += one;
    }
    memcpy(code, at, (size_t)(next - at));
    memcpy(code + (next - at), jump, sizeof jump);
    memcpy(code + (next - at) + sizeof jump, &next, sizeof next);
    CHECK(mprotect(code, 64, PROT_READ | PROT_EXEC) == 0, "mprotect");
    return code;
}

static void redirect(int which, void *hook, bool is_near)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char near[5] = {0xe9}, far[JUMP_MAX] = {0x49, 0xbb, [10] = 0x41, 0xff, 0xe3};
    const size_t length = is_near ? sizeof near : sizeof far;
    unsigned char *at = dlsym(RTLD_DEFAULT, names[which]);
    ptrdiff_t distance = (unsigned char *)hook - (at + sizeof near);
    int32_t short_distance = (int32_t)distance;
    void *from = (void *)((uintptr_t)at & ~(page - 1));

    CHECK(!is_near || distance == short_distance, "the function is too far away");
    originals[which] = move_start(at, length);
    memcpy(near + 1, &short_distance, sizeof short_distance);
    memcpy(far + 2, &hook, sizeof hook);
    CHECK(mprotect(from, 2 * page, PROT_READ | PROT_WRITE | PROT_EXEC) == 0, "mprotect");
    memcpy(at, is_near ? near : far, length);
    CHECK(mprotect(from, 2 * page, PROT_READ | PROT_EXEC) == 0, "mprotect");
}

/* ---- The program ----------------------------------------------------------------------------- */

struct way {
    const char *name;
    __typeof__(&cuMemAlloc_v2) alloc;
    __typeof__(&cuMemFree_v2) free;
    __typeof__(&cuMemAllocAsync) alloc_async;
    __typeof__(&cuMemFreeAsync) free_async;
};

static CUcontext context;

static void *ask(const char *name)
{
    void *function = NULL;

    CHECK(cuGetProcAddress_v2(name, &function, 12000, 0, NULL) == CUDA_SUCCESS && function, "%s",
          name);
    return function;
}

static void was_seen(const struct way *way, int alloc, unsigned times, CUdeviceptr ptr, size_t size)
{
    CHECK(seen[alloc] == times && seen[alloc + 1] == times, "%s: %u allocations and %u frees seen",
          way->name, seen[alloc], seen[alloc + 1]);
    CHECK(freed == ptr && freed_size == size, "%s: seen 0x%llx, %zu bytes", way->name, freed,
          freed_size);
}

static void one_round(const struct way *way, size_t size)
{
    static unsigned round;
    CUdeviceptr ptr = 0;

    round++;
    OK(way->alloc(&ptr, size));
    OK(cuMemsetD8_v2(ptr, 7, size));
    OK(way->free(ptr));
    was_seen(way, ALLOC, round, ptr, size);
    OK(way->alloc_async(&ptr, size, NULL));
    OK(way->free_async(ptr, NULL));
    was_seen(way, ALLOC_ASYNC, round, ptr, size);
    OK(cuStreamSynchronize(NULL));
}

static void *rounds(void *arg)
{
    OK(cuCtxSetCurrent(context));
    for (int i = 0; i < ROUNDS; i++) {
        CUdeviceptr ptr = 0;

        OK(cuMemAlloc_v2(&ptr, 512 << i % 8));
        OK(cuMemFree_v2(ptr));
    }
    return arg;
}

__attribute__((visibility("default"))) int patched(int argc, char **argv);
int patched(int argc, char **argv)
{
    static const size_t sizes[] = {1000, 3 << 20};
    struct way ways[3];
    pthread_t thread[THREADS];
    const bool is_near = argc == 2 && strcmp(argv[1], "near") == 0;
    unsigned before;

    CHECK(argc == 2, "usage: patched near|far");
    CHECK(cuInit(0) == CUDA_SUCCESS && cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS &&
              cuCtxSetCurrent(context) == CUDA_SUCCESS,
          "no context");
    /* Found before the functions are redirected. */
    ways[0] = (struct way){"linked", cuMemAlloc_v2, cuMemFree_v2, cuMemAllocAsync, cuMemFreeAsync};
    ways[1] =
        (struct way){"dlsym", dlsym(RTLD_DEFAULT, names[ALLOC]), dlsym(RTLD_DEFAULT, names[FREE]),
                     dlsym(RTLD_DEFAULT, names[ALLOC_ASYNC]),
                     dlsym(RTLD_DEFAULT, names[FREE_ASYNC])};
    ways[2] = (struct way){"cuGetProcAddress", ask("cuMemAlloc"), ask("cuMemFree"),
                           ask("cuMemAllocAsync"), ask("cuMemFreeAsync")};
    for (int w = 0; w < 3; w++)
        CHECK(is_hook((void *)ways[w].free), "%s: the one in %s", ways[w].name,
              object_of((void *)ways[w].free));
    redirect(ALLOC, (void *)on_alloc, is_near);
    redirect(FREE, (void *)on_free, is_near);
    redirect(ALLOC_ASYNC, (void *)on_alloc_async, is_near);
    redirect(FREE_ASYNC, (void *)on_free_async, is_near);
    for (int w = 0; w < 3; w++)
        for (int i = 0; i < 2; i++)
            one_round(&ways[w], sizes[i]);
    before = seen[FREE];
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&thread[i], NULL, rounds, NULL) == 0, "no thread");
    for (int i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
    CHECK(seen[FREE] - before == THREADS * ROUNDS, "%u frees", seen[FREE] - before);
    return 0;
}
