/* Steps that make, end and ask about memory. */
#include "world.h"

#define VMM_STEP (2 * MIB)

static void prop_of(int device, CUmemAllocationProp *ret_prop)
{
    memset(ret_prop, 0, sizeof *ret_prop);
    ret_prop->type = CU_MEM_ALLOCATION_TYPE_PINNED;
    ret_prop->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    ret_prop->location.id = device;
    if (one_in(2))
        ret_prop->requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
}

static bool vmm_make(struct block *block, int device)
{
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemAllocationProp prop;

    block->size = (block->size + VMM_STEP - 1) / VMM_STEP * VMM_STEP;
    prop_of(device, &prop);
    if (CALL(cuMemCreate, &block->handle, block->size, &prop, 0))
        return false;
    return CALL(cuMemAddressReserve, &block->ptr, block->size, 0, 0, 0) == CUDA_SUCCESS &&
           CALL(cuMemMap, block->ptr, block->size, 0, block->handle, 0) == CUDA_SUCCESS &&
           CALL(cuMemSetAccess, block->ptr, block->size, &access, 1) == CUDA_SUCCESS;
}

static bool registered_make(struct block *block)
{
    size_t size = (block->size + 4095) & ~(size_t)4095;
    CUdeviceptr ptr;

    block->host = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block->host == MAP_FAILED)
        return false;
    block->size = size;
    block->ptr = (CUdeviceptr)block->host;
    if (CALL(cuMemHostRegister, block->host, size, CU_MEMHOSTREGISTER_DEVICEMAP)) {
        munmap(block->host, size);
        return false;
    }
    return CALL(cuMemHostGetDevicePointer, &ptr, block->host, 0) == CUDA_SUCCESS;
}

static CUresult make(struct block *block, int stream)
{
    int pool = pick(POOLS);
    CUresult result;

    switch (block->kind) {
    case PLAIN:
        return CALL(cuMemAlloc, &block->ptr, block->size);
    case PITCH:
        block->width = block->size < 2000 ? block->size : 2000;
        block->size = block->size / block->width;
        result = CALL(cuMemAllocPitch, &block->ptr, &block->pitch, block->width, block->size, 4);
        say(" pitch %zu", block->pitch);
        block->size *= block->pitch;
        return result;
    case ASYNC:
        return CALL(cuMemAllocAsync, &block->ptr, block->size, stream_handle(stream));
    case POOLED:
        if (!world.pool[pool].live || block->device)
            return CUDA_ERROR_NOT_FOUND;
        block->pool = pool;
        return CALL(cuMemAllocFromPoolAsync, &block->ptr, block->size, world.pool[pool].handle,
                    stream_handle(stream));
    case VMM:
        return vmm_make(block, world.context[block->context].device) ? CUDA_SUCCESS
                                                                     : CUDA_ERROR_NOT_FOUND;
    case MANAGED:
        return CALL(cuMemAllocManaged, &block->ptr, block->size, CU_MEM_ATTACH_GLOBAL);
    case HOST:
        result = CALL(cuMemHostAlloc, &block->host, block->size, 0);
        block->ptr = (CUdeviceptr)block->host;
        return result;
    case REGISTERED:
        return registered_make(block) ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
    default:
        return CUDA_ERROR_NOT_FOUND;
    }
}

bool block_make(int slot, enum kind kind, size_t size, int stream)
{
    struct block *block = &world.block[slot];
    struct order order = order_of(kind == ASYNC || kind == POOLED ? stream : -1);

    if (order.context < 0) /* the call alone */
        order.context = 0;
    block->kind = kind;
    block->size = size;
    block->context = order.context;
    block->device = world.context[order.context].device;
    block->pool = -1;
    say(" b%d %s %zu s%d", slot, kind_names[kind], size, stream);
    if (make(block, stream)) {
        block_gone(slot);
        return false;
    }
    block->live = true;
    block_written(slot, order);
    return true;
}

void step_alloc(void)
{
    static const enum kind often[] = {PLAIN, PLAIN, PLAIN,  PLAIN,  PITCH, ASYNC, ASYNC,
                                      ASYNC, ASYNC, POOLED, POOLED, VMM,   HOST,  REGISTERED};
    int slot = free_block(), stream = one_in(4) ? -1 : any_stream();
    enum kind kind = one_in(24) ? MANAGED : often[pick(sizeof often / sizeof *often)];
    size_t size = pick_size(kind == MANAGED || kind == HOST || kind == REGISTERED ? MIB : 64 * MIB);

    if (slot < 0 || (current_context() < 0 && kind != PLAIN))
        return;
    block_make(slot, kind, size, stream);
}

/* Twice, and asked about between: the second one finds nothing. */
static CUresult free_and_again(struct block *block)
{
    CUresult result = CALL(cuMemFree, block->ptr);
    CUdeviceptr base;
    unsigned type;
    size_t size;

    if (result || block->kind == MANAGED || !one_in(3))
        return result;
    CALL(cuMemFree, block->ptr);
    CALL(cuMemGetAddressRange, &base, &size, block->ptr);
    CALL(cuPointerGetAttribute, &type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, block->ptr);
    CALL(cuMemsetD8, block->ptr, 0, 1);
    return result;
}

