/*
 * The program's own memory goes off the GPU as well (core/process/sleep_parts.h): each handle that
 * nobody else has, with all its mappings, by one of which it can be copied. Who has the handle goes
 * on with its number (core/process/own.h).
 */
#include "core/process/sleep_parts.h"

#include "core/process/own.h"

/* Contexts in which each device's memory is copied; NULL: it has none. */
struct contexts {
    CUcontext of[GS_DEVICES_MAX];
};

static struct contexts find_contexts(struct gs_core *core)
{
    struct contexts contexts;

    for (CUdevice device = 0; device < GS_DEVICES_MAX; device++)
        contexts.of[device] = gs_context_of_device(core, device);
    return contexts;
}

static bool is_on_gpu(const struct gs_own_memory *memory)
{
    return !memory->imported && memory->properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE;
}

/* The reason why memory on a GPU stays, or GS_STAYS_REASONS. */
static enum gs_stays stays_locked(const struct gs_own_handle *handle,
                                  const struct contexts *contexts)
{
    const struct gs_own_memory *memory = &handle->memory;

    if (handle->use == GS_OWN_LENT)
        return GS_STAYS_SHARED;
    if (handle->use == GS_OWN_BOUND || memory->device < 0 || memory->device >= GS_DEVICES_MAX ||
        memory->properties.type != CU_MEM_ALLOCATION_TYPE_PINNED ||
        memory->properties.allocFlags.usage & CU_MEM_CREATE_USAGE_TILE_POOL)
        return GS_STAYS_OWN;
    return contexts->of[memory->device] ? GS_STAYS_REASONS : GS_STAYS_ENDING;
}

/* Its mappings come into the places that it gets. False: no host memory. */
static bool add_handle_locked(struct gs_sleep *sleep, struct gs_own_handle *handle,
                              CUcontext context)
{
    const bool kept = !gs_sleep_discards(sleep, handle->memory.tag);
    struct gs_away *away = gs_sleep_add(sleep, handle->mappings, kept);

    if (!away)
        return false;
    away->own = handle;
    away->device = handle->memory.device;
    away->size = handle->memory.size;
    away->context = context;
    away->handle = handle->real;
    away->references = handle->held;
    away->made = true;
    if (kept)
        away->range[away->ranges++].size = handle->memory.size;
    handle->away = away;
    return true;
}

static bool add_handles_locked(struct gs_core *core, const struct contexts *contexts)
{
    struct gs_own *own = core->programs.own;
    bool added = true;

    for (const struct gs_own_handle *handle = own->handles; handle; handle = handle->hh.next)
        if (is_on_gpu(&handle->memory) && stays_locked(handle, contexts) != GS_STAYS_REASONS)
            gs_sleep_stays(core, stays_locked(handle, contexts), handle->memory.size);
    for (CUdevice device = 0; added && device < GS_DEVICES_MAX; device++)
        for (struct gs_own_handle *handle = contexts->of[device] ? own->handles : NULL;
             added && handle; handle = handle->hh.next)
            if (is_on_gpu(&handle->memory) && handle->memory.device == device &&
                stays_locked(handle, contexts) == GS_STAYS_REASONS)
                added = add_handle_locked(&core->sleep, handle, contexts->of[device]);
    return added;
}

/* A mapping of a handle that goes is one of its places. Through the first that is all of it and may
 * be written, it is copied. */
static void add_mapping_locked(struct gs_core *core, const struct gs_own_mapping *mapping)
{
    const struct gs_own_handle *handle = mapping->handle;
    struct gs_away *away;

    if (!handle || handle->memory.imported)
        gs_sleep_stays(core, handle ? GS_STAYS_SHARED : GS_STAYS_OWN, mapping->span.size);
    if (!handle || !handle->away)
        return;
    away = handle->away;
    away->place[away->places++] = (struct gs_away_place){.base = mapping->span.base,
                                                         .size = mapping->span.size,
                                                         .offset = mapping->offset,
                                                         .reads = mapping->reads,
                                                         .writes = mapping->writes,
                                                         .mapped = true};
    if (away->ranges && !away->range->address && mapping->span.size == away->range->size &&
        mapping->writes >> away->device & 1)
        away->range->address = mapping->span.base;
}

/* A handle that the program has released is the driver's no more, but for what is mapped of it. */
static bool retain_released(struct gs_core *core, struct gs_away *away)
{
    if (away->references == 0 &&
        core->driver.mem_retain(&away->handle, (void *)away->place->base) == CUDA_SUCCESS)
        away->references = 1;
    return away->references > 0;
}

/* What cannot be copied stays: it is mapped nowhere, in parts, or where it may not be written. */
static void keep_some(struct gs_core *core)
{
    struct gs_away *away, *next;

    DL_FOREACH_SAFE(core->sleep.pieces, away, next) {
        if (away->own && ((away->ranges && !away->range->address) || !retain_released(core, away)))
            gs_sleep_keep(core, away, GS_STAYS_OWN);
    }
}

bool gs_sleep_plan_own(struct gs_core *core)
{
    struct gs_own *own = core->programs.own;
    struct contexts contexts;
    uint64_t at = GS_MAP_NONE;
    bool added;

    if (!own)
        return true;
    contexts = find_contexts(core);
    gs_lock_take(&own->lock);
    added = add_handles_locked(core, &contexts);
    while (added && (at = gs_map_after(&own->map, at)) != GS_MAP_NONE)
        add_mapping_locked(core, gs_own_mapping_locked(own, at));
    gs_lock_release(&own->lock);
    if (added)
        keep_some(core);
    return added;
}

void gs_sleep_own_back(struct gs_core *core, struct gs_away *away)
{
    struct gs_own *own = core->programs.own;
    struct gs_own_handle *handle = away->own;
    bool released;

    gs_lock_take(&own->lock);
    handle->away = NULL;
    if (away->anew) {
        handle->moved = true;
        handle->real = away->handle;
        handle->held = 1;
        __atomic_store_n(&own->translates, true, __ATOMIC_RELEASE);
    } else if (handle->held == 0) {
        handle->held = away->references;
    }
    released = handle->references == 0 && handle->held > 0;
    handle->held -= released;
    gs_lock_release(&own->lock);
    if (released)
        core->driver.mem_release(away->handle);
}
