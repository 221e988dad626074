/*
 * Asks a driver what its IPC events do: between processes that share everything, and between such
 * as share no /dev/shm, no IPC, network or PID namespace, as containers do; what it answers there
 * is what the first ones have heard on an H200 with driver 580. For tests/gpu/run.sh, natively and
 * under the library: RESULT lines are the same both ways, what is a GAIN is so under the library
 * alone. Exit status 1 where that does not hold. Needs root for the namespaces.
 *
 *   ipc_events          all of that
 *   ipc_events killed   a wait for a record that its process, killed before, never reached: it does not return
 */
#include "ask.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#define OTHERS (CLONE_NEWNS | CLONE_NEWPID)
#define APART  (OTHERS | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNET)

static CUcontext ctx;
static CUstream stream;
static int to_importer[2], to_exporter[2];
static const char *place;
static bool is_gain; /* natively it may be otherwise */

/* What all processes see. */
static struct {
    _Atomic int wrong, done; /* answers; host functions */
} *seen;

static void say(const char *name, const char *answer, const char *expected)
{
    bool is_right = strcmp(answer, expected) == 0;

    printf("%s %s_%s %s\n", is_gain ? "GAIN" : "RESULT", place, name,
           is_gain && is_right ? "ok" : answer);
    fflush(stdout);
    seen->wrong += !is_right && (!is_gain || getenv("LD_PRELOAD"));
}

#define SAY(expected, name, call) say(name, name_of(call), expected)
#define OK(name, call)            SAY("SUCCESS", name, call)
/* Whether so many host functions have ended by now. */
#define DONE(name, count)         say(name, seen->done == (count) ? "yes" : "no", "yes")

static void begin(void)
{
    CUresult r;

    alarm(25);
    libcuda = dlopen("libcuda.so.1", RTLD_NOW);
    if (!libcuda || (r = D(cuInit)(0)) || (r = D(cuDevicePrimaryCtxRetain)(&ctx, 0)) ||
        (r = D(cuCtxSetCurrent)(ctx)) || (r = D(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING))) {
        say("begin", libcuda ? name_of(r) : "no driver", "SUCCESS");
        _exit(1);
    }
}

static void CUDA_CB half_a_second(void *unused)
{
    (void)unused;
    usleep(500000);
    seen->done++;
}

static void give(int fd, const void *what, size_t size)
{
    if (write(fd, what, size) != (ssize_t)size)
        exit(2);
}

static void take(int fd, void *what, size_t size)
{
    if (read(fd, what, size) != (ssize_t)size)
        exit(3);
}

static void turn(int out)
{
    give(out, "t", 1);
}

static void await(int in)
{
    char t;
    take(in, &t, 1);
}

static void ask_alone(CUevent event, CUipcEventHandle handle)
{
    CUipcEventHandle none;
    CUevent timed, own;
    float ms;

    SAY("ERROR_INVALID_VALUE", "make_timed", D(cuEventCreate)(&timed, CU_EVENT_INTERPROCESS));
    SAY("ERROR_INVALID_CONTEXT", "open_own", D(cuIpcOpenEventHandle)(&own, handle));
    D(cuEventCreate)(&own, CU_EVENT_DISABLE_TIMING);
    SAY("ERROR_INVALID_HANDLE", "handle_of_ordinary", D(cuIpcGetEventHandle)(&none, own));
    SAY("ERROR_INVALID_HANDLE", "elapsed", D(cuEventElapsedTime_v2)(&ms, event, event));
    OK("query_before_record", D(cuEventQuery)(event));
}

