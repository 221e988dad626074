/*
 * What a program asks about a pointer. Our memory answers as memory of cuMemAlloc does (or of
 * cuMemAllocAsync, where that call made it), not as the VMM memory that it is; an address in our
 * memory where nothing is live answers as an address that the driver does not know.
 */
#include "hook.h"
#include "shim/result.h"
#include "shim/start.h"

#include <string.h>

#include "core/api/core.h"
#include "core/process/own.h"
#include "core/api/peer_access.h"

/* No allocation is ever there: the driver answers for it what it answers for unknown pointers. */
#define UNKNOWN_ADDRESS ((CUdeviceptr)0x1000)

#define GS_ATTRIBUTE_HW_DECOMPRESS 21 /* CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE, CUDA 12.8 */

/* Marks our buffer ids: the driver counts its own up from small numbers. */
#define BUFFER_ID_MARK (UINT64_C(0x6753) << 48)

GS_HOOK CUresult CUDAAPI cuMemGetAddressRange_v2(CUdeviceptr *pbase, size_t *psize,
                                                 CUdeviceptr dptr)
{
    GS_AT_GATE_ABOUT(cuMemGetAddressRange_v2, dptr);
    struct gs_block_info info;
    gs_status status;

    /* Without an output the driver looks nothing up, not even a context. */
    if (!gs_state_enter() || !gs_ours(dptr) || (!pbase && !psize))
        return gs_real.cuMemGetAddressRange_v2(pbase, psize, dptr);
    GS_KEEP_ERRNO;
    if (gs_core_in_context(gs_core) != GS_OK)
        return gs_real.cuMemGetAddressRange_v2(pbase, psize, dptr); /* it clears the outputs */
    status = gs_core_find(gs_core, dptr, &info);
    if (status != GS_OK)
        return gs_real.cuMemGetAddressRange_v2(pbase, psize,
                                               status == GS_NOT_LIVE ? UNKNOWN_ADDRESS : dptr);
    if (pbase)
        *pbase = info.base;
    if (psize)
        *psize = info.size;
    return CUDA_SUCCESS;
}

static bool ask_driver(void *data, CUpointer_attribute attribute, CUdeviceptr address)
{
    return gs_real.cuPointerGetAttribute(data, attribute, address) == CUDA_SUCCESS;
}

/* All that the block lies in, of which the driver knows each piece. False: it does not, or is asked
 * for something else. */
static bool answer_mapping(const struct gs_block_info *info, CUpointer_attribute attribute,
                           void *data)
{
    CUdeviceptr last = info->base + info->size - 1, first_base, base;
    size_t size;

    if ((attribute != CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR &&
         attribute != CU_POINTER_ATTRIBUTE_MAPPING_SIZE) ||
        !ask_driver(&first_base, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, info->base) ||
        !ask_driver(&base, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, last) ||
        !ask_driver(&size, CU_POINTER_ATTRIBUTE_MAPPING_SIZE, last))
        return false;
    size += base - first_base;
    if (attribute == CU_POINTER_ATTRIBUTE_MAPPING_SIZE)
        memcpy(data, &size, sizeof size);
    else
        memcpy(data, &first_base, sizeof first_base);
    return true;
}

/* Our own answer for an attribute of a live block; false: the driver's is right. */
static bool answer(const struct gs_block_info *info, CUpointer_attribute attribute, void *data)
{
    union {
        CUcontext context;
        CUdeviceptr address;
        size_t size;
        uint64_t id;
        int number;
        unsigned flag;
        CUmemoryPool pool;
        CUmemAllocationHandleType handle_types;
    } value;
    size_t size;

#define VALUE(member, is) (value.member = (is), size = sizeof value.member)
    switch ((int)attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        VALUE(context, info->async ? NULL : info->context);
        break;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
        VALUE(number, info->sync_memops);
        break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        VALUE(id, info->id | BUFFER_ID_MARK);
        break;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        VALUE(number, 1); /* of stream-ordered memory too: natively 0, but here it can be shared */
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        VALUE(address, info->base);
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        VALUE(size, info->size);
        break;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        VALUE(handle_types, CU_MEM_HANDLE_TYPE_NONE);
        break;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        if (gs_core_may_fill(gs_core, (struct gs_access_range){info->base, 1}, NULL) == GS_OK)
            return false;
        VALUE(number, 0); /* what the mapping lets in is more: who copies, and who once was */
        break;
    case GS_ATTRIBUTE_HW_DECOMPRESS:
        if (!info->async)
            return false;
        VALUE(number, 0); /* of pool memory, measured on an H200 */
        break;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        VALUE(pool, info->async ? info->default_pool : NULL);
        break;
    default:
        /* IS_GPU_DIRECT_RDMA_CAPABLE among them: the piece's, which for stream-ordered memory is
         * more than the driver's pool can (natively 0). A program that relies on the answer is
         * right to. */
        return answer_mapping(info, attribute, data);
    }
#undef VALUE
    memcpy(data, &value, size);
    return true;
}

/* Tokens are for kernel modules that let other devices in. */
static void note_tokens(CUpointer_attribute attribute)
{
    if (attribute == CU_POINTER_ATTRIBUTE_P2P_TOKENS)
        gs_single_drain(gs_single, "memory is made ready for other devices");
}

