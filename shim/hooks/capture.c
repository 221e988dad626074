/*
 * Where a stream's capture into a graph begins and ends. While any is open no event may be
 * recorded, so core counts them: from before the driver begins one until it is seen to be over.
 */
#include "shim/start.h"
#include "submit.h"

bool gs_capture_may_begin(CUstream stream, bool *ret_noted)
{
    *ret_noted = gs_state_enter();
    if (!*ret_noted)
        return true;
    GS_KEEP_CALLER;
    *ret_noted = gs_core_capture_begin(gs_core, stream) == GS_OK;
    return *ret_noted;
}

CUresult gs_capture_begun(CUstream stream, bool noted, CUresult result)
{
    if (noted && result != CUDA_SUCCESS)
        gs_core_capture_end(gs_core, stream);
    return result;
}

/* A refusal may leave it open (a stream that it did not begin on) or may have ended it (one that
 * was invalidated, one of another thread), so the stream is asked. */
CUresult gs_capture_ended(CUstream stream, CUresult result)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;

    if (!gs_state_enter())
        return result;
    GS_KEEP_CALLER;
    if (result == CUDA_SUCCESS ||
        (gs_core_stream_status(gs_core, stream, &status) == CUDA_SUCCESS &&
         status == CU_STREAM_CAPTURE_STATUS_NONE))
        gs_core_capture_end(gs_core, stream);
    return result;
}

#define GS_MAKES_CAPTURES GS_ALWAYS
#define GS_MAKE_CAPTURES(symbol, order, async, real) \
    const CUstream in = order;                       \
    bool noted;                                      \
                                                     \
    if (!gs_capture_may_begin(in, &noted))           \
        return CUDA_ERROR_OUT_OF_MEMORY;             \
    return gs_capture_begun(in, noted, real);

#define GS_MAKES_CAPTURED GS_ALWAYS
#define GS_MAKE_CAPTURED(symbol, order, async, real) \
    gs_state_enter();                                \
    return gs_capture_ended(order, real);

#include "made.h"
