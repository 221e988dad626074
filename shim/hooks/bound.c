/* The memory that a device has, to a program that is bounded (bound.h). */
#include "bound.h"

#include "shim/start.h"

void gs_bound_info(size_t *free, size_t *total)
{
    if (gs_bounded)
        gs_core_bound(gs_core, -1, free, total);
}

/* ---- Before the shim has started ---------------------------------------------------------- */

/* Threads that come together read the same. */
static struct {
    atomic_bool known;
    _Atomic size_t bytes;
    _Atomic unsigned percent;
} ahead;

static void read_limit(void)
{
    struct gs_limit limit;

    if (atomic_load(&ahead.known))
        return;
    gs_shim_limit(&limit);
    atomic_store(&ahead.bytes, limit.bytes);
    atomic_store(&ahead.percent, limit.percent);
    atomic_store(&ahead.known, true);
}

bool gs_bound_applies(void)
{
    if (gs_state_enter_lookup())
        return gs_bounded;
    if (atomic_load(&gs_state) != GS_STATE_UNBORN)
        return false;
    read_limit();
    return ahead.bytes > 0 || ahead.percent > 0;
}

void gs_bound_ahead(size_t *free, size_t *total)
{
    const struct gs_limit set = {.bytes = ahead.bytes, .percent = ahead.percent};
    size_t limit = gs_limit_of_total(&set, *total);

    if (*total > limit)
        *total = limit;
    if (*free > limit)
        *free = limit;
}
