/* Recordings (shim/command/trace_read.h): any bytes, as text, and in all that they are turned
 * into. */
#include "fuzz.h"

#include "command.h"
#include "shim/command/command.h"
#include "shim/command/report.h"

static bool (*const writers[])(FILE *, const void *) = {report_page, report_memory_viz};

/* What was followed adds up. */
static void look_at(const struct report *report)
{
    const struct trace_memory *memory = &report->memory;
    uint64_t never_freed[256] = {0}, live_end[256] = {0};

    for (size_t i = 0; i < memory->block_count; i++) {
        const struct trace_block *block = &memory->blocks[i];

        CHECK(block->from < report->trace.count && memory->begins[block->from] == i + 1);
        CHECK(block->to == TRACE_NEVER ||
              (block->to > block->from && block->to < report->trace.count));
        CHECK(!block->is_in_pieces || memory->piece_count > 0);
        never_freed[block->device] += block->to == TRACE_NEVER;
        live_end[block->device] += block->to == TRACE_NEVER ? block->size : 0;
    }
    for (unsigned i = 0; i < 256; i++) {
        CHECK(memory->devices[i].never_freed == never_freed[i]);
        CHECK(memory->devices[i].live_end == live_end[i]);
        CHECK(memory->devices[i].live_peak >= live_end[i]);
    }
    for (size_t i = 1; i < report->trace.count; i++)
        CHECK(report->trace.events[i - 1].at_ns <= report->trace.events[i].at_ns);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[64];
    char *arguments[] = {path, NULL};
    const struct call call = {.argc = 1, .argv = arguments};
    struct report report;
    int fd, status;
    bool made;

    fd = fuzz_file(data, size, path);
    fuzz_silence(true);
    status = command_report(&call);
    made = report_make(path, &report);
    fuzz_silence(false);
    CHECK(status == COMMAND_WELL || status == COMMAND_WRONG);
    CHECK(made == (status == COMMAND_WELL));
    if (status == COMMAND_WELL) {
        look_at(&report);
        for (size_t i = 0; i < sizeof writers / sizeof *writers; i++)
            CHECK(writers[i](stdout, &report));
        report_free(&report);
    }
    close(fd);
    return 0;
}
