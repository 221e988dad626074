/*
 * CUDA IPC of memory. Handles for our memory are made by us, and for what the program has mapped
 * itself; a handle that is not one was made by the native driver and goes to it.
 */
#include "shim/registration/pinning.h"
#include "hook.h"
#include "record.h"
#include "shim/log.h"
#include "shim/result.h"
#include "shim/start.h"

#include <string.h>

#include "core/process/own.h"

_Static_assert(sizeof(CUipcMemHandle) == GS_IPC_HANDLE_SIZE,
               "an IPC handle of ours fills a handle");

static CUresult get_handle(CUipcMemHandle *pHandle, CUdeviceptr dptr)
{
    unsigned char token[GS_IPC_HANDLE_SIZE];
    gs_status status;

    if (!gs_state_enter() || !pHandle)
        return gs_real.cuIpcGetMemHandle(pHandle, dptr);
    GS_KEEP_CALLER;
    status = gs_core_in_context(gs_core);
    if (status != GS_OK)
        return gs_ours(dptr) ? gs_result(status) : gs_real.cuIpcGetMemHandle(pHandle, dptr);
    status = gs_ours(dptr) ? gs_core_ipc_handle(gs_core, dptr, token)
                           : gs_core_own_ipc_handle(gs_core, dptr, token);
    if (status == GS_NOT_OURS)
        return gs_real.cuIpcGetMemHandle(pHandle, dptr);
    if (status == GS_OK)
        memcpy(pHandle->reserved, token, sizeof token);
    return gs_result(status);
}

#define GS_MAKES_EXPORTS                            GS_TRACED(ptr)
#define GS_MAKE_EXPORTS(symbol, order, async, real) return get_handle(ret, ptr);

#define GS_RECORD_EXPORTS(order) record(&recorded, GS_TRACE_EXPORTED, result, ptr);

/* True: the handle is one of ours and *ret_result is the outcome. */
static bool open_token(CUdeviceptr *pdptr, const CUipcMemHandle *handle, unsigned int flags,
                       CUresult *ret_result)
{
    unsigned char token[GS_IPC_HANDLE_SIZE];
    CUdeviceptr address;
    gs_status status;

    memcpy(token, handle->reserved, sizeof token);
    if (!gs_state_enter() || !gs_ipc_handle_is_ours(token))
        return false;
    GS_KEEP_CALLER;
    if (!pdptr || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) {
        if (pdptr)
            gs_log(GS_LOG_DEBUG, "an IPC handle was not opened: flags %u, and 1 is all there is",
                   flags);
        else
            gs_log(GS_LOG_DEBUG, "an IPC handle was not opened: nowhere to write its address to");
        *ret_result = CUDA_ERROR_INVALID_VALUE;
        return true;
    }
    status = gs_core_in_context(gs_core);
    if (status != GS_OK) {
        gs_log(GS_LOG_DEBUG, "an IPC handle was not opened: no context of a GPU is current");
        *ret_result = gs_result(status);
        return true;
    }
    status = gs_core_open(gs_core, token, &address);
    if (status == GS_OK)
        *pdptr = address;
    *ret_result = gs_result(status);
    return true;
}

#define GS_MAKES_OPENS GS_TRACED(0)
#define GS_MAKE_OPENS(symbol, order, async, real) \
    CUresult outcome;                             \
                                                  \
    return open_token(ret, &handle, flags, &outcome) ? outcome : real;
#define GS_RECORD_OPENS(order) \
    record(&recorded, GS_TRACE_OPENED, result, result == CUDA_SUCCESS ? *ret : 0);

/* Of the block that has the address, or, where it is none of ours, of that alone. */
static void record(struct gs_recorded *recorded, enum gs_trace_op op, CUresult result,
                   CUdeviceptr address)
{
    CUdeviceptr base = address;
    size_t size = 0;

    gs_record_block(address, &base, &size);
    gs_record_shared(recorded, op, result, base, size);
}

#include "made.h"

static CUresult close_memory(CUdeviceptr dptr)
{
    gs_status status = GS_NOT_OURS;

    if (!gs_state_enter())
        return gs_real.cuIpcCloseMemHandle(dptr);
    GS_KEEP_CALLER;
    if (gs_ours(dptr)) {
        status = gs_core_in_context(gs_core);
        if (status != GS_OK)
            return gs_result(status);
        status = gs_share_close(gs_core_share(gs_core), dptr);
        if (status == GS_NOT_OURS && gs_ours(dptr))
            gs_log(GS_LOG_DEBUG, "no IPC memory was closed: what was opened does not begin at %llx",
                   (unsigned long long)dptr);
        if (status != GS_NOT_OURS || gs_ours(dptr))
            return gs_result(status);
    }
    gs_pin_foreign_going(dptr); /* opened by the driver's own handle */
    return gs_real.cuIpcCloseMemHandle(dptr);
}

GS_HOOK CUresult CUDAAPI cuIpcCloseMemHandle(CUdeviceptr dptr)
{
    GS_AT_GATE(cuIpcCloseMemHandle);
    struct gs_recorded recorded;
    CUdeviceptr base = dptr;
    size_t size = 0;
    CUresult result;

    if (!gs_tracing())
        return close_memory(dptr);
    gs_record_begin(&recorded, GS_CALLER, dptr);
    gs_record_block(dptr, &base, &size);
    result = close_memory(dptr);
    gs_record_shared(&recorded, GS_TRACE_CLOSED, result, base, size);
    return result;
}
