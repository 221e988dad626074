/*
 * A capture that the library cannot note, as the host has no memory for that, does not begin: it
 * would be broken by what the library does meanwhile. errno stays, and the next one begins.
 */
#include "../../shim/cuda_exact.h"
#include "plain.h"
#include "tests/system.h"

extern void *__libc_realloc(void *memory, size_t size);
static bool starved;

/* The library's too. */
__attribute__((visibility("default"))) void *realloc(void *memory, size_t size)
{
    if (!starved)
        return __libc_realloc(memory, size);
    errno = ENOMEM;
    return NULL;
}

int main(void)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    CUcontext context;
    CUstream stream;
    CUgraph graph;

    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    starved = true;
    errno = EXDEV;
    if (cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) != CUDA_ERROR_OUT_OF_MEMORY)
        FAIL("it was to be refused");
    if (errno != EXDEV)
        FAIL("errno is %d", errno);
    starved = false;
    OK(cuStreamIsCapturing(stream, &status));
    if (status != CU_STREAM_CAPTURE_STATUS_NONE)
        FAIL("it has begun all the same");
    OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphDestroy(graph));
    return 0;
}
