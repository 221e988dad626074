/* A trace in the formats of other programs: Perfetto's (JSON), and the log of RAPIDS' memory
 * manager (CSV). */
#include "shim/command/report.h"

#include <inttypes.h>
#include <string.h>

/* ---- Perfetto ------------------------------------------------------------------------------- */

/* The JSON trace format has microseconds. */
static void put_time(struct json *json, const char *key, uint64_t ns)
{
    json_thousandths(json, key, ns);
}

static void open_entry(struct json *json, const struct report *report, const char *phase,
                       const char *name, uint32_t thread)
{
    const int32_t pid = report->trace.header.pid;

    fputc('\n', json->file);
    json_open(json, NULL, '{');
    json_text(json, "ph", phase);
    json_text(json, "name", name);
    json_number(json, "pid", pid > 0 ? (uint64_t)pid : 0);
    json_number(json, "tid", thread);
}

/* So much of a kind of memory of a device from that moment on. */
static void put_counter(struct json *json, const struct report *report, unsigned device,
                        const char *kind, uint64_t ns, uint64_t bytes)
{
    char name[64];

    snprintf(name, sizeof name, "GPU %u %s", device, kind);
    open_entry(json, report, "C", name, 0);
    put_time(json, "ts", ns);
    json_open(json, "args", '{');
    json_number(json, "bytes", bytes);
    json_close(json, '}');
    json_close(json, '}');
}

static void put_call(struct json *json, const struct report *report,
                     const struct trace_event *event)
{
    char address[24], stream[24], frame[TRACE_FRAME_SIZE];

    snprintf(address, sizeof address, "0x%" PRIx64, event->address);
    snprintf(stream, sizeof stream, "0x%" PRIx64, event->stream);
    open_entry(json, report, "X", trace_call_name(event), event->thread);
    json_text(json, "cat", "memory");
    put_time(json, "ts", event->time_ns);
    put_time(json, "dur", event->took_ns);
    json_open(json, "args", '{');
    json_number(json, "device", event->device);
    json_text(json, "address", address);
    json_number(json, "bytes", event->size);
    json_text(json, "stream", stream);
    json_text(json, "outcome", trace_outcome_name(event));
    json_number(json, "result", event->result >= 0 ? (uint64_t)event->result : 0);
    for (unsigned i = 0; i < event->frame_count; i++) {
        char key[16];

        snprintf(key, sizeof key, "frame %u", i);
        trace_frame_text(report->modules, trace_frame(event, i), frame);
        json_text(json, key, frame);
    }
    json_close(json, '}');
    json_close(json, '}');
}

static void put_figures(struct json *json, const struct report *report,
                        const struct trace_event *event)
{
    put_counter(json, report, event->device, "cached", event->at_ns, event->figures.cached);
    put_counter(json, report, event->device, "retired", event->at_ns, event->figures.retired);
    put_counter(json, report, event->device, "limbo", event->at_ns, event->figures.limbo);
}

static void put_process(struct json *json, const struct report *report)
{
    open_entry(json, report, "M", "process_name", 0);
    json_open(json, "args", '{');
    json_text(json, "name", report->trace.header.program);
    json_close(json, '}');
    json_close(json, '}');
}

/* What there is of live and reserved memory after the event, where it changed that. */
static void put_levels(struct json *json, const struct report *report, size_t at,
                       uint64_t levels[2][256])
{
    const struct trace_memory *memory = &report->memory;
    const struct trace_event *event = &report->trace.events[at];
    bool is_chunk = event->op == GS_TRACE_CHUNK_MADE || event->op == GS_TRACE_CHUNK_GONE;
    const struct trace_block *all = is_chunk ? memory->chunks : memory->blocks;
    const struct trace_block *ended = memory->ends[at] ? &all[memory->ends[at] - 1] : NULL;
    const struct trace_block *begun = memory->begins[at] ? &all[memory->begins[at] - 1] : NULL;
    uint64_t *level = levels[is_chunk];

    if (ended)
        level[ended->device] -= ended->size;
    if (begun)
        level[begun->device] += begun->size;
    if (ended && (!begun || ended->device != begun->device))
        put_counter(json, report, ended->device, is_chunk ? "reserved" : "live", event->at_ns,
                    level[ended->device]);
    if (begun)
        put_counter(json, report, begun->device, is_chunk ? "reserved" : "live", event->at_ns,
                    level[begun->device]);
}

bool report_perfetto(FILE *file, const void *arg)
{
    static uint64_t levels[2][256];
    const struct report *report = arg;
    struct json json = {.file = file};

    memset(levels, 0, sizeof levels);
    json_open(&json, NULL, '{');
    json_open(&json, "otherData", '{');
    json_text(&json, "made_by", "gpushim report");
    json_close(&json, '}');
    json_text(&json, "displayTimeUnit", "ns");
    json_open(&json, "traceEvents", '[');
    put_process(&json, report);
    for (size_t i = 0; i < report->trace.count; i++) {
        const struct trace_event *event = &report->trace.events[i];

        if (event->op == GS_TRACE_FIGURES)
            put_figures(&json, report, event);
        else
            put_call(&json, report, event);
        put_levels(&json, report, i, levels);
    }
    json_close(&json, ']');
    json_close(&json, '}');
    return json_end(&json);
}

/* ---- RMM ------------------------------------------------------------------------------------ */

/* The time of day, as RMM writes it: in UTC here. */
static void put_day_time(FILE *file, uint64_t ns)
{
    const uint64_t us = ns / 1000, second = us / 1000000 % 86400;

    fprintf(file, "%02u:%02u:%02u.%06u", (unsigned)(second / 3600), (unsigned)(second / 60 % 60),
            (unsigned)(second % 60), (unsigned)(us % 1000000));
}

/* Streams in hexadecimal, as RMM writes them: its replay takes such for the default one, and refuses a
 * file with any other. */
static void put_row(FILE *file, const struct report *report, const struct trace_event *event,
                    const char *action, uint64_t address, uint64_t size)
{
    fprintf(file, "%u,", event->thread);
    put_day_time(file, report->trace.header.realtime_ns + event->at_ns);
    if (address)
        fprintf(file, ",%s,0x%" PRIx64 ",%" PRIu64 ",0x%" PRIx64 "\n", action, address, size,
                event->stream);
    else
        fprintf(file, ",%s,(nil),%" PRIu64 ",0x%" PRIx64 "\n", action, size, event->stream);
}

/* Its replay knows frees only of what was allocated before, with the size of that. */
bool report_rmm(FILE *file, const void *arg)
{
    const struct report *report = arg;
    const struct trace_memory *memory = &report->memory;

    fputs("Thread,Time,Action,Pointer,Size,Stream\n", file);
    for (size_t i = 0; i < report->trace.count; i++) {
        const struct trace_event *event = &report->trace.events[i];
        bool is_call = trace_is_alloc(event) || trace_is_free(event);

        if (is_call && memory->ends[i])
            put_row(file, report, event, "free", event->address,
                    memory->blocks[memory->ends[i] - 1].size);
        if (is_call && memory->begins[i])
            put_row(file, report, event, "allocate", event->address, event->size);
        else if (trace_is_alloc(event))
            put_row(file, report, event, "allocate failure", 0, event->size);
    }
    return !ferror(file);
}
