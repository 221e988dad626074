/*
 * The software driver between processes: what the environment orders, and machines of several
 * processes.
 */
#include "softdriver.h"
#include "tests/system.h"

TestSuite(softdriver_process, .timeout = 60);

/* Starts the peer; `in` and `out` become its standard input and output when not -1. */
static pid_t peer_start(const char *mode, int in, int out)
{
    pid_t child = fork();

    if (child == 0) {
        if (in >= 0)
            dup2(in, 0);
        if (out >= 0)
            dup2(out, 1);
        execl(SOFTDRIVER_PEER, SOFTDRIVER_PEER, mode, NULL);
        _exit(127);
    }
    cr_assert_gt(child, 0);
    return child;
}

static int peer_wait(pid_t child)
{
    int status;

    cr_assert_eq(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/* Runs the peer under "NAME=VALUE ..."; its output, and its end as peer_wait has it. */
static int peer_run(const char *environment, const char *mode, char *ret_output, size_t size)
{
    char text[256], *save = NULL;
    int ends[2], result;
    ssize_t n, at = 0;
    pid_t child;

    snprintf(text, sizeof text, "%s", environment);
    for (char *p = strtok_r(text, " ", &save); p; p = strtok_r(NULL, " ", &save)) {
        char *value = strchr(p, '=');
        *value++ = 0;
        setenv(p, value, 1);
    }
    cr_assert_eq(pipe(ends), 0);
    child = peer_start(mode, -1, ends[1]);
    close(ends[1]);
    while (at < (ssize_t)size - 1 && (n = read(ends[0], ret_output + at, size - 1 - at)) > 0)
        at += n;
    ret_output[at] = 0;
    close(ends[0]);
    result = peer_wait(child);
    return result;
}

static void kill_and_wait(pid_t child)
{
    kill(child, SIGKILL);
    cr_assert_eq(peer_wait(child), -SIGKILL);
}

Test(softdriver_process, visible_devices_are_chosen_by_index_and_keep_their_uuids)
{
    char all[128], one[128], none[128], want[128];

    cr_assert_eq(peer_run("SOFTCUDA_DEVICES=3", "devices", all, sizeof all), 0);
    cr_assert_eq(strlen(all), 3 * 33);
    cr_assert_eq(peer_run("CUDA_VISIBLE_DEVICES=2,0,7,1", "devices", one, sizeof one), 0);
    snprintf(want, sizeof want, "%s%.33s", all + 66, all);
    cr_assert_str_eq(one, want);
    cr_assert_eq(peer_run("CUDA_VISIBLE_DEVICES=", "devices", none, sizeof none), 3);
}

Test(softdriver_process, the_memory_limit_is_the_environments)
{
    char out[64];

    cr_assert_eq(peer_run("SOFTCUDA_MEMORY=96M", "memory", out, sizeof out), 0);
    cr_assert_eq(strtoull(out, NULL, 10), 96 * MIB);
    cr_assert_eq(peer_run("SOFTCUDA_MEMORY=lots", "memory", out, sizeof out), 125);
}

/* Each takes 64 of the 96 MiB that there are. */
Test(softdriver_process, processes_of_one_machine_share_its_memory)
{
    char path[] = "/tmp/softdriver-machine-XXXXXX", out[64];
    CUdeviceptr block;
    CUcontext context;

    close(mkstemp(path));
    setenv("SOFTCUDA_MACHINE", path, 1);
    cr_assert_eq(peer_run("SOFTCUDA_MEMORY=96M", "take_64", out, sizeof out), 0);
    cr_assert_str_eq(out, "0 32");
    cr_assert_eq(peer_run("SOFTCUDA_FAULTS=cuMemGetInfo:kill:1", "take_64", out, sizeof out),
                 -SIGKILL);
    unsetenv("SOFTCUDA_FAULTS");
    cr_assert_eq(peer_run("SOFTCUDA_MEMORY=96M", "take_64", out, sizeof out), 0);
    cr_assert_str_eq(out, "0 32", "a killed one's memory is free again, not %s", out);
    setenv("SOFTCUDA_MEMORY", "96M", 1); /* this process takes its part */
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    cr_assert_eq(cuMemAlloc(&block, 64 * MIB), CUDA_SUCCESS);
    cr_assert_eq(peer_run("SOFTCUDA_MEMORY=96M", "take_64", out, sizeof out), 0);
    cr_assert_str_eq(out, "2 32");
    cr_assert_eq(cuMemFree(block), CUDA_SUCCESS);
    cr_assert_eq(peer_run("SOFTCUDA_MEMORY=96M", "take_64", out, sizeof out), 0);
    cr_assert_str_eq(out, "0 32");
    unsetenv("SOFTCUDA_MACHINE");
    unlink(path);
}

/* This process on a machine of its own making, whose file it is to remove. */
static void machine_start(char *path)
{
    CUcontext context;

    close(mkstemp(path));
    setenv("SOFTCUDA_MACHINE", path, 1);
    setenv("SOFTCUDA_MEMORY", "96M", 1);
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
}

/* A peer in the midst of taking and giving, after a time that is another one each round. */
static pid_t churning(const char *mode, int in, int round)
{
    const struct timespec while_ = {.tv_nsec = round * 37 % 1000 * 1000};
    int ends[2];
    char letter;
    pid_t child;

    cr_assert_eq(pipe2(ends, O_CLOEXEC), 0);
    child = peer_start(mode, in, ends[1]);
    close(ends[1]);
    cr_assert_eq(read(ends[0], &letter, 1), 1);
    close(ends[0]);
    nanosleep(&while_, NULL);
    return child;
}

/* Killed wherever it is; its child has the descriptors and whatever is held by them. */
Test(softdriver_process, a_killed_process_with_a_child_stops_no_other_one_of_its_machine)
{
    char path[] = "/tmp/softdriver-machine-XXXXXX";
    size_t free_bytes, total;
    CUdeviceptr block;
    int ends[2];

    machine_start(path);
    cr_assert_eq(pipe2(ends, O_CLOEXEC), 0);
    for (int i = 0; i < 20; i++) {
        kill_and_wait(churning("churn_forked", ends[0], i));
        OK(cuMemAlloc(&block, 16 * MIB));
        OK(cuMemFree(block));
    }
    close(ends[1]); /* the children end, and with them what was their parents' */
    do
        OK(cuMemGetInfo(&free_bytes, &total));
    while (free_bytes < total);
    close(ends[0]);
    unlink(path);
}

Test(softdriver_process, faults_come_from_the_environment)
{
    char out[64];

    cr_assert_eq(peer_run("SOFTCUDA_FAULTS=cuMemCreate:3:2", "create_four", out, sizeof out), 0);
    cr_assert_str_eq(out, "0 0 2 0 ");
    cr_assert_eq(peer_run("SOFTCUDA_FAULTS=cuMemCreate:2+:999", "create_four", out, sizeof out), 0);
    cr_assert_str_eq(out, "0 999 999 999 ");
    cr_assert_eq(peer_run("SOFTCUDA_FAULTS=cuMemFree:*:1;cuMemCreate:*:700", "create_four", out,
                          sizeof out),
                 0);
    cr_assert_str_eq(out, "700 700 700 700 ");
    cr_assert_eq(peer_run("SOFTCUDA_FAULTS=cuMemCreate:kill:2", "create_four", out, sizeof out),
                 -SIGKILL);
    cr_assert_str_eq(out, "0 ");
    cr_assert_eq(peer_run("SOFTCUDA_FAULTS=cuNoSuchCall:1:1", "create_four", out, sizeof out), 125);
    cr_assert_eq(peer_run("SOFTCUDA_FAULTS=cuMemCreate:0:1", "create_four", out, sizeof out), 125);
}

Test(softdriver_process, a_report_tells_what_was_left)
{
    char path[] = "/tmp/softdriver-report-XXXXXX", out[64], line[512] = "", environment[128];
    FILE *file;

    close(mkstemp(path));
    snprintf(environment, sizeof environment, "SOFTCUDA_REPORT=%s", path);
    cr_assert_eq(peer_run(environment, "leak", out, sizeof out), 0);
    unsetenv("SOFTCUDA_REPORT");
    file = fopen(path, "r");
    cr_assert_not_null(file);
    cr_assert_not_null(fgets(line, sizeof line, file));
    fclose(file);
    unlink(path);
    cr_assert_not_null(strstr(line, " streams 1 events 1 modules 0 graphs 0 handles 1 "), "%s",
                       line);
    cr_assert_not_null(strstr(line, " exported_fds 1 blocks 0 "), "%s", line);
    cr_assert_not_null(strstr(line, " device_bytes 4194304\n"), "%s", line);
}

Test(softdriver_process, the_end_of_a_process_waits_for_no_work)
{
    time_t start = time(NULL);
    char out[8];

    cr_assert_eq(peer_run("", "exit_busy", out, sizeof out), 0);
    cr_assert_lt(time(NULL) - start, 15);
}
