/*
 * Stands in for libtorch_cuda.so and a library built from other_rmm.cpp, of which none starts on
 * the software driver: the functions that other.c calls, over the driver's. At the end it says on
 * stderr how many blocks it gave and took back.
 */
#include <cuda.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

static unsigned long given, taken;
static __thread CUstream guarded;

__attribute__((destructor)) static void told(void)
{
    fprintf(stderr, "stand-in: %lu given, %lu taken\n", given, taken);
}

/* ---- as a library of other_rmm.cpp ---- */

EXPORT int other_start(const char *kind);
EXPORT void *other_allocate(size_t size, CUstream stream);
EXPORT int other_release(void *block, size_t size, CUstream stream);

int other_start(const char *kind)
{
    return strcmp(kind, "pool") != 0;
}

void *other_allocate(size_t size, CUstream stream)
{
    CUdeviceptr block;

    if (cuMemAllocAsync(&block, size, stream) != CUDA_SUCCESS)
        return NULL;
    __atomic_add_fetch(&given, 1, __ATOMIC_RELAXED);
    return (void *)block;
}

int other_release(void *block, size_t size, CUstream stream)
{
    __atomic_add_fetch(&taken, 1, __ATOMIC_RELAXED);
    return size == 0 || cuMemFreeAsync((CUdeviceptr)block, stream) != CUDA_SUCCESS;
}

/* ---- as PyTorch: nothing goes on a stream that no guard has named ---- */

EXPORT int32_t aoti_torch_dtype_float32(void);
EXPORT int32_t aoti_torch_device_type_cuda(void);
EXPORT int32_t aoti_torch_empty_strided(int64_t dimensions, const int64_t *sizes,
                                        const int64_t *strides, int32_t type, int32_t device_type,
                                        int32_t device, void **ret_tensor);
EXPORT int32_t aoti_torch_delete_tensor_object(void *tensor);
EXPORT int32_t aoti_torch_create_cuda_stream_guard(void *stream, int32_t device, void **ret_guard);
EXPORT int32_t aoti_torch_delete_cuda_stream_guard(void *guard);
EXPORT int32_t aoti_torch_cuda_caching_allocator_raw_alloc(uint64_t size, void **ret_block);
EXPORT int32_t aoti_torch_cuda_caching_allocator_raw_delete(void *block);

int32_t aoti_torch_dtype_float32(void)
{
    return 6;
}

int32_t aoti_torch_device_type_cuda(void)
{
    return 1;
}

int32_t aoti_torch_empty_strided(int64_t dimensions, const int64_t *sizes, const int64_t *strides,
                                 int32_t type, int32_t device_type, int32_t device,
                                 void **ret_tensor)
{
    *ret_tensor = &given;
    return dimensions != 1 || *sizes != 1 || *strides != 1 || type != 6 || device_type != 1 ||
           device != 0;
}

int32_t aoti_torch_delete_tensor_object(void *tensor)
{
    return tensor != &given;
}

int32_t aoti_torch_create_cuda_stream_guard(void *stream, int32_t device, void **ret_guard)
{
    if (guarded || device != 0)
        return 1;
    *ret_guard = guarded = stream;
    return 0;
}

int32_t aoti_torch_delete_cuda_stream_guard(void *guard)
{
    int wrong = guard != (void *)guarded;

    guarded = NULL;
    return wrong;
}

int32_t aoti_torch_cuda_caching_allocator_raw_alloc(uint64_t size, void **ret_block)
{
    *ret_block = guarded ? other_allocate(size, guarded) : NULL;
    return *ret_block == NULL;
}

int32_t aoti_torch_cuda_caching_allocator_raw_delete(void *block)
{
    return guarded ? other_release(block, 1, guarded) : 1;
}
