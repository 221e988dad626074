/* gpushim report FILE --against EARLIER: what two recordings of a program differ in (report.h). */
#include "shim/command/report.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shim/command/command.h"
#include "shim/command/show.h"

#define FRAMES   8 /* of a call stack, by which holders of both are the same */
#define KEY_SIZE 1024
#define MOST     2000 /* holders of each, the largest */

/* Who held memory at the peak of live in either. */
struct change {
    char key[KEY_SIZE]; /* frames, innermost first, a line each */
    uint64_t now, before;
};

static uint64_t size_of(const struct change *change)
{
    return change->now > change->before ? change->now - change->before
                                        : change->before - change->now;
}

/* By functions: where they lie in their files another build has otherwise. */
static void make_key(const struct report *report, const struct trace_event *event,
                     char ret_key[KEY_SIZE])
{
    char text[TRACE_FRAME_SIZE];
    size_t length = 0;

    for (unsigned n = 0; n < FRAMES && report_frame(report, event, n, text); n++) {
        char *place = strstr(text, " (");

        if (place && place > text)
            *place = 0;
        if (length + strlen(text) + 2 < KEY_SIZE)
            length += (size_t)sprintf(ret_key + length, "%s%s", n ? "\n" : "", text);
    }
    ret_key[length] = 0;
}

static size_t add_changes(const struct report *report, unsigned device, bool is_now,
                          struct change *changes)
{
    const struct trace_memory *memory = &report->memory;
    const size_t peak = memory->devices[device].live_peak_at;
    size_t count = 0;
    struct trace_holder *holders =
        peak == TRACE_NEVER ? NULL : trace_holders(memory, device, peak, &count);

    count = !holders ? 0 : count < MOST ? count : MOST;
    for (size_t i = 0; i < count; i++) {
        make_key(report, holders[i].first, changes[i].key);
        changes[i].now = is_now ? holders[i].bytes : 0;
        changes[i].before = is_now ? 0 : holders[i].bytes;
    }
    free(holders);
    return count;
}

static int by_key(const void *left, const void *right)
{
    return strcmp(((const struct change *)left)->key, ((const struct change *)right)->key);
}

static int by_size(const void *left, const void *right)
{
    const uint64_t a = size_of(left), b = size_of(right);

    return a != b ? (a < b) - (a > b) : by_key(left, right);
}

/* Those that differ, the largest change first. */
static struct change *find_changes(const struct report *report, const struct report *before,
                                   unsigned device, size_t *ret_count)
{
    struct change *changes = command_need(calloc(2 * MOST, sizeof *changes));
    size_t count = add_changes(report, device, true, changes), kept = 0;

    count += add_changes(before, device, false, changes + count);
    qsort(changes, count, sizeof *changes, by_key);
    for (size_t i = 0; i < count; i++)
        if (kept && strcmp(changes[kept - 1].key, changes[i].key) == 0)
            changes[kept - 1].now += changes[i].now, changes[kept - 1].before += changes[i].before;
        else
            changes[kept++] = changes[i];
    count = 0;
    for (size_t i = 0; i < kept; i++)
        if (changes[i].now != changes[i].before)
            changes[count++] = changes[i];
    qsort(changes, count, sizeof *changes, by_size);
    *ret_count = count;
    return changes;
}

/* ---- Telling --------------------------------------------------------------------------------- */

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
        char a[SHOWN], b[SHOWN], c[SHOWN];

        json_number(json, numbers[i].json, now);
        json_number(json, numbers[i].json_before, then);
        if (!json)
            command_say("%-11s %s, %s before: %s%s", numbers[i].text, show_size(now, a),
                        show_size(then, b),
                        now == then  ? "the same"
                        : now > then ? "+"
                                     : "-",
                        now == then ? "" : show_size(now > then ? now - then : then - now, c));
    }
}

static void tell_change(const struct change *change, struct json *json)
{
    char key[KEY_SIZE], now[SHOWN], before[SHOWN], by[SHOWN], *rest = key, *frame;
    bool follows = false;

    memcpy(key, change->key, sizeof key);
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
                        show_size(size_of(change), by), show_size(change->now, now),
                        show_size(change->before, before), frame);
    json_close(json, ']');
    json_close(json, '}');
}

static void tell_device(const struct report *report, const struct report *before, unsigned device,
                        struct json *json)
{
    size_t count;
    struct change *changes = find_changes(report, before, device, &count);

    json_open(json, NULL, '{');
    json_number(json, "device", device);
    if (!json)
        putchar('\n'), command_say("GPU %u", device);
    tell_numbers(report, before, device, json);
    json_open(json, "holders_at_peak", '[');
    if (!json && count)
        command_say("held at the peaks of live, the largest change first:");
    for (size_t i = 0; i < count && (json || i < REPORT_TOP); i++)
        tell_change(&changes[i], json);
    if (!json && count > REPORT_TOP)
        command_say("  and %zu more (--json)", count - REPORT_TOP);
    json_close(json, ']');
    json_close(json, '}');
    free(changes);
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
