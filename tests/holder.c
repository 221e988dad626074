/*
 * A CUDA program that allocates, shares and frees what its standard input says, line by line, where
 * there is no Python to be that (tests/command/holder.py): in a container, in a fresh system. It
 * knows nothing of the library, and says a line for each that it was given: "done", the handle, or
 * what the driver answered.
 *
 *   alloc BYTES     allocates one more block
 *   free INDEX      frees one, counted from 0 in the order in which they were allocated
 *   share INDEX     says that block's IPC handle, in hexadecimal digits
 *   open HANDLE     opens another process's block
 *   close INDEX     closes one, counted likewise
 *   publish NAME    the first block, under a name; lookup NAME says its handle; unpublish NAME
 *   churn COUNT     allocates and frees that many blocks, of 1 KiB to 1 MiB
 */
#include <cuda.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shim/gpushim.h"

#define BLOCKS 64

struct blocks {
    CUdeviceptr of[BLOCKS];
    unsigned long count;
};

static struct blocks allocated, opened;

static CUresult keep(struct blocks *blocks, CUresult result, const CUdeviceptr *ptr)
{
    if (result == CUDA_SUCCESS)
        blocks->of[blocks->count++] = *ptr;
    return result;
}

static CUresult open_handle(const char *digits)
{
    CUipcMemHandle handle;
    CUdeviceptr ptr = 0;

    for (size_t i = 0; i < sizeof handle; i++) {
        unsigned byte;

        if (sscanf(digits + 2 * i, "%2x", &byte) != 1)
            return CUDA_ERROR_INVALID_VALUE;
        handle.reserved[i] = (char)byte;
    }
    if (opened.count == BLOCKS)
        return CUDA_ERROR_OUT_OF_MEMORY;
    return keep(&opened, cuIpcOpenMemHandle(&ptr, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
                &ptr);
}

static void print_handle(const void *handle)
{
    for (size_t i = 0; i < sizeof(CUipcMemHandle); i++)
        printf("%02x", ((const unsigned char *)handle)[i]);
    printf("\n");
}

static CUresult share(CUdeviceptr ptr)
{
    CUipcMemHandle handle;
    CUresult result = cuIpcGetMemHandle(&handle, ptr);

    if (result == CUDA_SUCCESS)
        print_handle(&handle);
    return result;
}

/* By the library's calls, where it is in the process. */
static CUresult name_it(const char *word, const char *name)
{
    struct gpushim_publication publication = {.size = sizeof publication,
                                              .address = allocated.of[0]};
    struct gpushim_named named = {.size = sizeof named};
    int error = word[0] == 'p'   ? gpushim_publish(name, &publication)
                : word[0] == 'u' ? gpushim_unpublish(name)
                                 : gpushim_lookup(name, &named);

    if (!error && word[0] == 'l')
        print_handle(named.handle);
    return error ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}

static CUresult churn(unsigned long count)
{
    CUresult result = CUDA_SUCCESS;

    for (unsigned long i = 0; i < count && result == CUDA_SUCCESS; i++) {
        CUdeviceptr ptr = 0;

        result = cuMemAlloc(&ptr, (size_t)1024 << i % 11);
        if (result == CUDA_SUCCESS)
            result = cuMemFree(ptr);
    }
    return result;
}

/* Which of the blocks a number is; NULL: none. */
static CUdeviceptr *one_of(struct blocks *blocks, unsigned long index)
{
    return index < blocks->count ? &blocks->of[index] : NULL;
}

static CUresult carry_out(const char *word, const char *value)
{
    const unsigned long number = strtoul(value, NULL, 10);
    CUdeviceptr ptr = 0, *found;

    if (strcmp(word, "alloc") == 0)
        return allocated.count == BLOCKS ? CUDA_ERROR_OUT_OF_MEMORY
                                         : keep(&allocated, cuMemAlloc(&ptr, number), &ptr);
    if (strcmp(word, "open") == 0)
        return open_handle(value);
    if (strcmp(word, "churn") == 0)
        return churn(number);
    if (strcmp(word, "publish") == 0 || strcmp(word, "lookup") == 0 ||
        strcmp(word, "unpublish") == 0)
        return name_it(word, value);
    found = one_of(strcmp(word, "close") == 0 ? &opened : &allocated, number);
    if (found && strcmp(word, "free") == 0)
        return cuMemFree(*found);
    if (found && strcmp(word, "share") == 0)
        return share(*found);
    if (found && strcmp(word, "close") == 0)
        return cuIpcCloseMemHandle(*found);
    return CUDA_ERROR_INVALID_VALUE;
}

static void say(const char *word, CUresult result)
{
    const char *name = "an unknown error";

    if (result != CUDA_SUCCESS)
        cuGetErrorName(result, &name);
    if (result != CUDA_SUCCESS || (strcmp(word, "share") != 0 && strcmp(word, "lookup") != 0))
        printf("%s\n", result == CUDA_SUCCESS ? "done" : name);
    fflush(stdout);
}

int main(void)
{
    char line[256], word[16], value[160];
    CUcontext context;

    if (cuInit(0) != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS ||
        cuCtxSetCurrent(context) != CUDA_SUCCESS) {
        fprintf(stderr, "holder: the driver does not start\n");
        return 1;
    }
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "%15s %159s", word, value) != 2)
            say("", CUDA_ERROR_INVALID_VALUE);
        else
            say(word, carry_out(word, value));
    }
    return 0;
}
