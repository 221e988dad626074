/*
 * What a pointer is: cuPointerGetAttribute(s) and cuPointerSetAttribute, as measured for memory of
 * cuMemAlloc, of pools and of VMM mappings.
 */
#include "internal.h"

static bool is_host(const struct sd_block *block)
{
    return block->kind == SD_BLOCK_HOST;
}

static bool is_pool(const struct sd_block *block)
{
    return block->kind == SD_BLOCK_ASYNC || block->kind == SD_BLOCK_GRAPH;
}

static void put_int(void *data, int value)
{
    memcpy(data, &value, sizeof value);
}

static void put_u64(void *data, uint64_t value)
{
    memcpy(data, &value, sizeof value);
}

static uint64_t handle_types(const struct sd_block *block)
{
    if (block->kind == SD_BLOCK_VMM)
        return block->allocation->prop.requestedHandleTypes;
    return block->pool ? block->pool->handle_types : 0;
}

static bool rdma_capable(const struct sd_block *block)
{
    if (block->kind == SD_BLOCK_VMM)
        return block->allocation->prop.allocFlags.gpuDirectRDMACapable;
    return block->kind == SD_BLOCK_ALLOC || block->kind == SD_BLOCK_IPC;
}

/* As measured: memory of cuMemAlloc is, and VMM memory that was made so. */
static bool decompress_capable(const struct sd_block *block)
{
    if (block->kind == SD_BLOCK_VMM)
        return block->allocation->prop.allocFlags.usage & CU_MEM_CREATE_USAGE_HW_DECOMPRESS;
    return block->kind == SD_BLOCK_ALLOC;
}

static CUresult access_flags(const struct sd_block *block, void *data)
{
    struct sd_context *context;
    CUresult result = sd_current(&context);

    if (!result)
        put_int(data, sd_segment_access(block->segment, context));
    return result;
}

static CUresult host_pointer(const struct sd_block *block, CUdeviceptr ptr, void *data)
{
    if (sd_block_is_device(block))
        return CUDA_ERROR_INVALID_VALUE;
    put_u64(data, ptr);
    return CUDA_SUCCESS;
}

/* The attributes about extents: the block's own, or those of the mapping it lies in. */
static CUresult extent(const struct sd_block *block, CUpointer_attribute attribute, void *data)
{
    switch ((int)attribute) {
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        put_u64(data, block->base);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        put_u64(data, block->size);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        put_u64(data, block->segment->base);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
        put_u64(data, block->segment->size);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        put_u64(data, block->segment->phys ? block->segment->phys->id : block->id);
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

/* Measured on H200s: of new memory 0 or 1, as the machine is; 0 for host memory and for VMM memory,
 * for which it cannot be set, 1 for managed memory. */
static int sync_memops(const struct sd_block *block)
{
    if (block->sync_memops >= 0)
        return block->sync_memops;
    if (is_host(block) || block->kind == SD_BLOCK_VMM)
        return 0;
    return block->kind == SD_BLOCK_MANAGED || sd_feature(SD_WITH_SYNC_MEMOPS);
}

static CUresult attribute_of(const struct sd_block *block, CUdeviceptr ptr,
                             CUpointer_attribute attribute, void *data)
{
    switch ((int)attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        put_u64(data, (uint64_t)block->context);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        put_int(data, is_host(block) ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        put_u64(data, ptr);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        return host_pointer(block, ptr, data);
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
        if (is_host(block))
            return CUDA_ERROR_INVALID_VALUE;
        memset(data, 0, sizeof(CUDA_POINTER_ATTRIBUTE_P2P_TOKENS));
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
        put_int(data, sync_memops(block));
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        put_u64(data, block->id);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        put_int(data, block->kind == SD_BLOCK_MANAGED);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        put_int(data, block->device < 0 ? -2 : block->device);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        put_int(data, block->kind == SD_BLOCK_ALLOC);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        put_int(data, 1);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        put_u64(data, handle_types(block));
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
        put_int(data, rdma_capable(block));
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        return access_flags(block, data);
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        put_u64(data, is_pool(block) ? (uint64_t)block->pool : 0);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
        put_int(data, decompress_capable(block));
        return CUDA_SUCCESS;
    default:
        return extent(block, attribute, data);
    }
}

/* Bytes that an attribute fills, 0 for an unknown one. */
static size_t attribute_bytes(CUpointer_attribute attribute)
{
    switch ((int)attribute) {
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
        return sizeof(CUDA_POINTER_ATTRIBUTE_P2P_TOKENS);
    case CU_POINTER_ATTRIBUTE_CONTEXT:
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        return sizeof(uint64_t);
    default:
        return attribute > 0 && attribute <= CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE
                   ? sizeof(int)
                   : 0;
    }
}

CUresult sd_pointer_get_attribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr)
{
    const struct sd_block *block = sd_block_find(ptr);

    if (!data || !attribute_bytes(attribute) || !block)
        return CUDA_ERROR_INVALID_VALUE;
    return attribute_of(block, ptr, attribute, data);
}

/* Never fails for what a pointer is: an item that cannot be answered is zero. */
CUresult sd_pointer_get_attributes(unsigned count, CUpointer_attribute *attributes, void **data,
                                   CUdeviceptr ptr)
{
    const struct sd_block *block = sd_block_find(ptr);

    if (!count || !attributes || !data)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; i++)
        if (!data[i] || !attribute_bytes(attributes[i]))
            return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; i++) {
        memset(data[i], 0, attribute_bytes(attributes[i]));
        if (block)
            attribute_of(block, ptr, attributes[i], data[i]);
    }
    return CUDA_SUCCESS;
}

CUresult sd_pointer_set_attribute(const void *value, CUpointer_attribute attribute, CUdeviceptr ptr)
{
    struct sd_block *block = sd_block_find(ptr);
    CUresult result;
    int on;

    if (!value || !block)
        return CUDA_ERROR_INVALID_VALUE;
    if (block->kind == SD_BLOCK_VMM) /* other attributes too, as measured on an H200 */
        return CUDA_ERROR_NOT_SUPPORTED;
    if (attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS)
        return CUDA_ERROR_INVALID_VALUE;
    result = sd_capture_forbids();
    if (result)
        return result;
    memcpy(&on, value, sizeof on);
    block->sync_memops = on != 0;
    return CUDA_SUCCESS;
}
