/*
 * Where a stream's capture into a graph begins and ends.
 */
#include "hook.h"

GS_HOOK CUresult CUDAAPI cuStreamBeginCapture(CUstream hStream)
{
    gs_state_enter();
    return gs_real.cuStreamBeginCapture(hStream);
}

GS_HOOK CUresult CUDAAPI cuStreamBeginCapture_ptsz(CUstream hStream)
{
    gs_state_enter();
    return gs_real.cuStreamBeginCapture_ptsz(hStream);
}

GS_HOOK CUresult CUDAAPI cuStreamBeginCapture_v2(CUstream hStream, CUstreamCaptureMode mode)
{
    gs_state_enter();
    return gs_real.cuStreamBeginCapture_v2(hStream, mode);
}

GS_HOOK CUresult CUDAAPI cuStreamBeginCapture_v2_ptsz(CUstream hStream, CUstreamCaptureMode mode)
{
    gs_state_enter();
    return gs_real.cuStreamBeginCapture_v2_ptsz(hStream, mode);
}

GS_HOOK CUresult CUDAAPI cuStreamBeginCaptureToGraph(CUstream hStream, CUgraph hGraph,
                                                     const CUgraphNode *dependencies,
                                                     const GS_GRAPH_EDGE_DATA *dependencyData,
                                                     size_t numDependencies,
                                                     CUstreamCaptureMode mode)
{
    gs_state_enter();
    return gs_real.cuStreamBeginCaptureToGraph(hStream, hGraph, dependencies, dependencyData,
                                               numDependencies, mode);
}

GS_HOOK CUresult CUDAAPI cuStreamBeginCaptureToGraph_ptsz(CUstream hStream, CUgraph hGraph,
                                                          const CUgraphNode *dependencies,
                                                          const GS_GRAPH_EDGE_DATA *dependencyData,
                                                          size_t numDependencies,
                                                          CUstreamCaptureMode mode)
{
    gs_state_enter();
    return gs_real.cuStreamBeginCaptureToGraph_ptsz(hStream, hGraph, dependencies, dependencyData,
                                                    numDependencies, mode);
}

GS_HOOK CUresult CUDAAPI cuStreamBeginCaptureToCig(CUstream hStream,
                                                   CUstreamCigCaptureParams *params)
{
    gs_state_enter();
    return gs_real.cuStreamBeginCaptureToCig(hStream, params);
}

GS_HOOK CUresult CUDAAPI cuStreamBeginCaptureToCig_ptsz(CUstream hStream,
                                                        CUstreamCigCaptureParams *params)
{
    gs_state_enter();
    return gs_real.cuStreamBeginCaptureToCig_ptsz(hStream, params);
}

GS_HOOK CUresult CUDAAPI cuStreamBeginRecaptureToGraph(CUstream hStream, CUstreamCaptureMode mode,
                                                       CUgraph hGraph,
                                                       CUgraphRecaptureCallback callbackFunc,
                                                       void *userData)
{
    gs_state_enter();
    return gs_real.cuStreamBeginRecaptureToGraph(hStream, mode, hGraph, callbackFunc, userData);
}

GS_HOOK CUresult CUDAAPI cuStreamBeginRecaptureToGraph_ptsz(CUstream hStream,
                                                            CUstreamCaptureMode mode,
                                                            CUgraph hGraph,
                                                            CUgraphRecaptureCallback callbackFunc,
                                                            void *userData)
{
    gs_state_enter();
    return gs_real.cuStreamBeginRecaptureToGraph_ptsz(hStream, mode, hGraph, callbackFunc,
                                                      userData);
}

GS_HOOK CUresult CUDAAPI cuStreamEndCapture(CUstream hStream, CUgraph *phGraph)
{
    gs_state_enter();
    return gs_real.cuStreamEndCapture(hStream, phGraph);
}

GS_HOOK CUresult CUDAAPI cuStreamEndCapture_ptsz(CUstream hStream, CUgraph *phGraph)
{
    gs_state_enter();
    return gs_real.cuStreamEndCapture_ptsz(hStream, phGraph);
}

GS_HOOK CUresult CUDAAPI cuStreamEndCaptureToCig(CUstream hStream)
{
    gs_state_enter();
    return gs_real.cuStreamEndCaptureToCig(hStream);
}

GS_HOOK CUresult CUDAAPI cuStreamEndCaptureToCig_ptsz(CUstream hStream)
{
    gs_state_enter();
    return gs_real.cuStreamEndCaptureToCig_ptsz(hStream);
}
