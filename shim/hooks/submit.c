/*
 * Work that needs nothing of the hooks but to be told of: the forms of a launch that CUDA 4 and 9
 * left behind, values written and waited for in a stream, decompression; and what touches no
 * memory, but may stop a stream.
 */
#include "submit.h"

#define GS_MAKES_SUBMITS GS_ALWAYS
#define GS_MAKE_SUBMITS(symbol, order, async, real) \
    gs_submits_if(gs_entered, order);               \
    return real;

#define GS_MAKES_STALLS GS_UNMARKED
#define GS_MAKE_STALLS(symbol, order, async, real) \
    if (gs_entered)                                \
        gs_stalls(async, order);                   \
    return real;

#include "made.h"

GS_HOOK CUresult CUDAAPI cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *launchParamsList,
                                                              unsigned int numDevices,
                                                              unsigned int flags)
{
    GS_AT_GATE(cuLaunchCooperativeKernelMultiDevice);
    gs_state_enter();
    for (unsigned int i = 0; launchParamsList && i < numDevices; i++)
        gs_submits(launchParamsList[i].hStream);
    return gs_real.cuLaunchCooperativeKernelMultiDevice(launchParamsList, numDevices, flags);
}
