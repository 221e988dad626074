/* Sleep and wake (core/process/sleep.h). */
#include "core/process/sleep.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/base/clock.h"
#include "core/process/reclaim.h"
#include "core/process/sleep_parts.h"
#include "core/share/let_go.h"

#define PINNED_NS (GS_NS_PER_S / 10) /* for blocks that are being given out just now */
#define MIB       ((size_t)1 << 20)

bool gs_sleep_refuse(struct gs_sleep_why *why, int error, const char *format, ...)
{
    va_list arguments;

    why->error = error;
    va_start(arguments, format);
    vsnprintf(why->text, sizeof why->text, format, arguments);
    va_end(arguments);
    return false;
}

bool gs_sleep_refused_by_driver(struct gs_sleep_why *why, const char *call, gs_status status)
{
    return status == GS_NO_HOST_MEMORY
               ? gs_sleep_refuse(why, ENOMEM, "%s: no host memory", call)
               : gs_sleep_refuse(why, EIO, "%s: driver error %d", call, (int)status);
}

/* ---- What is asleep -------------------------------------------------------------------------- */

void gs_core_asleep(const struct gs_core *core, struct gs_asleep *ret)
{
    const struct gs_asleep *figures = &core->sleep.figures;

    ret->since_ns = __atomic_load_n(&figures->since_ns, __ATOMIC_ACQUIRE);
    ret->away = __atomic_load_n(&figures->away, __ATOMIC_RELAXED);
    ret->copied = __atomic_load_n(&figures->copied, __ATOMIC_RELAXED);
    for (int i = 0; i < GS_STAYS_REASONS; i++)
        ret->stays[i] = __atomic_load_n(&figures->stays[i], __ATOMIC_RELAXED);
}

size_t gs_core_away(const struct gs_core *core, int device)
{
    return device >= 0 && device < GS_DEVICES_MAX
               ? __atomic_load_n(&core->sleep.away[device], __ATOMIC_RELAXED)
               : 0;
}

size_t gs_core_away_here(struct gs_core *core)
{
    struct gs_context *context;

    return gs_context_current_unprobed(core, &context) == GS_OK
               ? gs_core_away(core, context->ordinal)
               : 0;
}

/* ---- Where the time goes --------------------------------------------------------------------- */

static void start_watch(struct gs_sleep *sleep)
{
    sleep->watch = (struct gs_sleep_watch){.looked_ns = gs_now_ns()};
}

void gs_sleep_was_at(struct gs_sleep *sleep, enum gs_sleep_phase phase)
{
    const uint64_t now = gs_now_ns();

    sleep->watch.took_ns[phase] += now - sleep->watch.looked_ns;
    sleep->watch.looked_ns = now;
}

void gs_core_sleep_took(const struct gs_core *core, char *ret_text, size_t size)
{
    static const char *const words[GS_SLEEP_PHASES] = {
        "waiting",   "sharing",   "listing", "the host's memory", "registering", "copying",
        "unmapping", "releasing", "stacks",  "creating",          "resting",     "mapping"};
    const uint64_t *took = core->sleep.watch.took_ns;
    uint64_t all = 0;
    size_t used;

    for (int i = 0; i < GS_SLEEP_PHASES; i++)
        all += took[i];
    used = (size_t)snprintf(ret_text, size, "took %" PRIu64 " ms", all / GS_NS_PER_MS);
    for (int i = 0, told = 0; i < GS_SLEEP_PHASES && used < size; i++)
        if (took[i] >= GS_NS_PER_MS)
            used += (size_t)snprintf(ret_text + used, size - used, "%s%s %" PRIu64,
                                     told++ ? ", " : ": ", words[i], took[i] / GS_NS_PER_MS);
}

/* ---- Waiting --------------------------------------------------------------------------------- */

static bool refuse_capture(struct gs_core *core, struct gs_sleep_why *why)
{
    uint64_t stream;

    if (!gs_fences_captured(&core->fences, &stream))
        return gs_sleep_refuse(why, EBUSY, "a stream captured a graph just now");
    return gs_sleep_refuse(why, EBUSY, "stream 0x%" PRIx64 " captures a graph", stream);
}

static bool refuse_work(struct gs_core *core, int ordinal, struct gs_sleep_why *why)
{
    const CUstream stalled = __atomic_load_n(&core->single.stalled, __ATOMIC_RELAXED);
    char last[96] = "";

    if (stalled)
        snprintf(last, sizeof(last),
                 "; the last host function, or wait for an event, went to stream 0x%" PRIxPTR,
                 (uintptr_t)stalled);
    return gs_sleep_refuse(why, EBUSY,
                           "work of a context of GPU %d does not end: a kernel, or a stream that "
                           "waits for a host function, an event or a value%s",
                           ordinal, last);
}