static void ask_in_captures(CUevent event)
{
    CUgraph graph;

    OK("capture", D(cuStreamBeginCapture_v2)(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    SAY("ERROR_STREAM_CAPTURE_UNSUPPORTED", "record_in_capture", D(cuEventRecord)(event, stream));
    OK("end_capture", D(cuStreamEndCapture)(stream, &graph));
    OK("capture_2", D(cuStreamBeginCapture_v2)(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK("record_external", D(cuEventRecordWithFlags)(event, stream, CU_EVENT_RECORD_EXTERNAL));
    OK("wait_external", D(cuStreamWaitEvent)(stream, event, CU_EVENT_WAIT_EXTERNAL));
    OK("end_capture_2", D(cuStreamEndCapture)(stream, &graph));
}

static void exporter(bool is_killed)
{
    CUevent event;
    CUipcEventHandle handle;

    begin();
    OK("make", D(cuEventCreate)(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
    OK("handle", D(cuIpcGetEventHandle)(&handle, event));
    ask_alone(event, handle);
    give(to_importer[1], &handle, sizeof(handle));
    await(to_exporter[0]); /* opened */
    D(cuLaunchHostFunc)(stream, half_a_second, NULL);
    OK("record", D(cuEventRecord)(event, stream));
    if (is_killed) {
        turn(to_importer[1]);
        usleep(100000);
        kill(getpid(), SIGKILL);
    }
    SAY("ERROR_NOT_READY", "query_at_once", D(cuEventQuery)(event));
    turn(to_importer[1]);
    await(to_exporter[0]); /* the importer has recorded, behind half a second of its own */
    SAY("ERROR_NOT_READY", "query_of_importers_record", D(cuEventQuery)(event));
    OK("wait_for_importers_record", D(cuStreamWaitEvent)(stream, event, 0));
    OK("stream_behind_it", D(cuStreamSynchronize)(stream));
    DONE("stream_has_waited", 2);
    ask_in_captures(event);
    OK("destroy", D(cuEventDestroy_v2)(event));
    turn(to_importer[1]);
    await(to_exporter[0]);
}

static void importer(bool is_killed)
{
    CUipcEventHandle handle, none;
    CUevent event, again, own;
    float ms;
    CUresult r;

    begin();
    D(cuEventCreate)(&own, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING);
    take(to_importer[0], &handle, sizeof(handle));
    OK("open", r = D(cuIpcOpenEventHandle)(&event, handle));
    if (r)
        return;
    OK("open_again", D(cuIpcOpenEventHandle)(&again, handle));
    say("another_event", event == again ? "no" : "yes", "yes");
    SAY("ERROR_INVALID_HANDLE", "importers_handle", D(cuIpcGetEventHandle)(&none, event));
    OK("importer_query_before_record", D(cuEventQuery)(event));
    turn(to_exporter[1]);
    await(to_importer[0]);
    if (is_killed) {
        usleep(200000);
        OK("wait_for_a_killed_recorder", D(cuEventSynchronize)(event));
        return;
    }
    SAY("ERROR_NOT_READY", "importer_query_at_once", D(cuEventQuery)(event));
    OK("own_query", D(cuEventQuery)(own));
    OK("importer_wait", D(cuStreamWaitEvent)(stream, event, 0));
    OK("importer_synchronize", D(cuEventSynchronize)(event));
    DONE("importer_has_waited", 1);
    SAY("ERROR_INVALID_HANDLE", "importer_elapsed", D(cuEventElapsedTime_v2)(&ms, event, event));
    OK("importer_stream", D(cuStreamSynchronize)(stream));
    D(cuLaunchHostFunc)(stream, half_a_second, NULL);
    OK("importer_record", D(cuEventRecord)(event, stream));
    turn(to_exporter[1]);
    await(to_importer[0]);
    OK("importer_destroy", D(cuEventDestroy_v2)(event));
    OK("open_of_a_destroyed_event", D(cuIpcOpenEventHandle)(&event, handle));
    OK("reset", D(cuDevicePrimaryCtxReset_v2)(0));
    OK("retain", D(cuDevicePrimaryCtxRetain)(&ctx, 0));
    OK("set_current", D(cuCtxSetCurrent)(ctx));
    OK("open_after_reset", D(cuIpcOpenEventHandle)(&event, handle));
    turn(to_exporter[1]);
}

static bool go_apart(int namespaces, bool shm)
{
    return unshare(namespaces) == 0 &&
           (!(namespaces & CLONE_NEWNS) ||
            mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0) &&
           (!shm || mount("shm", "/dev/shm", "tmpfs", 0, "size=64m") == 0);
}

/* A child in these namespaces, with a /dev/shm of its own where `shm`; for its exit status waits
 * its parent. */
static void enter(int namespaces, bool shm, void (*play)(bool is_killed), bool is_killed)
{
    int status = -1;
    pid_t inner;

    if (!go_apart(namespaces, shm)) {
        say("namespaces", strerror(errno), "SUCCESS");
        _exit(1);
    }
    inner = fork();
    if (!inner) {
        /* The driver looks into /proc for this process. */
        if (namespaces & CLONE_NEWPID && mount("proc", "/proc", "proc", 0, NULL))
            say("proc", strerror(errno), "SUCCESS");
        play(is_killed);
        exit(0); /* the driver takes its file away */
    }
    for (int i = 0; i < 2; i++)
        close(to_importer[i]), close(to_exporter[i]);
    waitpid(inner, &status, 0);
    if (!WIFEXITED(status))
        say("ended_by", strsignal(WTERMSIG(status)), "its end");
    _exit(0);
}

/* Who makes the event is in the second namespaces, who opens it in the first. */
static void play(const char *name, int of_importer, bool shm, int of_exporter, bool gain,
                 bool is_killed)
{
    pid_t first, second;

    place = name;
    is_gain = gain;
    seen->done = 0;
    if (pipe(to_importer) || pipe(to_exporter))
        exit(1);
    fflush(stdout);
    if (!(first = fork())) {
        close(to_importer[0]), close(to_exporter[1]);
        enter(of_exporter, of_exporter & CLONE_NEWNS, exporter, is_killed);
    }
    if (!(second = fork())) {
        close(to_importer[1]), close(to_exporter[0]);
        enter(of_importer, shm, importer, is_killed);
    }
    for (int i = 0; i < 2; i++)
        close(to_importer[i]), close(to_exporter[i]);
    waitpid(second, NULL, 0);
    waitpid(first, NULL, 0);
}

/* Docker's root, say, has none. */
static bool has_namespaces(void)
{
    int status = -1;
    pid_t child = fork();

    if (!child)
        _exit(!go_apart(APART, true));
    return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

int main(int argc, char **argv)
{
    seen = mmap(NULL, sizeof *seen, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (seen == MAP_FAILED)
        return 1;
    if (geteuid() != 0 || !has_namespaces()) {
        printf("skipped: this user has no namespaces here\n");
        return 77;
    }
    if (argc > 1 && !strcmp(argv[1], "killed")) {
        play("same", 0, false, 0, false, true);
        return 0;
    }
    play("same", 0, false, 0, false, false);
    play("ipc", CLONE_NEWIPC, false, 0, false, false);
    play("shm", CLONE_NEWNS, true, 0, true, false);
    play("pid", OTHERS, false, 0, true, false);
    play("container", APART, true, 0, true, false);
    play("twins", APART, true, APART, true, false); /* each is pid 1 */
    return seen->wrong > 0;
}
