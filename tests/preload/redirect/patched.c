/*
 * A program in whose process a library redirects the driver's allocation calls (patcher.c): that
 * library sees what it would see natively, once each, and the calls do what they did.
 *
 * usage: patched near|far|restore|reloc [led]; led: what it redirects are the library's hooks
 */
#include "../../../shim/cuda_exact.h"
#include "../check.h"
#include "patcher.h"

#include <pthread.h>
#include <stdlib.h>

#define THREADS 4
#define ROUNDS  300

struct way {
    const char *name;
    __typeof__(&cuMemAlloc_v2) alloc;
    __typeof__(&cuMemFree_v2) free;
    __typeof__(&cuMemAllocAsync) alloc_async;
    __typeof__(&cuMemFreeAsync) free_async;
};

static CUcontext context;

/* Each through its slot at every call. */
static CUresult linked_alloc(CUdeviceptr *dptr, size_t bytesize)
{
    return cuMemAlloc_v2(dptr, bytesize);
}

static CUresult linked_free(CUdeviceptr dptr)
{
    return cuMemFree_v2(dptr);
}

static CUresult linked_alloc_async(CUdeviceptr *dptr, size_t bytesize, CUstream hStream)
{
    return cuMemAllocAsync(dptr, bytesize, hStream);
}

static CUresult linked_free_async(CUdeviceptr dptr, CUstream hStream)
{
    return cuMemFreeAsync(dptr, hStream);
}

static void *ask(const char *name, int version)
{
    void *function = NULL;

    CHECK(cuGetProcAddress_v2(name, &function, version, 0, NULL) == CUDA_SUCCESS && function, "%s",
          name);
    return function;
}

static void one_round(const struct way *way, size_t size, bool counted)
{
    struct patcher_seen was = patcher_seen(), is;
    CUdeviceptr ptr = 0;

    CHECK(way->alloc(&ptr, size) == CUDA_SUCCESS, "%s", way->name);
    CHECK(cuMemsetD8_v2(ptr, 7, size) == CUDA_SUCCESS, "%s", way->name);
    CHECK(way->free(ptr) == CUDA_SUCCESS, "%s", way->name);
    is = patcher_seen();
    CHECK(is.allocs - was.allocs == counted && is.frees - was.frees == counted,
          "%s: %d allocations and %d frees seen", way->name, is.allocs - was.allocs,
          is.frees - was.frees);
    CHECK(!counted || (is.address == ptr && is.size == size), "%s: seen 0x%llx, %zu bytes",
          way->name, is.address, is.size);
    CHECK(way->free(ptr) == CUDA_ERROR_INVALID_VALUE, "%s: freed twice", way->name);
    was = patcher_seen();
    CHECK(way->alloc_async(&ptr, size, NULL) == CUDA_SUCCESS, "%s", way->name);
    CHECK(way->free_async(ptr, NULL) == CUDA_SUCCESS, "%s", way->name);
    is = patcher_seen();
    CHECK(is.async_allocs - was.async_allocs == counted &&
              is.async_frees - was.async_frees == counted,
          "%s: %d allocations and %d frees in stream order seen", way->name,
          is.async_allocs - was.async_allocs, is.async_frees - was.async_frees);
    CHECK(!counted || (is.address == ptr && is.size == size), "%s: seen 0x%llx, %zu bytes",
          way->name, is.address, is.size);
    CHECK(cuStreamSynchronize(NULL) == CUDA_SUCCESS, "%s", way->name);
}

static void *rounds(void *arg)
{
    CHECK(cuCtxSetCurrent(context) == CUDA_SUCCESS, "cuCtxSetCurrent");
    for (int i = 0; i < ROUNDS; i++) {
        CUdeviceptr ptr = 0;

        CHECK(cuMemAlloc_v2(&ptr, 512 << i % 8) == CUDA_SUCCESS, "cuMemAlloc");
        CHECK(cuMemFree_v2(ptr) == CUDA_SUCCESS, "cuMemFree");
    }
    return arg;
}

int main(int argc, char **argv)
{
    static const char *const words[] = {"near", "far", "restore", "reloc"};
    static const size_t sizes[] = {1000, 3 << 20};
    struct way ways[3] = {
        {"linked", linked_alloc, linked_free, linked_alloc_async, linked_free_async}};
    struct patcher_seen before;
    pthread_t thread[THREADS];
    int how = 0;
    const char *fault;

    while (argc > 1 && how < 4 && strcmp(argv[1], words[how]) != 0)
        how++;
    CHECK(argc > 1 && how < 4, "usage: patched near|far|restore|reloc [led]");
    CHECK(cuInit(0) == CUDA_SUCCESS && cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS &&
              cuCtxSetCurrent(context) == CUDA_SUCCESS,
          "no context");
    /* Found before the functions are redirected. */
    ways[1] =
        (struct way){"dlsym", dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"),
                     dlsym(RTLD_DEFAULT, "cuMemFree_v2"), dlsym(RTLD_DEFAULT, "cuMemAllocAsync"),
                     dlsym(RTLD_DEFAULT, "cuMemFreeAsync")};
    ways[2] = (struct way){"cuGetProcAddress", ask("cuMemAlloc", 12000), ask("cuMemFree", 12000),
                           ask("cuMemAllocAsync", 12000), ask("cuMemFreeAsync", 12000)};
    for (int w = 1; argc > 2 && w < 3; w++)
        CHECK(is_hook((void *)ways[w].free), "%s: the one in %s", ways[w].name,
              object_of((void *)ways[w].free));
    fault = patcher_install((enum patcher_way)how);
    CHECK(!fault, "%s", fault);
    for (int w = 0; w < 3; w++)
        for (int i = 0; i < 2; i++)
            /* What a program looked up goes past the slots. */
            one_round(&ways[w], sizes[i], how != PATCHER_RELOC || w == 0);
    if (how == PATCHER_RESTORE)
        return 0; /* no two threads in a function that changes */
    before = patcher_seen();
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&thread[i], NULL, rounds, NULL) == 0, "no thread");
    for (int i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
    CHECK(patcher_seen().frees - before.frees == THREADS * ROUNDS, "%d frees",
          patcher_seen().frees - before.frees);
    return 0;
}
