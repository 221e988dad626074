/* Memory goes off the GPU and comes back (core/process/sleep_parts.h). */
#include "core/process/sleep_parts.h"

#include <errno.h>

#include "core/base/clock.h"
#include "core/process/limit.h"
#include "core/process/own.h"
#include "core/process/reclaim.h"
#include "core/process/record.h"

#define STACK_LOW 16 /* bytes a thread: the driver gives back what it had for more */
#define REST_FIRST_NS \
    (5 * GS_NS_PER_MS) /* between tries at the GPU's memory: who tries in a loop */
#define REST_MOST_NS (160 * GS_NS_PER_MS) /* makes releasing slow for others */
#define MIB          ((size_t)1 << 20)

static void count_away(struct gs_core *core, const struct gs_away *away, bool goes)
{
    const size_t size = goes ? away->size : -away->size;

    __atomic_add_fetch(&core->sleep.figures.away, size, __ATOMIC_RELAXED);
    __atomic_add_fetch(&core->sleep.away[away->device], size, __ATOMIC_RELAXED);
    if (away->piece)
        __atomic_add_fetch(&core->sleep.pieces_away[away->device], size, __ATOMIC_RELAXED);
}

/* ---- The stacks of contexts ------------------------------------------------------------------ */

/* One that refuses keeps what it has. */
static void lower_stack(struct gs_core *core, struct gs_context *context, CUcontext handle)
{
    const struct gs_driver *driver = &core->driver;
    struct gs_low_stack *stack = &context->stack;
    GS_ENTER(entered, driver, handle);
    gs_status status;
    size_t before = 0, after = 0, total;

    if (entered.result)
        return;
    gs_context_mem_info(core, handle, &before, &total);
    status = driver->ctx_get_limit(&stack->limit, CU_LIMIT_STACK_SIZE);
    if (status == GS_OK)
        status = driver->ctx_set_limit(CU_LIMIT_STACK_SIZE, STACK_LOW);
    if (status == GS_OK) {
        gs_context_mem_info(core, handle, &after, &total);
        stack->low = true;
        stack->freed = before && after > before ? after - before : 0;
        __atomic_add_fetch(&core->sleep.away[context->ordinal], stack->freed, __ATOMIC_RELAXED);
    }
}

static gs_status raise_stack(struct gs_core *core, struct gs_context *context, CUcontext handle)
{
    struct gs_low_stack *stack = &context->stack;
    GS_ENTER(entered, &core->driver, handle);
    gs_status status = entered.result;

    if (status == GS_OK)
        status = core->driver.ctx_set_limit(CU_LIMIT_STACK_SIZE, stack->limit);
    if (status == GS_OK) {
        stack->low = false;
        __atomic_sub_fetch(&core->sleep.away[context->ordinal], stack->freed, __ATOMIC_RELAXED);
    }
    return status;
}

static void lower_stacks(struct gs_core *core)
{
    struct gs_context *context = NULL;
    CUcontext handle;

    if (!core->driver.ctx_get_limit || !core->driver.ctx_set_limit)
        return;
    while ((context = gs_context_next(core, context, &handle)))
        if (!context->stack.low)
            lower_stack(core, context, handle);
}

/* GS_OK: all have what they had. */
static gs_status raise_stacks(struct gs_core *core, CUdevice *ret_device)
{
    struct gs_context *context = NULL;
    gs_status status = GS_OK;
    CUcontext handle;

    while (status == GS_OK && (context = gs_context_next(core, context, &handle)))
        if (context->stack.low) {
            *ret_device = context->ordinal;
            status = raise_stack(core, context, handle);
        }
    return status;
}

/* ---- Off the GPU and back -------------------------------------------------------------------- */

/* From everywhere; false: somewhere the driver does not. */
static bool unmap(struct gs_core *core, const struct gs_away *away)
{
    bool unmapped = true;

    for (size_t k = 0; k < away->places; k++) {
        struct gs_away_place *place = &away->place[k];

        place->mapped =
            place->mapped && core->driver.mem_unmap(place->base, place->size) != CUDA_SUCCESS;
        unmapped &= !place->mapped;
    }
    return unmapped;
}

/* The driver's again. */
static void release(struct gs_core *core, struct gs_away *away, const struct gs_trace_mark *mark)
{
    gs_change_is(core, true);
    while (away->references > 0) {
        core->driver.mem_release(away->handle);
        away->references--;
    }
    away->made = false;
    count_away(core, away, true);
    gs_change_is(core, false);
    if (!away->piece)
        return;
    gs_limit_give(core, away->device, away->size);
    gs_record_piece(core, mark, 0, away->device, &away->piece->span);
}

void gs_sleep_leave(struct gs_core *core)
{
    struct gs_away *away;
    size_t refused = 0;

    DL_FOREACH(core->sleep.pieces, away) {
        const struct gs_trace_mark mark = gs_trace_begin();
        const bool unmapped = unmap(core, away);

        gs_sleep_was_at(&core->sleep, GS_SLEEP_UNMAPPING);
        if (unmapped && away->made)
            release(core, away, &mark);
        gs_sleep_was_at(&core->sleep, GS_SLEEP_RELEASING);
        refused += away->made ? away->size : 0;
    }
    __atomic_store_n(&core->sleep.figures.stays[GS_STAYS_REFUSED], refused, __ATOMIC_RELAXED);
    lower_stacks(core);
    gs_sleep_was_at(&core->sleep, GS_SLEEP_STACKS);
}

