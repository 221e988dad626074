/*
 * Where managed memory is told to be. It is always where it is; what was told is remembered for
 * those who ask. Other memory is refused.
 */
#include "internal.h"

static struct sd_block *find(CUdeviceptr ptr, size_t bytes)
{
    struct sd_block *block = sd_block_find(ptr);

    return block && block->kind == SD_BLOCK_MANAGED && bytes &&
                   bytes <= block->size - (ptr - block->base)
               ? block
               : NULL;
}

/* A device's number, or CU_DEVICE_CPU; CU_DEVICE_INVALID for what is neither. */
static int place_of(CUmemLocation where)
{
    if (where.type == CU_MEM_LOCATION_TYPE_DEVICE && sd_device_get_ptr(where.id))
        return where.id;
    return where.type == CU_MEM_LOCATION_TYPE_HOST ? CU_DEVICE_CPU : CU_DEVICE_INVALID;
}

CUresult sd_mem_advise(CUdeviceptr ptr, size_t bytes, CUmem_advise advice, CUmemLocation where)
{
    struct sd_block *block = find(ptr, bytes);

    if (!block)
        return CUDA_ERROR_INVALID_VALUE;
    if (advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION)
        block->preferred = place_of(where);
    else if (advice == CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION)
        block->preferred = CU_DEVICE_INVALID;
    return CUDA_SUCCESS;
}

CUresult sd_mem_prefetch(CUdeviceptr ptr, size_t bytes, CUmemLocation where, unsigned flags,
                         CUstream stream)
{
    struct sd_block *block = find(ptr, bytes);
    struct sd_queue *queue;
    CUresult result = sd_queue_get(stream, &queue);

    if (result)
        return result;
    if (!block || flags || place_of(where) == CU_DEVICE_INVALID)
        return CUDA_ERROR_INVALID_VALUE;
    block->prefetched = place_of(where);
    return CUDA_SUCCESS;
}

CUresult sd_mem_range_attribute(void *data, size_t size, CUmem_range_attribute attribute,
                                CUdeviceptr ptr, size_t bytes)
{
    const struct sd_block *block = find(ptr, bytes);
    int32_t value = 0;

    if (!data || size != sizeof value || !block)
        return CUDA_ERROR_INVALID_VALUE;
    if (attribute == CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION)
        value = block->preferred;
    else if (attribute == CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION)
        value = block->prefetched;
    memcpy(data, &value, sizeof value);
    return CUDA_SUCCESS;
}

CUresult sd_stream_attach(CUstream stream, CUdeviceptr ptr, size_t bytes, unsigned flags)
{
    struct sd_queue *queue;
    CUresult result = sd_queue_get(stream, &queue);

    if (result)
        return result;
    return find(ptr, bytes ? bytes : 1) && flags && flags <= CU_MEM_ATTACH_SINGLE
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
}
