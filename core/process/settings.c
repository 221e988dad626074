/*
 * Options that can be changed while the process runs (core/process/process.h). What reads each,
 * and when:
 *
 *   log                          each line, before it is put together
 *   pool.decay                   the trimmer, which wakes for it (core/process/trimmer.c)
 *   pool.cache_limit             each arena's bound is made anew here; every free looks at that,
 *                                and the trimmer for what is kept already
 */
#include <string.h>

#include "core/process/context.h"

#define PERCENT (UINT64_C(1) << 63) /* and so many; below, or all ones: bytes */

static uint64_t set_level(struct gs_core *core, uint64_t value)
{
    return (uint64_t)__atomic_exchange_n(core->options.log.level, (int)value, __ATOMIC_RELAXED);
}

static uint64_t set_decay(struct gs_core *core, uint64_t value)
{
    uint64_t before = __atomic_exchange_n(&core->options.decay_ns, value, __ATOMIC_SEQ_CST);

    gs_trimmer_wake(core);
    return before;
}

static uint64_t set_cache(struct gs_core *core, uint64_t value)
{
    struct gs_arena_shared *shared = &core->shared;
    const bool by_percent = value >= PERCENT && value <= PERCENT + 100;
    struct gs_arena *arena = NULL;
    uint64_t before, percent;

    before = __atomic_exchange_n(&shared->cache_limit,
                                 by_percent || value > SIZE_MAX ? SIZE_MAX : (size_t)value,
                                 __ATOMIC_RELAXED);
    percent = __atomic_exchange_n(&shared->cache_percent,
                                  by_percent ? (unsigned)(value - PERCENT) : 0, __ATOMIC_RELAXED);
    if (percent)
        before = PERCENT + percent;
    while ((arena = gs_next_locked(core, NULL, arena, false)))
        gs_arena_limit_locked(arena);
    gs_trimmer_wake(core);
    return before;
}

/* The values that config takes, too: what comes from outside is not believed. `set` returns what it
 * was. */
static const struct row {
    const char *name;
    uint64_t most;
    uint64_t (*set)(struct gs_core *core, uint64_t value);
} rows[] = {
    {"log", GS_LOG_DEBUG, set_level},
    {"pool.decay", 3600 * GS_NS_PER_S, set_decay},
    {"pool.cache_limit", UINT64_MAX, set_cache},
};

#define ROWS (sizeof rows / sizeof *rows)

static bool is_right(const struct row *row, uint64_t value)
{
    return value <= row->most &&
           (row->set != set_cache || value <= PERCENT + 100 || value == UINT64_MAX);
}

void gs_settings_set(struct gs_core *core, struct gs_setting *setting)
{
    const struct row *row = rows;

    while (row < rows + ROWS && strcmp(row->name, setting->name) != 0)
        row++;
    if (row == rows + ROWS || (row->set == set_level && !core->options.log.level))
        setting->outcome = GS_SET_UNKNOWN;
    else
        setting->outcome = is_right(row, setting->value) ? GS_SET_DONE : GS_SET_WRONG;
    if (setting->outcome != GS_SET_DONE)
        return;
    setting->before = row->set(core, setting->value);
    setting->after = setting->value;
}
