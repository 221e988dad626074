/*
 * Memory pools and stream-ordered allocation. A pool cuts blocks from pieces that it keeps; what a
 * stream freed is free for that stream at once and for the others when the free's turn has come.
 * At a synchronisation a pool shrinks to its release threshold.
 */
#include "internal.h"

static struct sd_pool *pools; /* protected by sd_lock */

struct sd_pool *sd_pool_new(int device, bool is_default, const CUmemPoolProps *props)
{
    struct sd_pool *pool = sd_object_new(SD_POOL, sizeof *pool);

    if (!pool)
        return NULL;
    pool->device = device;
    pool->is_default = is_default;
    pool->access[device] = SD_ACCESS_WRITE;
    for (int i = 0; i < 4; i++)
        pool->reuse[i] = 1;
    if (props) {
        pool->handle_types = props->handleTypes;
        pool->max_size = props->maxSize;
    }
    pool->next = pools;
    pools = pool;
    return pool;
}

static struct sd_pool *device_pool(struct sd_device *device)
{
    if (!device->default_pool)
        device->default_pool = sd_pool_new(device - sd_devices, true, NULL);
    if (!device->pool)
        device->pool = device->default_pool;
    return device->pool;
}

static void piece_release(struct sd_pool *pool, struct sd_piece **at)
{
    struct sd_piece *piece = *at;

    *at = piece->next;
    pool->reserved -= piece->segment->size;
    sd_segment_delete(piece->segment);
    sd_piece_free(piece);
}

void sd_pool_trim(struct sd_pool *pool, uint64_t keep)
{
    struct sd_piece **at = &pool->pieces;

    while (*at && pool->reserved > keep) {
        if (sd_piece_empty(*at))
            piece_release(pool, at);
        else
            at = &(*at)->next;
    }
}

static void pool_unlink(struct sd_pool *pool)
{
    struct sd_pool **at = &pools;

    while (*at != pool)
        at = &(*at)->next;
    *at = pool->next;
}

/* A destroyed pool goes with the last of its memory. */
static void pool_end(struct sd_pool *pool)
{
    if (!pool->destroyed || pool->live)
        return;
    sd_pool_trim(pool, 0);
    if (pool->pieces)
        return; /* work may still use what was freed: the next synchronisation looks again */
    pool_unlink(pool);
    free(pool);
}

void sd_pools_at_sync(void)
{
    for (struct sd_pool *pool = pools, *next; pool; pool = next) {
        next = pool->next;
        if (pool->reserved > pool->threshold)
            sd_pool_trim(pool, pool->threshold);
        pool_end(pool);
    }
}

bool sd_pools_release(int device)
{
    size_t before = sd_devices[device].used;

    for (struct sd_pool *pool = pools, *next; pool; pool = next) {
        next = pool->next;
        if (pool->device != device)
            continue;
        sd_pool_trim(pool, 0);
        pool_end(pool);
    }
    return sd_devices[device].used < before;
}

void sd_pool_give(struct sd_pool *pool, struct sd_block *block, struct sd_op *after,
                  const struct sd_queue *queue)
{
    if (block->piece)
        sd_piece_give(block->piece, block->base, after, queue);
    else
        sd_segment_delete(block->segment); /* imported */
    pool->used -= block->size;
    pool->live--;
    pool_end(pool);
}

