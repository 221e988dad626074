/*
 * Where a stream's capture into a graph begins and ends. While any is open no event may be
 * recorded, so core counts them: from before the driver begins one until it is seen to be over.
 */
#include "capture.h"
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

/* A refusal may leave it open (a stream that it did not begin on) or may have ended it (one that was
 * invalidated, one of another thread), so the stream is asked. */
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

GS_HOOK CUresult CUDAAPI cuStreamBeginCapture(CUstream hStream)
{
    CUstream stream = hStream;
    bool noted;

    if (!gs_capture_may_begin(stream, &noted))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return gs_capture_begun(stream, noted, gs_real.cuStreamBeginCapture(hStream));
}

GS_HOOK CUresult CUDAAPI cuStreamBeginCapture_ptsz(CUstream hStream)
{
    CUstream stream = gs_per_thread(hStream);
    bool noted;

    if (!gs_capture_may_begin(stream, &noted))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return gs_capture_begun(stream, noted, gs_real.cuStreamBeginCapture_ptsz(hStream));
}

GS_HOOK CUresult CUDAAPI cuStreamBeginCapture_v2(CUstream hStream, CUstreamCaptureMode mode)
{
    CUstream stream = hStream;
    bool noted;

    if (!gs_capture_may_begin(stream, &noted))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return gs_capture_begun(stream, noted, gs_real.cuStreamBeginCapture_v2(hStream, mode));
}

GS_HOOK CUresult CUDAAPI cuStreamBeginCapture_v2_ptsz(CUstream hStream, CUstreamCaptureMode mode)
{
    CUstream stream = gs_per_thread(hStream);
    bool noted;

    if (!gs_capture_may_begin(stream, &noted))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return gs_capture_begun(stream, noted, gs_real.cuStreamBeginCapture_v2_ptsz(hStream, mode));
}

GS_HOOK CUresult CUDAAPI cuStreamBeginCaptureToGraph(CUstream hStream, CUgraph hGraph,
                                                     const CUgraphNode *dependencies,
                                                     const CUgraphEdgeData *dependencyData,
                                                     size_t numDependencies,
                                                     CUstreamCaptureMode mode)
{
    CUstream stream = hStream;
    bool noted;

    if (!gs_capture_may_begin(stream, &noted))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return gs_capture_begun(stream, noted,
                 gs_real.cuStreamBeginCaptureToGraph(hStream, hGraph, dependencies, dependencyData,
                                                     numDependencies, mode));
}

GS_HOOK CUresult CUDAAPI cuStreamBeginCaptureToGraph_ptsz(CUstream hStream, CUgraph hGraph,
                                                          const CUgraphNode *dependencies,
                                                          const CUgraphEdgeData *dependencyData,
                                                          size_t numDependencies,
                                                          CUstreamCaptureMode mode)
{
    CUstream stream = gs_per_thread(hStream);
    bool noted;

    if (!gs_capture_may_begin(stream, &noted))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return gs_capture_begun(stream, noted,
                 gs_real.cuStreamBeginCaptureToGraph_ptsz(hStream, hGraph, dependencies,
                                                          dependencyData, numDependencies, mode));
}

GS_HOOK CUresult CUDAAPI cuStreamBeginCaptureToCig(CUstream hStream,
                                                   CUstreamCigCaptureParams *params)
{
    CUstream stream = hStream;
    bool noted;

    if (!gs_capture_may_begin(stream, &noted))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return gs_capture_begun(stream, noted, gs_real.cuStreamBeginCaptureToCig(hStream, params));
}

GS_HOOK CUresult CUDAAPI cuStreamBeginCaptureToCig_ptsz(CUstream hStream,
                                                        CUstreamCigCaptureParams *params)
{
    CUstream stream = gs_per_thread(hStream);
    bool noted;

    if (!gs_capture_may_begin(stream, &noted))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return gs_capture_begun(stream, noted, gs_real.cuStreamBeginCaptureToCig_ptsz(hStream, params));
}

GS_HOOK CUresult CUDAAPI cuStreamBeginRecaptureToGraph(CUstream hStream, CUstreamCaptureMode mode,
                                                       CUgraph hGraph,
                                                       CUgraphRecaptureCallback callbackFunc,
                                                       void *userData)
{
    CUstream stream = hStream;
    bool noted;

    if (!gs_capture_may_begin(stream, &noted))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return gs_capture_begun(
        stream, noted,
        gs_real.cuStreamBeginRecaptureToGraph(hStream, mode, hGraph, callbackFunc, userData));
}

GS_HOOK CUresult CUDAAPI cuStreamBeginRecaptureToGraph_ptsz(CUstream hStream,
                                                            CUstreamCaptureMode mode,
                                                            CUgraph hGraph,
                                                            CUgraphRecaptureCallback callbackFunc,
                                                            void *userData)
{
    CUstream stream = gs_per_thread(hStream);
    bool noted;

    if (!gs_capture_may_begin(stream, &noted))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return gs_capture_begun(
        stream, noted,
        gs_real.cuStreamBeginRecaptureToGraph_ptsz(hStream, mode, hGraph, callbackFunc, userData));
}

GS_HOOK CUresult CUDAAPI cuStreamEndCapture(CUstream hStream, CUgraph *phGraph)
{
    gs_state_enter();
    return gs_capture_ended(hStream, gs_real.cuStreamEndCapture(hStream, phGraph));
}

GS_HOOK CUresult CUDAAPI cuStreamEndCapture_ptsz(CUstream hStream, CUgraph *phGraph)
{
    gs_state_enter();
    return gs_capture_ended(gs_per_thread(hStream), gs_real.cuStreamEndCapture_ptsz(hStream, phGraph));
}

GS_HOOK CUresult CUDAAPI cuStreamEndCaptureToCig(CUstream hStream)
{
    gs_state_enter();
    return gs_capture_ended(hStream, gs_real.cuStreamEndCaptureToCig(hStream));
}

GS_HOOK CUresult CUDAAPI cuStreamEndCaptureToCig_ptsz(CUstream hStream)
{
    gs_state_enter();
    return gs_capture_ended(gs_per_thread(hStream), gs_real.cuStreamEndCaptureToCig_ptsz(hStream));
}
