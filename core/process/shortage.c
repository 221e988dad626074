/* Where memory is that an allocation did not get (core/process/shortage.h). */
#include "core/process/shortage.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/list.h"
#include "core/process/context.h"
#include "core/process/limit.h"

#define PAUSE_NS  UINT64_C(1000000000)
#define TEXT_SIZE 1001 /* the longest line that the log takes */
#define JSON_SIZE 4096

/* One thread may, as nothing was said for a while. */
static bool may_say(struct gs_core *core)
{
    uint64_t now = gs_now_ns(),
             said = __atomic_load_n(&core->figures.shortage_ns, __ATOMIC_RELAXED);

    return (!said || now - said >= PAUSE_NS) &&
           __atomic_compare_exchange_n(&core->figures.shortage_ns, &said, now, false,
                                       __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

/* ---- Where it is ---------------------------------------------------------------------------- */

static size_t find_largest(struct gs_core *core, const struct gs_device *device)
{
    const struct gs_bin_entry *entry;
    struct gs_arena *arena = NULL;
    size_t largest = 0;

    while ((arena = gs_next_locked(core, &core->device[device->ordinal], arena, true))) {
        gs_arena_merge_quick_locked(arena);
        for (int small = 0; small < 2; small++) /* all in one bin are of one class */
            LL_FOREACH(gs_bins_largest(&gs_arena_region_locked(arena, small)->free), entry)
                largest = entry->size > largest ? entry->size : largest;
    }
    return largest;
}

/* What the driver says is free. Where no context of the device is known the current one may be. */
static void ask_driver(struct gs_core *core, CUcontext context, struct gs_shortage *shortage)
{
    CUdevice device;

    if (!context)
        core->driver.ctx_get_current(&context);
    if (context && gs_context_device(core, context, &device) && device == shortage->device)
        shortage->has_info = gs_context_mem_info(core, context, &shortage->free, &shortage->total);
}

/* Who has what was freed here, and what the others have. */
static void ask_processes(struct gs_core *core, const struct gs_device *device,
                          struct gs_shortage *shortage)
{
    gs_share_held(core->share, device->uuid, 0, &shortage->held);
    shortage->unheard = __atomic_load_n(&core->neighbour.silent, __ATOMIC_RELAXED);
    shortage->unheard_pid = __atomic_load_n(&core->neighbour.silent_pid, __ATOMIC_RELAXED);
    shortage->asked = core->options.neighbours;
    if (shortage->asked)
        gs_share_others(core->share, device->uuid, GS_SHARE_TELL_NS, &shortage->others);
}

static size_t minus(size_t from, size_t what)
{
    return from > what ? from - what : 0;
}

/* ---- What would help ------------------------------------------------------------------------ */

static void add_help(struct gs_shortage *shortage, bool applies, const char *help)
{
    unsigned at = 0;

    while (at < GS_SHORTAGE_HELPS && shortage->help[at])
        at++;
    if (applies && at < GS_SHORTAGE_HELPS)
        shortage->help[at] = help;
}

/* The first ones give back what nobody uses; the last one always holds. */
static void find_help(struct gs_shortage *shortage)
{
    const struct gs_stats *stats = &shortage->stats;
    const struct gs_share_held *held = &shortage->held;
    size_t waits = stats->retired + stats->ordered;
    const size_t here = stats->live < stats->reserved ? stats->live : stats->reserved;
    bool any;

    add_help(shortage, shortage->by_limit, "raise pool.limit, or free memory in this process");
    add_help(shortage, shortage->by_other,
             "raise the limit of address space (ulimit -v), or free memory of the host");
    add_help(shortage, held->any_stopped, "let what is stopped go on, or end it");
    add_help(shortage, held->bytes && !held->any_stopped, "they have to close it, or end");
    add_help(shortage, waits > 0, "wait for the GPU work before what was freed");
    add_help(shortage, shortage->unheard > 0, "let who does not answer go on if it is stopped");
    add_help(shortage, !shortage->by_limit && shortage->others.reserved > here,
             "put other processes to sleep (gpushim sleep PID), end them, or bound them by "
             "pool.limit");
    add_help(shortage, !shortage->by_limit && shortage->has_info && shortage->outside > here,
             "see in nvidia-smi who has what is outside of the library");
    any = shortage->help[0] != NULL;
    add_help(shortage, !any, "free memory in this process, or ask for less");
}

/* All of a report. It is no stack's: threads have small ones, and handlers of signals. */
struct report {
    struct gs_shortage shortage;
    char text[TEXT_SIZE], json[JSON_SIZE];
};

static void look(struct gs_core *core, const struct gs_device *device, CUcontext context,
                 struct gs_shortage *shortage)
{
    memcpy(shortage->uuid, device->uuid, sizeof shortage->uuid);
    shortage->limit = gs_limit_of(core, device);
    shortage->by_limit =
        gs_limit_is_beyond(core, device, shortage->wanted ? shortage->wanted : GS_PAGE_SIZE);
    ask_processes(core, device, shortage);
    ask_driver(core, context, shortage);
    shortage->by_other = !shortage->by_limit && shortage->has_info && shortage->wanted &&
                         shortage->wanted <= shortage->free &&
                         gs_page_round(shortage->wanted) <= shortage->free;
    gs_stats_read(core, device->ordinal, &shortage->stats);
    shortage->going = __atomic_load_n(&core->figures.leaving[device->ordinal], __ATOMIC_SEQ_CST);
    shortage->largest = find_largest(core, device);
    shortage->outside =
        minus(minus(shortage->total, shortage->free),
              shortage->stats.reserved + shortage->going + (size_t)shortage->others.reserved);
    find_help(shortage);
}

void gs_shortage_say(struct gs_core *core, const struct gs_device *device, CUcontext context,
                     size_t size)
{
    const struct gs_log *log = &core->options.log;
    struct report *report;
    int saved = errno;

    if (!may_say(core))
        return;
    report = calloc(1, sizeof *report);
    if (report) {
        report->shortage.device = device->ordinal;
        report->shortage.wanted = size;
        look(core, device, context, &report->shortage);
        gs_shortage_text(&report->shortage, report->text, sizeof report->text);
        log->line(GS_LOG_WARNING, NULL, report->text); /* each time: not one place that is capped */
        if (core->options.reports &&
            gs_shortage_json(&report->shortage, report->json, sizeof report->json))
            log->line(GS_LOG_REPORT, NULL, report->json);
    }
    free(report);
    errno = saved;
}
