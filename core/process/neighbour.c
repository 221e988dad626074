/* Memory that processes ask each other for (core/process/neighbour.h). */
#include "core/process/neighbour.h"

#include <errno.h>

#include "core/process/context.h"
#include "core/process/own.h"
#include "core/process/reclaim.h"
#include "core/process/stats.h"

#define PAUSE_MS      20  /* between two times that a process gives what it needs itself, */
#define PAUSE_MOST_MS 400 /* or as long as that, below the time that who asks waits for it */
#define ANSWER_NS     GS_NS_PER_MS /* between any two answers */

#define QUIET_MS   100 /* after asking in vain */
#define GROWING_MS 1000
#define WANTED_MIN ((size_t)256 << 20) /* who asks has more to allocate; twice as much each time */

/* ---- Being asked ---------------------------------------------------------------------------- */

void gs_neighbour_join(struct gs_core *core)
{
    if (core->options.neighbours && !__atomic_load_n(&core->neighbour.joined, __ATOMIC_RELAXED) &&
        gs_share_serve(core->share) == GS_OK)
        __atomic_store_n(&core->neighbour.joined, true, __ATOMIC_RELAXED);
}

/*
 * A process that is asked again and again for what it needs itself gives at a rate that it can
 * bear; twice as seldom each time where it found the GPU full no more itself, so that nobody has
 * used what it gave. Who asks is not refused: it waits. What the thread is to give back of its own
 * goes meanwhile.
 */
static void rest(struct gs_core *core, const struct gs_stats *stats)
{
    struct gs_neighbour *neighbour = &core->neighbour;
    uint64_t asked = __atomic_load_n(&neighbour->counts.asked, __ATOMIC_RELAXED);
    uint64_t pause = PAUSE_MS * GS_NS_PER_MS, most = PAUSE_MOST_MS * GS_NS_PER_MS;

    if (stats->counts.grown == neighbour->gave_grown)
        return;
    if (asked == neighbour->gave_asked && gs_now_ns() - neighbour->gave_ns < most + pause)
        pause = 2 * neighbour->pause_ns < most ? 2 * neighbour->pause_ns : most;
    neighbour->pause_ns = pause;
    while (gs_now_ns() - neighbour->gave_ns < pause && !gs_trimmer_is_ending(core)) {
        gs_trimmer_surplus(core);
        gs_rest_ns(GS_NS_PER_MS);
    }
}

/* What was freed just now shows as idle a moment later, if the GPU is. */
static uint64_t yield_within(struct gs_core *core, const struct gs_device *device, uint64_t wanted)
{
    uint64_t end = gs_now_ns() + PAUSE_MS * GS_NS_PER_MS, bytes = 0;
    struct gs_stats stats;

    for (;;) {
        bytes += gs_device_yield(core, device, (size_t)(wanted - bytes));
        gs_stats_read(core, device->ordinal, &stats);
        if (bytes >= wanted || stats.retired == 0 || gs_now_ns() >= end ||
            gs_trimmer_is_ending(core))
            return bytes;
        gs_rest_ns(GS_NS_PER_MS / 4);
    }
}

static bool idle_order(struct gs_core *core, enum gs_sleep_verb verb)
{
    struct gs_sleep_order order = {.verb = verb};

    if (!core->options.sleeps)
        return false;
    core->options.sleeps(&order);
    return order.error == 0;
}

/* What a program has that does not use it. */
static uint64_t fall_asleep(struct gs_core *core, const struct gs_device *device)
{
    if (!idle_order(core, GS_SLEEP_MAY_IDLE))
        return 0;
    gs_share_purge_is_long(core->share);
    return idle_order(core, GS_SLEEP_GOES_IDLE)
               ? __atomic_load_n(&core->sleep.away[device->ordinal], __ATOMIC_RELAXED)
               : 0;
}

