/* gpushim report FILE --against EARLIER: what two recordings of a program differ in (report.h). */
#include "shim/command/report.h"

#include "shim/command/command.h"

#define FRAMES 8 /* of a call stack, by which holders of both are the same */

/* Who held memory at the peak of live in either. */
struct change {
    char *key; /* frames, innermost first, a line each */
    uint64_t now, before;
};

struct changes {
    struct change *list;
    size_t count, room;
};

static uint64_t size_of(const struct change *change)
{
    return change->now > change->before ? change->now - change->before
                                        : change->before - change->now;
}

/* By functions: where they lie in their files another build has otherwise. */
static char *key_of(const struct report *report, const struct trace_event *event)
{
    char text[TRACE_FRAME_SIZE], key[FRAMES * (TRACE_FRAME_SIZE + 1)];
    size_t length = 0;

    for (unsigned n = 0; n < FRAMES && report_frame(report, event, n, text); n++) {
        char *place = strstr(text, " (");

        if (place && place > text)
            *place = 0;
        length += (size_t)sprintf(key + length, "%s%s", n ? "\n" : "", text);
    }
    return command_need(strdup(key));
}

static void add_changes(const struct report *report, unsigned device, bool is_now,
                        struct changes *changes)
{
    const struct trace_memory *memory = &report->memory;
    const size_t peak = memory->devices[device].live_peak_at;
    size_t count = 0;
    struct trace_holder *holders =
        peak == TRACE_NEVER ? NULL : trace_holders(memory, device, peak, &count);

    for (size_t i = 0; i < count; i++) {
        const uint64_t bytes = holders[i].bytes;

        *COMMAND_NEXT(changes->list, changes->count, changes->room) =
            (struct change){key_of(report, holders[i].first), is_now ? bytes : 0,
                            is_now ? 0 : bytes};
    }
    free(holders);
}

static int by_key(const void *left, const void *right)
{
    return strcmp(((const struct change *)left)->key, ((const struct change *)right)->key);
}

static int by_size(const void *left, const void *right)
{
    const uint64_t a = size_of(left), b = size_of(right);

    return COMMAND_ORDER(b, a) ?: by_key(left, right);
}

/* The largest change first; what has not changed is last. */
static struct changes find_changes(const struct report *report, const struct report *before,
                                   unsigned device)
{
    struct changes changes = {0};
    struct change *last = NULL;
    size_t count;

    add_changes(report, device, true, &changes);
    add_changes(before, device, false, &changes);
    count = changes.count;
    changes.count = 0;
    if (count)
        qsort(changes.list, count, sizeof *changes.list, by_key);
    for (size_t i = 0; i < count; i++) {
        const struct change *change = &changes.list[i];

        if (last && by_key(last, change) == 0) {
            last->now += change->now, last->before += change->before;
            free(change->key);
        } else {
            last = &changes.list[changes.count++];
            *last = *change;
        }
    }
    if (count)
        qsort(changes.list, changes.count, sizeof *changes.list, by_size);
    return changes;
}

/* What is told of each GPU. */
static const struct {
    const char *text, *json, *json_before;
    size_t offset; /* in its sums */
} numbers[] = {
    {"live peak", "live_peak_bytes", "live_peak_bytes_before",
     offsetof(struct trace_device_sums, live_peak)},
    {"reserved", "reserved_peak_bytes", "reserved_peak_bytes_before",
     offsetof(struct trace_device_sums, reserved_peak)},
    {"never freed", "never_freed_bytes", "never_freed_bytes_before",
     offsetof(struct trace_device_sums, live_end)},
};

static void tell_numbers(const struct report *report, const struct report *before, unsigned device,
                         struct json *json)
{
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        const uint64_t now =
            *(const uint64_t *)((const char *)&report->memory.devices[device] + numbers[i].offset);
        const uint64_t then =
            *(const uint64_t *)((const char *)&before->memory.devices[device] + numbers[i].offset);

        json_number(json, numbers[i].json, now);
        json_number(json, numbers[i].json_before, then);
        if (!json)
            command_say("%-11s %s, %s before: %s%s", numbers[i].text, show_size(now).text,
                        show_size(then).text,
                        now == then  ? "the same"
                        : now > then ? "+"
                                     : "-",
                        now == then ? "" : show_size(now > then ? now - then : then - now).text);
    }
}

static void tell_change(const struct change *change, struct json *json)
{
    char *rest = change->key, *frame;
    bool follows = false;

    json_open(json, NULL, '{');
    json_number(json, "bytes", change->now);
    json_number(json, "bytes_before", change->before);
    json_open(json, "frames", '[');
    for (; (frame = strsep(&rest, "\n")); follows = true)
        if (json)
            json_text(json, NULL, frame);
        else if (follows)
            command_say("  %11s %s", "", frame);
        else
            command_say("  %c%-10s %s, %s before  %s", change->now > change->before ? '+' : '-',
                        show_size(size_of(change)).text, show_size(change->now).text,
                        show_size(change->before).text, frame);
    json_close(json, ']');
    json_close(json, '}');
}

static void tell_device(const struct report *report, const struct report *before, unsigned device,
                        struct json *json)
{
    struct changes changes = find_changes(report, before, device);
    size_t count = 0;

    while (count < changes.count && changes.list[count].now != changes.list[count].before)
        count++;
    json_open(json, NULL, '{');
    json_number(json, "device", device);
    if (!json)
        putchar('\n'), command_say("GPU %u", device);
    tell_numbers(report, before, device, json);
    json_open(json, "holders_at_peak", '[');
    if (!json && count)
        command_say("held at the peaks of live, the largest change first:");
    for (size_t i = 0; i < count && (json || i < REPORT_TOP); i++)
        tell_change(&changes.list[i], json);
    if (!json && count > REPORT_TOP)
        command_say("  and %zu more (--json)", count - REPORT_TOP);
    json_close(json, ']');
    json_close(json, '}');
    for (size_t i = 0; i < changes.count; i++)
        free(changes.list[i].key);
    free(changes.list);
}

void report_against(const struct report *report, const struct report *before, struct json *json)
{
    const struct trace_sums *now = &report->memory.sums, *then = &before->memory.sums;

    if (json) {
        json_number(json, "allocations", now->allocations);
        json_number(json, "allocations_before", then->allocations);
        json_open(json, "devices", '[');
    } else {
        command_say("%s, pid %d, against %s, pid %d", report->trace.header.program,
                    report->trace.header.pid, before->trace.header.program,
                    before->trace.header.pid);
        command_say("calls       %llu allocations, %llu before; %llu frees, %llu before",
                    (unsigned long long)now->allocations, (unsigned long long)then->allocations,
                    (unsigned long long)now->frees, (unsigned long long)then->frees);
    }
    for (unsigned device = 0; device < TRACE_DEVICES; device++)
        if (report->trace.has_device[device] || before->trace.has_device[device])
            tell_device(report, before, device, json);
    json_close(json, ']');
}
