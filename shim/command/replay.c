/*
 * gpushim replay: makes the calls of a trace again, in a process without the library and in one
 * with it under the options that are given, and tells time and memory of both. Each is this program
 * once more, so that the library is in it as in any program: it begins with the process.
 */
#include "shim/command/replay.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shim/command/command.h"
#include "shim/command/json.h"
#include "shim/command/run.h"

#define PLAY "--play" /* FD: this is such a process, which writes its result there */

/* ---- A run ---------------------------------------------------------------------------------- */

static int play(const char *to, const char *path)
{
    struct replay_result result;
    struct trace trace;
    struct trace_memory memory;
    int fd = (int)strtol(to, NULL, 10);

    if (!trace_read(path, &trace))
        return COMMAND_WRONG;
    if (!trace_follow(&trace, &memory))
        return COMMAND_WRONG;
    replay_play(&trace, &memory, &result);
    trace_memory_free(&memory);
    trace_free(&trace);
    return write(fd, &result, sizeof result) == (ssize_t)sizeof result ? COMMAND_WELL
                                                                       : COMMAND_WRONG;
}

static void become_run(bool with_library, int to, const char *path)
{
    char fd[16];

    snprintf(fd, sizeof fd, "%d", to);
    if (with_library ? !run_preload() : setenv("GPUSHIM_ENABLE", "off", 1) != 0)
        _exit(COMMAND_WRONG);
    execl("/proc/self/exe", command_program, "replay", PLAY, fd, path, (char *)NULL);
    command_complain("/proc/self/exe cannot be started: %s; mount /proc", strerror(errno));
    _exit(COMMAND_WRONG);
}

static bool read_result(int from, struct replay_result *result)
{
    size_t got = 0;

    while (got < sizeof *result) {
        ssize_t more = read(from, (char *)result + got, sizeof *result - got);

        if (more == 0 || (more < 0 && errno != EINTR))
            return false;
        got += more > 0 ? (size_t)more : 0;
    }
    return true;
}

/* False, and said. */
static bool run_once(bool with_library, const char *path, struct replay_result *result)
{
    const char *name = with_library ? "with the library" : "without the library";
    int ends[2], status = 0;
    bool got = false;
    pid_t child = -1;

    if (pipe2(ends, O_CLOEXEC) == 0) {
        child = fork();
        if (child == 0 && fcntl(ends[1], F_SETFD, 0) == 0)
            become_run(with_library, ends[1], path);
        if (child == 0)
            _exit(COMMAND_WRONG);
        close(ends[1]);
        got = child > 0 && read_result(ends[0], result);
        close(ends[0]);
    }
    if (child < 0)
        return command_complain("the run %s cannot be started: %s", name, strerror(errno)), false;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    if (WIFSIGNALED(status))
        command_complain("the run %s was killed by signal %d (%s)", name, WTERMSIG(status),
                         strsignal(WTERMSIG(status)));
    else if (!got)
        command_complain("the run %s ended with %d and no result", name, WEXITSTATUS(status));
    else if (result->wrong[0])
        command_complain("the run %s: %s", name, result->wrong);
    else if (with_library && !result->has_library)
        command_complain("the run with the library had nothing of it: 'gpushim doctor' says why, "
                         "and 'gpushim config' whether it is switched off");
    else
        return !WIFSIGNALED(status);
    return false;
}

/* ---- Telling -------------------------------------------------------------------------------- */

enum { NATIVE, LIBRARY, RUNS };

static void print_row(const char *name, const uint64_t numbers[RUNS], double unit, const char *word)
{
    const int digits = unit > 1 ? 2 : 0;

    printf("%-28s %12.*f %12.*f%s%s\n", name, digits, (double)numbers[NATIVE] / unit, digits,
           (double)numbers[LIBRARY] / unit, *word ? " " : "", word);
}

#define ROW(name, field, unit, word)                                                               \
    print_row(name, (const uint64_t[RUNS]){results[NATIVE].field, results[LIBRARY].field}, unit,   \
              word)

static int print_results(const struct trace_memory *memory, const struct replay_result *results)
{
    uint64_t live = 0;

    for (unsigned i = 0; i < 256; i++)
        live += memory->devices[i].live_peak;
    printf("recorded: %llu allocations, %llu frees, %llu refused; at most %.2f MiB live\n\n",
           (unsigned long long)memory->sums.allocations, (unsigned long long)memory->sums.frees,
           (unsigned long long)memory->sums.refused, (double)live / (1 << 20));
    printf("%-28s %12s %12s\n", "", "native", "library");
    ROW("allocations", allocations.count, 1, "");
    ROW("  in all", allocations.sum_ns, 1e6, "ms");
    ROW("  median", allocations.median_ns, 1e3, "us");
    ROW("  99 of 100 within", allocations.p99_ns, 1e3, "us");
    ROW("  the slowest", allocations.most_ns, 1e3, "us");
    ROW("  refused", refused, 1, "");
    ROW("frees", frees.count, 1, "");
    ROW("  in all", frees.sum_ns, 1e6, "ms");
    ROW("  median", frees.median_ns, 1e3, "us");
    ROW("  99 of 100 within", frees.p99_ns, 1e3, "us");
    ROW("  the slowest", frees.most_ns, 1e3, "us");
    ROW("  failed", failed_frees, 1, "");
    ROW("memory of the driver at most", reserved_peak, 1048576.0, "MiB");
    return fflush(stdout) == 0 && !ferror(stdout) ? COMMAND_WELL : COMMAND_WRONG;
}

