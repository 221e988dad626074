/* The rows of gpushim report (report.h). */
#include "shim/command/report.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/text.h"
#include "shim/command/command.h"

static void fill_holders(const struct report *report, unsigned device, size_t event,
                         struct report_holder ret[REPORT_TOP], size_t *ret_count, size_t *ret_left)
{
    const struct trace_memory *memory = &report->memory;
    size_t count;
    struct trace_holder *holders = trace_holders(memory, device, event, &count);

    *ret_count = count < REPORT_TOP ? count : REPORT_TOP;
    *ret_left = count - *ret_count;
    for (size_t i = 0; i < *ret_count; i++)
        ret[i] = (struct report_holder){
            .bytes = holders[i].bytes,
            .count = holders[i].count,
            .example = &report->trace.events[memory->blocks[holders[i].first].from],
            .last = &report->trace.events[memory->blocks[holders[i].last].from]};
    free(holders);
}

static void fill_device(struct report *report, struct report_device *row, unsigned device)
{
    const struct trace *trace = &report->trace;

    row->device = device;
    row->told = &trace->devices[device];
    row->sums = report->memory.devices[device];
    if (row->sums.live_peak_at == TRACE_NEVER)
        return;
    row->live_peak_ns = trace->events[row->sums.live_peak_at].at_ns;
    fill_holders(report, device, row->sums.live_peak_at, row->holders, &row->holder_count, &row->holders_left);
    fill_holders(report, device, trace->count - 1, row->never_freed, &row->never_freed_count, &row->never_freed_left);
}

static void fill_devices(struct report *report)
{
    struct report_device *row;

    for (unsigned i = 0; i < 256; i++)
        report->device_count += report->trace.has_device[i];
    row = report->devices = command_need(calloc(report->device_count + 1, sizeof *report->devices));
    for (unsigned i = 0; i < 256; i++)
        if (report->trace.has_device[i])
            fill_device(report, row++, i);
}

static void fill_slowest(struct report *report)
{
    for (size_t i = 0; i < report->trace.count; i++) {
        const struct trace_event *event = &report->trace.events[i];
        size_t at = report->slowest_count;

        if (!trace_is_alloc(event) && !trace_is_free(event))
            continue;
        while (at > 0 && report->slowest[at - 1]->took_ns < event->took_ns)
            at--;
        if (at == REPORT_TOP)
            continue;
        if (report->slowest_count < REPORT_TOP)
            report->slowest_count++;
        memmove(report->slowest + at + 1, report->slowest + at,
                (report->slowest_count - at - 1) * sizeof *report->slowest);
        report->slowest[at] = event;
    }
}

bool report_make(const char *path, struct report *ret_report)
{
    memset(ret_report, 0, sizeof *ret_report);
    if (!trace_read(path, &ret_report->trace))
        return false;
    trace_follow(&ret_report->trace, &ret_report->memory);
    ret_report->modules = trace_modules_make(&ret_report->trace);
    fill_devices(ret_report);
    fill_slowest(ret_report);
    return true;
}

void report_free(struct report *report)
{
    free(report->devices);
    trace_modules_free(report->modules);
    trace_memory_free(&report->memory);
    trace_free(&report->trace);
    memset(report, 0, sizeof *report);
}

const char *report_missing(const struct report *report)
{
    return report->trace.cut ? "the file ends within a block: the process was killed, or the disk "
                               "was full; what came later is missing"
           : !report->trace.ended
               ? "the file has no end: the process was killed, or still runs; what its threads had "
                 "not written by then is missing"
               : NULL;
}

bool report_holder_text(const struct report *report, const struct report_holder *holder, unsigned n,
                        char ret_text[TRACE_FRAME_SIZE])
{
    const struct trace_event *event = holder->example;

    if (n < event->frame_count)
        trace_frame_text(report->modules, trace_frame(event, n), ret_text);
    else if (n == 0)
        snprintf(ret_text, TRACE_FRAME_SIZE, "blocks of %" PRIu64 " bytes", event->size);
    else
        return false;
    return true;
}

/* ---- As JSON -------------------------------------------------------------------------------- */