/*
 * The program's own memory may have descriptors that it did not ask for. They are not told of; and
 * where they are why it can be shared by CUDA IPC, that is. (Memory of which it asked for
 * descriptors it may share by them, and takes this for the way that the driver has: that stays as
 * it is.)
 */
static void answer_of_own(CUpointer_attribute attribute, void *data, CUdeviceptr ptr)
{
    const bool of_ipc = attribute == CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE;
    CUmemAllocationHandleType types;
    bool shared;

    if ((!of_ipc && attribute != CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES) ||
        !gs_own_is_added_at(gs_core_own(gs_core), ptr, &shared))
        return;
    if (of_ipc && shared)
        *(unsigned char *)data = 1; /* the driver has written one byte, or more */
    if (of_ipc)
        return;
    memcpy(&types, data, sizeof types);
    types = (CUmemAllocationHandleType)((unsigned)types &
                                        ~(unsigned)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    memcpy(data, &types, sizeof types);
}

GS_HOOK CUresult CUDAAPI cuPointerGetAttribute(void *data, CUpointer_attribute attribute,
                                               CUdeviceptr ptr)
{
    GS_AT_GATE_ABOUT(cuPointerGetAttribute, ptr);
    struct gs_block_info info;
    CUresult result;
    gs_status status;

    if (!gs_state_enter() || !data)
        return gs_real.cuPointerGetAttribute(data, attribute, ptr);
    if (!gs_ours(ptr)) {
        result = gs_real.cuPointerGetAttribute(data, attribute, ptr);
        if (result == CUDA_SUCCESS && gs_own_adds(gs_core_own(gs_core)))
            answer_of_own(attribute, data, ptr);
        return result;
    }
    GS_KEEP_ERRNO;
    note_tokens(attribute);
    status = gs_core_find(gs_core, ptr, &info);
    if (status == GS_OK && attribute != CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES &&
        answer(&info, attribute, data))
        return CUDA_SUCCESS;
    result = gs_real.cuPointerGetAttribute(data, attribute,
                                           status == GS_NOT_LIVE ? UNKNOWN_ADDRESS : ptr);
    /* The driver fills more bytes than its header's type has. */
    if (result == CUDA_SUCCESS && attribute == CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES)
        answer(&info, attribute, data);
    return result;
}

GS_HOOK CUresult CUDAAPI cuPointerGetAttributes(unsigned int numAttributes,
                                                CUpointer_attribute *attributes, void **data,
                                                CUdeviceptr ptr)
{
    GS_AT_GATE_ABOUT(cuPointerGetAttributes, ptr);
    struct gs_block_info info;
    CUresult result;
    gs_status status;

    if (!gs_state_enter())
        return gs_real.cuPointerGetAttributes(numAttributes, attributes, data, ptr);
    if (!gs_ours(ptr)) {
        result = gs_real.cuPointerGetAttributes(numAttributes, attributes, data, ptr);
        if (result == CUDA_SUCCESS && gs_own_adds(gs_core_own(gs_core)))
            for (unsigned int i = 0; i < numAttributes; i++)
                answer_of_own(attributes[i], data[i], ptr);
        return result;
    }
    GS_KEEP_ERRNO;
    status = gs_core_find(gs_core, ptr, &info);
    result = gs_real.cuPointerGetAttributes(numAttributes, attributes, data,
                                            status == GS_NOT_LIVE ? UNKNOWN_ADDRESS : ptr);
    /* A call that the driver takes has good arrays; where it knows nothing it wrote zeros. */
    if (status == GS_OK && result == CUDA_SUCCESS)
        for (unsigned int i = 0; i < numAttributes; i++) {
            note_tokens(attributes[i]);
            answer(&info, attributes[i], data[i]);
        }
    return result;
}

GS_HOOK CUresult CUDAAPI cuPointerSetAttribute(const void *value, CUpointer_attribute attribute,
                                               CUdeviceptr ptr)
{
    GS_AT_GATE_ABOUT(cuPointerSetAttribute, ptr);
    unsigned int on;
    gs_status status;

    if (!gs_state_enter() || !value || !gs_ours(ptr))
        return gs_real.cuPointerSetAttribute(value, attribute, ptr);
    if (attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) /* VMM memory would say NOT_SUPPORTED */
        return CUDA_ERROR_INVALID_VALUE;
    GS_KEEP_ERRNO;
    memcpy(&on, value, sizeof on);
    status = gs_core_sync_memops(gs_core, ptr, on != 0);
    return status == GS_NOT_OURS ? gs_real.cuPointerSetAttribute(value, attribute, ptr)
                                 : gs_result(status);
}

/* Sleep lowers that of stacks: who puts back later what it is told here would lose its own. */
GS_HOOK CUresult CUDAAPI cuCtxGetLimit(size_t *value, CUlimit limit)
{
    if (!gs_state_enter() || !value || limit != CU_LIMIT_STACK_SIZE)
        return gs_real.cuCtxGetLimit(value, limit);
    GS_AT_GATE(cuCtxGetLimit);
    return gs_real.cuCtxGetLimit(value, limit);
}
