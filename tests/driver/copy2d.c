/*
 * Copies of rows at a pitch, between linear device memory, arrays and the host.
 */
#include "internal.h"

/* One end of the copy. */
struct end {
    uint64_t base; /* of the first byte copied */
    size_t x;      /* where in its row that is */
    size_t pitch;
    bool device;
    const struct sd_array *array; /* of the device, and `y` rows down from its beginning */
    size_t y;
};

static CUresult end_find(struct end *end, CUmemorytype type, const void *host, CUdeviceptr device,
                         CUarray array, size_t pitch, size_t x, size_t y)
{
    end->array = NULL;
    switch (type) {
    case CU_MEMORYTYPE_ARRAY:
        end->array = sd_object_check(array, SD_ARRAY);
        if (!end->array)
            return CUDA_ERROR_INVALID_HANDLE;
        end->base = end->array->segment->base;
        end->device = true;
        pitch = end->array->pitch;
        break;
    case CU_MEMORYTYPE_HOST:
        end->base = (uint64_t)host;
        end->device = false;
        break;
    case CU_MEMORYTYPE_DEVICE:
        end->base = device;
        end->device = true;
        break;
    case CU_MEMORYTYPE_UNIFIED:
        end->base = device;
        end->device = sd_block_is_device(sd_block_find(device));
        break;
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    end->x = x;
    end->y = y;
    end->pitch = pitch;
    end->base += y * pitch + x;
    return end->base ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Bytes from the first to the last one touched; 0 when a row does not fit or the sum overflows. */
static size_t extent(const struct end *end, size_t width, size_t rows)
{
    size_t bytes;

    if (__builtin_add_overflow(end->x, width, &bytes) ||
        ((rows > 1 || end->pitch) && end->pitch < bytes) ||
        __builtin_mul_overflow(rows - 1, end->pitch, &bytes) ||
        __builtin_add_overflow(bytes, width, &bytes))
        return 0;
    return bytes;
}

/* What is copied is inside one allocation, or one array. */
static bool end_ok(const struct end *end, const struct sd_context *context, size_t bytes,
                   size_t rows, enum sd_access access)
{
    if (end->array)
        return end->y <= end->array->rows && rows <= end->array->rows - end->y;
    return end->device ? sd_block_range_ok(context, end->base, bytes, access, true)
                       : sd_may_be_host(end->base, bytes);
}

static CUresult do_copy(struct sd_queue *queue, struct end *to, struct end *from, size_t width,
                        size_t rows, bool async)
{
    struct sd_work work = {.kind = SD_COPY};
    size_t to_bytes = extent(to, width, rows), from_bytes = extent(from, width, rows);
    struct sd_context *context = queue->context;
    void *staging = NULL;
    CUresult result;

    if (!to_bytes || !from_bytes || !end_ok(to, context, to_bytes, rows, SD_ACCESS_WRITE) ||
        !end_ok(from, context, from_bytes, rows, SD_ACCESS_READ))
        return CUDA_ERROR_INVALID_VALUE;
    work.copy.dst = to->base;
    work.copy.src = from->base;
    work.copy.bytes = width;
    work.copy.dst_pitch = to->pitch;
    work.copy.src_pitch = from->pitch;
    work.copy.more_rows = rows - 1;
    work.copy.dst_host = !to->device && !sd_known_host(to->base, to_bytes);
    work.copy.src_host = !from->device && !sd_known_host(from->base, from_bytes);
    if (work.copy.src_host && async && !queue->capture) {
        staging = malloc(from_bytes);
        if (!staging)
            return CUDA_ERROR_OUT_OF_MEMORY;
        memcpy(staging, (const void *)from->base, from_bytes);
        work.copy.src = (uint64_t)staging;
    }
    result = sd_queue_do(queue, &work, staging);
    if (result || queue->capture || (to->device && from->device) || (async && !work.copy.dst_host))
        return result;
    sd_op_wait(sd_queue_tail(queue));
    return context->sticky;
}

CUresult sd_memcpy_2d(const CUDA_MEMCPY2D *copy, CUstream stream, bool async)
{
    struct sd_queue *queue;
    CUresult result = sd_queue_get(stream, &queue);

    if (!result && !copy)
        result = CUDA_ERROR_INVALID_VALUE;
    return result ? result : sd_queue_copy(queue, copy, async);
}

CUresult sd_queue_copy(struct sd_queue *queue, const CUDA_MEMCPY2D *copy, bool async)
{
    struct end to, from;
    CUresult result = sd_sync_allowed(queue, async);

    if (result || !copy->WidthInBytes || !copy->Height)
        return result;
    result = end_find(&to, copy->dstMemoryType, copy->dstHost, copy->dstDevice, copy->dstArray,
                      copy->dstPitch, copy->dstXInBytes, copy->dstY);
    if (!result)
        result = end_find(&from, copy->srcMemoryType, copy->srcHost, copy->srcDevice,
                          copy->srcArray, copy->srcPitch, copy->srcXInBytes, copy->srcY);
    return result ? result : do_copy(queue, &to, &from, copy->WidthInBytes, copy->Height, async);
}

CUresult sd_memcpy_2d_v1(const CUDA_MEMCPY2D_v1 *copy, CUstream stream, bool async)
{
    CUDA_MEMCPY2D wide;

    if (!copy)
        return CUDA_ERROR_INVALID_VALUE;
    wide = (CUDA_MEMCPY2D){.srcXInBytes = copy->srcXInBytes,
                           .srcY = copy->srcY,
                           .srcMemoryType = copy->srcMemoryType,
                           .srcHost = copy->srcHost,
                           .srcDevice = copy->srcDevice,
                           .srcPitch = copy->srcPitch,
                           .dstXInBytes = copy->dstXInBytes,
                           .dstY = copy->dstY,
                           .dstMemoryType = copy->dstMemoryType,
                           .dstHost = copy->dstHost,
                           .dstDevice = copy->dstDevice,
                           .dstPitch = copy->dstPitch,
                           .WidthInBytes = copy->WidthInBytes,
                           .Height = copy->Height};
    return sd_memcpy_2d(&wide, stream, async);
}