static void write_holders(struct json *json, const char *key, const struct report *report,
                          const struct report_holder *holders, size_t count)
{
    char text[TRACE_FRAME_SIZE];

    json_open(json, key, '[');
    for (size_t i = 0; i < count; i++) {
        json_open(json, NULL, '{');
        json_number(json, "bytes", holders[i].bytes);
        json_number(json, "blocks", holders[i].count);
        json_number(json, "first_ns", holders[i].example->at_ns);
        json_number(json, "last_ns", holders[i].last->at_ns);
        json_bool(json, "by_size", !holders[i].example->frame_count);
        json_open(json, "stack", '[');
        for (unsigned n = 0; report_holder_text(report, &holders[i], n, text); n++)
            json_text(json, NULL, text);
        json_close(json, ']');
        json_close(json, '}');
    }
    json_close(json, ']');
}

/* Numbers of 64 bits that are told as they are. */
struct number {
    const char *key;
    size_t offset;
};

static void write_numbers(struct json *json, const void *of, const struct number *numbers, size_t count)
{
    for (size_t i = 0; i < count; i++)
        json_number(json, numbers[i].key, *(const uint64_t *)((const char *)of + numbers[i].offset));
}

static void write_device(struct json *json, const struct report *report, const struct report_device *row)
{
#define SUM(key, member) {key, offsetof(struct report_device, sums.member)}
    static const struct number numbers[] = {
        SUM("allocations", allocations), SUM("allocated_bytes", bytes), SUM("frees", frees), SUM("refused", refused),
        SUM("live_peak_bytes", live_peak), {"live_peak_ns", offsetof(struct report_device, live_peak_ns)},
        SUM("reserved_peak_bytes", reserved_peak), SUM("cached_peak_bytes", cached_peak),
        SUM("retired_peak_bytes", retired_peak), SUM("limbo_peak_bytes", limbo_peak), SUM("never_freed", never_freed),
        SUM("never_freed_bytes", live_end)};
#undef SUM
    char uuid[33];

    gs_text_hex(row->told->uuid, sizeof row->told->uuid, uuid);
    json_open(json, NULL, '{');
    json_number(json, "device", row->device);
    json_text(json, "name", row->told->name);
    json_text(json, "uuid", uuid);
    json_number(json, "bytes", row->told->bytes);
    write_numbers(json, row, numbers, sizeof numbers / sizeof *numbers);
    write_holders(json, "holders_at_peak", report, row->holders, row->holder_count);
    write_holders(json, "holders_at_end", report, row->never_freed, row->never_freed_count);
    json_close(json, '}');
}

static void write_call(struct json *json, const struct trace_event *event)
{
    json_open(json, NULL, '{');
    json_text(json, "call", trace_call_name(event));
    json_number(json, "took_ns", event->took_ns);
    json_number(json, "time_ns", event->time_ns);
    json_number(json, "bytes", event->size);
    json_number(json, "device", event->device);
    json_number(json, "thread", event->thread);
    json_text(json, "outcome", trace_outcome_name(event));
    json_close(json, '}');
}

void report_write(struct json *json, const struct report *report)
{
#define SUM(key, member) {key, offsetof(struct trace_sums, member)}
    static const struct number numbers[] = {
        SUM("allocations", allocations), SUM("frees", frees), SUM("refused", refused), SUM("failed_frees", failed_frees),
        SUM("unknown_frees", unknown_frees), SUM("gone_with_their_context", replaced), SUM("exported", exported),
        SUM("opened", opened), SUM("in_calls_ns", in_calls_ns)};
#undef SUM
    const struct trace *trace = &report->trace;

    json_text(json, "program", trace->header.program);
    json_number(json, "pid", trace->header.pid > 0 ? (uint64_t)trace->header.pid : 0);
    json_number(json, "began_ns", trace->header.realtime_ns);
    json_number(json, "duration_ns", trace->duration_ns);
    json_bool(json, "has_stacks", trace->header.has_stacks);
    json_bool(json, "ended", trace->ended);
    json_bool(json, "cut", trace->cut);
    json_text(json, "missing", report_missing(report));
    json_number(json, "events", trace->count);
    json_number(json, "threads", trace->threads);
    json_number(json, "waited_for_file_ns", trace->waited_ns);
    write_numbers(json, &report->memory.sums, numbers, sizeof numbers / sizeof *numbers);
    json_open(json, "devices", '[');
    for (size_t i = 0; i < report->device_count; i++)
        write_device(json, report, &report->devices[i]);
    json_close(json, ']');
    json_open(json, "slowest", '[');
    for (size_t i = 0; i < report->slowest_count; i++)
        write_call(json, report->slowest[i]);
    json_close(json, ']');
}
