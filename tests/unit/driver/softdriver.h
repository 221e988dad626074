/*
 * What the software driver's own tests share: a context on device 0, its kernels, short checks.
 */
#ifndef SOFTDRIVER_H
#define SOFTDRIVER_H

#include <criterion/criterion.h>
#include <cuda.h>

#include "softcuda.h"
#include "tests/system.h"

#define MIB ((size_t)1 << 20)
#define MS  1000000ull

#define OK(call)         cr_assert_eq((int)(call), CUDA_SUCCESS, "%s", #call)
#define GIVES(call, err) cr_assert_eq((int)(call), (int)(err), "%s gives %s", #call, #err)

static const char sd_ptx[] = ".version 8.0\n.target sm_90\n.address_size 64\n"
                             ".visible .entry spin(.param .u64 ns) { ret; }\n"
                             ".visible .entry fill(.param .u64 p) { ret; }\n"
                             ".visible .entry spin_fill(.param .u64 p) { ret; }\n"
                             ".visible .entry scribble(.param .u64 p) { ret; }\n"
                             ".visible .entry count_other(.param .u64 p) { ret; }\n"
                             ".visible .entry copy_words(.param .u64 p) { ret; }\n"
                             ".visible .entry of_nobody(.param .u64 p) { ret; }\n";

static CUcontext sd_ctx;
static CUmodule sd_mod;

static inline void sd_start(void)
{
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&sd_ctx, 0));
    OK(cuCtxSetCurrent(sd_ctx));
    OK(cuModuleLoadData(&sd_mod, sd_ptx));
}

static inline CUresult sd_launch(const char *name, CUstream stream, void **args)
{
    CUfunction function;
    CUresult result = cuModuleGetFunction(&function, sd_mod, name);

    return result ? result : cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, args, NULL);
}

static inline CUresult sd_spin(CUstream stream, uint64_t ns)
{
    return sd_launch("spin", stream, (void *[]){&ns});
}

static inline CUresult sd_fill(CUstream stream, CUdeviceptr ptr, uint32_t value, uint64_t count)
{
    return sd_launch("fill", stream, (void *[]){&ptr, &value, &count});
}

/* A word read when all before it in the stream is done. */
static inline uint32_t sd_word(CUdeviceptr ptr, CUstream stream)
{
    uint32_t word = 0;

    OK(cuMemcpyDtoHAsync(&word, ptr, sizeof word, stream));
    OK(cuStreamSynchronize(stream));
    return word;
}

static inline CUstream sd_stream_new(unsigned flags)
{
    CUstream stream;

    OK(cuStreamCreate(&stream, flags));
    return stream;
}

static inline CUevent sd_event_new(void)
{
    CUevent event;

    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    return event;
}

static inline CUmemAllocationProp sd_prop(int device)
{
    CUmemAllocationProp prop;

    memset(&prop, 0, sizeof prop);
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = device;
    return prop;
}

static inline CUresult sd_access(CUdeviceptr ptr, size_t size, int device, CUmemAccess_flags flags)
{
    CUmemAccessDesc desc = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}, .flags = flags};

    desc.location.id = device;
    return cuMemSetAccess(ptr, size, &desc, 1);
}

/* `size` bytes of VMM memory of device 0 that it may write; the handle stays referenced. */
static inline CUdeviceptr sd_map_new(size_t size, CUmemGenericAllocationHandle *handle)
{
    CUmemAllocationProp prop = sd_prop(0);
    CUdeviceptr ptr;

    OK(cuMemCreate(handle, size, &prop, 0));
    OK(cuMemAddressReserve(&ptr, size, 0, 0, 0));
    OK(cuMemMap(ptr, size, 0, *handle, 0));
    OK(sd_access(ptr, size, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    return ptr;
}

#endif
