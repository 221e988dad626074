/* Room for what the driver takes for itself, or for graphs (core/process/process.h). */
#include "core/process/reclaim.h"

#include "core/process/context.h"
#include "core/process/shortage.h"

#define CLEARED_NS      UINT64_C(500000000) /* for the driver to clear what it got back */
#define CLEARED_STEP_NS 25000000
#define ROOM_NS         UINT64_C(1000000000) /* for GPU work, which may wait for the caller */
#define GRAPH_MORE      64                   /* a graph's memory takes this part more, and */
#define GRAPH_MORE_MIN  ((size_t)64 << 20)

/* A device (below 0: the current one; NULL: there is none), and a context of it; NULL: no memory
 * was allocated of it here, and it is `unknown`. */
static const struct gs_device *find_device(struct gs_core *core, CUdevice ordinal,
                                           struct gs_device *unknown, CUcontext *ret_context)
{
    if (ordinal < 0 && core->driver.ctx_get_device(&ordinal) != CUDA_SUCCESS)
        return NULL;
    *ret_context = gs_context_of_device(core, ordinal);
    if (*ret_context)
        return &core->device[ordinal];
    *unknown = (struct gs_device){.ordinal = ordinal, .total = SIZE_MAX};
    gs_device_uuid(&core->driver, ordinal, unknown->uuid);
    return unknown;
}

/* False: the driver got nothing from here lately. The driver ends it, which is given half a second
 * in all; natively the call would have failed. */
static bool await_cleared(struct gs_core *core)
{
    uint64_t released = __atomic_load_n(&core->releases.last_ns, __ATOMIC_SEQ_CST);

    if (!released || gs_now_ns() - released > CLEARED_NS)
        return false;
    gs_rest_ns(CLEARED_STEP_NS);
    return true;
}

/* What gs_core_make_room does, one after the other. */
enum room_step {
    ROOM_READY,     /* what can go at once */
    ROOM_WAITED,    /* what can be waited for */
    ROOM_NEIGHBOUR, /* what other processes keep */
    /* And what the driver is still clearing, again and again. */
    ROOM_CLEARED = GS_ROOM_AFTER_REFUSAL,
};

/* Other threads' releases are waited for as well. True: the driver has got something. */
static bool trim(struct gs_core *core, const struct gs_device *device,
                 const struct gs_patience *patience, size_t bytes)
{
    size_t released = gs_device_trim(core, device, patience, bytes);

    return gs_releases_await(core, GS_RELEASED_NS) || released > 0;
}

static bool make_room(struct gs_core *core, CUdevice ordinal, size_t bytes, enum room_step step)
{
    struct gs_patience patience = gs_patience_of(bytes ? UINT64_MAX : ROOM_NS);
    const struct gs_device *device;
    struct gs_device unknown;
    CUcontext context;

    device = find_device(core, ordinal, &unknown, &context);
    if (!device || (!context && step != ROOM_NEIGHBOUR) || bytes > device->total)
        return false;
    switch (step) {
    case ROOM_READY:
        return trim(core, device, NULL, bytes ? bytes : SIZE_MAX);
    case ROOM_WAITED:
        gs_share_await_given_back(core->share, device->uuid, GS_RETURNED_NS);
        trim(core, device, &patience, SIZE_MAX);
        /* In any case: another thread may have given back what was missing, after the call was
         * refused and before this one looked. */
        return true;
    case ROOM_NEIGHBOUR:
        return gs_neighbour_ask(core, device, context, bytes ? bytes : GS_PAGE_SIZE);
    default:
        return bytes == 0 && await_cleared(core);
    }
}

size_t gs_core_graph_waits(const struct gs_core *core)
{
    return __atomic_load_n(&core->graphs.nodes, __ATOMIC_RELAXED) +
           __atomic_load_n(&core->graphs.made, __ATOMIC_RELAXED);
}

void gs_core_graph_node(struct gs_core *core, size_t bytes)
{
    __atomic_add_fetch(&core->graphs.nodes, bytes, __ATOMIC_RELAXED);
}

void gs_core_graph_room(struct gs_core *core)
{
    size_t bytes = gs_core_graph_waits(core), left, total;
    const size_t more = bytes / GRAPH_MORE + GRAPH_MORE_MIN;
    struct gs_patience patience;
    CUdevice device;

    if (!core->driver.mem_get_info || core->driver.ctx_get_device(&device) != CUDA_SUCCESS ||
        !gs_context_of_device(core, device))
        return;
    for (int wait = 0; wait < 2; wait++) {
        if (core->driver.mem_get_info(&left, &total) != CUDA_SUCCESS || left >= bytes + more)
            return;
        patience = gs_patience_of(ROOM_NS);
        trim(core, &core->device[device], wait ? &patience : NULL, bytes + more - left);
    }
}

/* What earlier ones have not got yet is forgotten: many are made and never launched. */
void gs_core_graph_made(struct gs_core *core)
{
    size_t bytes = __atomic_exchange_n(&core->graphs.nodes, 0, __ATOMIC_RELAXED);

    if (bytes > 0)
        __atomic_store_n(&core->graphs.made, bytes, __ATOMIC_RELAXED);
}

void gs_core_graph_launched(struct gs_core *core)
{
    __atomic_store_n(&core->graphs.made, 0, __ATOMIC_RELAXED);
}

void gs_core_refused(struct gs_core *core, CUdevice device, size_t bytes)
{
    struct gs_device unknown;
    CUcontext context;
    const struct gs_device *found = find_device(core, device, &unknown, &context);

    if (!found || found->ordinal >= GS_DEVICES_MAX) /* memory of the host */
        return;
    __atomic_fetch_add(&core->figures.refused[found->ordinal], 1, __ATOMIC_RELAXED);
    gs_shortage_say(core, found, context, bytes);
}

bool gs_core_make_room(struct gs_core *core, CUdevice device, size_t bytes, unsigned *step)
{
    bool again = false;

    while (!again && *step < ROOM_CLEARED)
        again = make_room(core, device, bytes, (*step)++);
    if (!again && (*step)++ < ROOM_CLEARED + CLEARED_NS / CLEARED_STEP_NS)
        again = make_room(core, device, bytes, ROOM_CLEARED);
    return again;
}
