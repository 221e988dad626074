/* gpushim report: what became of a recorded program's GPU memory, as text and JSON (report.h). */
#include "shim/command/report.h"

#include <inttypes.h>

#include "core/base/text.h"
#include "shim/command/command.h"

#define FRAMES 8 /* of a call stack in text */

/* ---- What there is to say --------------------------------------------------------------------- */

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
    fill_slowest(ret_report);
    return true;
}

void report_free(struct report *report)
{
    trace_modules_free(report->modules);
    trace_memory_free(&report->memory);
    trace_free(&report->trace);
}

bool report_frame(const struct report *report, const struct trace_event *event, unsigned n,
                  char ret_text[TRACE_FRAME_SIZE])
{
    if (n < event->frame_count)
        trace_frame_text(report->modules, trace_frame(event, n), ret_text);
    else if (n == 0)
        snprintf(ret_text, TRACE_FRAME_SIZE, "blocks of %" PRIu64 " bytes", event->size);
    else
        return false;
    return true;
}

/* ---- Telling, as text or JSON ---------------------------------------------------------------- */

static struct shown time_text(uint64_t ns)
{
    static const char *const units[] = {"ns", "us", "ms", "s"};
    double number = (double)ns;
    struct shown words;
    unsigned unit = 0;

    while (number >= 999.5 && unit < 3) /* which three figures make 1000 of */
        number /= 1000, unit++;
    snprintf(words.text, sizeof words.text, unit ? "%.3g %s" : "%.0f %s", number, units[unit]);
    if (unit == 3)
        snprintf(words.text, sizeof words.text, "%.3f s", number);
    return words;
}

/* NULL: the file is whole. */
static const char *missing(const struct report *report)
{
    return report->trace.cut ? "the file ends within a block: the process was killed, or the disk "
                               "was full; what came later is missing"
           : !report->trace.ended
               ? "the file has no end: the process was killed, or still runs; what its threads had "
                 "not written by then is missing"
               : NULL;
}

static void print_sums(const struct report *report)
{
    const struct trace_sums *sums = &report->memory.sums;
    const struct trace *trace = &report->trace;

    command_say("program     %s, pid %d, recorded from %s on for %s", trace->header.program,
                trace->header.pid, show_utc((time_t)(trace->header.realtime_ns / 1000000000)).text,
                time_text(trace->duration_ns).text);
    command_say("events      %zu of %u thread%s; the program waited %s for the file", trace->count,
                trace->threads, trace->threads == 1 ? "" : "s", time_text(trace->waited_ns).text);
    command_say("calls       %" PRIu64 " allocations, %" PRIu64 " frees, %s in them",
                sums->allocations, sums->frees, time_text(sums->in_calls_ns).text);
    if (sums->refused || sums->failed_frees)
        command_say("failed      %" PRIu64 " allocations, %" PRIu64 " frees", sums->refused,
                    sums->failed_frees);
    if (sums->unknown_frees)
        command_say("unknown     %" PRIu64 " frees of blocks whose allocation is not in the file",
                    sums->unknown_frees);
    if (sums->replaced)
        command_say("no free     %" PRIu64 " blocks went with their context", sums->replaced);
    if (sums->exported || sums->opened)
        command_say("shared      %" PRIu64 " blocks exported, %" PRIu64 " of others opened",
                    sums->exported, sums->opened);
    if (missing(report))
        command_say("not whole   %s", missing(report));
}

/* Of a script its lines, and not those of the interpreter that called. */
static unsigned frames_of(const struct report *report, const struct trace_event *event)
{
    struct trace_place place;
    unsigned lines = 0;

    for (unsigned n = 0; n < event->frame_count; n++) {
        trace_place(report->modules, trace_frame(event, n), &place);
        if (!place.is_named)
            break;
        if (place.file[0])
            lines = n + 1;
    }
    return lines ? lines : event->frame_count;
}

void report_write_stack(struct json *json, const char *key, const struct report *report,
                        const struct trace_event *event)
{
    char text[TRACE_FRAME_SIZE];

    json_open(json, key, '[');
    for (unsigned n = 0; report_frame(report, event, n, text); n++)
        json_text(json, NULL, text);
    json_close(json, ']');
}

