/* The report of an allocation that was refused, as a line of log (core/process/shortage.h). */
#include "core/process/shortage.h"

#include "core/base/text.h"

#define MIB(bytes) ((size_t)((bytes) >> 20))
#define NAMED_MOST 2 /* processes: a line of log has an end */

static size_t mib_up(size_t bytes)
{
    return MIB(bytes) + (bytes % (1u << 20) != 0);
}

static void add_wanted(struct gs_text *text, const struct gs_shortage *shortage)
{
    if (shortage->by_limit && shortage->wanted)
        gs_text_add(text, "%zu MiB more would be beyond pool.limit (%zu MiB) on device %d",
                    mib_up(shortage->wanted), MIB(shortage->limit), (int)shortage->device);
    else if (shortage->by_limit)
        gs_text_add(text, "pool.limit (%zu MiB) is reached on device %d", MIB(shortage->limit),
                    (int)shortage->device);
    else if (shortage->by_other)
        gs_text_add(
            text,
            "the driver refused %zu MiB on device %d, which has them: address space or memory "
            "of the host may be short",
            mib_up(shortage->wanted), (int)shortage->device);
    else if (shortage->wanted)
        gs_text_add(text, "no %zu MiB are left on device %d", mib_up(shortage->wanted),
                    (int)shortage->device);
    else
        gs_text_add(text, "no memory is left on device %d", (int)shortage->device);
}

/* This process by state. */
static void add_own(struct gs_text *text, const struct gs_shortage *shortage)
{
    const struct gs_stats *stats = &shortage->stats;
    size_t waits = stats->retired + stats->ordered;

    if (stats->reserved < stats->live) {
        gs_text_add(text, "; this process sleeps, and has %zu MiB", MIB(stats->reserved));
        return;
    }
    gs_text_add(text, "; this process has %zu MiB: %zu live, %zu cached, %zu retired, %zu in limbo",
                MIB(stats->reserved + shortage->going), MIB(stats->live), MIB(stats->cached),
                MIB(waits), MIB(stats->limbo));
    if (shortage->going)
        gs_text_add(text, ", %zu on their way to the driver", MIB(shortage->going));
    if (waits)
        gs_text_add(text, "; %zu MiB are freed behind GPU work that has not ended", mib_up(waits));
}

static void add_holder(struct gs_text *text, const struct gs_share_holder *holder)
{
    gs_text_add(text, " process %d (%s)%s has", (int)holder->pid, holder->name,
                holder->stopped ? ", stopped," : "");
    gs_text_add(text, " %zu MiB for %llu s", MIB(holder->bytes),
                (unsigned long long)(holder->held_ns / 1000000000u));
}

/* Freed here, and with other processes. */
static void add_held(struct gs_text *text, const struct gs_share_held *held)
{
    if (held->bytes == 0)
        return;
    gs_text_add(text, "; %zu MiB are freed and with %u other processes:", MIB(held->bytes),
                held->holders);
    for (unsigned i = 0; i < held->holders && i < NAMED_MOST; i++) {
        gs_text_add(text, "%s", i ? "," : "");
        add_holder(text, &held->most[i]);
    }
}

static void add_others(struct gs_text *text, const struct gs_shortage *shortage)
{
    const struct gs_share_others *others = &shortage->others;

    if (!shortage->asked)
        gs_text_add(
            text, "; this user's other processes were not asked (debug.reclaim_from_peers is off)");
    if (others->answered) {
        gs_text_add(text, "; %u other processes of this user have %zu MiB, %zu of them cached:",
                    others->answered, MIB(others->reserved), MIB(others->cached));
        for (unsigned i = 0; i < others->answered && i < NAMED_MOST; i++)
            gs_text_add(text, "%s process %d (%s) %zu", i ? "," : "", (int)others->most[i].pid,
                        others->most[i].name, MIB(others->most[i].reserved));
    }
    if (others->silent)
        gs_text_add(text, "; %u others do not say what they have", others->silent);
    if (shortage->unheard) {
        gs_text_add(
            text,
            "; %u other processes of this user do not answer when asked for what they keep idle",
            shortage->unheard);
        if (shortage->unheard_pid > 0)
            gs_text_add(text, ", as process %d", shortage->unheard_pid);
    }
}

static void add_device(struct gs_text *text, const struct gs_shortage *shortage)
{
    if (shortage->has_info)
        gs_text_add(text, "; %zu MiB are outside of that, %zu of %zu MiB are free",
                    MIB(shortage->outside), MIB(shortage->free), MIB(shortage->total));
    else
        gs_text_add(text, "; the driver cannot be asked now what else there is");
    gs_text_add(text, "; the largest free piece kept here has %zu KiB", shortage->largest >> 10);
}

void gs_shortage_text(const struct gs_shortage *shortage, char *ret_text, size_t size)
{
    struct gs_text text = {.bytes = ret_text, .size = size};

    add_wanted(&text, shortage);
    add_own(&text, shortage);
    add_held(&text, &shortage->held);
    add_others(&text, shortage);
    add_device(&text, shortage);
    for (unsigned i = 0; i < GS_SHORTAGE_HELPS && shortage->help[i]; i++)
        gs_text_add(&text, "%s%s", i ? "; " : "; what would help: ", shortage->help[i]);
}
