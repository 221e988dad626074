/*
 * Libraries of the driver's own submit work that no hook sees: where one asks for the undocumented
 * tables, frees wait for the GPU. Any other library may ask.
 *
 * usage: insiders LIBRARY LOG yes|no: whether it is so then
 */
#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    int (*ask)(void);
    CUdeviceptr block;
    CUcontext context;
    char log[4096] = "";
    void *library;
    FILE *file;

    if (argc != 4)
        return 2;
    unlink(argv[2]);
    setenv("GPUSHIM_LOG", "info", 1);
    setenv("GPUSHIM_LOG_TARGET", argv[2], 1);
    library = dlopen(argv[1], RTLD_NOW);
    ask = library ? (int (*)(void))dlsym(library, "ask_for_table") : NULL;
    if (!ask || cuInit(0) != CUDA_SUCCESS ||
        cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS ||
        cuCtxSetCurrent(context) != CUDA_SUCCESS ||
        cuMemAlloc(&block, 4096) != CUDA_SUCCESS || cuMemFree(block) != CUDA_SUCCESS)
        return fprintf(stderr, "it does not start\n"), 1;
    ask();
    file = fopen(argv[2], "r");
    if (file && !fread(log, 1, sizeof log - 1, file))
        log[0] = '\0';
    if ((strstr(log, "frees wait for the GPU from now on") != NULL) != (argv[3][0] == 'y'))
        return fprintf(stderr, "it was to be %s:\n%s", argv[3], log), 1;
    return 0;
}