static CUresult free_in_order(struct block *block, int stream)
{
    CUresult result = CALL(cuMemFreeAsync, block->ptr, stream_handle(stream));

    /* Natively the block is there until the stream comes to it. */
    if (!result && block->kind != ASYNC && block->kind != POOLED)
        CALL(cuStreamSynchronize, stream_handle(stream));
    else if (!result && one_in(3))
        CALL(cuMemFreeAsync, block->ptr, stream_handle(stream));
    return result;
}

static CUresult free_plainly(struct block *block)
{
    world.freed_plainly |= block->kind == ASYNC || block->kind == POOLED;
    return free_and_again(block);
}

static CUresult vmm_free(struct block *block)
{
    CUresult result = CALL(cuMemUnmap, block->ptr, block->size);

    if (!result)
        result = CALL(cuMemRelease, block->handle);
    if (!result)
        result = CALL(cuMemAddressFree, block->ptr, block->size);
    return result;
}

CUresult block_free(int slot, int stream)
{
    struct block *block = &world.block[slot];
    bool of_stream = block->kind == ASYNC || block->kind == POOLED;
    CUresult result = CUDA_SUCCESS;

    switch (block->kind) {
    case VMM:
        if (world_settle(slot))
            result = vmm_free(block);
        break;
    case HOST:
        result = CALL(cuMemFreeHost, block->host);
        break;
    case REGISTERED:
        if (!world_settle(slot))
            return CUDA_ERROR_UNKNOWN;
        result = CALL(cuMemHostUnregister, block->host);
        if (!result)
            munmap(block->host, block->size);
        break;
    default:
        if (block->kind == MANAGED || !(of_stream ? stream >= -1 : one_in(6)) ||
            !world_order(slot, order_of(stream)))
            result = free_plainly(block);
        else
            result = free_in_order(block, stream);
    }
    if (!result)
        block_gone(slot);
    return result;
}

/* Work of another context is not waited for by every driver's free in the same way, so it has
 * ended. */
void step_free(void)
{
    int slot = any_block(ALL_KINDS), stream = one_in(4) ? -1 : any_stream();
    struct block *block = &world.block[slot < 0 ? 0 : slot];
    bool of_stream = block->kind == ASYNC || block->kind == POOLED;

    if (slot < 0)
        return;
    say(" b%d", slot);
    if (current_context() < 0 ||
        (block->last.context >= 0 && block->last.context != block->context))
        world_settle(slot);
    if (of_stream && one_in(6)) {
        world_settle(slot);
        if (!free_plainly(block))
            block_gone(slot);
        return;
    }
    if (current_context() < 0)
        stream = any_stream();
    block_free(slot, stream);
}

void step_range(void)
{
    int slot = any_block(DEVICE_KINDS);
    const struct block *block = &world.block[slot < 0 ? 0 : slot];
    size_t offset, size = 77;
    CUdeviceptr base = 77;

    if (slot < 0)
        return;
    offset = random_next() % block->size;
    if (block->size % 512 && block->size > 4 && one_in(4)) /* what lies behind it is nobody's */
        offset = block->size;
    say(" b%d+%zu", slot, offset);
    switch (pick(4)) {
    case 0:
        CALL(cuMemGetAddressRange, NULL, &size, block->ptr + offset);
        break;
    case 1:
        CALL(cuMemGetAddressRange, NULL, NULL, 0x1234000);
        break;
    default:
        if (CALL(cuMemGetAddressRange, &base, &size, block->ptr + offset) == CUDA_SUCCESS)
            say(" %lld", (long long)(base - block->ptr));
    }
    say(" %zu", size);
}

static void say_pool(CUmemoryPool handle)
{
    CUmemoryPool pool = NULL;

    for (int i = 0; i < POOLS; i++)
        if (world.pool[i].live && world.pool[i].handle == handle) {
            say(" pool %d", i);
            return;
        }
    for (int i = 0; i < world.devices; i++)
        if (handle && cuDeviceGetDefaultMemPool(&pool, i) == CUDA_SUCCESS && pool == handle)
            say(" default %d", i);
    say(handle ? "" : " none");
}

static void say_context(CUcontext handle)
{
    for (int i = 0; i < CONTEXTS; i++)
        if (world.context[i].live && world.context[i].handle == handle)
            say(" c%d", i);
    say(handle ? "" : " none");
}

/* Of a block: the same as long as it lives, and no other one's. */
static void say_id(struct block *block, unsigned long long id)
{
    for (int i = 0; i < BLOCKS; i++)
        if (world.block[i].live && &world.block[i] != block && world.block[i].id == id &&
            world.block[i].kind != VMM && block->kind != VMM)
            say(" of b%d too", i);
    say(block->id && block->id != id ? " changed" : "");
    block->id = id;
}

