/*
 * The driver operations that core uses: one table, filled by whoever starts core (shim/ with the
 * real driver's functions, unit tests with the software driver's). Core calls the driver through
 * it and in no other way.
 *
 * What always holds for every operation: it may be called from any thread; it is never called
 * with a lock held unless its row below says that it waits for no work (those that only look
 * something up, or set what is current, have none); core never calls one in a forked child, nor
 * from an exit handler.
 *
 * That is of a call by itself. While a cuMemFree of the driver's own memory (managed memory, say)
 * waits for a host function, other threads' calls that submit something to its context wait with it
 * (measured on an H200): of those below event_record and ctx_record_event, as launches, copies and
 * the begin of a capture; not stream_wait_event, mem_get_info and mem_create. The first two are
 * made with an arena's lock held, or single-stream mode's, and then whoever wants that lock waits
 * as long. The host function ends it. It must not need a call in another thread that would pass
 * natively and needs the lock here: cuMemAllocAsync, cuMemFreeAsync, cuMemGetInfo,
 * cuStreamWaitEvent.
 *
 * Pre-conditions, stated once:
 *   mem_create, mem_release, mem_address_reserve, mem_address_free, mem_map, mem_set_access,
 *   mem_export, mem_import, mem_retain
 *                                 no current context needed; fine during a capture. None waits
 *                                 for the GPU: a device's first use makes one of each under the
 *                                 lock of the contexts, and the addresses of an arena without a
 *                                 context go back under both; all else is without a lock.
 *   mem_set_access                to give a device access: may be called with an arena's lock held,
 *                                 it does not wait for the GPU. To take it away: that device's
 *                                 work is done, it faults otherwise.
 *   mem_unmap                     nothing may still touch the range: it does not wait, and work
 *                                 that faults kills the context (measured: a sticky
 *                                 ILLEGAL_ADDRESS). Every fence over the range has passed.
 *   event_create, event_destroy   a context is current (the event belongs to it). Neither waits for
 *                                 work.
 *   ctx_record_event              no capture is open anywhere in the process: it fails with
 *                                 STREAM_CAPTURE_UNSUPPORTED and breaks the capture, whatever the
 *                                 thread's mode. It does not wait for work, nor where a queue is
 *                                 full (measured, 1,021 fills): a capture's begin waits for it.
 *   event_query                   no capture is open, or this thread's capture mode is RELAXED:
 *                                 then it passes beside captures of every mode and thread
 *                                 (measured).
 *                                 Does not wait for work.
 *   event_record                  no capture is open, and the stream is known to exist: called with
 *                                 the lock of an arena, or a line of single-stream mode, which its
 *                                 end takes first. As ctx_record_event.
 *   mem_get_info                  a context is current. Fine during a capture (measured).
 *   stream_wait_event             no capture is open. Waits for no event, nor where the stream's
 *                                 queue is full (measured). It is called with single-stream mode's
 *                                 lock held, so that nothing is marked meanwhile.
 *   ctx_set_flags                 a context is current. In a RELAXED capture of a stream that is
 *                                 not blocking it passes; of one that is (flags 0) it fails with
 *                                 STREAM_CAPTURE_UNSUPPORTED and breaks it: no capture is open.
 *   mem_host_register, mem_host_unregister, mem_host_get_device_pointer
 *                                 a context is current, and no capture is open, or this thread's
 *                                 capture mode is RELAXED (measured). The second waits for work of
 *                                 the context: no lock held.
 *   memcpy_dtoh_async, memcpy_htod_async, ctx_get_limit, ctx_set_limit, stream_create,
 *   stream_destroy
 *                                 of a process that falls asleep or wakes (core/process/sleep.h): a
 *                                 context is current, no capture is open, no lock held.
 *   stream_get_ctx                of the legacy default stream: no capture is open. Beside one of
 *                                 a stream that is blocking (flags 0) it fails with
 *                                 STREAM_CAPTURE_IMPLICIT and breaks it, in every mode; of other
 *                                 streams, those that capture too, it passes (measured). The one
 *                                 exception is a call of the program's about that very stream, in a
 *                                 green context, which breaks it natively as well.
 *   stream_synchronize            waits for the GPU: no lock held, the stream does not capture.
 *   ctx_synchronize               waits for the GPU: no lock held, no capture open.
 *
 * Optional operations are NULL where the driver has none.
 */
#ifndef GS_CORE_GPU_DRIVER_H
#define GS_CORE_GPU_DRIVER_H

#include <cuda.h>