static gs_status make(struct gs_core *core, struct gs_away *away)
{
    const struct gs_device *device = &core->device[away->device];
    gs_status status;

    if (away->made)
        return GS_OK;
    if (away->piece && !gs_limit_take(core, device, away->size))
        return GS_NO_MEMORY;
    gs_change_is(core, true);
    status =
        core->driver.mem_create(&away->handle, away->size,
                                away->piece ? &device->properties : &away->own->memory.properties,
                                0);
    if (status == GS_OK) {
        away->made = away->anew = true;
        away->references = 1;
        count_away(core, away, false);
    } else if (away->piece) {
        gs_limit_give(core, away->device, away->size);
    }
    gs_change_is(core, false);
    return status;
}

/* For who had access. */
static gs_status let_in(const struct gs_driver *driver, const struct gs_away_place *place)
{
    CUmemAccessDesc access[GS_DEVICES_MAX];
    size_t count = 0;

    for (uint64_t left = place->reads; left; left &= left - 1) {
        const int device = __builtin_ctzll(left);

        access[count++] =
            (CUmemAccessDesc){.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
                              .flags = place->writes >> device & 1
                                           ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                                           : CU_MEM_ACCESS_FLAGS_PROT_READ};
    }
    return count == 0 ? GS_OK
                      : (gs_status)driver->mem_set_access(place->base, place->size, access, count);
}

/* Where it was. */
static gs_status map(struct gs_core *core, const struct gs_away *away)
{
    gs_status status = GS_OK;

    for (size_t k = 0; status == GS_OK && k < away->places; k++) {
        struct gs_away_place *place = &away->place[k];

        if (!place->mapped)
            status = core->driver.mem_map(place->base, place->size, place->offset, away->handle, 0);
        if (status == GS_OK) {
            place->mapped = true;
            status = let_in(&core->driver, place);
        }
    }
    return status;
}

/* One try; where it fails, at which call and for which device. GS_NO_MEMORY, or OUT_OF_MEMORY:
 * nothing was made. */
static gs_status try_to_map(struct gs_core *core, const char **ret_call, CUdevice *ret_device)
{
    struct gs_sleep *sleep = &core->sleep;
    gs_status status = GS_OK;
    struct gs_away *away;

    *ret_call = "cuMemCreate";
    for (away = sleep->pieces; status == GS_OK && away; away = away->next) {
        *ret_device = away->device;
        status = make(core, away);
    }
    gs_sleep_was_at(sleep, GS_SLEEP_CREATING);
    if (status == GS_OK) {
        *ret_call = "cuCtxSetLimit";
        status = raise_stacks(core, ret_device);
        gs_sleep_was_at(sleep, GS_SLEEP_STACKS);
    }
    for (away = sleep->pieces; status == GS_OK && away; away = away->next) {
        *ret_call = "cuMemMap or cuMemSetAccess";
        *ret_device = away->device;
        status = map(core, away);
    }
    gs_sleep_was_at(sleep, GS_SLEEP_MAPPING);
    if (status != GS_OK)
        gs_sleep_leave(core);
    return status;
}

/* What other processes keep, or have and do not use, may be enough. True: another try is due at
 * once, before those take it back. */
static bool ask_others(struct gs_core *core, CUdevice device)
{
    const struct gs_away *away;

    DL_SEARCH_SCALAR(core->sleep.pieces, away, device, device);
    return away &&
           gs_neighbour_ask(core, &core->device[device], away->context, gs_core_away(core, device));
}

bool gs_sleep_map(struct gs_core *core, uint64_t until_ns, struct gs_sleep_why *why)
{
    uint64_t rest = REST_FIRST_NS;
    const char *call;
    CUdevice device = 0;

    for (;; rest = rest < REST_MOST_NS ? 2 * rest : rest) {
        const gs_status status = try_to_map(core, &call, &device);

        if (status == GS_OK)
            return true;
        if (!gs_is_out(status))
            return gs_sleep_refused_by_driver(why, call, status);
        if (__atomic_load_n(&core->sleep.ends, __ATOMIC_RELAXED))
            return gs_sleep_refuse(why, ESHUTDOWN, "the program ends");
        if (gs_now_ns() >= until_ns) {
            gs_core_refused(core, device, gs_core_away(core, device));
            return gs_sleep_refuse(
                why, ENOMEM,
                "GPU %d has no room for %zu MiB that are to come back: the log says who has it",
                (int)device, gs_core_away(core, device) / MIB);
        }
        if (!ask_others(core, device))
            gs_rest_ns(rest);
        gs_sleep_was_at(&core->sleep, GS_SLEEP_RESTING);
    }
}

/* Its memory is new, and so is what others know it by, unless that is in handles. */
static void join(const struct gs_away *away)
{
    struct gs_piece *piece = away->piece;
    GS_HOLDING_LATCH(&piece->arena->lock);

    piece->handle = away->handle;
    if (!away->exports)
        piece->id = gs_arena_next_id_locked(piece->arena);
}

void gs_sleep_join(struct gs_core *core)
{
    const struct gs_away *away;

    DL_FOREACH(core->sleep.pieces, away)
        if (away->piece)
            join(away);
}
