/*
 * Several threads use the software driver at once; a plain program, so that thread sanitizers can
 * watch. Each thread checks its own results; exits 0 when all were right and nothing is left.
 */
#include <cuda.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "softcuda.h"

#define THREADS 4
#define ROUNDS  60
#define WORDS   2048

#define MUST(call)                                                                                 \
    do {                                                                                           \
        int must_result = (int)(call);                                                             \
        if (must_result) {                                                                         \
            fprintf(stderr, "softdriver_threads: %s: %d\n", #call, must_result);                   \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static CUcontext context;
static CUfunction fill;

static void round_of(CUstream stream, CUevent event, uint32_t value)
{
    uint64_t count = WORDS;
    uint32_t out[WORDS];
    CUdeviceptr plain, async;

    MUST(cuMemAlloc(&plain, sizeof out));
    MUST(cuMemAllocAsync(&async, sizeof out, stream));
    MUST(cuLaunchKernel(fill, 1, 1, 1, 1, 1, 1, 0, stream, (void *[]){&async, &value, &count},
                        NULL));
    MUST(cuMemcpyDtoDAsync(plain, async, sizeof out, stream));
    MUST(cuMemFreeAsync(async, stream));
    MUST(cuCtxRecordEvent(context, event));
    MUST(cuStreamWaitEvent(CU_STREAM_PER_THREAD, event, 0));
    MUST(cuMemcpyDtoHAsync(out, plain, sizeof out, CU_STREAM_PER_THREAD));
    MUST(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    for (int i = 0; i < WORDS; i++)
        if (out[i] != value)
            MUST(-1);
    MUST(cuMemFree(plain));
}

static void *thread_main(void *number)
{
    uint32_t first = (uint32_t)(uintptr_t)number * 1000;
    CUstream stream;
    CUevent event;

    MUST(cuCtxSetCurrent(context));
    MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    for (uint32_t i = 0; i < ROUNDS; i++) {
        MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        round_of(stream, event, first + i);
        MUST(cuStreamDestroy(stream));
    }
    MUST(cuEventDestroy(event));
    return NULL;
}

int main(void)
{
    static const char ptx[] = ".version 8.0 .target sm_90 .visible .entry fill() {}";
    struct softcuda_census census;
    pthread_t threads[THREADS];
    CUmodule module;

    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
    MUST(cuModuleLoadData(&module, ptx));
    MUST(cuModuleGetFunction(&fill, module, "fill"));
    for (uintptr_t i = 0; i < THREADS; i++)
        MUST(pthread_create(&threads[i], NULL, thread_main, (void *)i));
    for (int i = 0; i < THREADS; i++)
        MUST(pthread_join(threads[i], NULL));
    MUST(cuCtxSynchronize());
    softcuda_census(&census);
    MUST(census.blocks || census.streams || census.events || census.device_bytes);
    MUST(cuDevicePrimaryCtxReset(0));
    return 0;
}