bool gs_core_await_work(struct gs_core *core, uint64_t until_ns, struct gs_sleep_why *why)
{
    struct gs_context *context = NULL;
    CUcontext handle;

    while ((context = gs_context_next(core, context, &handle))) {
        const gs_status status = gs_context_await_work(context, until_ns);

        if (status == GS_NO_CONTEXT)
            continue;
        if (status == GS_CAPTURING)
            return refuse_capture(core, why);
        if (status == (gs_status)CUDA_ERROR_NOT_READY)
            return refuse_work(core, (int)context->ordinal, why);
        if (status != GS_OK)
            return gs_sleep_refused_by_driver(why, "waiting for a context", status);
    }
    return true;
}

/* What is free goes for good. */
static void give_back_free(struct gs_core *core)
{
    struct gs_arena *arena = NULL;

    while ((arena = gs_next_arena(core, NULL, arena)))
        gs_arena_trim(core, arena, NULL, 0, SIZE_MAX);
    for (unsigned i = 0; i < GS_DEVICES_MAX; i++)
        gs_device_end_warm_up(&core->device[i]);
}

/* ---- The calls ------------------------------------------------------------------------------- */

static bool is_asleep(const struct gs_core *core)
{
    return __atomic_load_n(&core->sleep.figures.since_ns, __ATOMIC_ACQUIRE) != 0;
}

static void set_asleep(struct gs_core *core, bool is_here)
{
    core->sleep.is_here = is_here;
    if (!is_asleep(core))
        __atomic_store_n(&core->sleep.figures.since_ns, gs_now_ns(), __ATOMIC_RELEASE);
}

bool gs_core_can_sleep(struct gs_core *core, const char *discard, struct gs_sleep_why *why)
{
    uint64_t stream;

    if (is_asleep(core) && !core->sleep.is_here)
        return gs_sleep_refuse(why, EALREADY, "it is asleep already");
    if (!core->driver.memcpy_dtoh_async || !core->driver.memcpy_htod_async ||
        !core->driver.ctx_record_event || !gs_device_has_vmm(&core->driver))
        return gs_sleep_refuse(why, ENOTSUP, "this driver lacks calls that it takes");
    core->sleep.discards = discard ? gs_tag_find(discard, false) : 0;
    if (discard && !core->sleep.discards)
        return gs_sleep_refuse(why, ENOENT, "it has no memory with the tag '%s'", discard);
    return !gs_fences_captured(&core->fences, &stream) || refuse_capture(core, why);
}

/* Everything that may fail, and is undone where it does. */
static bool prepare(struct gs_core *core, const char *directory, struct gs_sleep_why *why)
{
    struct gs_sleep *sleep = &core->sleep;
    size_t size;
    int error;

    if (!gs_sleep_plan(core, &size))
        return gs_sleep_refuse(why, ENOMEM, "no host memory");
    gs_sleep_was_at(sleep, GS_SLEEP_KEEPING);
    error = gs_sleep_store_make(&sleep->store, size, directory, why->text, sizeof why->text);
    gs_sleep_was_at(sleep, GS_SLEEP_STORING);
    if (error) {
        why->error = error;
        return false;
    }
    if (!gs_sleep_copy(core, true, why))
        return false;
    error = gs_sleep_store_rest(&sleep->store);
    gs_sleep_was_at(sleep, GS_SLEEP_STORING);
    return error == 0 ||
           gs_sleep_refuse(why, error, "the file could not be written: %s", strerror(error));
}

bool gs_core_sleep(struct gs_core *core, const char *directory, const char *discard,
                   uint64_t until_ns, struct gs_sleep_why *ret_why)
{
    struct gs_sleep *sleep = &core->sleep;

    start_watch(sleep);
    gs_core_await_freed(core);
    gs_sleep_was_at(sleep, GS_SLEEP_STORING);
    if (!gs_core_can_sleep(core, discard, ret_why) || !gs_core_await_work(core, until_ns, ret_why))
        return false;
    gs_share_end_graces(core->share, NULL, GS_GRACES_LONG);
    gs_arenas_collect(core, NULL, NULL); /* once the GPU is done, all that was freed is free */
    if (!gs_core_await_work(core, until_ns, ret_why))
        return false;
    gs_sleep_was_at(sleep, GS_SLEEP_WAITING);
    if (gs_share_recall_all(core->share))
        gs_share_await_recalled(core->share);
    give_back_free(core);
    gs_share_await_unpinned(core->share, gs_now_ns() + PINNED_NS);
    if (!prepare(core, directory, ret_why)) {
        gs_sleep_free_store(core);
        gs_sleep_plan_none(core);
        return false;
    }
    gs_sleep_leave(core);
    __atomic_store_n(&sleep->figures.copied, sleep->store.size, __ATOMIC_RELAXED);
    set_asleep(core, false);
    return true;
}