static void write_times(struct json *json, const char *key, const struct replay_times *times)
{
    json_open(json, key, '{');
    json_number(json, "count", times->count);
    json_number(json, "sum_ns", times->sum_ns);
    json_number(json, "median_ns", times->median_ns);
    json_number(json, "p99_ns", times->p99_ns);
    json_number(json, "slowest_ns", times->most_ns);
    json_close(json, '}');
}

static void write_run(struct json *json, const char *key, const struct replay_result *result)
{
    json_open(json, key, '{');
    write_times(json, "allocations", &result->allocations);
    write_times(json, "frees", &result->frees);
    json_number(json, "refused", result->refused);
    json_number(json, "failed_frees", result->failed_frees);
    json_number(json, "reserved_peak_bytes", result->reserved_peak);
    json_close(json, '}');
}

static int write_results(const struct trace_memory *memory, const struct replay_result *results)
{
    struct json json = {.file = stdout};

    json_open(&json, NULL, '{');
    json_open(&json, "recorded", '{');
    json_number(&json, "allocations", memory->sums.allocations);
    json_number(&json, "frees", memory->sums.frees);
    json_number(&json, "refused", memory->sums.refused);
    json_number(&json, "in_calls_ns", memory->sums.in_calls_ns);
    json_close(&json, '}');
    write_run(&json, "native", &results[NATIVE]);
    write_run(&json, "library", &results[LIBRARY]);
    json_close(&json, '}');
    return json_end(&json) ? COMMAND_WELL : COMMAND_WRONG;
}

/* ---- The command ---------------------------------------------------------------------------- */

static const char usage[] =
    "usage: gpushim replay FILE [-o SECTION.KEY=VALUE]... [--json]\n"
    "Makes the allocations and frees again that a program recorded in FILE (gpushim record): once\n"
    "without the library and once with it, under the options that are given, and tells time and\n"
    "memory of both. It is one thread that makes the calls in the order in which they were made;\n"
    "the GPU computes nothing meanwhile.\n"
    "\n"
    "  -o SECTION.KEY=VALUE   sets an option of the library ('gpushim config' lists them)\n"
    "  --json                 the same as an object\n";

struct request {
    const char *path;
    bool as_json;
};

/* Whether there is something to do; else *ret_status is what to exit with. */
static bool read_arguments(int argc, char **argv, struct request *request, int *ret_status)
{
    *ret_status = COMMAND_USAGE;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0)
            return *ret_status = command_help(usage), false;
        if (strcmp(argv[i], "--json") == 0) {
            request->as_json = true;
        } else if (strncmp(argv[i], "-o", 2) == 0) {
            const char *option = argv[i][2] ? argv[i] + 2 : argv[++i];

            if (!option) {
                command_complain("-o: SECTION.KEY=VALUE is missing after it");
                return command_usage(usage), false;
            }
            if (!run_option_set(option))
                return false;
        } else if (argv[i][0] == '-' || request->path) {
            command_complain("replay does not know '%s'", argv[i]);
            return command_usage(usage), false;
        } else {
            request->path = argv[i];
        }
    }
    if (request->path)
        return true;
    command_complain("replay: the FILE to replay is missing");
    return command_usage(usage), false;
}

int command_replay(int argc, char **argv)
{
    struct replay_result results[RUNS];
    struct request request = {.path = NULL};
    struct trace_memory memory;
    struct trace trace;
    int status = COMMAND_WRONG;

    if (argc == 4 && strcmp(argv[1], PLAY) == 0)
        return play(argv[2], argv[3]);
    if (!read_arguments(argc, argv, &request, &status))
        return status;
    if (!trace_read(request.path, &trace))
        return COMMAND_WRONG;
    status = COMMAND_WRONG;
    if (trace_follow(&trace, &memory)) {
        if (!memory.sums.allocations)
            command_complain("'%s' has no allocation to make again", request.path);
        else if (run_once(false, request.path, &results[NATIVE]) &&
                 run_once(true, request.path, &results[LIBRARY]))
            status =
                request.as_json ? write_results(&memory, results) : print_results(&memory, results);
        trace_memory_free(&memory);
    }
    trace_free(&trace);
    return status;
}
