/* tests/unit/fixture.h */
#include "fixture.h"

#include "core/process/context.h"
#include "core/process/reclaim.h"
#include "core/process/stats.h"
#include "tests/driver/softcuda.h"

/* The software driver takes its own kernels by the names it finds here. */
static const char kernels[] = ".version 6.0\n.target sm_52\n.address_size 64\n"
                              ".visible .entry spin_fill(\n.param .u64 p\n)\n"
                              ".visible .entry fill(\n.param .u64 p\n)\n"
                              ".visible .entry count_other(\n.param .u64 p\n)\n";

void fixture_must(int result, const char *call, const char *file, int line)
{
    if (result == 0)
        return;
    fprintf(stderr, "%s:%d: %s gave %d\n", file, line, call, result);
    _exit(1);
}

static void log_line(enum gs_log_level level, const void *place, const char *text)
{
    if (level <= GS_LOG_WARNING)
        fprintf(stderr, "core: %s\n", text);
}

void fixture_options(struct fixture *fixture)
{
    memset(fixture, 0, sizeof *fixture);
    fixture->options = (struct gs_core_options){
        .small_limit = 1 << 20,
        .epoch_bytes = 64 << 20,
        .cache_limit = SIZE_MAX,
        .cross = true,
        .retiring_percent = 10,
        .log = {.line = log_line},
        .share = {.grace_ns = 1000000000,
                  .grace_least_ns = 1000000000,
                  .settle_ns = 200000000,
                  .timeout_ns = 5000000000,
                  .max_clients = 16},
    };
}

void fixture_neighbours(struct fixture *fixture)
{
    fixture->options.neighbours = true;
    snprintf(fixture->options.share.dir, sizeof fixture->options.share.dir, "/tmp/gpushim-alone-%d",
             (int)getpid());
}

void fixture_start(struct fixture *fixture)
{
    struct gs_driver driver = {
#define OP(field, symbol, required) .field = symbol,
        GS_DRIVER_OPS(OP)
#undef OP
    };
    int result = cuInit(0);

    if (fixture_is_old())
        driver.ctx_record_event = NULL;
    if (result == CUDA_ERROR_NO_DEVICE)
        exit(77);
    MUST(result);
    MUST(cuDevicePrimaryCtxRetain(&fixture->context, 0));
    MUST(cuCtxSetCurrent(fixture->context));
    MUST(cuModuleLoadData(&fixture->module, kernels));
    MUST(cuModuleGetFunction(&fixture->spin_fill, fixture->module, "spin_fill"));
    MUST(cuModuleGetFunction(&fixture->fill, fixture->module, "fill"));
    MUST(cuModuleGetFunction(&fixture->count_other, fixture->module, "count_other"));
    MUST(cuStreamCreate(&fixture->stream, CU_STREAM_NON_BLOCKING));
    MUST(gs_core_create(&driver, &fixture->options, &fixture->core));
}

bool fixture_is_old(void)
{
    const char *without = getenv("SOFTCUDA_WITHOUT");

    return without && strstr(without, "ctx_record_event");
}

const char *fixture_recording_call(void)
{
    return fixture_is_old() ? "cuEventRecord" : "cuCtxRecordEvent";
}

void fixture_drain(struct fixture *fixture)
{
    MUST(cuCtxSynchronize());
    gs_core_cached(fixture->core); /* looks at what has come back */
    MUST(cuCtxSynchronize());
    gs_core_cached(fixture->core);
}

void fixture_end(struct fixture *fixture)
{
    gs_core_destroy(fixture->core);
    fixture->core = NULL;
    if (fixture->options.neighbours)
        rmdir(fixture->options.share.dir);
    MUST(cuStreamDestroy(fixture->stream));
    MUST(cuModuleUnload(fixture->module));
    MUST(cuDevicePrimaryCtxRelease(0));
}

