/*
 * Pools of another process. The descriptor of a pool says whose it is. A pointer of it names the
 * exporter's descriptor of the memory, which an importer opens as a legacy handle's (ipc.c). What
 * is imported is mapped by itself; a pool that is imported allocates nothing.
 */
#include "internal.h"

#define MAGIC 0x4c4f4f5044534309ull

/* What the file behind a pool's descriptor holds. */
struct ticket {
    uint64_t magic;
    uint64_t process; /* random, of the exporting process */
    uint64_t id;      /* the pool's there */
    CUuuid uuid;      /* of its device */
};

/* What the 64 bytes of a pointer hold. */
struct token {
    uint64_t magic;
    uint64_t process, id; /* of its pool, as in the ticket */
    uint64_t inode;
    uint64_t segment; /* size of the whole, in which the block is */
    uint64_t offset, size;
    int32_t pid, fd;
};
_Static_assert(sizeof(struct token) <= sizeof(CUmemPoolPtrExportData), "a token is a pointer's");

CUresult sd_pool_export(void *handle, CUmemoryPool pool_handle, CUmemAllocationHandleType type,
                        unsigned long long flags)
{
    const struct sd_pool *pool = sd_object_check(pool_handle, SD_POOL);
    struct ticket ticket;
    int fd;

    if (!handle || !pool || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
        !(pool->handle_types & type))
        return CUDA_ERROR_INVALID_VALUE;
    memset(&ticket, 0, sizeof ticket);
    ticket.magic = MAGIC;
    ticket.process = sd_process_token();
    ticket.id = pool->object.id;
    ticket.uuid = sd_devices[pool->device].uuid;
    fd = memfd_create("softcuda-pool", MFD_CLOEXEC);
    if (fd < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    if (pwrite(fd, &ticket, sizeof ticket, 0) != sizeof ticket) {
        close(fd);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    *(int *)handle = fd;
    return CUDA_SUCCESS;
}

CUresult sd_pool_import(CUmemoryPool *handle, void *file, CUmemAllocationHandleType type,
                        unsigned long long flags)
{
    struct ticket ticket;
    struct sd_pool *pool;
    int device;

    if (!handle || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
        pread((int)(intptr_t)file, &ticket, sizeof ticket, 0) != sizeof ticket ||
        ticket.magic != MAGIC)
        return CUDA_ERROR_INVALID_VALUE;
    device = sd_device_by_uuid(&ticket.uuid);
    if (device < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    pool = sd_pool_new(device, false, NULL);
    if (!pool)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pool->from_process = ticket.process;
    pool->from_id = ticket.id;
    *handle = (CUmemoryPool)pool;
    return CUDA_SUCCESS;
}

/* Of memory that is no pool's or of one that is not shared: INVALID_VALUE (measured on an H200). */
CUresult sd_pool_export_pointer(CUmemPoolPtrExportData *data, CUdeviceptr ptr)
{
    const struct sd_block *block = sd_block_find(ptr);
    struct token token;

    if (!data || !block || block->base != ptr || !block->pool || !block->pool->handle_types)
        return CUDA_ERROR_INVALID_VALUE;
    memset(&token, 0, sizeof token);
    token.magic = MAGIC;
    token.process = sd_process_token();
    token.id = block->pool->object.id;
    token.inode = block->segment->phys->inode;
    token.segment = block->segment->size;
    token.offset = block->base - block->segment->base;
    token.size = block->size;
    token.pid = getpid();
    token.fd = block->segment->phys->fd;
    memset(data, 0, sizeof *data);
    memcpy(data, &token, sizeof token);
    return CUDA_SUCCESS;
}

static CUresult import_map(struct sd_pool *pool, const struct token *token, struct sd_phys *phys,
                           struct sd_block **ret)
{
    uint64_t base = sd_address_reserve(phys->size, SD_GRANULE, 0);
    struct sd_segment *segment;
    CUresult result = base ? sd_segment_map(base, phys, true, &segment) : CUDA_ERROR_OUT_OF_MEMORY;

    if (result) {
        if (base)
            sd_address_release(base, phys->size);
        return result;
    }
    for (int i = 0; i < sd_device_count; i++)
        if (pool->access[i])
            sd_segment_set_access(segment, i, pool->access[i]);
    *ret = sd_block_new(SD_BLOCK_ASYNC, base + token->offset, token->size, segment, NULL,
                        pool->device);
    if (!*ret) {
        sd_segment_delete(segment);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    (*ret)->pool = pool;
    pool->live++;
    pool->used += token->size;
    return CUDA_SUCCESS;
}

CUresult sd_pool_import_pointer(CUdeviceptr *ptr, CUmemoryPool handle,
                                const CUmemPoolPtrExportData *data)
{
    struct sd_pool *pool = sd_object_check(handle, SD_POOL);
    struct sd_block *block;
    struct sd_phys *phys;
    struct token token;
    CUresult result;

    if (!ptr || !pool || !data)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(&token, data, sizeof token);
    if (token.magic != MAGIC || !pool->from_process || token.process != pool->from_process ||
        token.id != pool->from_id)
        return CUDA_ERROR_INVALID_VALUE;
    result = sd_open_memory(token.pid, token.fd, token.inode, token.segment, &phys);
    if (result)
        return result;
    result = import_map(pool, &token, phys, &block);
    sd_phys_unref(phys);
    if (!result)
        *ptr = block->base;
    return result;
}
