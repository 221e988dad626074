/* Where memory is that an allocation did not get (core/process/shortage.h). */
#include "core/process/shortage.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

#include "core/process/context.h"
#include "core/process/stats.h"

#define PAUSE_NS UINT64_C(1000000000)
#define NAMED_MOST 2 /* holders: a line of log has an end */

struct text {
    char bytes[480];
    size_t length;
};

__attribute__((format(printf, 2, 3))) static void add(struct text *text, const char *format, ...)
{
    size_t room = sizeof text->bytes - text->length;
    va_list arguments;
    int length;

    va_start(arguments, format);
    length = vsnprintf(text->bytes + text->length, room, format, arguments);
    va_end(arguments);
    text->length += length < 0 ? 0 : (size_t)length < room ? (size_t)length : room - 1;
}

/* One thread may, as nothing was said for a while. */
static bool may_say(struct gs_core *core)
{
    uint64_t now = gs_now_ns(), said = __atomic_load_n(&core->shortage_ns, __ATOMIC_RELAXED);

    return (!said || now - said >= PAUSE_NS) &&
           __atomic_compare_exchange_n(&core->shortage_ns, &said, now, false, __ATOMIC_RELAXED,
                                       __ATOMIC_RELAXED);
}

static void add_holder(struct text *text, const struct gs_share_holder *holder)
{
    add(text, " process %d (%s)%s has", (int)holder->pid, holder->name,
        holder->stopped ? ", stopped," : "");
    if (holder->bytes)
        add(text, " %zu MiB for %llu s", holder->bytes >> 20,
            (unsigned long long)(holder->held_ns / 1000000000u));
    if (holder->mapped)
        add(text, "%s %zu MiB mapped and does not give it back", holder->bytes ? " and" : "",
            holder->mapped >> 20);
}

/* Freed here, and with other processes. */
static bool add_held(struct text *text, struct gs_core *core, const struct gs_device *device)
{
    struct gs_share_held held;

    gs_share_held(core->share, device->uuid, &held);
    if (held.bytes == 0 && held.mapped == 0)
        return false;
    add(text, "; %zu MiB are freed and with %u other processes:",
        (held.bytes + held.mapped) >> 20, held.holders);
    for (unsigned i = 0; i < held.holders && i < NAMED_MOST; i++) {
        add(text, "%s", i ? "," : "");
        add_holder(text, &held.most[i]);
    }
    add(text, held.any_stopped ? "; let what is stopped go on, or end it"
                               : "; they have to close it, or end");
    return true;
}

static bool add_retired(struct text *text, struct gs_core *core, const struct gs_device *device)
{
    struct gs_stats stats;
    size_t bytes;

    gs_stats_read(core, device->ordinal, &stats);
    bytes = stats.retired + stats.ordered;
    if (bytes == 0)
        return false;
    add(text, "; %zu MiB are freed behind GPU work that has not ended: wait for it before",
        (bytes + (1u << 20) - 1) >> 20);
    return true;
}

static bool add_silent(struct text *text, struct gs_core *core)
{
    unsigned silent = __atomic_load_n(&core->neighbour.silent, __ATOMIC_RELAXED);
    int pid = __atomic_load_n(&core->neighbour.silent_pid, __ATOMIC_RELAXED);

    if (silent == 0)
        return false;
    add(text, "; %u other processes of this user do not answer when asked for what they keep idle",
        silent);
    if (pid > 0)
        add(text, ", as process %d: let it go on if it is stopped", pid);
    return true;
}

void gs_shortage_say(struct gs_core *core, const struct gs_device *device, size_t size)
{
    struct text text = {.length = 0};
    int saved = errno;
    bool any;

    if (!may_say(core))
        return;
    if (size > 0)
        add(&text, "no %zu MiB are left on device %d", (size + (1u << 20) - 1) >> 20,
            (int)device->ordinal);
    else
        add(&text, "no memory is left on device %d", (int)device->ordinal);
    any = add_held(&text, core, device);
    any |= add_retired(&text, core, device);
    any |= add_silent(&text, core);
    if (any) /* each time: not one place that is capped */
        core->options.log.line(GS_LOG_WARNING, NULL, text.bytes);
    else
        __atomic_store_n(&core->shortage_ns, 0, __ATOMIC_RELAXED);
    errno = saved;
}
