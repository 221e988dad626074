/* One run of gpushim replay (replay.h), in a process of its own. */
#include "shim/command/replay.h"

#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "shim/command/old_dl.h"
#include "shim/gpushim.h"

OLDEST(dlopen);
OLDEST(dlsym);
OLDEST(dlerror);

#define STREAMS 1024 /* beyond, several of a device's become one */

/* Looked up as any program does, so that a library that is preloaded answers. OP(field, symbol) */
#define DRIVER(OP)                                                                                 \
    OP(init, cuInit)                                                                               \
    OP(error_name, cuGetErrorName)                                                                 \
    OP(device_count, cuDeviceGetCount)                                                             \
    OP(device_get, cuDeviceGet)                                                                    \
    OP(ctx_retain, cuDevicePrimaryCtxRetain)                                                       \
    OP(ctx_set, cuCtxSetCurrent)                                                                   \
    OP(ctx_synchronize, cuCtxSynchronize)                                                          \
    OP(stream_create, cuStreamCreate)                                                              \
    OP(alloc, cuMemAlloc_v2)                                                                       \
    OP(free, cuMemFree_v2)                                                                         \
    OP(alloc_async, cuMemAllocAsync)                                                               \
    OP(free_async, cuMemFreeAsync)                                                                 \
    OP(info, cuMemGetInfo_v2)

struct player {
    struct {
#define FIELD(field, symbol) __typeof__(&symbol) field;
        DRIVER(FIELD)
#undef FIELD
    } cuda;
    __typeof__(&gpushim_memory) own; /* the library's figures; NULL: it is not in this process */
    const struct trace *trace;
    const struct trace_memory *memory;
    struct replay_result *result;
    CUdeviceptr *pointers; /* of each block, while it is there */
    uint32_t *took[2];     /* allocations, frees */
    CUcontext contexts[256];
    uint64_t at_first[256]; /* memory that was free before the first allocation */
    uint64_t live[256], looked[256], peaks[256];
    int current; /* device */
    struct {
        uint64_t handle;
        unsigned device;
        CUstream stream;
    } streams[STREAMS + 256]; /* of each device one in any case */
    size_t stream_count;
    bool has_stream[256];
};

static bool wrong(struct player *player, const char *what, CUresult error)
{
    const char *name = NULL;

    if (player->cuda.error_name(error, &name) != CUDA_SUCCESS || !name)
        name = "an error that it does not name";
    snprintf(player->result->wrong, sizeof player->result->wrong, "%s fails with %d, %s", what,
             (int)error, name);
    return false;
}

/* ---- The driver ----------------------------------------------------------------------------- */

static bool load(struct player *player)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    const char *missing = NULL, *reason = library ? NULL : dlerror();

    if (!library) {
        snprintf(player->result->wrong, sizeof player->result->wrong,
                 "there is no driver here (%s); replay it on a machine with NVIDIA's",
                 reason ? reason : "libcuda.so.1");
        return false;
    }
#define FIND(field, symbol)                                                                        \
    player->cuda.field = (__typeof__(&symbol))dlsym(library, GS_NAME(symbol));                     \
    if (!player->cuda.field)                                                                       \
        missing = GS_NAME(symbol);
#define GS_NAME(symbol)  GS_NAME_(symbol)
#define GS_NAME_(symbol) #symbol
    DRIVER(FIND)
#undef FIND
    player->own = (__typeof__(&gpushim_memory))dlsym(RTLD_DEFAULT, "gpushim_memory");
    if (missing)
        snprintf(player->result->wrong, sizeof player->result->wrong,
                 "the driver here has no %s; replay it with a newer one", missing);
    return !missing;
}

