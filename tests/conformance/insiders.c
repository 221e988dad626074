/*
 * Who asks for the driver's undocumented tables may submit work that no hook sees, and frees wait
 * for the GPU from then on: not where it is a table that the runtime API asks for, or another one
 * that is known, unless a library of the driver's own asks, and not where NVML does.
 *
 * usage: insiders LIBRARY TABLE LOG yes|no: whether it is so then; TABLE is 32 digits
 */
#include <cuda.h>

#include "tests/system.h"

int main(int argc, char **argv)
{
    int (*ask)(const CUuuid *);
    CUdeviceptr block;
    CUcontext context;
    char log[4096] = "";
    unsigned int byte;
    CUuuid id;
    void *library;
    FILE *file;

    if (argc != 5 || strlen(argv[2]) != 32)
        return 2;
    for (int i = 0; i < 16; i++) {
        if (sscanf(argv[2] + 2 * i, "%2x", &byte) != 1)
            return 2;
        id.bytes[i] = (char)byte;
    }
    unlink(argv[3]);
    setenv("GPUSHIM_LOG", "info", 1);
    setenv("GPUSHIM_LOG_TARGET", argv[3], 1);
    library = dlopen(argv[1], RTLD_NOW);
    ask = library ? (int (*)(const CUuuid *))dlsym(library, "ask_for_table") : NULL;
    if (!ask || cuInit(0) != CUDA_SUCCESS ||
        cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS ||
        cuCtxSetCurrent(context) != CUDA_SUCCESS || cuMemAlloc(&block, 4096) != CUDA_SUCCESS ||
        cuMemFree(block) != CUDA_SUCCESS)
        return fprintf(stderr, "it does not start\n"), 1;
    ask(&id);
    file = fopen(argv[3], "r");
    if (file && !fread(log, 1, sizeof log - 1, file))
        log[0] = '\0';
    if ((strstr(log, "what is freed waits for the GPU from now on") != NULL) != (argv[4][0] == 'y'))
        return fprintf(stderr, "it was to be %s:\n%s", argv[3], log), 1;
    return 0;
}