static uint64_t give(struct gs_core *core, const unsigned char uuid[16], uint64_t wanted)
{
    struct gs_neighbour *neighbour = &core->neighbour;
    const CUdevice ordinal = gs_core_device_of_uuid(core, uuid);
    const struct gs_device *device;
    struct gs_stats stats;
    uint64_t bytes, has;

    if (ordinal == GS_NO_DEVICE)
        return 0;
    device = &core->device[ordinal];
    gs_stats_read(core, device->ordinal, &stats);
    rest(core, &stats);
    gs_releasing_goes_after(false); /* another process waits for it */
    gs_stats_read(core, device->ordinal, &stats);
    bytes = yield_within(core, device, wanted);
    has = stats.live + gs_own_bytes_of(core->programs.own, device->ordinal);
    if (bytes < wanted && has > 0)
        bytes += fall_asleep(core, device);
    gs_releasing_goes_after(true);
    if (bytes) {
        neighbour->gave_ns = gs_now_ns();
        neighbour->gave_grown = stats.counts.grown;
        neighbour->gave_asked = __atomic_load_n(&neighbour->counts.asked, __ATOMIC_RELAXED);
        gs_log_line(&core->options.log, GS_LOG_DEBUG,
                    "another process found the GPU full: %llu MiB that lay idle were given back",
                    (unsigned long long)bytes >> 20);
    }
    __atomic_fetch_add(&neighbour->counts.answered, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&neighbour->counts.given, bytes, __ATOMIC_RELAXED);
    return bytes;
}

void gs_neighbour_answer(struct gs_core *core)
{
    uint64_t since = gs_now_ns() - core->neighbour.answered_ns, wanted;
    unsigned char uuid[16];

    if (!gs_share_purge(core->share, uuid, &wanted))
        return;
    if (since < ANSWER_NS)
        gs_rest_ns(ANSWER_NS - since);
    gs_share_purged(core->share, give(core, uuid, wanted));
    core->neighbour.answered_ns = gs_now_ns();
}

/* ---- Asking --------------------------------------------------------------------------------- */

/* What to ask for: a process that grows asks for more each time, not for each of its pieces. */
static uint64_t decide_wanted(struct gs_neighbour *neighbour, size_t size)
{
    uint64_t now = gs_now_ns(), wanted = WANTED_MIN;

    if (now - __atomic_load_n(&neighbour->asked_ns, __ATOMIC_RELAXED) < GROWING_MS * GS_NS_PER_MS)
        wanted = 2 * __atomic_load_n(&neighbour->wanted, __ATOMIC_RELAXED);
    if (wanted < WANTED_MIN || wanted > UINT64_MAX / 4)
        wanted = WANTED_MIN;
    if (wanted < size)
        wanted = size;
    __atomic_store_n(&neighbour->asked_ns, now, __ATOMIC_RELAXED);
    __atomic_store_n(&neighbour->wanted, wanted, __ATOMIC_RELAXED);
    return wanted;
}

bool gs_neighbour_ask(struct gs_core *core, const struct gs_device *device, CUcontext context,
                      size_t size)
{
    struct gs_neighbour *neighbour = &core->neighbour;
    struct gs_share_answers answers;
    uint64_t begun = gs_now_ns();
    size_t left, total;
    int saved = errno;
    bool any;

    if (!core->options.neighbours || gs_trimmer_is_this(core) ||
        begun < __atomic_load_n(&neighbour->quiet_until_ns, __ATOMIC_RELAXED))
        return false;
    if (gs_context_mem_info(core, context, &left, &total) && left < size)
        size -= left; /* what is free is not missing */
    gs_share_ask(core->share, device->uuid, decide_wanted(neighbour, size), &answers);
    any = answers.given > 0 || answers.ended;
    __atomic_store_n(&neighbour->silent, answers.silent, __ATOMIC_RELAXED);
    __atomic_store_n(&neighbour->silent_pid, (int)answers.silent_pid, __ATOMIC_RELAXED);
    __atomic_fetch_add(&neighbour->counts.asked, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&neighbour->counts.got, answers.given, __ATOMIC_RELAXED);
    if (any)
        gs_log_line(&core->options.log, GS_LOG_INFO,
                    "the GPU was full: other processes gave back what they did not use, asked "
                    "for %zu MiB, in %llu ms",
                    size >> 20, (unsigned long long)((gs_now_ns() - begun) / GS_NS_PER_MS));
    else
        __atomic_store_n(&neighbour->quiet_until_ns, gs_now_ns() + QUIET_MS * GS_NS_PER_MS,
                         __ATOMIC_RELAXED);
    errno = saved;
    return any;
}