static bool use_device(struct player *player, unsigned device)
{
    size_t left = 0, total;
    CUdevice handle;
    CUresult error = CUDA_SUCCESS;

    if (player->current == (int)device)
        return true;
    if (!player->contexts[device]) {
        error = player->cuda.device_get(&handle, (int)device);
        if (!error)
            error = player->cuda.ctx_retain(&player->contexts[device], handle);
    }
    if (!error)
        error = player->cuda.ctx_set(player->contexts[device]);
    if (error)
        return wrong(player, "making a context on the GPU", error);
    player->current = (int)device;
    if (!player->at_first[device] && player->cuda.info(&left, &total) == CUDA_SUCCESS)
        player->at_first[device] = left;
    return true;
}

static bool begin(struct player *player)
{
    unsigned most = 0;
    int devices = 0;
    CUresult error;

    for (size_t i = 0; i < player->memory->block_count; i++)
        if (player->memory->blocks[i].device > most)
            most = player->memory->blocks[i].device;
    error = player->cuda.init(0);
    if (error)
        return wrong(player, "cuInit", error);
    error = player->cuda.device_count(&devices);
    if (error || devices <= (int)most) {
        snprintf(player->result->wrong, sizeof player->result->wrong,
                 "the trace has GPU %u, and the last one here is %d; replay it where there are as "
                 "many",
                 most, devices - 1);
        return false;
    }
    player->current = -1;
    return true;
}

/* 0, 1 and 2 mean the same in every process: the default streams. */
static bool stream_of(struct player *player, const struct trace_event *event, CUstream *ret)
{
    size_t i = 0;
    CUresult error;

    *ret = (CUstream)(uintptr_t)event->stream;
    if (event->stream <= 2)
        return true;
    while (i < player->stream_count && (player->streams[i].handle != event->stream ||
                                        player->streams[i].device != event->device))
        i++;
    if (i == player->stream_count && i >= STREAMS && player->has_stream[event->device])
        for (i = event->stream % STREAMS; player->streams[i].device != event->device;)
            i = (i + 1) % player->stream_count;
    if (i == player->stream_count) {
        error = player->cuda.stream_create(&player->streams[i].stream, CU_STREAM_NON_BLOCKING);
        if (error)
            return wrong(player, "cuStreamCreate", error);
        player->streams[i].handle = event->stream;
        player->streams[i].device = event->device;
        player->has_stream[event->device] = true;
        player->stream_count++;
    }
    *ret = player->streams[i].stream;
    return true;
}

/* ---- Calls ---------------------------------------------------------------------------------- */

static uint64_t now(void)
{
    struct timespec at;

    clock_gettime(CLOCK_MONOTONIC, &at);
    return (uint64_t)at.tv_sec * 1000000000 + (uint64_t)at.tv_nsec;
}

static void note(uint32_t *took, struct replay_times *times, uint64_t began, uint64_t ended)
{
    uint64_t ns = ended - began;

    times->sum_ns += ns;
    took[times->count++] = ns > UINT32_MAX ? UINT32_MAX : (uint32_t)ns;
}

/* Asking takes time, so only where there is noticeably more than when it was asked last. */
static void look(struct player *player, unsigned device)
{
    size_t left, total;

    if (player->live[device] <= player->looked[device] + player->looked[device] / 64)
        return;
    player->looked[device] = player->live[device];
    if (player->cuda.info(&left, &total) == CUDA_SUCCESS && left < player->at_first[device] &&
        player->at_first[device] - left > player->peaks[device])
        player->peaks[device] = player->at_first[device] - left;
}

static bool play_alloc(struct player *player, const struct trace_event *event, size_t at)
{
    const uint32_t begins = player->memory->begins[at];
    CUdeviceptr pointer = 0;
    uint64_t began, ended;
    CUstream stream;
    CUresult error;

    if (!stream_of(player, event, &stream))
        return false;
    began = now();
    error = event->op == GS_TRACE_ALLOC ? player->cuda.alloc(&pointer, event->size)
                                        : player->cuda.alloc_async(&pointer, event->size, stream);
    ended = now();
    note(player->took[0], &player->result->allocations, began, ended);
    player->result->refused += error != CUDA_SUCCESS;
    if (error)
        return true;
    if (!begins) { /* the recorded program did not get it */
        player->cuda.free(pointer);
        return true;
    }
    player->pointers[begins - 1] = pointer;
    player->live[event->device] += event->size;
    look(player, event->device);
    return true;
}

