/*
 * What the driver answers beside a stream capture, in each of its modes (GLOBAL, THREAD_LOCAL,
 * RELAXED, as they are numbered), and what breaks it: the library rests on that.
 */
#include "conform.h"

#include <criterion/criterion.h>

TestSuite(asks, .init = conform_start, .timeout = 60);

static CUresult ask_flags(CUstream stream)
{
    unsigned flags;

    return cuStreamGetFlags(stream, &flags);
}

static CUresult ask_id(CUstream stream)
{
    unsigned long long id;

    return cuStreamGetId(stream, &id);
}

static CUresult ask_context(CUstream stream)
{
    CUcontext its;

    return cuStreamGetCtx(stream, &its);
}

static CUresult ask_contexts(CUstream stream)
{
    typedef CUresult get_contexts_fn(CUstream, CUcontext *, CUgreenCtx *);
    get_contexts_fn *get = (get_contexts_fn *)driver_lookup("cuStreamGetCtx", 12050, 0);
    CUgreenCtx green;
    CUcontext its;

    return get ? get(stream, &its, &green) : ask_context(stream);
}

/* What the library must not ask while others may capture (core/gpu/driver.h). */
Test(asks, questions_about_streams_beside_one)
{
    CUresult (*const asks[])(CUstream) = {ask_context, ask_contexts, ask_flags, ask_id};
    CUstream stream = blocking_stream(), beside = blocking_stream();
    const CUstream of[] = {beside, CU_STREAM_PER_THREAD, stream, CU_STREAM_LEGACY};

    for (int i = 0; i < 3 * 4 * 4; i++) {
        const int mode = i / 16, ask = i / 4 % 4, which = i % 4;
        const CUresult refused = which == 3              ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
                                 : which == 2 && ask > 1 ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
                                                         : CUDA_SUCCESS;

        OK(cuStreamBeginCapture(stream, (CUstreamCaptureMode)mode));
        cr_assert_eq(asks[ask](of[which]), refused, "question %d, stream %d, mode %d", ask, which,
                     mode);
        CHECK(refused ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS,
              capture_result(stream));
    }
}

static CUevent passed;
static CUstream other_stream;

static CUresult query_event(void)
{
    return cuEventQuery(passed);
}

static CUresult query_stream(void)
{
    return cuStreamQuery(other_stream);
}

static CUresult wait_for_event(void)
{
    return cuStreamWaitEvent(other_stream, passed, 0);
}

static CUresult ask_for_memory_left(void)
{
    return cuMemGetInfo(&(size_t){0}, &(size_t){0});
}

static char page[4096] __attribute__((aligned(4096)));
static CUdeviceptr block;

static CUresult register_host(void)
{
    CUresult r = cuMemHostRegister(page, sizeof page, 0);

    return r ? r : cuMemHostUnregister(page);
}

static void have_registered(void)
{
    OK(cuMemHostRegister(page, sizeof page, 0));
}

static CUresult unregister_host(void)
{
    return cuMemHostUnregister(page);
}

static void have_block(void)
{
    OK(cuMemAlloc(&block, MIB));
}

static CUresult free_in_order(void)
{
    return cuMemFreeAsync(block, other_stream);
}

struct asked {
    CUresult (*ask)(void);
    bool relaxed;
    CUresult result;
};

static void *ask_in_mode(void *arg)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    struct asked *asked = arg;

    cuCtxSetCurrent(context);
    if (asked->relaxed)
        cuThreadExchangeStreamCaptureMode(&mode);
    asked->result = asked->ask();
    if (asked->relaxed)
        cuThreadExchangeStreamCaptureMode(&mode);
    return NULL;
}

/* A thread whose own mode is relaxed breaks no capture by asking; in any other mode these calls are
 * like an allocation, or always pass. */
Test(asks, what_may_be_asked_in_which_mode)
{
    const struct {
        CUresult (*ask)(void);
        bool always;
        void (*before)(void);
    } calls[] = {{query_event, false, NULL},
                 {query_stream, false, NULL},
                 {register_host, false, NULL},
                 {unregister_host, false, have_registered},
                 {free_in_order, under_shim(), have_block},
                 {wait_for_event, true, NULL},
                 {ask_for_memory_left, true, NULL}};
    CUstream stream = new_stream();
    pthread_t thread;

    other_stream = new_stream();
    OK(cuEventCreate(&passed, CU_EVENT_DISABLE_TIMING));
    OK(cuEventRecord(passed, other_stream));
    OK(cuCtxSynchronize());
    for (int i = 0; i < 7 * 3 * 4; i++) {
        const int call = i / 12, mode = i / 4 % 3;
        struct asked asked = {calls[call].ask, i & 1, CUDA_SUCCESS};
        const bool other = i & 2, passes = calls[call].always || asked.relaxed || mode == 2 ||
                                           (mode == 1 && other);

        if (calls[call].before)
            calls[call].before();
        OK(cuStreamBeginCapture(stream, (CUstreamCaptureMode)mode));
        if (other) {
            cr_assert_eq(pthread_create(&thread, NULL, ask_in_mode, &asked), 0);
            pthread_join(thread, NULL);
        } else {
            ask_in_mode(&asked);
        }
        cr_assert_eq(asked.result, passes ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                     "call %d, mode %d, other thread %d, relaxed %d: %s", call, mode, other,
                     asked.relaxed, result_name(asked.result));
        CHECK(passes ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
              capture_result(stream));
        if (!passes && calls[call].before)
            OK(calls[call].ask());
    }
}

/* Captures are looked at before the memory is. */
Test(asks, memory_freed_in_the_order_of_the_legacy_stream_beside_one)
{
    CUstream stream = blocking_stream();

    have_block();
    for (int i = 0; i < 3 * 2; i++) {
        OK(cuStreamBeginCapture(stream, (CUstreamCaptureMode)(i / 2)));
        CHECK(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cuMemFreeAsync(block + 512u * (i % 2), NULL));
        CHECK(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, capture_result(stream));
    }
    OK(cuMemFree(block));
}
