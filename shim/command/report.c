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

#define FRAMES 8 /* of a call stack in text */

/* ---- As text -------------------------------------------------------------------------------- */

struct words {
    char text[32];
};

static struct words bytes_text(uint64_t bytes)
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    double number = (double)bytes;
    struct words words;
    unsigned unit = 0;

    while (number >= 1024 && unit < 4)
        number /= 1024, unit++;
    snprintf(words.text, sizeof words.text, unit ? "%.1f %s" : "%.0f %s", number, units[unit]);
    return words;
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

static int print_report(const struct report *report)
{
    print_begin(&report->trace);
    print_sums(report);
    if (report_missing(report))
        command_say("not whole   %s", report_missing(report));
    for (size_t i = 0; i < report->device_count; i++)
        print_device(report, &report->devices[i]);
    print_slowest(report);
    return fflush(stdout) == 0 && !ferror(stdout) ? COMMAND_WELL : COMMAND_WRONG;
}

/* ---- The command ---------------------------------------------------------------------------- */

static const char usage[] =
    "usage: gpushim report FILE [--json] [--html PAGE] [--memory-viz OUT]\n"
    "Says what became of a program's GPU memory, from the FILE that gpushim record wrote.\n"
    "With one or more of these it writes files instead:\n"
    "  --html PAGE       one page for a browser, which needs nothing else: memory over time, a "
    "map\n"
    "                    of it at any moment, who holds it\n"
    "  --memory-viz OUT  a snapshot for pytorch.org/memory_viz\n";

#define HEAD(text) text, sizeof text - 1
static const struct {
    const char *option, *head;
    size_t head_size;
    bool (*write)(FILE *file, const void *report);
} writers[] = {{"--html", HEAD(REPORT_PAGE_HEAD), report_page},
               {"--memory-viz", HEAD(REPORT_PICKLE_HEAD), report_memory_viz}};
#undef HEAD

#define WRITERS (sizeof writers / sizeof *writers)

struct request {
    const char *path, *outputs[WRITERS];
    bool as_json, writes;
};

static int usage_of(const char *format, const char *word)
{
    command_complain(format, word);
    return command_usage(usage);
}

/* Whether there is something to do; else *ret_status is what to exit with. */
static bool read_arguments(int argc, char **argv, struct request *request, int *ret_status)
{
    *ret_status = COMMAND_USAGE;
    for (int i = 1; i < argc; i++) {
        size_t n = 0;

        if (strcmp(argv[i], "--help") == 0)
            return *ret_status = command_help(usage), false;
        while (n < WRITERS && strcmp(argv[i], writers[n].option) != 0)
            n++;
        if (n < WRITERS && !argv[i + 1])
            return usage_of("%s: the file to write is missing after it", argv[i]), false;
        if (n < WRITERS)
            request->outputs[n] = argv[++i], request->writes = true;
        else if (strcmp(argv[i], "--json") == 0)
            request->as_json = true;
        else if (argv[i][0] == '-' || request->path)
            return usage_of("report does not know '%s'", argv[i]), false;
        else
            request->path = argv[i];
    }
    if (!request->path)
        return usage_of("report: the %s to read is missing", "FILE"), false;
    return true;
}

static int write_json(const struct report *report)
{
    struct json json = {.file = stdout};

    json_open(&json, NULL, '{');
    report_write(&json, report);
    json_close(&json, '}');
    return json_end(&json) ? COMMAND_WELL : COMMAND_WRONG;
}

/* Who may not read the recording may not read what is made of it. */
static int write_files(const struct request *request, const struct report *report)
{
    int status = COMMAND_WELL;

    for (size_t i = 0; i < WRITERS; i++) {
        const struct output output = {.head = writers[i].head,
                                      .head_size = writers[i].head_size,
                                      .mode = report->trace.is_private ? 0600 : 0644,
                                      .write = writers[i].write};

        if (request->outputs[i] && !output_write(&output, request->outputs[i], report))
            status = COMMAND_WRONG;
    }
    return status;
}

int command_report(int argc, char **argv)
{
    struct request request = {.path = NULL};
    struct report report;
    int status;

    if (!read_arguments(argc, argv, &request, &status))
        return status;
    if (!report_make(request.path, &report))
        return COMMAND_WRONG;
    if (report_missing(&report))
        command_complain("'%s': %s", request.path, report_missing(&report));
    status = request.writes ? write_files(&request, &report) : COMMAND_WELL;
    if (request.as_json && status == COMMAND_WELL)
        status = write_json(&report);
    else if (!request.writes)
        status = print_report(&report);
    report_free(&report);
    return status;
}
