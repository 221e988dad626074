/*
 * Options that can be changed while the process runs (core/process/settings.h). What reads each,
 * and when:
 *
 *   log                          each line, before it is put together
 *   pool.decay                   the purge thread, which wakes for it (core/process/purge.c)
 *   pool.cache_limit             each arena's bound is made anew here; every free looks at that, and
 *                                the purge thread for what is kept already
 *   share.limbo_*                the share thread, which looks at once (core/share/limbo.c)
 *   debug.registrations_bytes, .count  the next registration that is made or ends
 */
#include "core/process/settings.h"

#include <string.h>

#include "core/process/context.h"
#include "core/process/purge.h"

#define PERCENT (UINT64_C(1) << 63) /* and so many; below, or all ones: bytes */

enum option { LOG, DECAY, CACHE_LIMIT, WARNING, WARNING_BLOCKS, WARNING_AGE, LIMIT, BYTES, COUNT };

/* The values that config takes, too: what comes from outside is not believed. */
static const struct {
    const char *name;
    uint64_t most;
    bool zero_is_none; /* core has 0 for `unlimited` */
} rows[] = {
    [LOG] = {"log", GS_LOG_DEBUG, false},
    [DECAY] = {"pool.decay", 3600 * GS_NS_PER_S, false},
    [CACHE_LIMIT] = {"pool.cache_limit", UINT64_MAX, false},
    [WARNING] = {"debug.limbo_warning", UINT64_MAX, true},
    [WARNING_BLOCKS] = {"debug.limbo_warning_blocks", 1000000000, false},
    [WARNING_AGE] = {"debug.limbo_warning_age", 86400 * GS_NS_PER_S, false},
    [LIMIT] = {"debug.limbo_limit", UINT64_MAX, true},
    [BYTES] = {"debug.registrations_bytes", UINT64_MAX, false},
    [COUNT] = {"debug.registrations_count", 1048576, false},
};

#define ROWS (sizeof rows / sizeof *rows)

static uint64_t set_level(struct gs_core *core, uint64_t value)
{
    return (uint64_t)__atomic_exchange_n(core->options.log.level, (int)value, __ATOMIC_RELAXED);
}

static uint64_t set_decay(struct gs_core *core, uint64_t value)
{
    uint64_t before = __atomic_exchange_n(&core->options.purge_ns, value, __ATOMIC_SEQ_CST);

    gs_purge_trim(core);
    return before;
}

static uint64_t set_cache(struct gs_core *core, uint64_t value)
{
    struct gs_arena_shared *shared = &core->shared;
    const bool by_percent = value >= PERCENT && value <= PERCENT + 100;
    struct gs_arena *arena;
    uint64_t before, percent;

    before = __atomic_exchange_n(&shared->cache_limit,
                                 by_percent || value > SIZE_MAX ? SIZE_MAX : (size_t)value,
                                 __ATOMIC_RELAXED);
    percent = __atomic_exchange_n(&shared->cache_percent,
                                  by_percent ? (unsigned)(value - PERCENT) : 0, __ATOMIC_RELAXED);
    if (percent)
        before = PERCENT + percent;
    for (unsigned at = 0; (arena = gs_next_pool(core, NULL, &at));) {
        gs_latch_take(&arena->lock);
        gs_arena_limit_locked(arena);
        gs_latch_release(&arena->lock);
    }
    gs_purge_trim(core);
    return before;
}

/* The bounds as they were given to share are this thread's alone, once the core is made. */
static uint64_t set_limbo(struct gs_core *core, enum option option, uint64_t value)
{
    struct gs_share_options *options = &core->options.share;
    uint64_t *field = option == WARNING          ? &options->limbo_warning
                      : option == WARNING_BLOCKS ? &options->limbo_warning_blocks
                      : option == WARNING_AGE    ? &options->limbo_warning_ns
                                                 : &options->limbo_limit;
    uint64_t before = *field;

    *field = value;
    gs_share_bound_limbo(core->share, options);
    return before;
}

/* Returns what it was. */
static uint64_t set(struct gs_core *core, enum option option, uint64_t value)
{
    switch (option) {
    case LOG:
        return set_level(core, value);
    case DECAY:
        return set_decay(core, value);
    case CACHE_LIMIT:
        return set_cache(core, value);
    case BYTES:
        return gs_regcache_set_bytes(core->regcache, value);
    case COUNT:
        return gs_regcache_set_count(core->regcache, value);
    default:
        return set_limbo(core, option, value);
    }
}

void gs_settings_set(struct gs_core *core, struct gs_setting *setting)
{
    enum option option = 0;
    bool zero_is_none;

    while (option < ROWS && strcmp(rows[option].name, setting->name) != 0)
        option++;
    setting->outcome =
        option < ROWS && (option != LOG || core->options.log.level) ? GS_SET_DONE : GS_SET_UNKNOWN;
    if (setting->outcome == GS_SET_DONE &&
        (setting->value > rows[option].most ||
         (option == CACHE_LIMIT && setting->value > PERCENT + 100 && setting->value != UINT64_MAX)))
        setting->outcome = GS_SET_WRONG;
    if (setting->outcome != GS_SET_DONE)
        return;
    zero_is_none = rows[option].zero_is_none;
    setting->before =
        set(core, option, zero_is_none && setting->value == UINT64_MAX ? 0 : setting->value);
    if (zero_is_none && setting->before == 0)
        setting->before = UINT64_MAX;
    setting->after = setting->value;
}