static void attribute(struct block *block, CUpointer_attribute which, size_t offset)
{
    bool async = block->kind == ASYNC || block->kind == POOLED;
    union {
        CUcontext context;
        CUmemoryPool pool;
        CUdeviceptr ptr;
        unsigned long long wide;
        int number;
        unsigned char bytes[64];
    } value;
    CUresult result;

    memset(&value, 0, sizeof value);
    say(" [%d]", (int)which);
    if (async && which == CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE) {
        LIMIT(LIMIT_IPC_OF_ALL, cuPointerGetAttribute, &value, which, block->ptr);
        return;
    }
    if (block->kind == VMM && which == CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE) {
        LIMIT(LIMIT_IPC_OF_OWN, cuPointerGetAttribute, &value, which, block->ptr);
        return;
    }
    if (which == CU_POINTER_ATTRIBUTE_ACCESS_FLAGS && world.lets_in && block->device) {
        LIMIT(LIMIT_STAYS, cuPointerGetAttribute, &value, which, block->ptr);
        return;
    }
    if (which == CU_POINTER_ATTRIBUTE_ACCESS_FLAGS && is_far(block)) {
        LIMIT(LIMIT_FAR, cuPointerGetAttribute, &value, which, block->ptr);
        return;
    }
    if (async && which == CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE) {
        LIMIT(LIMIT_RDMA, cuPointerGetAttribute, &value, which, block->ptr);
        return;
    }
    result = CALL(cuPointerGetAttribute, &value, which, block->ptr + offset);
    if (result)
        return;
    switch ((int)which) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        say_context(value.context);
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        say(" %lld", (long long)(value.ptr - block->ptr));
        break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        say_id(block, value.wide);
        break;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        say_pool(value.pool);
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        say(" %llu", value.wide);
        break;
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
        break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
        say(" %d", value.bytes[0]); /* a byte on real drivers */
        break;
    default:
        say(" %d", value.number);
    }
}

/* Those that lie in what the driver maps at once are left out, and tokens, which tell the library
 * that others have the memory. */
void step_attributes(void)
{
    static const CUpointer_attribute some[] = {CU_POINTER_ATTRIBUTE_CONTEXT,
                                               CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                               CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
                                               CU_POINTER_ATTRIBUTE_HOST_POINTER,
                                               CU_POINTER_ATTRIBUTE_SYNC_MEMOPS,
                                               CU_POINTER_ATTRIBUTE_BUFFER_ID,
                                               CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                               CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                               CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                                               CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                               CU_POINTER_ATTRIBUTE_RANGE_SIZE,
                                               CU_POINTER_ATTRIBUTE_MAPPED,
                                               CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
                                               CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE,
                                               CU_POINTER_ATTRIBUTE_ACCESS_FLAGS,
                                               CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
                                               (CUpointer_attribute)0,
                                               (CUpointer_attribute)999};
    int slot = any_block(ALL_KINDS);
    struct block *block = &world.block[slot < 0 ? 0 : slot];

    if (slot < 0)
        return;
    say(" b%d %s", slot, kind_names[block->kind]);
    for (int i = 0; i < 4; i++)
        attribute(block, some[pick(sizeof some / sizeof *some)], random_next() % block->size);
}

void step_attribute_set(void)
{
    int slot = any_block(1u << PLAIN | 1u << PITCH | 1u << ASYNC | 1u << VMM);
    struct block *block = &world.block[slot < 0 ? 0 : slot];
    unsigned on = pick(2);

    if (slot < 0)
        return;
    say(" b%d %u", slot, on);
    switch (pick(4)) {
    case 0:
        CALL(cuPointerSetAttribute, NULL, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, block->ptr);
        break;
    case 1:
        CALL(cuPointerSetAttribute, &on, CU_POINTER_ATTRIBUTE_CONTEXT, block->ptr);
        break;
    default:
        CALL(cuPointerSetAttribute, &on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, block->ptr);
        attribute(block, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, 0);
    }
}

void step_host(void)
{
    int slot = any_block(1u << HOST | 1u << REGISTERED);
    struct block *block = &world.block[slot < 0 ? 0 : slot];
    CUdeviceptr ptr = 77;
    unsigned flags = 77;

    if (slot < 0 || current_context() < 0)
        return;
    say(" b%d %s", slot, kind_names[block->kind]);
    if (CALL(cuMemHostGetDevicePointer, &ptr, block->host, 0) == CUDA_SUCCESS)
        say(" %lld", (long long)(ptr - block->ptr));
    if (block->kind == HOST && CALL(cuMemHostGetFlags, &flags, block->host) == CUDA_SUCCESS)
        say(" %u", flags);
    if (world_settle(slot))
        say_bytes(block->host, block->size);
    if (one_in(3))
        CALL(cuMemFree, block->ptr);
}
