/* Calls that are recorded (record.h). None of this runs in a process that records nothing. */
#include "record.h"

#include "shim/stack.h"

/* What stands for the default stream, in the file. */
static uint64_t number_of(CUstream stream)
{
    return stream == CU_STREAM_LEGACY ? 0 : (uint64_t)(uintptr_t)stream;
}

static bool is_ready(void)
{
    return gs_state_is_on();
}

void gs_record_begin(struct gs_recorded *recorded, void *caller, CUdeviceptr address)
{
    GS_KEEP_ERRNO;
    recorded->device = is_ready() ? gs_record_device_at(gs_core, address) : -1;
    recorded->frames = gs_stack(recorded->frame, caller);
    gs_trace_outcome = GS_TRACE_CACHED;
    recorded->mark = gs_trace_begin();
}

static void put(const struct gs_recorded *recorded, struct gs_trace_event *event, CUstream stream)
{
    CUdevice device = recorded->device;

    event->call.stream = number_of(stream);
    event->frames = (uint8_t)recorded->frames;
    if (is_ready() && device < 0)
        device = gs_record_device_of(gs_core, stream);
    gs_record_call(is_ready() ? gs_core : NULL, &recorded->mark, device, event, recorded->frame);
}

void gs_record_alloc(struct gs_recorded *recorded, enum gs_trace_op op, CUresult result,
                     const CUdeviceptr *address, size_t size, CUstream stream)
{
    struct gs_trace_event event = {.op = (uint8_t)op,
                                   .outcome = GS_TRACE_REFUSED,
                                   .call = {.size = size, .result = (int32_t)result}};

    GS_KEEP_ERRNO;
    if (result == CUDA_SUCCESS) {
        event.call.address = *address;
        event.outcome = GS_TRACE_DRIVER;
        if (is_ready() && gs_ours(*address)) {
            event.outcome = (uint8_t)gs_trace_outcome;
            recorded->device = gs_record_device_at(gs_core, *address);
        }
    }
    put(recorded, &event, stream);
}

void gs_record_free(struct gs_recorded *recorded, enum gs_trace_op op, CUresult result,
                    CUdeviceptr address, CUstream stream)
{
    struct gs_trace_event event = {.op = (uint8_t)op,
                                   .call = {.address = address, .result = (int32_t)result}};

    GS_KEEP_ERRNO;
    put(recorded, &event, stream);
}

void gs_record_shared(struct gs_recorded *recorded, enum gs_trace_op op, CUresult result,
                      CUdeviceptr address, size_t size)
{
    struct gs_trace_event event = {
        .op = (uint8_t)op, .call = {.address = address, .size = size, .result = (int32_t)result}};

    GS_KEEP_ERRNO;
    put(recorded, &event, NULL);
}

bool gs_record_block(CUdeviceptr address, CUdeviceptr *ret_base, size_t *ret_size)
{
    struct gs_block_info info;

    GS_KEEP_ERRNO;
    if (!is_ready() || !gs_ours(address) || gs_core_find(gs_core, address, &info) != GS_OK)
        return false;
    *ret_base = info.base;
    *ret_size = info.size;
    return true;
}
