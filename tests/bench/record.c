/*
 * What recording one event costs (general.record), by itself:
 *
 *   record [--events N] [--file PATH]
 *
 * Prints one JSON line: the nanoseconds of an event in the middle one of batches, with its two
 * looks at the clock, those of one look, and of an event on average, with its way into the file (a
 * new one in /tmp, removed afterwards). A time decides nothing; an event that is not in the file
 * does.
 */
#include "bench.h"
#include "core/base/clock.h"
#include "core/record/trace.h"
#include "tests/system.h"

#define BATCH 32

static const char usage[] = "record [--events N] [--file PATH]   (K, M, G: 2^10, 2^20, 2^30)";

static void say(enum gs_log_level level, const void *place, const char *text)
{
    bench_die("%s", text);
}

static void record(uint64_t number)
{
    struct gs_trace_mark mark = gs_trace_begin();
    struct gs_trace_event event = {.op = GS_TRACE_ALLOC,
                                   .outcome = GS_TRACE_CACHED,
                                   .call = {.address = number, .size = 4096}};

    gs_trace_put(&mark, &event, NULL);
}

/* The middle one of batches of looks, in picoseconds. */
static uint64_t clock_ps(void)
{
    enum { BATCHES = 501 };
    static uint64_t batch[BATCHES];

    for (unsigned i = 0; i < BATCHES; i++) {
        uint64_t began = bench_now();

        for (unsigned j = 0; j < BATCH; j++)
            gs_now_ns();
        batch[i] = (bench_now() - began) * 1000 / BATCH;
    }
    return bench_median(batch, BATCHES);
}

int main(int argc, char **argv)
{
    static const struct gs_log lines = {.line = say};
    char made[] = "/tmp/gpushim-record-XXXXXX";
    const char *path = NULL, *wrong;
    uint64_t events = 200000, began, took, *batch;
    const struct bench_option options[] = {{"events", BENCH_NUMBER, &events},
                                           {"file", BENCH_TEXT, &path},
                                           {NULL}};
    struct stat status;
    int fd;

    if (bench_options(argv, options, usage) || events < BATCH)
        bench_die("nothing to do\nusage: %s", usage);
    fd = path ? -1 : mkstemp(made);
    path = path ? path : made;
    wrong = gs_trace_start(path, false, &lines);
    if (wrong)
        bench_die("%s: %s", path, wrong);
    batch = bench_array(events / BATCH, sizeof *batch);
    began = bench_now();
    for (uint64_t i = 0; i < events / BATCH; i++) {
        uint64_t batch_began = bench_now();

        for (uint64_t j = 0; j < BATCH; j++)
            record(i * BATCH + j);
        batch[i] = (bench_now() - batch_began) * 1000 / BATCH;
    }
    took = bench_now() - began;
    gs_trace_at_exit();
    events = events / BATCH * BATCH;
    if (stat(path, &status) != 0 ||
        (uint64_t)status.st_size < events * sizeof(struct gs_trace_event))
        bench_die("%s has not all of %llu events", path, (unsigned long long)events);
    if (fd >= 0)
        unlink(path);
    json_begin("record");
    json_count("events", events);
    json_number("ns_per_event", (double)bench_median(batch, events / BATCH) / 1000);
    json_number("ns_per_event_mean", (double)took / (double)events);
    json_number("ns_per_clock", (double)clock_ps() / 1000);
    json_end();
    free(batch);
    return 0;
}
