/* What is recorded of a process's memory (core/process/record.h). */
#include "core/process/record.h"

#include <string.h>

#include "core/process/context.h"
#include "core/process/stats.h"

#define EVERY_NS GS_NS_PER_MS /* figures, of a device that something happens on */

static uint64_t told; /* atomic: the devices whose names were written, a bit each */
static uint64_t figures_ns[GS_DEVICES_MAX]; /* atomic: when figures were written last */

/* Who they are, before the first event of theirs. */
static void tell_device(struct gs_core *core, CUdevice ordinal)
{
    const struct gs_driver *driver = &core->driver;
    struct gs_trace_device device = {.device = (uint32_t)ordinal};
    uint64_t bit = UINT64_C(1) << ordinal;
    size_t bytes = 0;

    if (__atomic_load_n(&told, __ATOMIC_RELAXED) & bit ||
        __atomic_fetch_or(&told, bit, __ATOMIC_RELAXED) & bit)
        return;
    if (driver->device_total_mem(&bytes, ordinal) == CUDA_SUCCESS)
        device.bytes = bytes;
    gs_device_uuid(driver, ordinal, device.uuid);
    if (!driver->device_get_name ||
        driver->device_get_name(device.name, sizeof device.name, ordinal) != CUDA_SUCCESS)
        memset(device.name, 0, sizeof device.name);
    gs_trace_device(&device);
}

static void put_figures(CUdevice device, const struct gs_stats *stats)
{
    struct gs_trace_mark mark = gs_trace_begin();
    struct gs_trace_event event = {.op = GS_TRACE_FIGURES,
                                   .device = (uint8_t)device,
                                   .figures = {.live = stats->live,
                                               .cached = stats->cached + stats->ordered,
                                               .retired = stats->retired,
                                               .limbo = stats->limbo}};

    gs_trace_put(&mark, &event, NULL);
}

static void tell_figures(struct gs_core *core, CUdevice device, uint64_t now)
{
    uint64_t last = __atomic_load_n(&figures_ns[device], __ATOMIC_RELAXED);
    struct gs_stats stats;

    if (now < last + EVERY_NS ||
        !__atomic_compare_exchange_n(&figures_ns[device], &last, now, false, __ATOMIC_RELAXED,
                                     __ATOMIC_RELAXED))
        return;
    gs_stats_read(core, device, &stats);
    put_figures(device, &stats);
}

void gs_record_call(struct gs_core *core, const struct gs_trace_mark *mark, CUdevice device,
                    struct gs_trace_event *event, const uint64_t *frame)
{
    const bool known = core && gs_is_device(device);

    event->device = known ? (uint8_t)device : 0;
    if (known)
        tell_device(core, device);
    gs_trace_put(mark, event, frame);
    if (known)
        tell_figures(core, device, mark->began_ns);
}

void gs_record_piece(struct gs_core *core, const struct gs_trace_mark *mark, uint64_t ready_ns,
                     CUdevice device, const struct gs_span *span)
{
    uint64_t took = ready_ns ? ready_ns - mark->began_ns : 0;
    struct gs_trace_event event = {.op = ready_ns ? GS_TRACE_PIECE_MADE : GS_TRACE_PIECE_GONE,
                                   .device = (uint8_t)device,
                                   .took_ns = took > UINT32_MAX ? UINT32_MAX : (uint32_t)took,
                                   .call = {.address = span->base, .size = span->size}};

    if (!gs_tracing())
        return;
    tell_device(core, device);
    gs_trace_put(mark, &event, NULL);
    tell_figures(core, device, mark->began_ns);
}

CUdevice gs_record_device_at(const struct gs_core *core, uint64_t address)
{
    const struct gs_span *span = gs_map_find(&core->map, address);

    if (!span || span->kind != GS_SPAN_PIECE)
        return -1;
    /* The record is never given back, so a piece that goes meanwhile does no harm. */
    return __atomic_load_n(&((const struct gs_piece *)span)->device, __ATOMIC_RELAXED);
}

CUdevice gs_record_device_of(struct gs_core *core, CUstream stream)
{
    struct gs_context *context;
    uint64_t key;
    gs_status status = stream ? gs_context_of_stream(core, stream, &context, &key)
                              : gs_context_current_unprobed(core, &context);

    return status == GS_OK ? context->ordinal : -1;
}

void gs_record_at_exit(struct gs_core *core)
{
    struct gs_stats stats;

    for (CUdevice device = 0; device < GS_DEVICES_MAX; device++)
        if (__atomic_load_n(&told, __ATOMIC_RELAXED) >> device & 1 &&
            gs_stats_try_read(core, device, &stats))
            put_figures(device, &stats);
}
