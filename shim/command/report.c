/*
 * gpushim report: reads what a process recorded (gpushim record) and says what became of its
 * GPU memory. report.h has its parts.
 */
#include "shim/command/report.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "shim/command/command.h"
#include "shim/command/output.h"
#include "shim/command/show.h"

#define FRAMES 8 /* of a call stack in text */

/* ---- As text -------------------------------------------------------------------------------- */

struct words {
    char text[SHOWN];
};

static struct words bytes_text(uint64_t bytes)
{
    struct words words;

    return show_size(bytes, words.text), words;
}

static struct words time_text(uint64_t ns)
{
    static const char *const units[] = {"ns", "us", "ms", "s"};
    double number = (double)ns;
    struct words words;
    unsigned unit = 0;

    while (number >= 1000 && unit < 3)
        number /= 1000, unit++;
    snprintf(words.text, sizeof words.text, unit ? "%.3g %s" : "%.0f %s", number, units[unit]);
    if (unit == 3)
        snprintf(words.text, sizeof words.text, "%.3f s", number);
    return words;
}

static void print_begin(const struct trace *trace)
{
    time_t seconds = (time_t)(trace->header.realtime_ns / 1000000000);
    char when[32] = "";
    struct tm utc;

    if (gmtime_r(&seconds, &utc))
        strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &utc);
    command_say("program     %s, pid %d, recorded from %s on for %s", trace->header.program,
           trace->header.pid, when, time_text(trace->duration_ns).text);
    command_say("events      %zu of %u thread%s; the program waited %s for the file", trace->count,
           trace->threads, trace->threads == 1 ? "" : "s", time_text(trace->waited_ns).text);
}

static void print_sums(const struct report *report)
{
    const struct trace_sums *sums = &report->memory.sums;

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
}

static void print_holders(const struct report *report, const struct report_holder *holders,
                          size_t count, size_t left)
{
    char text[TRACE_FRAME_SIZE];

    for (size_t i = 0; i < count; i++) {
        report_holder_text(report, &holders[i], 0, text);
        command_say("  %12s in %6" PRIu64 "  %s", bytes_text(holders[i].bytes).text, holders[i].count,
               text);
        for (unsigned n = 1; n < FRAMES && report_holder_text(report, &holders[i], n, text); n++)
            command_say("  %12s    %6s  %s", "", "", text);
        if (holders[i].example->frame_count > FRAMES)
            command_say("  %12s    %6s  and %d more (--json)", "", "",
                   holders[i].example->frame_count - FRAMES);
    }
    if (left)
        command_say("  and %zu more", left);
}

static void print_device(const struct report *report, const struct report_device *row)
{
    const struct trace_device_sums *sums = &row->sums;

    putchar('\n');
    command_say("GPU %u%s%s%s%s", row->device, row->told->name[0] ? ", " : "", row->told->name,
                row->told->bytes ? ", " : "", row->told->bytes ? bytes_text(row->told->bytes).text : "");
    command_say("peaks       live %s (after %s), reserved %s, cached %s, retired %s, limbo %s",
                bytes_text(sums->live_peak).text, time_text(row->live_peak_ns).text,
                bytes_text(sums->reserved_peak).text, bytes_text(sums->cached_peak).text,
                bytes_text(sums->retired_peak).text, bytes_text(sums->limbo_peak).text);
    if (row->holder_count) {
        command_say("held at the peak of live:");
        print_holders(report, row->holders, row->holder_count, row->holders_left);
    }
    if (!sums->never_freed)
        return;
    command_say("never freed: %" PRIu64 " blocks, %s", sums->never_freed,
           bytes_text(sums->live_end).text);
    print_holders(report, row->never_freed, row->never_freed_count, row->never_freed_left);
}

static void print_slowest(const struct report *report)
{
    if (report->slowest_count)
        putchar('\n'), command_say("slowest calls:");
    for (size_t i = 0; i < report->slowest_count; i++) {
        const struct trace_event *event = report->slowest[i];

        char what[96] = "";

        if (trace_is_alloc(event))
            snprintf(what, sizeof what, " of %s, %s", bytes_text(event->size).text, trace_outcome_name(event));
        command_say("  %8s  %s%s, GPU %u, thread %u, after %s", time_text(event->took_ns).text,
                    trace_call_name(event), what, event->device, event->thread, time_text(event->time_ns).text);
    }
}

static void print_report(const struct report *report)
{
    print_begin(&report->trace);
    print_sums(report);
    if (report_missing(report))
        command_say("not whole   %s", report_missing(report));
    for (size_t i = 0; i < report->device_count; i++)
        print_device(report, &report->devices[i]);
    print_slowest(report);
}

/* ---- The command ---------------------------------------------------------------------------- */

/* Who may not read the recording may not read what is made of it. */
static int write_file(const char *path, const char *head, size_t size, bool (*write)(FILE *, const void *),
                      const struct report *report)
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
    if (report_missing(&before))
        command_complain("'%s': %s", call_value(call, "against"), report_missing(&before));
    json = call_json(call, false);
    report_against(report, &before, json);
    json_end(json);
    report_free(&before);
    return COMMAND_WELL;
}

int command_report(const struct call *call)
{
    const char *path = call->argv[0], *html = call_value(call, "html"), *viz = call_value(call, "memory-viz");
    struct report report;
    struct json *json;
    int status;

    if (!report_make(path, &report))
        return COMMAND_WRONG;
    if (report_missing(&report))
        command_complain("'%s': %s", path, report_missing(&report));
    status = write_file(html, REPORT_PAGE_HEAD, sizeof REPORT_PAGE_HEAD, report_page, &report) |
             write_file(viz, REPORT_PICKLE_HEAD, sizeof REPORT_PICKLE_HEAD, report_memory_viz, &report);
    if (call_has(call, "against") && status == COMMAND_WELL) {
        status = compare(call, &report);
    } else if (status == COMMAND_WELL && (json = call_json(call, false))) {
        report_write(json, &report);
        json_end(json);
    } else if (!html && !viz) {
        print_report(&report);
    }
    report_free(&report);
    return status;
}