/* Who held it from the event on. */
static void tell_holders(struct json *json, const char *key, const struct report *report,
                         unsigned device, size_t event)
{
    size_t count = 0;
    struct trace_holder *holders =
        event == TRACE_NEVER ? NULL : trace_holders(&report->memory, device, event, &count);
    char text[TRACE_FRAME_SIZE];

    json_open(json, key, '[');
    for (size_t i = 0; i < count && i < REPORT_TOP; i++) {
        const struct trace_event *first = holders[i].first;
        const unsigned frames = frames_of(report, first);

        json_open(json, NULL, '{');
        json_number(json, "bytes", holders[i].bytes);
        json_number(json, "blocks", holders[i].count);
        json_number(json, "first_ns", first->at_ns);
        json_number(json, "last_ns", holders[i].last->at_ns);
        json_bool(json, "by_size", !first->frame_count);
        report_write_stack(json, "stack", report, first);
        json_close(json, '}');
        if (json)
            continue;
        report_frame(report, first, 0, text);
        command_say("  %12s in %6" PRIu64 "  %s", show_size(holders[i].bytes).text,
                    holders[i].count, text);
        for (unsigned n = 1; n < FRAMES && n < frames; n++) {
            report_frame(report, first, n, text);
            command_say("  %12s    %6s  %s", "", "", text);
        }
        if (frames > FRAMES)
            command_say("  %12s    %6s  and %u more (--json)", "", "", frames - FRAMES);
    }
    json_close(json, ']');
    if (!json && count > REPORT_TOP)
        command_say("  and %zu more", count - REPORT_TOP);
    free(holders);
}

static void print_device(const struct gs_trace_device *told, const struct trace_device_sums *sums,
                         unsigned device)
{
    putchar('\n');
    command_say("GPU %u%s%s%s%s", device, told->name[0] ? ", " : "", told->name,
                told->bytes ? ", " : "", told->bytes ? show_size(told->bytes).text : "");
    command_say("peaks       live %s (after %s), reserved %s, cached %s, retired %s, limbo %s",
                show_size(sums->live_peak).text, time_text(sums->live_peak_ns).text,
                show_size(sums->reserved_peak).text, show_size(sums->cached_peak).text,
                show_size(sums->retired_peak).text, show_size(sums->limbo_peak).text);
}

static void tell_device(struct json *json, const struct report *report, unsigned device)
{
    const struct trace_device_sums *sums = &report->memory.devices[device];
    const struct gs_trace_device *told = &report->trace.devices[device];
    char uuid[33];

    gs_text_hex(told->uuid, sizeof told->uuid, uuid);
    json_open(json, NULL, '{');
    json_number(json, "device", device);
    json_text(json, "name", told->name);
    json_text(json, "uuid", uuid);
    json_number(json, "bytes", told->bytes);
    json_number(json, "allocations", sums->allocations);
    json_number(json, "allocated_bytes", sums->bytes);
    json_number(json, "frees", sums->frees);
    json_number(json, "refused", sums->refused);
    json_number(json, "live_peak_bytes", sums->live_peak);
    json_number(json, "live_peak_ns", sums->live_peak_ns);
    json_number(json, "reserved_peak_bytes", sums->reserved_peak);
    json_number(json, "cached_peak_bytes", sums->cached_peak);
    json_number(json, "retired_peak_bytes", sums->retired_peak);
    json_number(json, "limbo_peak_bytes", sums->limbo_peak);
    json_number(json, "never_freed", sums->never_freed);
    json_number(json, "never_freed_bytes", sums->live_end);
    if (!json)
        print_device(told, sums, device);
    if (!json && sums->live_peak_at != TRACE_NEVER)
        command_say("held at the peak of live:");
    tell_holders(json, "holders_at_peak", report, device, sums->live_peak_at);
    if (!json && sums->never_freed)
        command_say("never freed: %" PRIu64 " blocks, %s", sums->never_freed,
                    show_size(sums->live_end).text);
    tell_holders(json, "holders_at_end", report, device,
                 sums->never_freed ? report->trace.count - 1 : TRACE_NEVER);
    json_close(json, '}');
}

