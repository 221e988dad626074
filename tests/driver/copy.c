/*
 * Copies and fills. Ranges are checked at the call, against what is allocated then; the bytes move
 * when the stream gets there, and by then the memory may have gone: that is a fault.
 *
 * Pageable host memory is read at the call (a copy of it waits in the operation), and written
 * before the call returns; pinned memory is used when the work runs. Between devices, as measured:
 * cuMemAlloc memory of another device can be copied device to device without peer access, VMM
 * memory only where access was set, and so between host and device; fills need access in every
 * case, but for nodes added to a graph by hand. A peer copy has no place in a capture.
 */
#include "internal.h"

#define PIECE ((size_t)256 << 10)
#define HOLE  ((size_t)2 << 20)

/* Racing work is what tests are about: plain words, each whole, and no data race in C's sense. */
static void move_bytes(char *dst, const char *src, size_t bytes)
{
    if ((((uintptr_t)dst ^ (uintptr_t)src) & 7) == 0) {
        for (; bytes && ((uintptr_t)dst & 7); dst++, src++, bytes--)
            __atomic_store_n(dst, __atomic_load_n(src, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
        for (; bytes >= 8; dst += 8, src += 8, bytes -= 8)
            __atomic_store_n((uint64_t *)dst,
                             __atomic_load_n((const uint64_t *)src, __ATOMIC_RELAXED),
                             __ATOMIC_RELAXED);
    }
    for (; bytes; dst++, src++, bytes--)
        __atomic_store_n(dst, __atomic_load_n(src, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
}

bool sd_move(const struct sd_context *context, uint64_t dst, bool dst_host, uint64_t src,
             bool src_host, size_t bytes)
{
    bool ok = true;

    while (bytes && ok) {
        size_t to, from, piece = bytes < PIECE ? bytes : PIECE;
        sd_touch_begin();
        to = dst_host ? piece : sd_touch(context, dst, SD_ACCESS_WRITE);
        from = src_host ? piece : sd_touch(context, src, SD_ACCESS_READ);
        piece = to < piece ? to : piece;
        piece = from < piece ? from : piece;
        ok = piece > 0;
        move_bytes((char *)dst, (const char *)src, piece);
        sd_touch_end();
        dst += piece;
        src += piece;
        bytes -= piece;
    }
    return ok;
}

CUresult sd_copy_run(struct sd_context *context, const struct sd_work *work)
{
    for (size_t row = 0; row <= work->copy.more_rows; row++)
        if (!sd_move(NULL, work->copy.dst + row * work->copy.dst_pitch, work->copy.dst_host,
                     work->copy.src + row * work->copy.src_pitch, work->copy.src_host,
                     work->copy.bytes))
            return CUDA_ERROR_ILLEGAL_ADDRESS;
    return CUDA_SUCCESS;
}

static void set_elements(char *dst, uint32_t value, unsigned width, size_t count)
{
    for (size_t i = 0; i < count; i++, dst += width) {
        if (width == 1)
            __atomic_store_n((uint8_t *)dst, value, __ATOMIC_RELAXED);
        else if (width == 2)
            __atomic_store_n((uint16_t *)dst, value, __ATOMIC_RELAXED);
        else
            __atomic_store_n((uint32_t *)dst, value, __ATOMIC_RELAXED);
    }
}

/* Zeroes in gigabytes are cheap for a GPU: here they are holes in what stands for its memory. How
 * many bytes are done so; 0 where that is not a file. */
static size_t set_hole(uint64_t dst, size_t bytes)
{
    size_t room;

    if (dst % HOLE)
        return 0;
    sd_touch_begin();
    room = sd_touch(NULL, dst, SD_ACCESS_WRITE);
    bytes = (room < bytes ? room : bytes) & ~(HOLE - 1);
    if (bytes && madvise((void *)dst, bytes, MADV_REMOVE) != 0)
        bytes = 0;
    sd_touch_end();
    return bytes;
}

static bool set_row(const struct sd_work *work, uint64_t dst)
{
    size_t left = work->set.count;
    const unsigned width = work->set.width;

    while (left) {
        size_t piece = left < PIECE / width ? left : PIECE / width, room;
        size_t hole = work->set.value || left * width < HOLE ? 0 : set_hole(dst, left * width);

        if (hole) {
            dst += hole;
            left -= hole / width;
            continue;
        }
        sd_touch_begin();
        room = sd_touch(NULL, dst, SD_ACCESS_WRITE) / width;
        piece = room < piece ? room : piece;
        set_elements((char *)dst, work->set.value, width, piece);
        sd_touch_end();
        if (!piece)
            return false;
        dst += piece * width;
        left -= piece;
    }
    return true;
}

CUresult sd_set_run(struct sd_context *context, const struct sd_work *work)
{
    for (size_t row = 0; row <= work->set.more_rows; row++)
        if (!set_row(work, work->set.dst + row * work->set.pitch))
            return CUDA_ERROR_ILLEGAL_ADDRESS;
    return CUDA_SUCCESS;
}

/* Host memory that the driver knows over the whole range. */
bool sd_known_host(uint64_t address, size_t bytes)
{
    const struct sd_block *block = sd_block_find(address);

    return block && !sd_block_is_device(block) && address + bytes <= block->base + block->size;
}

bool sd_may_be_host(uint64_t address, size_t bytes)
{
    return !sd_space_is_devices(address) ||
           sd_block_range_ok(NULL, address, bytes, SD_ACCESS_READ, true);
}

static CUresult wait_tail(struct sd_queue *queue)
{
    struct sd_context *context = queue->context;

    sd_op_wait(sd_queue_tail(queue));
    return context->sticky;
}

/* A synchronous copy is not captured; beside a capture, of whatever mode, it is made (measured on
 * an H200) where a call in its stream may be. */
CUresult sd_sync_allowed(struct sd_queue *queue, bool async)
{
    if (async)
        return CUDA_SUCCESS;
    if (queue->capture) {
        sd_capture_invalidate(queue->capture);
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return sd_capture_forbids_legacy(queue);
}

static CUresult host_to_device(struct sd_queue *queue, uint64_t dst, const void *src, size_t bytes,
                               bool async)
{
    struct sd_work work = {.kind = SD_COPY,
                           .copy = {.dst = dst, .src = (uint64_t)src, .bytes = bytes}};
    void *staging = NULL;
    CUresult result;

    work.copy.src_host = !sd_known_host((uint64_t)src, bytes);
    if (work.copy.src_host && !queue->capture) {
        staging = malloc(bytes);
        if (!staging)
            return CUDA_ERROR_OUT_OF_MEMORY;
        memcpy(staging, src, bytes);
        work.copy.src = (uint64_t)staging;
    }
    result = sd_queue_do(queue, &work, staging);
    return result || async ? result : wait_tail(queue);
}

/* Whether bytes may go between the host and the device; the queue they go through. */
static CUresult may_copy(CUstream stream, const void *host, CUdeviceptr address,
                         enum sd_access access, size_t bytes, bool async,
                         struct sd_queue **ret_queue)
{
    CUresult result = sd_queue_get(stream, ret_queue);

    if (!result)
        result = sd_sync_allowed(*ret_queue, async);
    if (result || !bytes)
        return result;
    if (!host || !sd_may_be_host((uint64_t)host, bytes) ||
        !sd_block_range_ok((*ret_queue)->context, address, bytes, access, true))
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

CUresult sd_memcpy_htod(CUdeviceptr dst, const void *src, size_t bytes, CUstream stream, bool async)
{
    struct sd_queue *queue;
    CUresult result = may_copy(stream, src, dst, SD_ACCESS_WRITE, bytes, async, &queue);

    return result || !bytes ? result : host_to_device(queue, dst, src, bytes, async);
}

static CUresult device_to_host(struct sd_queue *queue, void *dst, uint64_t src, size_t bytes,
                               bool async)
{
    struct sd_work work = {.kind = SD_COPY,
                           .copy = {.dst = (uint64_t)dst, .src = src, .bytes = bytes}};
    CUresult result;

    work.copy.dst_host = !sd_known_host((uint64_t)dst, bytes);
    result = sd_queue_do(queue, &work, NULL);
    if (result || queue->capture || (async && !work.copy.dst_host))
        return result;
    return wait_tail(queue);
}

CUresult sd_memcpy_dtoh(void *dst, CUdeviceptr src, size_t bytes, CUstream stream, bool async)
{
    struct sd_queue *queue;
    CUresult result = may_copy(stream, dst, src, SD_ACCESS_READ, bytes, async, &queue);

    return result || !bytes ? result : device_to_host(queue, dst, src, bytes, async);
}

CUresult sd_memcpy_dtod(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
    const struct sd_work work = {.kind = SD_COPY, .copy = {.dst = dst, .src = src, .bytes = bytes}};
    struct sd_queue *queue;
    CUresult result = sd_queue_get(stream, &queue);

    if (result || !bytes)
        return result;
    if (!sd_block_range_ok(queue->context, dst, bytes, SD_ACCESS_WRITE, true) ||
        !sd_block_range_ok(queue->context, src, bytes, SD_ACCESS_READ, true))
        return CUDA_ERROR_INVALID_VALUE;
    return sd_queue_do(queue, &work, NULL);
}

/* What each pointer is decides. */
CUresult sd_memcpy(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream, bool async)
{
    bool to_device = sd_block_is_device(sd_block_find(dst));
    bool from_device = sd_block_is_device(sd_block_find(src));
    struct sd_queue *queue;
    CUresult result;

    if (to_device && from_device)
        return sd_memcpy_dtod(dst, src, bytes, stream);
    if (to_device)
        return sd_memcpy_htod(dst, (const void *)src, bytes, stream, async);
    if (from_device)
        return sd_memcpy_dtoh((void *)dst, src, bytes, stream, async);
    result = sd_queue_get(stream, &queue);
    if (!result)
        result = sd_sync_allowed(queue, async);
    if (result || !bytes)
        return result;
    if (sd_known_host(dst, bytes))
        return host_to_device(queue, dst, (const void *)src, bytes, async);
    if (sd_known_host(src, bytes))
        return device_to_host(queue, (void *)dst, src, bytes, async);
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult sd_memcpy_peer(CUdeviceptr dst, CUcontext dst_ctx, CUdeviceptr src, CUcontext src_ctx,
                        size_t bytes, CUstream stream)
{
    const struct sd_work work = {.kind = SD_COPY, .copy = {.dst = dst, .src = src, .bytes = bytes}};
    struct sd_context *to, *from;
    struct sd_queue *queue;
    CUresult result = sd_queue_get(stream, &queue);

    if (!result)
        result = sd_context_get(dst_ctx, true, &to);
    if (!result)
        result = sd_context_get(src_ctx, true, &from);
    if (!result && queue->capture) {
        sd_capture_invalidate(queue->capture);
        result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    if (result || !bytes)
        return result;
    /* Which context is named counts, measured on two H200s, where access is set for devices. */
    if (!sd_block_range_ok(to, dst, bytes, SD_ACCESS_WRITE, true) ||
        !sd_block_range_ok(from, src, bytes, SD_ACCESS_READ, true))
        return CUDA_ERROR_INVALID_VALUE;
    return sd_queue_do(queue, &work, NULL);
}

CUresult sd_memset(CUdeviceptr dst, uint32_t value, unsigned width, size_t count, CUstream stream)
{
    return sd_memset_2d(dst, 0, value, width, count, 1, stream);
}

/* Measured on an H200: of its device's contexts the one that opened it fills memory of another
 * process alone; copies and kernels of all reach it. */
static bool may_fill(const struct sd_context *context, CUdeviceptr dst)
{
    const struct sd_block *block = sd_block_find(dst);

    return !block || block->kind != SD_BLOCK_IPC || block->context == context ||
           block->device != context->device;
}

CUresult sd_queue_fill(struct sd_queue *queue, CUdeviceptr dst, size_t pitch, uint32_t value,
                       unsigned width, size_t count, size_t rows, bool other_devices)
{
    struct sd_work work = {.kind = SD_SET,
                           .set = {.dst = dst, .count = count, .value = value, .width = width}};
    size_t row, bytes;

    if (!count || !rows)
        return CUDA_SUCCESS;
    if (__builtin_mul_overflow(count, width, &row) || (rows > 1 && pitch < row) ||
        __builtin_mul_overflow(rows - 1, pitch, &bytes) || (dst | pitch) % width ||
        !sd_block_range_ok(queue->context, dst, bytes + row, SD_ACCESS_WRITE, other_devices) ||
        !may_fill(queue->context, dst))
        return CUDA_ERROR_INVALID_VALUE;
    work.set.more_rows = rows - 1;
    work.set.pitch = pitch;
    return sd_queue_do(queue, &work, NULL);
}

CUresult sd_memset_2d(CUdeviceptr dst, size_t pitch, uint32_t value, unsigned width, size_t count,
                      size_t rows, CUstream stream)
{
    struct sd_queue *queue;
    CUresult result = sd_queue_get(stream, &queue);

    return result ? result : sd_queue_fill(queue, dst, pitch, value, width, count, rows, false);
}
