/* Pinners and listeners of communication libraries, and what can be asked (gpushim.h). */
#include "callbacks.h"

#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "core/process/stats.h"
#include "shim/gpushim.h"
#include "shim/hooks/hook.h"
#include "pinning.h"
#include "shim/start.h"

#define MOST 16

struct pinner {
    struct gs_reg_backend backend; /* first */
    const struct gpushim_pinner *pinner;
};

/* Both only grow, and what is below the count does not change any more. */
static struct {
    pthread_mutex_t mutex; /* for those who add */
    struct pinner pinner[MOST];
    unsigned pinners; /* atomic */
    const struct gpushim_listener *listener[MOST];
} added = {.mutex = PTHREAD_MUTEX_INITIALIZER};

unsigned gs_listeners;

/* ---- Pinners --------------------------------------------------------------------------------- */

static int pin(const struct gs_reg_key *key, uint64_t base, size_t size, void *arg,
               void **ret_handle)
{
    const struct gpushim_pinner *pinner = ((const struct pinner *)key->backend)->pinner;

    gs_pin_bound_by_bar1();
    return pinner->pin(pinner->arg, key->domain, key->access, base, size, ret_handle);
}

static int unpin(const struct gs_reg_key *key, void *handle)
{
    GS_WITHIN_A_CALL;
    const struct gpushim_pinner *pinner = ((const struct pinner *)key->backend)->pinner;

    return pinner->unpin(pinner->arg, handle);
}

