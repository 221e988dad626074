/* Making a core, and its end (core/api/core.h). */
#include "core/api/core.h"

#include <stdlib.h>
#include <string.h>

#include "core/process/context.h"
#include "core/process/limit.h"
#include "core/process/own.h"
#include "core/process/stats.h"

static bool import_in_use(void *arg, uint64_t base, size_t size, bool going)
{
    struct gs_core *core = arg;

    return going ? !gs_regcache_drain(core->regcache, base, size)
                 : gs_regcache_in_use(core->regcache, base, size);
}

/* All that are not detached. */
static void contexts_alive(struct gs_core *core, struct gs_contexts *ret_contexts)
{
    const unsigned most = sizeof ret_contexts->of / sizeof ret_contexts->of[0];
    struct gs_context *context = NULL;
    unsigned count = 0;

    while (count < most && (context = gs_context_next(core, context, &ret_contexts->of[count])))
        count++;
    ret_contexts->count = count;
}

static bool asked(void *arg, enum gs_question question, unsigned device, union gs_told *told)
{
    struct gs_core *core = arg;

    switch (question) {
    case GS_ASKED_MEMORY:
        return core->options.neighbours && gs_trimmer_wake(core);
    case GS_ASKED_FIGURES:
        return gs_stats_tell(core, device, &told->figures);
    case GS_ASKED_TO_SET:
        gs_settings_set(core, &told->setting);
        return true;
    case GS_ASKED_TO_SLEEP:
        return gs_core_asked_to_sleep(core, &told->sleep);
    case GS_ASKED_LEFT:
        told->left = gs_limit_left(core, (CUdevice)device);
        return true;
    case GS_ASKED_CONTEXTS:
        contexts_alive(core, &told->contexts);
        return true;
    }
    return false;
}

/* What all arenas have in common. */
static void set_shared(struct gs_core *core)
{
    const struct gs_core_options *options = &core->options;

    core->shared = (struct gs_arena_shared){
        .driver = &core->driver,
        .log = &core->options.log,
        .map = &core->map,
        .fences = &core->fences,
        .single = &core->single,
        .guard = gs_guard_of(core),
        .async = core->async,
        .left = core->figures.left,
        .leaving = core->figures.leaving,
        .isolates = options->share.isolate,
        .whole_pieces = options->whole_pieces,
        .crosses = options->cross && core->driver.mem_retain && !options->whole_pieces &&
                   !options->share.cluster,
        .by_address = options->by_address,
        .small_limit = options->small_limit,
        .epoch_bytes = options->epoch_bytes,
        .cache_limit = options->cache_limit,
        .cache_percent = options->cache_percent,
        .retiring_percent = options->retiring_percent,
        .activity = gs_trimmer_activity,
        .activity_arg = core,
    };
}

gs_status gs_core_create(const struct gs_driver *driver, const struct gs_core_options *options,
                         struct gs_core **ret_core)
{
    struct gs_core *core = calloc(1, sizeof *core);
    struct gs_share_events events = {.lease_ended = gs_guard_lease_ended,
                                     .in_use = import_in_use,
                                     .asked = asked,
                                     .arg = core};
    struct gs_regcache_events released = {.released = gs_guard_ended, .arg = core};
    gs_status status;

    if (!core)
        return GS_NO_HOST_MEMORY;
    core->driver = *driver;
    core->options = *options;
    gs_context_handles_changed(core);
    gs_lock_init(&core->lock, GS_RANK_CONTEXTS);
    gs_map_init(&core->map);
    gs_fences_init(&core->fences, &core->driver);
    gs_single_init(&core->single, &core->fences, &core->options.log, gs_context_pass_arenas, core,
                   options->single_stream && !options->free_native && !options->share.isolate);
    status = gs_share_create(&core->driver, &core->map, &core->fences, &core->options.log,
                             &core->options.share, &events, &core->share);
    if (status == GS_OK)
        status = gs_regcache_create(&core->options.registrations, &released, &core->options.log,
                                    &core->regcache);
    if (status == GS_OK && options->user_vmm && options->share.enable && driver->mem_retain) {
        core->programs.own = gs_own_new(core->share, options->share.isolate);
        status = core->programs.own ? GS_OK : GS_NO_HOST_MEMORY;
    }
    if (status != GS_OK) {
        if (core->regcache)
            gs_regcache_destroy(core->regcache);
        if (core->share)
            gs_share_destroy(core->share);
        free(core);
        return status;
    }
    set_shared(core);
    *ret_core = core;
    return GS_OK;
}

void gs_core_destroy(struct gs_core *core)
{
    struct gs_context *context;
    struct gs_arena *arena;
    CUcontext handle;

    gs_single_drain(&core->single, "the library ends");
    gs_trimmer_stop(core);
    for (context = core->contexts; context; context = context->next) {
        if (context->arenas[0]->dead)
            continue;
        GS_ENTER(entered, &core->driver, context->handle);
        if (entered.result)
            continue;
        core->driver.ctx_synchronize();
        for (unsigned at = 0; (arena = gs_context_next_arena(context, &at));) {
            GS_HOLDING_LATCH(&arena->lock);
            gs_arena_collect_locked(arena);
            gs_fence_pool_destroy(&arena->events);
        }
    }
    while (gs_context_next(core, NULL, &handle))
        gs_core_context_gone(core, handle, gs_core_context_detach(core, handle));
    gs_context_trim_dead(core);
    gs_share_destroy(core->share);
    gs_own_free(core->programs.own);
    gs_regcache_destroy(core->regcache);
    while ((arena = core->arenas)) {
        core->arenas = arena->next;
        gs_arena_free(arena);
    }
    while ((context = core->contexts)) {
        core->contexts = context->next;
        free(context);
    }
    gs_core_await_freed(core);
    gs_map_destroy(&core->map);
    gs_fences_destroy(&core->fences);
    gs_single_destroy(&core->single);
    gs_lock_destroy(&core->lock);
    free(core);
}

void gs_core_forking(struct gs_core *core)
{
    gs_share_forking(core->share);
}

void gs_core_forked(struct gs_core *core)
{
    for (unsigned i = 0; i < GS_DEVICES_MAX; i++)
        gs_device_forked(&core->device[i]);
}

void gs_core_at_exit(struct gs_core *core)
{
    gs_trimmer_at_exit(core);
    gs_stats_log(core);
    gs_share_at_exit(core->share);
}