static void tell_call(struct json *json, const struct trace_event *event)
{
    char what[96] = "";

    json_open(json, NULL, '{');
    json_text(json, "call", trace_call_name(event));
    json_number(json, "took_ns", event->took_ns);
    json_number(json, "time_ns", event->time_ns);
    json_number(json, "bytes", event->size);
    json_number(json, "device", event->device);
    json_number(json, "thread", event->thread);
    json_text(json, "outcome", trace_outcome_name(event));
    json_close(json, '}');
    if (trace_is_alloc(event))
        snprintf(what, sizeof what, " of %s, %s", show_size(event->size).text,
                 trace_outcome_name(event));
    if (!json)
        command_say("  %8s  %s%s, GPU %u, thread %u, after %s", time_text(event->took_ns).text,
                    trace_call_name(event), what, event->device, event->thread,
                    time_text(event->time_ns).text);
}

void report_tell(struct json *json, const struct report *report)
{
    const struct trace *trace = &report->trace;
    const struct trace_sums *sums = &report->memory.sums;

    json_text(json, "program", trace->header.program);
    json_number(json, "pid", trace->header.pid > 0 ? (uint64_t)trace->header.pid : 0);
    json_number(json, "began_ns", trace->header.realtime_ns);
    json_number(json, "duration_ns", trace->duration_ns);
    json_bool(json, "has_stacks", trace->header.has_stacks);
    json_bool(json, "ended", trace->ended);
    json_bool(json, "cut", trace->cut);
    json_text(json, "missing", missing(report));
    json_number(json, "events", trace->count);
    json_number(json, "threads", trace->threads);
    json_number(json, "waited_for_file_ns", trace->waited_ns);
    json_number(json, "allocations", sums->allocations);
    json_number(json, "frees", sums->frees);
    json_number(json, "refused", sums->refused);
    json_number(json, "failed_frees", sums->failed_frees);
    json_number(json, "unknown_frees", sums->unknown_frees);
    json_number(json, "gone_with_their_context", sums->replaced);
    json_number(json, "exported", sums->exported);
    json_number(json, "opened", sums->opened);
    json_number(json, "in_calls_ns", sums->in_calls_ns);
    if (!json)
        print_sums(report);
    json_open(json, "devices", '[');
    for (unsigned device = 0; device < TRACE_DEVICES; device++)
        if (trace->has_device[device])
            tell_device(json, report, device);
    json_close(json, ']');
    json_open(json, "slowest", '[');
    if (!json && report->slowest_count)
        putchar('\n'), command_say("slowest calls:");
    for (size_t i = 0; i < report->slowest_count; i++)
        tell_call(json, report->slowest[i]);
    json_close(json, ']');
}

/* Who may not read the recording may not read what is made of it. */
static int write_file(const char *path, const char *head, size_t size,
                      bool (*write)(FILE *, const void *), const struct report *report)
{
    const struct output output = {head, size - 1, report->trace.is_private ? 0600 : 0644, write};

    return !path || output_write(&output, path, report) ? COMMAND_WELL : COMMAND_WRONG;
}

static int compare(const struct call *call, const struct report *report)
{
    struct report before;
    struct json *json;

    if (!report_make(call_value(call, "against"), &before))
        return COMMAND_WRONG;
    if (missing(&before))
        command_complain("'%s': %s", call_value(call, "against"), missing(&before));
    json = call_json(call, false);
    report_against(report, &before, json);
    json_end(json);
    report_free(&before);
    return COMMAND_WELL;
}

int command_report(const struct call *call)
{
    const char *path = call->argv[0], *html = call_value(call, "html"),
               *viz = call_value(call, "memory-viz");
    struct report report;
    struct json *json;
    int status;

    if (!report_make(path, &report))
        return COMMAND_WRONG;
    if (missing(&report))
        command_complain("'%s': %s", path, missing(&report));
    status =
        write_file(html, REPORT_PAGE_HEAD, sizeof REPORT_PAGE_HEAD, report_page, &report) |
        write_file(viz, REPORT_PICKLE_HEAD, sizeof REPORT_PICKLE_HEAD, report_memory_viz, &report);
    if (call_has(call, "against") && status == COMMAND_WELL) {
        status = compare(call, &report);
    } else if (status == COMMAND_WELL && (call_has(call, "json") || (!html && !viz))) {
        json = call_json(call, false);
        report_tell(json, &report);
        json_end(json);
    }
    report_free(&report);
    return status;
}
