/*
 * Host memory that devices know: pinned, registered and managed. Plain memory of this process.
 */
#include "internal.h"

static CUresult host_new(struct sd_context *context, enum sd_block_kind kind, size_t bytes,
                         struct sd_block **ret)
{
    struct sd_segment *segment;
    struct sd_block *block = NULL;
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    segment = sd_segment_add_host((uint64_t)p, bytes);
    if (segment)
        block = sd_block_new(kind, (uint64_t)p, bytes, segment, context, context->device);
    if (!block) {
        if (segment)
            sd_segment_unmap(segment);
        munmap(p, bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *ret = block;
    return CUDA_SUCCESS;
}

CUresult sd_mem_host_alloc(void **ptr, size_t bytes, unsigned flags)
{
    struct sd_context *context;
    struct sd_block *block;
    CUresult result = sd_current(&context);

    if (result)
        return result;
    if (!ptr || !bytes || flags > 7)
        return CUDA_ERROR_INVALID_VALUE;
    result = sd_capture_forbids();
    if (!result)
        result = host_new(context, SD_BLOCK_HOST, bytes, &block);
    if (result)
        return result;
    block->host_flags = flags | CU_MEMHOSTALLOC_DEVICEMAP;
    *ptr = (void *)block->base;
    return CUDA_SUCCESS;
}

static CUresult host_find(void *ptr, bool registered, struct sd_block **ret)
{
    struct sd_block *block = sd_block_find((uint64_t)ptr);

    if (!block || block->kind != SD_BLOCK_HOST || block->base != (uint64_t)ptr ||
        block->registered != registered)
        return CUDA_ERROR_INVALID_VALUE;
    *ret = block;
    return CUDA_SUCCESS;
}

/* The work that may use it is done first. */
static CUresult host_end(struct sd_block *block)
{
    CUresult result;

    block->freeing = true;
    result = sd_context_drain(block->context);
    sd_block_release(block, NULL, NULL);
    return result;
}

CUresult sd_mem_free_host(void *ptr)
{
    struct sd_block *block;
    CUresult result = sd_capture_forbids(); /* no context is needed, as measured on an H200 */

    if (!result)
        result = host_find(ptr, false, &block);
    return result ? result : host_end(block);
}

CUresult sd_mem_host_register(void *ptr, size_t bytes, unsigned flags)
{
    struct sd_context *context;
    struct sd_segment *segment;
    struct sd_block *block;
    CUresult result = sd_current(&context);
    size_t next = sd_ranges_after(&sd_blocks, (uint64_t)ptr);

    if (!result)
        result = sd_capture_forbids();
    if (result)
        return result;
    if (!ptr || !bytes || (uint64_t)ptr + bytes < (uint64_t)ptr ||
        !sd_may_be_host((uint64_t)ptr, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    if (next < sd_blocks.count && sd_blocks.at[next].base < (uint64_t)ptr + bytes)
        return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    segment = sd_segment_add_host((uint64_t)ptr, bytes);
    block = segment ? sd_block_new(SD_BLOCK_HOST, (uint64_t)ptr, bytes, segment, context,
                                   context->device)
                    : NULL;
    if (!block) {
        if (segment)
            sd_segment_unmap(segment);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    block->registered = true;
    segment->read_only = flags & CU_MEMHOSTREGISTER_READ_ONLY;
    block->host_flags = flags;
    return CUDA_SUCCESS;
}

CUresult sd_mem_host_unregister(void *ptr)
{
    struct sd_context *context;
    struct sd_block *block;
    CUresult result = sd_current(&context);

    if (result && result != CUDA_ERROR_INVALID_CONTEXT) /* it needs none (measured on an H100) */
        return result;
    result = sd_capture_forbids();
    if (result)
        return result;
    if (host_find(ptr, true, &block))
        return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    return host_end(block);
}

CUresult sd_mem_host_get_device_pointer(CUdeviceptr *dptr, void *ptr, unsigned flags)
{
    struct sd_context *context;
    struct sd_block *block = sd_block_find((uint64_t)ptr);
    CUresult result = sd_current(&context);

    if (result)
        return result;
    if (!dptr || flags || !block || block->kind != SD_BLOCK_HOST)
        return CUDA_ERROR_INVALID_VALUE;
    *dptr = (CUdeviceptr)ptr;
    return CUDA_SUCCESS;
}

CUresult sd_mem_host_get_flags(unsigned *flags, void *ptr)
{
    struct sd_block *block = sd_block_find((uint64_t)ptr);

    if (!flags || !block || block->kind != SD_BLOCK_HOST)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = block->host_flags;
    return CUDA_SUCCESS;
}

CUresult sd_mem_alloc_managed(CUdeviceptr *ptr, size_t bytes, unsigned flags)
{
    struct sd_context *context;
    struct sd_block *block;
    CUresult result = sd_current_owner(&context);

    if (result)
        return result;
    if (!ptr || !bytes || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
        return CUDA_ERROR_INVALID_VALUE;
    result = sd_capture_forbids();
    if (!result)
        result = host_new(context, SD_BLOCK_MANAGED, bytes, &block);
    if (!result)
        *ptr = block->base;
    return result;
}
