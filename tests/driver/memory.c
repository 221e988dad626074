/*
 * cuMemAlloc, cuMemFree and what is asked about them. Blocks below 1 MiB are cut from 2 MiB pieces
 * of their context; larger ones have a segment of their own. A free waits for all work in the
 * owning context, as measured.
 */
#include "internal.h"

static CUresult alloc_small(struct sd_context *context, size_t bytes, struct sd_block **ret)
{
    struct sd_piece *piece = context->pieces;
    uint64_t base = 0;

    while (piece && !(base = sd_piece_take(piece, bytes, NULL, NULL)))
        piece = piece->next;
    if (!base) {
        struct sd_segment *segment;
        CUresult result = sd_segment_new_pressed(context->device, SD_GRANULE, false, &segment);
        if (result)
            return result;
        segment->life = context->life;
        piece = sd_piece_new(segment);
        if (!piece) {
            sd_segment_delete(segment);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        piece->next = context->pieces;
        context->pieces = piece;
        base = sd_piece_take(piece, bytes, NULL, NULL);
    }
    *ret = base
               ? sd_block_new(SD_BLOCK_ALLOC, base, bytes, piece->segment, context, context->device)
               : NULL;
    if (!*ret)
        return CUDA_ERROR_OUT_OF_MEMORY;
    (*ret)->piece = piece;
    return CUDA_SUCCESS;
}

static CUresult alloc_large(struct sd_context *context, size_t bytes, struct sd_block **ret)
{
    struct sd_segment *segment;
    CUresult result;

    if (bytes > sd_devices[context->device].memory)
        return CUDA_ERROR_OUT_OF_MEMORY;
    result =
        sd_segment_new_pressed(context->device, sd_round_up(bytes, SD_GRANULE), false, &segment);
    if (result)
        return result;
    segment->life = context->life;
    *ret = sd_block_new(SD_BLOCK_ALLOC, segment->base, bytes, segment, context, context->device);
    if (*ret)
        return CUDA_SUCCESS;
    sd_segment_delete(segment);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult sd_mem_alloc(CUdeviceptr *ptr, size_t bytes)
{
    struct sd_context *context;
    struct sd_block *block;
    CUresult result = sd_current_owner(&context);

    if (result)
        return result;
    if (!ptr || !bytes)
        return CUDA_ERROR_INVALID_VALUE;
    result = sd_capture_forbids();
    if (!result)
        result = bytes < SD_SMALL_LIMIT ? alloc_small(context, bytes, &block)
                                        : alloc_large(context, bytes, &block);
    if (!result)
        *ptr = block->base;
    return result;
}

CUresult sd_mem_alloc_pitch(CUdeviceptr *ptr, size_t *pitch, size_t width, size_t height,
                            unsigned element)
{
    bool element_valid = element == 4 || element == 8 || element == 16;
    size_t row = sd_round_up(width, SD_BLOCK_ALIGN);
    struct sd_context *context;
    CUresult result = sd_current_owner(&context);

    if (result) {
        if (pitch) /* measured on an H200 */
            *pitch = 0;
        return result;
    }
    if (!ptr || !pitch)
        return CUDA_ERROR_INVALID_VALUE;
    /* Measured on an H200: the pitch is told before there is memory, 0 for an element of a size
     * that is none, and the memory is what is left of the product in 64 bits; on an H100: 0 for no
     * rows. */
    *pitch = element_valid && height ? row : 0;
    return element_valid && width ? sd_mem_alloc(ptr, row * height) : CUDA_ERROR_INVALID_VALUE;
}

CUresult sd_mem_free(CUdeviceptr ptr)
{
    struct sd_context *context;
    struct sd_block *block;
    CUresult result;

    if (!ptr)
        return CUDA_SUCCESS;
    result = sd_current_owner(&context);
    if (result == CUDA_ERROR_INVALID_CONTEXT) { /* a free needs none */
        context = NULL;
        result = CUDA_SUCCESS;
    }
    if (!result)
        result = sd_capture_forbids();
    if (result)
        return result;
    block = sd_block_find(ptr);
    if (!block || block->base != ptr || block->leaving || block->kind == SD_BLOCK_VMM ||
        block->kind == SD_BLOCK_IPC || block->kind == SD_BLOCK_MODULE ||
        block->kind == SD_BLOCK_HOST)
        return CUDA_ERROR_INVALID_VALUE;
    if (block->kind == SD_BLOCK_GRAPH)
        return CUDA_SUCCESS; /* its graph has the memory */
    block->freeing = true;
    if (block->context || context)
        result = sd_context_drain(block->context ? block->context : context);
    else
        sd_device_drain(block->device);
    sd_block_release(block, NULL, NULL);
    return result;
}

CUresult sd_mem_get_info(size_t *free_bytes, size_t *total)
{
    struct sd_context *context;
    CUresult result = sd_current(&context);

    if (result)
        return result;
    if (total)
        *total = sd_devices[context->device].memory;
    if (free_bytes)
        *free_bytes =
            sd_devices[context->device].memory - sd_device_used(&sd_devices[context->device]);
    return CUDA_SUCCESS;
}

CUresult sd_mem_get_info_v1(unsigned *free_bytes, unsigned *total)
{
    size_t free64, total64;
    CUresult result = sd_mem_get_info(&free64, &total64);

    if (result)
        return result;
    if (free_bytes)
        *free_bytes = free64 > UINT32_MAX ? UINT32_MAX : free64;
    if (total)
        *total = total64 > UINT32_MAX ? UINT32_MAX : total64;
    return CUDA_SUCCESS;
}

CUresult sd_mem_get_address_range(CUdeviceptr *base, size_t *size, CUdeviceptr ptr)
{
    const struct sd_block *block = sd_block_find(ptr);
    struct sd_context *context;
    CUresult result;

    /* Measured on an H200: with nothing to answer nothing is looked up, not even a context. */
    if (!base && !size)
        return CUDA_SUCCESS;
    if (base) /* and else they are cleared first */
        *base = 0;
    if (size)
        *size = 0;
    result = sd_current(&context);
    if (result)
        return result;
    /* Measured: memory opened from another process has a range in the context that opened it. */
    if (!block || (block->kind == SD_BLOCK_IPC && block->context != context))
        return CUDA_ERROR_NOT_FOUND;
    if (base)
        *base = block->base;
    if (size)
        *size = block->size;
    return CUDA_SUCCESS;
}

CUresult sd_mem_get_address_range_v1(CUdeviceptr_v1 *base, unsigned *size, CUdeviceptr_v1 ptr)
{
    CUdeviceptr base64;
    size_t size64;
    CUresult result = sd_mem_get_address_range(&base64, &size64, ptr);

    if (!result && (base64 > UINT32_MAX || size64 > UINT32_MAX))
        result = CUDA_ERROR_NOT_SUPPORTED;
    if (!result && base)
        *base = base64;
    if (!result && size)
        *size = size64;
    return result;
}
