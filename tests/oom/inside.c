/* What tests of refused allocations have a puppet call (tests/puppet.c). */
#include <cuda.h>

#include "tests/system.h"

#define SMALL_THREAD  16384
#define SMALL_HANDLER 8192

static size_t bytes;
static CUdeviceptr block;
static CUresult result;
static CUcontext context;

static void *take_in_thread(void *unused)
{
    result = cuCtxSetCurrent(context);
    if (!result)
        result = cuMemAlloc(&block, bytes);
    return NULL;
}

static void handle(int unused)
{
    result = cuMemAlloc(&block, bytes);
}

int nvmlDeviceGetMemoryInfo(void *device, void *memory);

#pragma GCC visibility push(default)

/* As a program does that is linked with it. */
int nvml_direct(void *device, void *memory);
int nvml_direct(void *device, void *memory)
{
    return nvmlDeviceGetMemoryInfo(device, memory);
}

/* Of a thread, or of a signal's handler. */
CUresult alloc_on_small_stack(CUdeviceptr *ret_block, size_t size, bool in_thread);
CUresult alloc_on_small_stack(CUdeviceptr *ret_block, size_t size, bool in_thread)
{
    char *guarded = mmap(NULL, 2 * SMALL_HANDLER, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const stack_t alternate = {.ss_sp = guarded + SMALL_HANDLER, .ss_size = SMALL_HANDLER};
    const struct sigaction action = {.sa_handler = handle, .sa_flags = SA_ONSTACK};
    pthread_attr_t attributes;
    pthread_t thread;

    bytes = size;
    cuCtxGetCurrent(&context);
    if (in_thread) {
        pthread_attr_init(&attributes);
        if (pthread_attr_setstacksize(&attributes, SMALL_THREAD) ||
            pthread_create(&thread, &attributes, take_in_thread, NULL))
            return CUDA_ERROR_UNKNOWN;
        pthread_join(thread, NULL);
        pthread_attr_destroy(&attributes);
    } else if (guarded == MAP_FAILED ||
               mprotect(alternate.ss_sp, SMALL_HANDLER, PROT_READ | PROT_WRITE) ||
               sigaltstack(&alternate, NULL) || sigaction(SIGUSR1, &action, NULL) ||
               raise(SIGUSR1)) {
        return CUDA_ERROR_UNKNOWN;
    }
    *ret_block = block;
    return result;
}

#pragma GCC visibility pop