bool gs_core_let_go(struct gs_core *core, const char *discard, uint64_t until_ns,
                    struct gs_sleep_why *ret_why)
{
    start_watch(&core->sleep);
    if (!gs_core_can_sleep(core, discard, ret_why) || !gs_core_await_work(core, until_ns, ret_why))
        return false;
    gs_sleep_was_at(&core->sleep, GS_SLEEP_WAITING);
    core->sleep.others_away |= gs_share_let_go(core->share) > 0;
    gs_sleep_was_at(&core->sleep, GS_SLEEP_SHARING);
    set_asleep(core, true);
    return true;
}

/* Its own memory. */
static bool come_back(struct gs_core *core, uint64_t until_ns, struct gs_sleep_why *why)
{
    struct gs_sleep *sleep = &core->sleep;

    if (!gs_sleep_map(core, until_ns, why))
        return false;
    if (!gs_sleep_copy(core, false, why)) {
        gs_sleep_leave(core);
        return false;
    }
    gs_sleep_join(core);
    gs_sleep_free_store_behind(core);
    gs_sleep_plan_none(core);
    sleep->is_here = true;
    gs_sleep_was_at(sleep, GS_SLEEP_STORING);
    return true;
}

bool gs_core_return(struct gs_core *core, uint64_t until_ns, struct gs_sleep_why *ret_why)
{
    if (!is_asleep(core))
        return gs_sleep_refuse(ret_why, EALREADY, "it is awake already");
    start_watch(&core->sleep);
    return core->sleep.is_here || come_back(core, until_ns, ret_why);
}

/* What others shared. */
static bool take_back(struct gs_core *core, uint64_t until_ns, struct gs_sleep_why *why)
{
    struct gs_untaken untaken;
    const bool taken =
        !core->sleep.others_away || gs_share_take_back(core->share, until_ns, &untaken);

    gs_sleep_was_at(&core->sleep, GS_SLEEP_SHARING);
    core->sleep.others_away = !taken;
    if (taken)
        return true;
    if (untaken.status > 0)
        return gs_sleep_refused_by_driver(why, "mapping what others share", untaken.status);
    return gs_sleep_refuse(
        why, ETIMEDOUT,
        "%zu MiB that others share were open, and process %d does not give them back: "
        "it sleeps, or does not answer",
        untaken.left / MIB, (int)untaken.pid);
}

bool gs_core_wake(struct gs_core *core, uint64_t until_ns, struct gs_sleep_why *ret_why)
{
    if (!is_asleep(core))
        return gs_sleep_refuse(ret_why, EALREADY, "it is awake already");
    start_watch(&core->sleep);
    if ((!core->sleep.is_here && !come_back(core, until_ns, ret_why)) ||
        !take_back(core, until_ns, ret_why))
        return false;
    core->sleep.is_here = false;
    __atomic_store_n(&core->sleep.figures.since_ns, 0, __ATOMIC_RELEASE);
    return true;
}

void gs_core_sleep_ends(struct gs_core *core)
{
    __atomic_store_n(&core->sleep.ends, true, __ATOMIC_RELAXED);
    gs_share_take_back_ends(core->share);
}

_Static_assert((int)GS_STAYS_REASONS == GS_SLEEP_STAYS, "each reason is told");

bool gs_core_asked_to_sleep(struct gs_core *core, struct gs_sleep_order *order)
{
    struct gs_asleep asleep;

    if (!core->options.sleeps)
        return false;
    core->options.sleeps(order);
    gs_core_asleep(core, &asleep);
    order->asleep_ns = asleep.since_ns ? gs_now_ns() - asleep.since_ns + 1 : 0;
    order->away = asleep.away;
    order->copied = asleep.copied;
    for (int i = 0; i < GS_STAYS_REASONS; i++)
        order->stays[i] = asleep.stays[i];
    return true;
}