GS_HOOK int gpushim_pinner_add(const struct gpushim_pinner *pinner)
{
    int error = 0;

    if (!pinner || pinner->size < sizeof *pinner || !pinner->name || !pinner->pin || !pinner->unpin)
        return EINVAL;
    pthread_mutex_lock(&added.mutex);
    if (added.pinners == MOST) {
        error = ENOSPC;
    } else {
        added.pinner[added.pinners] =
            (struct pinner){.backend = {.name = pinner->name, .pin = pin, .unpin = unpin},
                            .pinner = pinner};
        __atomic_store_n(&added.pinners, added.pinners + 1, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&added.mutex);
    return error;
}

static const struct gs_reg_backend *backend_of(const struct gpushim_pinner *pinner)
{
    unsigned count = __atomic_load_n(&added.pinners, __ATOMIC_ACQUIRE);

    for (unsigned i = 0; i < count; i++)
        if (added.pinner[i].pinner == pinner)
            return &added.pinner[i].backend;
    return NULL;
}

GS_HOOK int gpushim_pin(const struct gpushim_pinner *pinner, uintptr_t domain, uint64_t access,
                        uint64_t address, size_t size, void **ret_handle, void **ret_registration)
{
    GS_AROUND_AT_GATE_AS(GS_GATE_OTHER);
    struct gs_pin wanted = {
        .key = {.backend = backend_of(pinner), .domain = domain, .access = access},
        .base = address,
        .size = size,
        .keep = gs_pin_keep != GS_PIN_KEEP_NONE,
    };
    struct gs_reg *reg;
    gs_status status;

    if (!wanted.key.backend)
        return EINVAL;
    if (!gs_pin_active())
        return ENODEV;
    GS_KEEP_ERRNO;
    status = gs_core_pin(gs_core, &wanted, &reg);
    if (status == GS_OK) {
        *ret_handle = gs_reg_handle(reg);
        *ret_registration = reg;
    }
    if (status >= 0)
        return status;
    return status == GS_NOT_OURS ? ENODEV : status == GS_NO_HOST_MEMORY ? ENOMEM : EFAULT;
}

GS_HOOK void gpushim_unpin(void *registration)
{
    GS_AROUND_AT_GATE_AS(GS_GATE_OTHER);
    if (gs_pin_active())
        gs_regcache_release(gs_core_regcache(gs_core), registration);
}

struct domain {
    const struct gs_reg_backend *backend;
    uintptr_t domain;
};

static bool of_domain(const struct gs_regcache_info *info, void *arg)
{
    const struct domain *domain = arg;

    return info->key.backend == domain->backend && info->key.domain == domain->domain;
}

GS_HOOK void gpushim_flush(const struct gpushim_pinner *pinner, uintptr_t domain)
{
    GS_AROUND_AT_GATE_AS(GS_GATE_OTHER);
    struct domain which = {backend_of(pinner), domain};

    if (which.backend && gs_pin_active())
        gs_regcache_flush(gs_core_regcache(gs_core), of_domain, &which);
}

/* ---- Listeners ------------------------------------------------------------------------------- */

static void unmapping(uint64_t address, size_t size)
{
    GS_WITHIN_A_CALL;
    unsigned count = __atomic_load_n(&gs_listeners, __ATOMIC_ACQUIRE);

    for (unsigned i = 0; i < count; i++)
        if (added.listener[i]->unmapping)
            added.listener[i]->unmapping(added.listener[i]->arg, address, size);
}

GS_HOOK int gpushim_listen(const struct gpushim_listener *listener)
{
    int error = 0;

    if (!listener || listener->size < sizeof *listener)
        return EINVAL;
    if (!gs_pin_active())
        return ENODEV;
    /* A listener wants to know because it lets devices at the memory itself. */
    gs_single_drain(gs_single, "a listener is added");
    pthread_mutex_lock(&added.mutex);
    if (gs_listeners == MOST) {
        error = ENOSPC;
    } else {
        added.listener[gs_listeners] = listener;
        gs_core_on_unmap(gs_core, unmapping);
        __atomic_store_n(&gs_listeners, gs_listeners + 1, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&added.mutex);
    return error;
}

void gs_listeners_allocated(uint64_t address, size_t size)
{
    GS_WITHIN_A_CALL;
    unsigned count = __atomic_load_n(&gs_listeners, __ATOMIC_ACQUIRE);

    for (unsigned i = 0; i < count; i++)
        if (added.listener[i]->allocated)
            added.listener[i]->allocated(added.listener[i]->arg, address, size);
}

void gs_listeners_freeing(uint64_t address)
{
    GS_WITHIN_A_CALL;
    unsigned count = __atomic_load_n(&gs_listeners, __ATOMIC_ACQUIRE);
    struct gs_block_info info;

    if (gs_core_find(gs_core, address, &info) != GS_OK || info.base != address || info.imported)
        return; /* not a free that will succeed */
    for (unsigned i = 0; i < count; i++)
        if (added.listener[i]->freed)
            added.listener[i]->freed(added.listener[i]->arg, address, info.size);
}

/* ---- Asking ---------------------------------------------------------------------------------- */

GS_HOOK size_t gpushim_registrations(struct gpushim_registration *registration, size_t room)
{
    struct gs_regcache_info *info;
    size_t count;

    if (!gs_pin_active())
        return 0;
    info = room ? calloc(room, sizeof *info) : NULL;
    count = gs_regcache_list(gs_core_regcache(gs_core), info, info ? room : 0);
    for (size_t i = 0; info && i < count && i < room; i++)
        registration[i] = (struct gpushim_registration){
            .by = info[i].key.backend->name,
            .domain = info[i].key.domain,
            .access = info[i].key.access,
            .address = info[i].base,
            .size = info[i].size,
            .uses = info[i].uses,
        };
    free(info);
    return count;
}

GS_HOOK int gpushim_registration_counts(struct gpushim_registration_counts *counts)
{
    struct gs_regcache_stats stats;

    if (!counts || counts->size < sizeof *counts)
        return EINVAL;
    if (!gs_pin_active())
        return ENODEV;
    gs_regcache_stats(gs_core_regcache(gs_core), &stats);
    *counts = (struct gpushim_registration_counts){
        .size = counts->size,
        .hits = stats.hits,
        .misses = stats.misses,
        .pins = stats.pins,
        .unpins = stats.unpins,
        .pin_ns = stats.pin_ns,
        .unpin_ns = stats.unpin_ns,
        .failures = stats.failures,
        .merges = stats.merges,
        .evictions = stats.evictions,
        .invalidations = stats.invalidations,
        .kept = stats.entries - stats.in_use,
        .in_use = stats.in_use,
        .bytes = stats.bytes,
    };
    return 0;
}

_Static_assert(GPUSHIM_TOOK == GS_TOOK, "the histograms are the same");

/* What the first callers of gpushim_memory had. */
#define MEMORY_FIRST offsetof(struct gpushim_memory, slow)

GS_HOOK int gpushim_memory(int device, struct gpushim_memory *memory)
{
    struct gs_figures figures = {0};
    struct gpushim_memory all;
    struct gs_stats stats;

    if (!memory || memory->size < MEMORY_FIRST || device < 0)
        return EINVAL;
    if (!gs_state_is_on())
        return ENODEV;
    gs_stats_read(gs_core, device, &stats);
    gs_stats_tell(gs_core, (unsigned)device, &figures);
    all = (struct gpushim_memory){
        .size = memory->size,
        .reserved = stats.reserved,
        .live = stats.live,
        .cached = stats.cached,
        .retired = stats.retired,
        .ordered = stats.ordered,
        .limbo = stats.limbo,
        .reserved_peak = stats.counts.reserved_peak,
        .live_peak = stats.counts.live_peak,
        .hits = stats.counts.hits,
        .misses = stats.counts.misses,
        .pieces_made = stats.counts.grown,
        .pieces_given_back = stats.counts.trims,
        .in_background = stats.counts.later,
        .at_once = stats.counts.at_once,
        .events = stats.counts.events,
        .waits = stats.counts.waits,
        .waits_given_up = stats.counts.late,
        .wait_ns = stats.counts.wait_ns,
        .map_ns = stats.counts.map_ns,
        .slow = figures.slow,
    };
    memcpy(all.took, stats.took, sizeof all.took);
    memcpy(all.uuid, figures.uuid, sizeof all.uuid);
    memcpy(memory, &all, memory->size < sizeof all ? memory->size : sizeof all);
    return 0;
}

/* ---- Versions -------------------------------------------------------------------------------- */

_Static_assert(GPUSHIM_VERSION_MAJOR == GS_VERSION_MAJOR &&
                   GPUSHIM_VERSION_MINOR == GS_VERSION_MINOR &&
                   GPUSHIM_VERSION_PATCH == GS_VERSION_PATCH,
               "gpushim.h has another version than meson.build");

GS_HOOK const char *gpushim_version(void)
{
    return GS_VERSION;
}