CUcontext fixture_context_new(void)
{
    CUcontext context;

#if CUDA_VERSION >= 13000
    MUST(cuCtxCreate(&context, NULL, 0, 0));
#else
    MUST(cuCtxCreate(&context, 0, 0));
#endif
    return context;
}

void fixture_context_end(struct fixture *fixture, CUcontext context)
{
    struct gs_context *detached = gs_core_context_detach(fixture->core, context);

    MUST(cuCtxDestroy(context));
    gs_core_context_gone(fixture->core, context, detached);
    MUST(cuCtxSetCurrent(fixture->context));
}

void fixture_spin_fill(struct fixture *fixture, CUstream stream, CUdeviceptr address,
                       unsigned value, size_t count, unsigned long long delay_ns)
{
    unsigned long long words = count;
    void *parameters[] = {&address, &value, &words, &delay_ns};

    MUST(cuLaunchKernel(fixture->spin_fill, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
}

void fixture_free_behind_work(struct fixture *fixture, CUdeviceptr block)
{
    softcuda_hold(1);
    fixture_spin_fill(fixture, fixture->stream, block, 1, 1, 0);
    MUST(gs_core_free(fixture->core, block));
}

unsigned fixture_count_other(struct fixture *fixture, CUstream stream, CUdeviceptr address,
                             unsigned value, size_t count)
{
    unsigned long long words = count;
    CUdeviceptr out;
    unsigned other = 0;
    void *parameters[] = {&address, &value, &words, &out};

    MUST(cuMemAlloc(&out, sizeof other));
    MUST(cuMemsetD32Async(out, 0, 1, stream));
    MUST(cuLaunchKernel(fixture->count_other, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
    MUST(cuStreamSynchronize(stream));
    MUST(cuMemcpyDtoH(&other, out, sizeof other));
    MUST(cuMemFree(out));
    return other;
}

CUdeviceptr must_alloc(struct fixture *fixture, size_t size)
{
    CUdeviceptr address;

    MUST(gs_core_alloc(fixture->core, size, &address));
    return address;
}

struct gs_fences *fixture_fences(struct fixture *fixture)
{
    return &fixture->core->fences;
}

struct gs_driver *fixture_driver(struct fixture *fixture)
{
    return &fixture->core->driver;
}

static struct gs_context *current(struct fixture *fixture)
{
    struct gs_context *context;

    MUST(gs_context_current(fixture->core, &context));
    return context;
}

struct gs_arena *fixture_home(struct fixture *fixture)
{
    return current(fixture)->arenas[0];
}

struct gs_arena *fixture_lock_pool(struct fixture *fixture, CUdeviceptr address)
{
    struct gs_piece *piece;

    MUST(gs_context_lock_piece(fixture->core, address, &piece));
    return piece->arena;
}

size_t fixture_release(struct fixture *fixture, bool wait)
{
    const struct gs_patience patience = gs_patience_of(UINT64_MAX);

    return gs_device_trim(fixture->core, current(fixture)->device, wait ? &patience : NULL,
                          SIZE_MAX);
}

struct fixture_arena fixture_arena(struct fixture *fixture)
{
    struct fixture_arena figures = {0};
    const struct gs_context *context = current(fixture);

    for (unsigned i = 0; i < GS_CONTEXT_ARENAS; i++) {
        struct gs_arena *arena = context->arenas[i];

        if (!arena)
            continue;
        gs_latch_take(&arena->lock);
        figures.reserved += arena->reserved;
        figures.live += arena->live;
        figures.free_bytes += arena->free_bytes;
        figures.limbo += arena->held;
        gs_latch_release(&arena->lock);
    }
    figures.retired = figures.reserved - figures.live - figures.free_bytes - figures.limbo;
    return figures;
}

struct gs_arena_counts fixture_counts(struct fixture *fixture)
{
    struct gs_stats stats;

    gs_stats_read(fixture->core, 0, &stats);
    return stats.counts;
}