/* OP(field, exact symbol, required) */
#define GS_DRIVER_OPS(OP)                                           \
    OP(ctx_get_current, cuCtxGetCurrent, 1)                         \
    OP(ctx_get_device, cuCtxGetDevice, 1)                           \
    OP(ctx_get_id, cuCtxGetId, 0)                                   \
    OP(ctx_push_current, cuCtxPushCurrent_v2, 1)                    \
    OP(ctx_pop_current, cuCtxPopCurrent_v2, 1)                      \
    OP(ctx_synchronize, cuCtxSynchronize, 1)                        \
    OP(ctx_record_event, cuCtxRecordEvent, 0)                       \
    OP(ctx_from_green, cuCtxFromGreenCtx, 0)                        \
    OP(ctx_get_api_version, cuCtxGetApiVersion, 1)                  \
    OP(primary_ctx_get_state, cuDevicePrimaryCtxGetState, 1)        \
    OP(primary_ctx_retain, cuDevicePrimaryCtxRetain, 1)             \
    OP(primary_ctx_release, cuDevicePrimaryCtxRelease_v2, 1)        \
    OP(ctx_get_flags, cuCtxGetFlags, 0)                             \
    OP(ctx_set_flags, cuCtxSetFlags, 0)                             \
    OP(ctx_get_limit, cuCtxGetLimit, 0)                             \
    OP(ctx_set_limit, cuCtxSetLimit, 0)                             \
    OP(device_get_count, cuDeviceGetCount, 0)                       \
    OP(device_get_attribute, cuDeviceGetAttribute, 1)               \
    OP(device_total_mem, cuDeviceTotalMem_v2, 1)                    \
    OP(device_get_uuid, cuDeviceGetUuid_v2, 0)                      \
    OP(device_get_name, cuDeviceGetName, 0)                         \
    OP(device_get_default_pool, cuDeviceGetDefaultMemPool, 0)       \
    OP(event_create, cuEventCreate, 1)                              \
    OP(event_destroy, cuEventDestroy_v2, 1)                         \
    OP(event_record, cuEventRecord, 1)                              \
    OP(event_query, cuEventQuery, 1)                                \
    OP(pointer_get_attribute, cuPointerGetAttribute, 0)             \
    OP(stream_create, cuStreamCreate, 1)                            \
    OP(stream_destroy, cuStreamDestroy_v2, 1)                       \
    OP(stream_synchronize, cuStreamSynchronize, 1)                  \
    OP(stream_wait_event, cuStreamWaitEvent, 1)                     \
    OP(stream_get_ctx, cuStreamGetCtx, 1)                           \
    OP(exchange_capture_mode, cuThreadExchangeStreamCaptureMode, 0) \
    OP(stream_is_capturing, cuStreamIsCapturing, 0)                 \
    OP(mem_get_info, cuMemGetInfo_v2, 0)                            \
    OP(mem_create, cuMemCreate, 0)                                  \
    OP(mem_release, cuMemRelease, 0)                                \
    OP(mem_address_reserve, cuMemAddressReserve, 0)                 \
    OP(mem_address_free, cuMemAddressFree, 0)                       \
    OP(mem_map, cuMemMap, 0)                                        \
    OP(mem_unmap, cuMemUnmap, 0)                                    \
    OP(mem_set_access, cuMemSetAccess, 0)                           \
    OP(memcpy_dtoh_async, cuMemcpyDtoHAsync_v2, 0)                  \
    OP(memcpy_htod_async, cuMemcpyHtoDAsync_v2, 0)                  \
    OP(mem_get_granularity, cuMemGetAllocationGranularity, 0)       \
    OP(mem_get_address_range, cuMemGetAddressRange_v2, 0)           \
    OP(mem_get_range_handle, cuMemGetHandleForAddressRange, 0)      \
    OP(mem_export, cuMemExportToShareableHandle, 0)                 \
    OP(mem_import, cuMemImportFromShareableHandle, 0)               \
    OP(mem_retain, cuMemRetainAllocationHandle, 0)                  \
    OP(mem_host_register, cuMemHostRegister_v2, 0)                  \
    OP(mem_host_unregister, cuMemHostUnregister, 0)                 \
    OP(mem_host_get_device_pointer, cuMemHostGetDevicePointer_v2, 0)

struct gs_driver {
#define GS_OP_FIELD(field, symbol, required) __typeof__(&symbol) field;
    GS_DRIVER_OPS(GS_OP_FIELD)
#undef GS_OP_FIELD
};

struct gs_entered {
    const struct gs_driver *driver;
    CUresult result;
};

static inline struct gs_entered gs_enter(const struct gs_driver *driver, CUcontext context)
{
    return (struct gs_entered){driver, driver->ctx_push_current(context)};
}

static inline void gs_leave(const struct gs_entered *entered)
{
    CUcontext popped;

    if (entered->result == CUDA_SUCCESS)
        entered->driver->ctx_pop_current(&popped);
}

/* The context is current until the block ends, unless `name`.result is an error. */
#define GS_ENTER(name, driver, context) \
    __attribute__((cleanup(gs_leave))) const struct gs_entered name = gs_enter(driver, context)

#endif