static bool play_free(struct player *player, const struct trace_event *event, size_t at)
{
    const uint32_t block = player->memory->ends[at] - 1;
    CUdeviceptr pointer = player->pointers[block];
    uint64_t began, ended;
    CUstream stream;
    CUresult error;

    if (!pointer)
        return true;
    player->pointers[block] = 0;
    player->live[player->memory->blocks[block].device] -= player->memory->blocks[block].size;
    if (!stream_of(player, event, &stream))
        return false;
    began = now();
    error = event->op == GS_TRACE_FREE_ASYNC ? player->cuda.free_async(pointer, stream)
                                             : player->cuda.free(pointer);
    ended = now();
    if (trace_is_free(event))
        note(player->took[1], &player->result->frees, began, ended);
    player->result->failed_frees += error != CUDA_SUCCESS;
    return true;
}

static bool play_all(struct player *player)
{
    for (size_t i = 0; i < player->trace->count; i++) {
        const struct trace_event *event = &player->trace->events[i];
        bool is_alloc = trace_is_alloc(event);

        if (!is_alloc && (!trace_is_free(event) || !player->memory->ends[i]))
            continue;
        if (!use_device(player, event->device))
            return false;
        if (player->memory->ends[i] && !play_free(player, event, i))
            return false;
        if (is_alloc && !play_alloc(player, event, i))
            return false;
    }
    return true;
}

/* ---- What came of it ------------------------------------------------------------------------ */

static int by_number(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return x < y ? -1 : x > y;
}

static void sort_out(struct replay_times *times, uint32_t *took)
{
    if (!times->count)
        return;
    qsort(took, times->count, sizeof *took, by_number);
    times->median_ns = took[times->count / 2];
    times->p99_ns = took[times->count - 1 - times->count / 100];
    times->most_ns = took[times->count - 1];
}

static void sum_up(struct player *player)
{
    struct replay_result *result = player->result;

    sort_out(&result->allocations, player->took[0]);
    sort_out(&result->frees, player->took[1]);
    for (int i = 0; i < 256; i++) {
        struct gpushim_memory memory = {.size = sizeof memory};

        if (!player->contexts[i])
            continue;
        if (player->own && player->own(i, &memory) == 0) {
            result->has_library = true;
            result->reserved_peak += memory.reserved_peak;
        } else {
            result->reserved_peak += player->peaks[i];
        }
    }
}

static void free_what_is_left(struct player *player)
{
    for (size_t i = 0; i < player->memory->block_count; i++)
        if (player->pointers[i] && use_device(player, player->memory->blocks[i].device))
            player->cuda.free(player->pointers[i]);
    for (unsigned i = 0; i < 256; i++)
        if (player->contexts[i] && use_device(player, i))
            player->cuda.ctx_synchronize();
}

void replay_play(const struct trace *trace, const struct trace_memory *memory,
                 struct replay_result *ret_result)
{
    struct player *player = calloc(1, sizeof *player);

    memset(ret_result, 0, sizeof *ret_result);
    snprintf(ret_result->wrong, sizeof ret_result->wrong, "there is too little memory");
    if (!player)
        return;
    player->trace = trace;
    player->memory = memory;
    player->result = ret_result;
    player->pointers = calloc(memory->block_count + 1, sizeof *player->pointers);
    player->took[0] = calloc(trace->count + 1, sizeof *player->took[0]);
    player->took[1] = calloc(trace->count + 1, sizeof *player->took[1]);
    if (player->pointers && player->took[0] && player->took[1]) {
        ret_result->wrong[0] = 0;
        if (load(player) && begin(player) && play_all(player)) {
            sum_up(player);
            free_what_is_left(player);
        }
    }
    free(player->pointers);
    free(player->took[0]);
    free(player->took[1]);
    free(player);
}