static CUresult pool_grow(struct sd_pool *pool, size_t bytes, struct sd_piece **ret)
{
    size_t size = sd_round_up(bytes, SD_GRANULE);
    struct sd_segment *segment;
    CUresult result;

    if (bytes > sd_devices[pool->device].memory ||
        (pool->max_size && pool->reserved + size > pool->max_size))
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = sd_segment_new_pressed(pool->device, size, true, &segment);
    if (result)
        return result;
    for (int i = 0; i < sd_device_count; i++)
        if (pool->access[i])
            sd_segment_set_access(segment, i, pool->access[i]);
    *ret = sd_piece_new(segment);
    if (!*ret) {
        sd_segment_delete(segment);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    (*ret)->next = pool->pieces;
    pool->pieces = *ret;
    pool->reserved += size;
    if (pool->reserved > pool->reserved_high)
        pool->reserved_high = pool->reserved;
    return CUDA_SUCCESS;
}

/* An operation at the stream's present end, for others to wait for. */
static CUresult marker(struct sd_queue *queue, const struct sd_work *work, struct sd_op **ret)
{
    struct sd_op *op = sd_op_new(queue->context, work);

    if (!op)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *ret = sd_op_ref(op);
    sd_queue_submit(queue, op);
    return CUDA_SUCCESS;
}

/* A device that is full: what another stream has freed, and this one waits for (measured on an
 * H200: the call is back after 57 ms, while a host function holds the other one). Several frees may
 * lie side by side; what the real one does besides, putting pieces together, this does not. */
static uint64_t take_behind(struct sd_pool *pool, size_t bytes, struct sd_queue *queue,
                            struct sd_piece **ret)
{
    struct sd_op *behind;
    uint64_t base = 0;

    if (!pool->reuse[CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES])
        return 0;
    behind = sd_op_new(queue->context, NULL);
    if (!behind)
        abort(); /* as in sd_op_after */
    for (struct sd_piece *piece = pool->pieces; piece && !base; piece = piece->next)
        if ((base = sd_piece_take(piece, bytes, queue, behind)))
            *ret = piece;
    if (base)
        sd_queue_submit(queue, behind);
    else
        sd_op_unref(behind);
    return base;
}

static CUresult pool_take(struct sd_pool *pool, size_t bytes, struct sd_queue *queue,
                          struct sd_block **ret)
{
    struct sd_piece *piece = pool->pieces;
    struct sd_block *block;
    uint64_t base = 0;

    while (piece && !(base = sd_piece_take(piece, bytes, queue, NULL)))
        piece = piece->next;
    if (!base) {
        CUresult result = pool_grow(pool, bytes, &piece);

        if (!result)
            base = sd_piece_take(piece, bytes, queue, NULL);
        else if (result != CUDA_ERROR_OUT_OF_MEMORY ||
                 !(base = take_behind(pool, bytes, queue, &piece)))
            return result;
    }
    block =
        base ? sd_block_new(SD_BLOCK_ASYNC, base, bytes, piece->segment, NULL, pool->device) : NULL;
    if (!block)
        return CUDA_ERROR_OUT_OF_MEMORY;
    block->piece = piece;
    block->pool = pool;
    pool->live++;
    pool->used += bytes; /* as asked for (measured on an H200) */
    if (pool->used > pool->used_high)
        pool->used_high = pool->used;
    *ret = block;
    return CUDA_SUCCESS;
}

#define GRAPH_GRANULE ((size_t)32 << 20) /* of large ones */

/* What is free of a device that has too little goes to the graphs nevertheless, and stays theirs,
 * of no use to another try (measured on an H200, where a trim does not bring it back either). */
static void graph_refused(struct sd_device *device)
{
    size_t rest = device->memory - (size_t)sd_device_used(device);

    if (rest > 0)
        sd_device_take(device, rest);
}

CUresult sd_graph_take(struct sd_queue *queue, size_t bytes, struct sd_block **ret)
{
    const struct sd_work node = {.kind = SD_JOIN};
    const size_t granule = bytes < GRAPH_GRANULE ? SD_GRANULE : GRAPH_GRANULE;
    int device = queue->context->device;
    struct sd_segment *segment;
    struct sd_block *block;
    CUresult result =
        queue->capture->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;

    if (!result && bytes > sd_devices[device].memory)
        result = CUDA_ERROR_OUT_OF_MEMORY;
    if (!result)
        result = sd_segment_new_pressed(device, sd_round_up(bytes, granule), true, &segment);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && bytes <= sd_devices[device].memory)
        graph_refused(&sd_devices[device]);
    if (result)
        return result;
    sd_segment_set_access(segment, device, SD_ACCESS_WRITE);
    block = sd_block_new(SD_BLOCK_GRAPH, segment->base, bytes, segment, NULL, device);
    if (!block) {
        sd_segment_delete(segment);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (!sd_graph_keep(queue->capture->graph, block)) {
        sd_block_release(block, NULL, NULL);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *ret = block;
    return sd_capture_add(queue, &node);
}

/* Both calls beside captures, whatever the pool or the pointer is, as measured on an H200. */
static CUresult refused_by_captures(struct sd_queue *queue)
{
    CUresult result = sd_capture_forbids_legacy(queue);

    return result || queue->capture ? result : sd_capture_forbids();
}

static CUresult alloc(CUdeviceptr *ptr, size_t bytes, struct sd_pool *pool, CUstream stream)
{
    struct sd_queue *queue;
    struct sd_block *block;
    CUresult result = sd_queue_get(stream, &queue);

    if (result)
        return result;
    if (!ptr)
        return CUDA_ERROR_INVALID_VALUE;
    result = refused_by_captures(queue);
    if (result)
        return result;
    if (!bytes) { /* measured on an H200, in a capture as well */
        *ptr = 0;
        return CUDA_SUCCESS;
    }
    if (!pool)
        pool = device_pool(&sd_devices[queue->context->device]);
    if (!pool)
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = queue->capture ? sd_graph_take(queue, bytes, &block)
                            : pool_take(pool, bytes, queue, &block);
    if (!result)
        *ptr = block->base;
    return result;
}

CUresult sd_mem_alloc_async(CUdeviceptr *ptr, size_t bytes, CUstream stream)
{
    return alloc(ptr, bytes, NULL, stream);
}

CUresult sd_mem_alloc_from_pool_async(CUdeviceptr *ptr, size_t bytes, CUmemoryPool handle,
                                      CUstream stream)
{
    struct sd_pool *pool = sd_object_check(handle, SD_POOL);
    struct sd_queue *queue;
    CUresult result = sd_queue_get(stream, &queue);

    if (result) /* whatever the pool is, as measured on an H200 */
        return result;
    return pool && !pool->from_process ? alloc(ptr, bytes, pool, stream) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult free_in_order(struct sd_block *block, struct sd_queue *queue)
{
    const struct sd_work release = {.kind = SD_FREE, .free = {.block = block}};
    struct sd_op *op = NULL;
    CUresult result;

    if (block->pool && block->piece) {
        result = sd_queue_idle(queue) ? CUDA_SUCCESS : marker(queue, NULL, &op);
        if (!result)
            sd_block_release(block, op, queue);
    } else {
        block->leaving = true; /* usable until then, as measured */
        result = marker(queue, &release, &op);
    }
    sd_op_unref(op);
    return result;
}

CUresult sd_mem_free_async(CUdeviceptr ptr, CUstream stream)
{
    const struct sd_work node = {.kind = SD_JOIN};
    struct sd_block *block = sd_block_find(ptr);
    struct sd_queue *queue;
    CUresult result = sd_queue_get(stream, &queue);

    if (result || !ptr)
        return result;
    result = refused_by_captures(queue);
    if (result)
        return result;
    if (!block || block->base != ptr || block->leaving ||
        (block->kind != SD_BLOCK_ASYNC && block->kind != SD_BLOCK_ALLOC &&
         block->kind != SD_BLOCK_GRAPH))
        return CUDA_ERROR_INVALID_VALUE;
    if (queue->capture)
        return sd_graph_owns(queue->capture->graph, block) ? sd_capture_add(queue, &node)
                                                           : CUDA_ERROR_INVALID_VALUE;
    return block->kind == SD_BLOCK_GRAPH ? CUDA_SUCCESS : free_in_order(block, queue);
}

CUresult sd_pool_create(CUmemoryPool *handle, const CUmemPoolProps *props)
{
    struct sd_pool *pool;

    if (!handle || !props || props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
        props->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sd_device_get_ptr(props->location.id))
        return CUDA_ERROR_INVALID_DEVICE;
    if (props->handleTypes & ~(unsigned)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_NOT_SUPPORTED;
    pool = sd_pool_new(props->location.id, false, props);
    if (!pool)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *handle = (CUmemoryPool)pool;
    return CUDA_SUCCESS;
}

/* The handle is stale at once; the pool itself lives on in its blocks. */
CUresult sd_pool_destroy(CUmemoryPool handle)
{
    struct sd_pool *pool = sd_object_check(handle, SD_POOL);
    struct sd_pool *rest;

    if (!pool || pool->is_default)
        return CUDA_ERROR_INVALID_VALUE;
    rest = malloc(sizeof *rest);
    if (!rest)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (sd_devices[pool->device].pool == pool)
        sd_devices[pool->device].pool = sd_devices[pool->device].default_pool;
    pool_unlink(pool);
    *rest = *pool;
    rest->destroyed = true;
    rest->threshold = 0;
    rest->next = pools;
    pools = rest;
    for (size_t i = 0; i < sd_blocks.count; i++) {
        struct sd_block *block = sd_blocks.at[i].value;
        if (block->pool == pool)
            block->pool = rest;
    }
    sd_object_free(pool);
    pool_end(rest);
    return CUDA_SUCCESS;
}

CUresult sd_pool_trim_to(CUmemoryPool handle, size_t keep)
{
    struct sd_pool *pool = sd_object_check(handle, SD_POOL);
    CUresult result = pool ? sd_capture_forbids() : CUDA_ERROR_INVALID_VALUE;

    if (!result)
        sd_pool_trim(pool, keep);
    return result;
}

/* Where an attribute of 64 bits is kept; NULL for the reuse attributes and unknown ones. */
static uint64_t *pool_counter(struct sd_pool *pool, CUmemPool_attribute attribute)
{
    switch ((int)attribute) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        return &pool->threshold;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
        return &pool->reserved;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        return &pool->reserved_high;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
        return &pool->used;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        return &pool->used_high;
    default:
        return NULL;
    }
}

static bool is_reuse(CUmemPool_attribute attribute)
{
    return attribute >= CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES &&
           attribute <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES;
}

CUresult sd_pool_set_attribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
    struct sd_pool *pool = sd_object_check(handle, SD_POOL);

    if (!pool || !value)
        return CUDA_ERROR_INVALID_VALUE;
    if (is_reuse(attribute)) {
        pool->reuse[attribute] = *(int *)value;
        return CUDA_SUCCESS;
    }
    switch ((int)attribute) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        pool->threshold = *(cuuint64_t *)value;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: /* a high mark can be reset, and only to 0 */
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        if (*(cuuint64_t *)value)
            return CUDA_ERROR_INVALID_VALUE;
        pool->reserved_high =
            attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH ? pool->reserved : pool->reserved_high;
        pool->used_high = attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH ? pool->used : pool->used_high;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult sd_pool_get_attribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
    struct sd_pool *pool = sd_object_check(handle, SD_POOL);

    if (!pool || !value)
        return CUDA_ERROR_INVALID_VALUE;
    if (is_reuse(attribute)) {
        *(int *)value = pool->reuse[attribute];
        return CUDA_SUCCESS;
    }
    if (!pool_counter(pool, attribute))
        return CUDA_ERROR_INVALID_VALUE;
    *(cuuint64_t *)value = *pool_counter(pool, attribute);
    return CUDA_SUCCESS;
}

CUresult sd_pool_set_access(CUmemoryPool handle, const CUmemAccessDesc *map, size_t count)
{
    struct sd_pool *pool = sd_object_check(handle, SD_POOL);

    if (!pool || !map)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        if (map[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE)
            return CUDA_ERROR_INVALID_VALUE;
        if (!sd_device_get_ptr(map[i].location.id))
            return CUDA_ERROR_INVALID_DEVICE;
        if (map[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READ)
            return CUDA_ERROR_NOT_SUPPORTED;
        if (map[i].location.id == pool->device &&
            map[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
            return CUDA_ERROR_INVALID_DEVICE;
    }
    for (size_t i = 0; i < count; i++) {
        pool->access[map[i].location.id] = map[i].flags;
        for (struct sd_piece *piece = pool->pieces; piece; piece = piece->next)
            sd_segment_set_access(piece->segment, map[i].location.id, (enum sd_access)map[i].flags);
    }
    return CUDA_SUCCESS;
}

CUresult sd_pool_get_access(CUmemAccess_flags *flags, CUmemoryPool handle, CUmemLocation *location)
{
    struct sd_pool *pool = sd_object_check(handle, SD_POOL);

    if (!pool || !flags || !location || location->type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sd_device_get_ptr(location->id))
        return CUDA_ERROR_INVALID_DEVICE;
    *flags = pool->access[location->id];
    return CUDA_SUCCESS;
}

/* The device, with its pools made. */
static CUresult device_with_pools(const CUmemoryPool *pool, CUdevice dev,
                                  struct sd_device **ret_device)
{
    *ret_device = sd_device_get_ptr(dev);
    if (!pool)
        return CUDA_ERROR_INVALID_VALUE;
    if (!*ret_device)
        return CUDA_ERROR_INVALID_DEVICE;
    return device_pool(*ret_device) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult sd_device_get_default_pool(CUmemoryPool *pool, CUdevice dev)
{
    struct sd_device *device;
    CUresult result = device_with_pools(pool, dev, &device);

    if (!result)
        *pool = (CUmemoryPool)device->default_pool;
    return result;
}

CUresult sd_device_get_pool(CUmemoryPool *pool, CUdevice dev)
{
    struct sd_device *device;
    CUresult result = device_with_pools(pool, dev, &device);

    if (!result)
        *pool = (CUmemoryPool)device->pool;
    return result;
}

CUresult sd_device_set_pool(CUdevice dev, CUmemoryPool handle)
{
    struct sd_device *device = sd_device_get_ptr(dev);
    struct sd_pool *pool = sd_object_check(handle, SD_POOL);

    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!pool || pool->device != dev || pool->from_process)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_pool(device))
        return CUDA_ERROR_OUT_OF_MEMORY;
    device->pool = pool;
    return CUDA_SUCCESS;
}

static CUresult location_ok(const CUmemLocation *where, CUmemAllocationType type)
{
    return where && where->type == CU_MEM_LOCATION_TYPE_DEVICE &&
                   type == CU_MEM_ALLOCATION_TYPE_PINNED
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
}

CUresult sd_mem_get_default_pool(CUmemoryPool *pool, CUmemLocation *where, CUmemAllocationType type)
{
    CUresult result = location_ok(where, type);

    return result ? result : sd_device_get_default_pool(pool, where->id);
}

CUresult sd_mem_get_pool(CUmemoryPool *pool, CUmemLocation *where, CUmemAllocationType type)
{
    CUresult result = location_ok(where, type);

    return result ? result : sd_device_get_pool(pool, where->id);
}

CUresult sd_mem_set_pool(CUmemLocation *where, CUmemAllocationType type, CUmemoryPool pool)
{
    CUresult result = location_ok(where, type);

    return result ? result : sd_device_set_pool(where->id, pool);
}
