/*
 * Memory that a program makes by itself while host memory is out: what the library then cannot note
 * is as the program asked for it. The program's calloc is the library's, too, and each of the calls
 * that come from there fails once.
 */
#include <cuda.h>
#include <link.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../check.h"

#define MOST 64 /* more than any call asks for */

void *__libc_calloc(size_t count, size_t size);

static uintptr_t from, to; /* of the library */
static unsigned until_out; /* calls; 0: there is enough */

__attribute__((visibility("default"))) void *calloc(size_t count, size_t size)
{
    const uintptr_t caller = (uintptr_t)__builtin_return_address(0);

    if (until_out > 0 && caller >= from && caller < to && --until_out == 0)
        return NULL;
    return __libc_calloc(count, size);
}

static int find_library(struct dl_phdr_info *info, size_t size, void *arg)
{
    (void)size;
    (void)arg;
    if (!strstr(info->dlpi_name, "libgpushim"))
        return 0;
    from = info->dlpi_addr;
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_LOAD)
            to = from + info->dlpi_phdr[i].p_vaddr + info->dlpi_phdr[i].p_memsz;
    return 1;
}

int main(void)
{
    const CUmemAllocationProp asked = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                       .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp told;
    CUcontext context;
    unsigned left = 0;
    int fd;

    dl_iterate_phdr(find_library, NULL);
    CHECK(!cuInit(0) && !cuDevicePrimaryCtxRetain(&context, 0) && !cuCtxSetCurrent(context));
    for (unsigned nth = 1; nth < MOST && !left; nth++) {
        until_out = nth;
        CHECK(!cuMemCreate(&handle, 2 << 20, &asked, 0));
        left = until_out;
        until_out = 0;
        CHECK(!cuMemGetAllocationPropertiesFromHandle(&told, handle));
        CHECK(told.requestedHandleTypes == CU_MEM_HANDLE_TYPE_NONE);
        CHECK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                           0) == CUDA_ERROR_INVALID_VALUE);
        CHECK(!cuMemRelease(handle));
    }
    CHECK(left > 0 || !from);
    return 0;
}
