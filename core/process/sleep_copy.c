/* The contents of GPU memory go to the store, and come back (core/process/sleep_parts.h). */
#include "core/process/sleep_parts.h"

#include <string.h>

#include "core/base/clock.h"

#define MIB ((size_t)1 << 20)

/* In the current context. The thread's own would go when the thread ends, beside what the program
 * does by then: it is for where the driver makes none. */
static CUstream make_stream(const struct gs_driver *driver)
{
    CUstream stream;

    return driver->stream_create(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS
               ? stream
               : CU_STREAM_PER_THREAD;
}

static gs_status copy(const struct gs_core *core, char *host, uint64_t address, size_t size,
                      bool out)
{
    return out ? core->driver.memcpy_dtoh_async(host, address, size, core->sleep.stream)
               : core->driver.memcpy_htod_async(address, host, size, core->sleep.stream);
}

static bool refuse_copy(struct gs_sleep_why *why, bool out, gs_status status)
{
    return gs_sleep_refused_by_driver(why, out ? "copying to the host" : "copying to the GPU",
                                      status);
}

/* A part of the store. Where that is refused the driver copies through memory of its own, which
 * takes longer. All are registered in the context that copies first. */
static void register_part(struct gs_core *core, CUcontext context, size_t part)
{
    struct gs_sleep *sleep = &core->sleep;
    const struct gs_driver *driver = &core->driver;
    const size_t at = part * GS_SLEEP_PART, left = sleep->store.window_size - at;

    if (part > sleep->parts_registered || !driver->mem_host_register ||
        !driver->mem_host_unregister)
        return;
    if (!sleep->registered)
        sleep->registered = context;
    GS_ENTER(entered, driver, sleep->registered);
    if (!entered.result && driver->mem_host_register(sleep->store.window + at,
                                                     left < GS_SLEEP_PART ? left : GS_SLEEP_PART,
                                                     CU_MEMHOSTREGISTER_PORTABLE) == CUDA_SUCCESS)
        sleep->parts_registered++;
}

/* The store as far as the end of a part of its window. */
static bool await_part(struct gs_core *core, CUcontext context, size_t part,
                       struct gs_sleep_why *why)
{
    struct gs_sleep *sleep = &core->sleep;

    if (sleep->parts_there <= part)
        gs_sleep_was_at(sleep, GS_SLEEP_COPYING);
    for (; sleep->parts_there <= part; sleep->parts_there++) {
        const int error = gs_sleep_store_await(&sleep->store, sleep->parts_there);

        if (error)
            return gs_sleep_refuse(
                why, error,
                "%zu MiB are to be kept, and the host's memory has no room for them: %s",
                sleep->store.size / MIB, strerror(error));
        gs_sleep_was_at(sleep, GS_SLEEP_STORING);
        register_part(core, context, sleep->parts_there);
        gs_sleep_was_at(sleep, GS_SLEEP_REGISTERING);
    }
    return true;
}

/* By the window of a file, which is there. */
static bool copy_by_window(struct gs_core *core, uint64_t address, size_t offset, size_t size,
                           bool out, struct gs_sleep_why *why)
{
    const struct gs_sleep_store *store = &core->sleep.store;
    int error = out ? 0 : gs_sleep_store_move(store, offset, size, false);
    gs_status status = GS_OK;

    if (error == 0)
        status = copy(core, store->window, address, size, out);
    if (error == 0 && status == GS_OK)
        status = core->driver.stream_synchronize(core->sleep.stream);
    if (status != GS_OK)
        return refuse_copy(why, out, status);
    if (out)
        error = gs_sleep_store_move(store, offset, size, true);
    return error == 0 || gs_sleep_refuse(why, error, "the file could not be %s: %s",
                                         out ? "written" : "read", strerror(error));
}

/* Part by part of the store, or of a file's window. */
static bool copy_range(struct gs_core *core, CUcontext context, const struct gs_away_range *range,
                       bool out, struct gs_sleep_why *why)
{
    const struct gs_sleep_store *store = &core->sleep.store;
    bool done = true;
    size_t size;

    for (size_t at = 0; done && at < range->size; at += size) {
        const size_t offset = range->offset + at;
        const size_t part = store->in_file ? 0 : offset / GS_SLEEP_PART;
        gs_status status;

        size = store->in_file ? store->window_size : (part + 1) * GS_SLEEP_PART - offset;
        size = range->size - at < size ? range->size - at : size;
        if (!await_part(core, context, part, why))
            return false;
        if (store->in_file) {
            done = copy_by_window(core, range->address + at, offset, size, out, why);
            continue;
        }
        status = copy(core, store->base + offset, range->address + at, size, out);
        done = status == GS_OK || refuse_copy(why, out, status);
    }
    return done;
}

static bool copy_piece(struct gs_core *core, const struct gs_away *away, bool out,
                       struct gs_sleep_why *why)
{
    bool done = true;

    for (size_t k = 0; done && k < away->ranges; k++)
        done = copy_range(core, away->context, &away->range[k], out, why);
    return done;
}

/* What was submitted is at neither memory any more. */
static gs_status await_copies(const struct gs_driver *driver, CUstream stream)
{
    const gs_status status = driver->stream_synchronize(stream);

    if (status != GS_OK)
        driver->ctx_synchronize();
    if (stream != CU_STREAM_PER_THREAD)
        driver->stream_destroy(stream);
    return status;
}

/* All of them, context by context. */
bool gs_sleep_copy(struct gs_core *core, bool out, struct gs_sleep_why *why)
{
    const struct gs_driver *driver = &core->driver;
    const struct gs_away *away = core->sleep.pieces;
    bool done = true;

    while (done && away) {
        const CUcontext context = away->context;
        GS_ENTER(entered, driver, context);
        gs_status status = entered.result;

        if (status != GS_OK)
            return refuse_copy(why, out, status);
        core->sleep.stream = make_stream(driver);
        for (; done && away && away->context == context; away = away->next)
            done = copy_piece(core, away, out, why);
        status = await_copies(driver, core->sleep.stream);
        if (done && status != GS_OK)
            done = refuse_copy(why, out, status);
    }
    gs_sleep_was_at(&core->sleep, GS_SLEEP_COPYING);
    return done;
}

/* In this thread, and before the program goes on, whose work the driver may wait for. */
static void unregister(struct gs_core *core)
{
    struct gs_sleep *sleep = &core->sleep;

    if (sleep->registered) {
        GS_ENTER(entered, &core->driver, sleep->registered);
        while (!entered.result && sleep->parts_registered > 0)
            core->driver.mem_host_unregister(sleep->store.window +
                                             --sleep->parts_registered * GS_SLEEP_PART);
    }
    sleep->registered = NULL;
    sleep->parts_there = sleep->parts_registered = 0;
    gs_sleep_was_at(sleep, GS_SLEEP_REGISTERING);
}

void gs_sleep_free_store(struct gs_core *core)
{
    unregister(core);
    gs_sleep_store_free(&core->sleep.store);
}

static void *free_store(void *arg)
{
    struct gs_core *core = arg;
    const uint64_t began = gs_now_ns();

    gs_sleep_store_free(&core->sleep.freeing.store);
    gs_log_line(&core->options.log, GS_LOG_DEBUG,
                "after another %llu ms the host has its memory back",
                (unsigned long long)((gs_now_ns() - began) / GS_NS_PER_MS));
    return NULL;
}

void gs_sleep_free_store_behind(struct gs_core *core)
{
    struct gs_sleep_freeing *freeing = &core->sleep.freeing;

    unregister(core);
    freeing->store = core->sleep.store;
    core->sleep.store = (struct gs_sleep_store){.size = 0};
    freeing->started = freeing->store.size > GS_SLEEP_PART &&
                       gs_background_start(&freeing->background, free_store, core) == 0;
    if (!freeing->started)
        gs_sleep_store_free(&freeing->store);
}

void gs_core_await_freed(struct gs_core *core)
{
    if (core->sleep.freeing.started)
        gs_background_join(&core->sleep.freeing.background);
    core->sleep.freeing.started = false;
}
