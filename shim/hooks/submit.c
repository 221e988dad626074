/*
 * Work that needs nothing of the hooks but to be told of: the forms of a launch that CUDA 4 and 9
 * left behind, values written and waited for in a stream, decompression; and
 * what touches no memory, but may stop a stream.
 */
#include "hook.h"
#include "shim/start.h"
#include "submit.h"

#define GS_MAKES_SUBMITS GS_HERE
#define GS_MAKE_SUBMITS(symbol, order, async, ...)                                                 \
    GS_MADE(symbol, __VA_ARGS__)                                                                   \
    {                                                                                              \
        gs_submits(order);                                                                         \
        return GS_REAL(symbol, __VA_ARGS__);                                                       \
    }

#define GS_MAKES_STALLS GS_HERE
#define GS_MAKE_STALLS(symbol, order, async, ...)                                                  \
    GS_MADE(symbol, __VA_ARGS__)                                                                   \
    {                                                                                              \
        gs_stalls(order);                                                                          \
        return GS_REAL(symbol, __VA_ARGS__);                                                       \
    }

#include "made.h"

GS_HOOK CUresult CUDAAPI cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *launchParamsList,
                                                              unsigned int numDevices,
                                                              unsigned int flags)
{
    gs_state_enter();
    for (unsigned int i = 0; launchParamsList && i < numDevices; i++)
        gs_submits(launchParamsList[i].hStream);
    return gs_real.cuLaunchCooperativeKernelMultiDevice(launchParamsList, numDevices, flags);
}
