/*
 * The software driver between processes: IPC, death of an exporter, fork, the environment.
 */
#include "softdriver.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>

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

Test(softdriver_process, legacy_ipc_opens_the_piece_and_outlives_a_killed_exporter)
{
    CUdeviceptr ptr, again, base;
    CUipcMemHandle handle;
    CUcontext second;
    size_t size;
    int ends[2];
    pid_t child;

    cr_assert_eq(pipe(ends), 0);
    child = peer_start("export_legacy", -1, ends[1]);
    cr_assert_eq(read(ends[0], &handle, sizeof handle), sizeof handle);
    sd_start();
    OK(cuIpcOpenMemHandle(&ptr, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    OK(cuIpcOpenMemHandle(&again, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    cr_assert_eq(ptr, again);
    cr_assert_eq(sd_word(ptr, NULL), 0xABCD);
    OK(cuMemGetAddressRange(&base, &size, ptr));
    cr_assert_eq(size, 2 * MIB);
    cr_assert_eq(ptr - base, 512);
    GIVES(cuMemFree(ptr), CUDA_ERROR_INVALID_VALUE);
    kill_and_wait(child);
    cr_assert_eq(sd_word(ptr, NULL), 0xABCD);
    OK(cuIpcCloseMemHandle(ptr));
    cr_assert_eq(sd_word(ptr, NULL), 0xABCD);
    OK(cuIpcCloseMemHandle(ptr));
    GIVES(cuIpcCloseMemHandle(ptr), CUDA_ERROR_INVALID_VALUE);
    GIVES(cuIpcOpenMemHandle(&ptr, handle, 1), CUDA_ERROR_INVALID_VALUE);
    OK(cuDevicePrimaryCtxRetain(&second, 1));
}

Test(softdriver_process, a_handle_with_a_changed_byte_is_junk)
{
    CUipcMemHandle handle, changed;
    CUdeviceptr ptr;
    int ends[2];
    pid_t child;

    cr_assert_eq(pipe(ends), 0);
    child = peer_start("export_legacy", -1, ends[1]);
    cr_assert_eq(read(ends[0], &handle, sizeof handle), sizeof handle);
    sd_start();
    for (size_t i = 0; i < 48; i++) {
        changed = handle;
        changed.reserved[i] ^= 0x10;
        GIVES(cuIpcOpenMemHandle(&ptr, changed, 1), CUDA_ERROR_INVALID_VALUE);
    }
    kill_and_wait(child);
}

struct event_peer {
    int to, from;
    pid_t child;
    CUipcEventHandle handle;
};

static void event_peer_start(struct event_peer *peer)
{
    int in[2], out[2];

    cr_assert_eq(pipe2(in, O_CLOEXEC), 0);
    cr_assert_eq(pipe2(out, O_CLOEXEC), 0);
    peer->child = peer_start("share_event", in[0], out[1]);
    close(in[0]);
    close(out[1]);
    peer->to = in[1];
    peer->from = out[0];
    cr_assert_eq(read(peer->from, &peer->handle, sizeof peer->handle), sizeof peer->handle);
}

static void event_peer_tell(const struct event_peer *peer, char letter)
{
    cr_assert_eq(write(peer->to, &letter, 1), 1);
}

static int event_peer_answer(const struct event_peer *peer)
{
    int result = -1;

    cr_assert_eq(read(peer->from, &result, sizeof result), sizeof result);
    return result;
}

static int event_peer_ask(const struct event_peer *peer, char letter)
{
    event_peer_tell(peer, letter);
    return event_peer_answer(peer);
}

static void event_peer_end(const struct event_peer *peer)
{
    close(peer->to);
    cr_assert_eq(peer_wait(peer->child), 0);
    close(peer->from);
}

Test(softdriver_process, an_event_that_another_process_recorded_is_done_with_its_work)
{
    struct event_peer peer;
    CUstream stream, context_stream;
    CUevent event, plain;
    float ms;

    event_peer_start(&peer);
    sd_start();
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&context_stream, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&plain, CU_EVENT_DISABLE_TIMING));
    OK(cuIpcOpenEventHandle(&event, peer.handle));
    GIVES(cuEventQuery(event), CUDA_ERROR_NOT_READY);
    GIVES(cuEventElapsedTime(&ms, event, event), CUDA_ERROR_INVALID_HANDLE);
    OK(cuStreamWaitEvent(stream, event, 0));
    GIVES(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    OK(cuEventRecord(plain, stream));
    GIVES(cuEventQuery(plain), CUDA_ERROR_NOT_READY);
    GIVES(cuStreamQuery(context_stream), CUDA_SUCCESS);
    OK(cuCtxWaitEvent(sd_ctx, event));
    GIVES(cuStreamQuery(context_stream), CUDA_ERROR_NOT_READY);
    event_peer_tell(&peer, 'g');
    OK(cuEventSynchronize(event));
    OK(cuEventQuery(event));
    OK(cuStreamSynchronize(stream));
    OK(cuEventSynchronize(plain));
    OK(cuStreamSynchronize(context_stream));
    OK(cuEventDestroy(event));
    event_peer_end(&peer);
}

Test(softdriver_process, an_event_recorded_here_is_waited_for_in_the_process_that_made_it)
{
    struct event_peer peer;
    CUdeviceptr ptr;
    CUevent event;

    event_peer_start(&peer);
    sd_start();
    OK(cuIpcOpenEventHandle(&event, peer.handle));
    event_peer_tell(&peer, 'g');
    OK(cuEventSynchronize(event));
    OK(cuMemAlloc(&ptr, 512));
    for (int i = 0; i < 2; i++) {
        softcuda_hold(1);
        OK(cuMemsetD32Async(ptr, 1, 128, CU_STREAM_LEGACY));
        if (i == 0)
            OK(cuEventRecord(event, CU_STREAM_LEGACY));
        else
            OK(cuCtxRecordEvent(sd_ctx, event));
        cr_assert_eq(event_peer_ask(&peer, 'q'), CUDA_ERROR_NOT_READY);
        event_peer_tell(&peer, 'w');
        softcuda_hold(0);
        cr_assert_eq(event_peer_answer(&peer), CUDA_SUCCESS);
        OK(cuEventQuery(event));
    }
    OK(cuEventRecord(event, CU_STREAM_LEGACY)); /* behind nothing */
    cr_assert_eq(event_peer_ask(&peer, 'q'), CUDA_SUCCESS);
    OK(cuMemFree(ptr));
    OK(cuEventDestroy(event)); /* of the two, one goes first */
    event_peer_end(&peer);
}

Test(softdriver_process, an_event_is_opened_from_a_good_handle_of_another_process)
{
    CUevent event, plain, again;
    CUipcEventHandle handle;
    struct event_peer peer;

    event_peer_start(&peer);
    sd_start();
    GIVES(cuEventCreate(&event, CU_EVENT_INTERPROCESS), CUDA_ERROR_INVALID_VALUE);
    OK(cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
    OK(cuEventCreate(&plain, CU_EVENT_DISABLE_TIMING));
    GIVES(cuIpcGetEventHandle(&handle, plain), CUDA_ERROR_INVALID_HANDLE);
    GIVES(cuIpcGetEventHandle(NULL, event), CUDA_ERROR_INVALID_VALUE);
    OK(cuIpcGetEventHandle(&handle, event));
    GIVES(cuIpcOpenEventHandle(&again, handle), CUDA_ERROR_INVALID_CONTEXT);
    OK(cuEventDestroy(event));
    GIVES(cuIpcGetEventHandle(&handle, event), CUDA_ERROR_INVALID_HANDLE);
    memset(&handle, 0, sizeof handle);
    handle.reserved[3] = 0x7f; /* no process's file */
    GIVES(cuIpcOpenEventHandle(&again, handle), CUDA_ERROR_MAP_FAILED);
    handle = peer.handle;
    for (size_t i = 24; i < sizeof handle; i++)
        cr_assert_eq(handle.reserved[i], 0);
    memset(handle.reserved + 24, 0xab, sizeof handle - 24); /* nobody looks at these */
    OK(cuIpcOpenEventHandle(&again, handle));
    GIVES(cuIpcGetEventHandle(&handle, again), CUDA_ERROR_INVALID_HANDLE);
    GIVES(cuCtxSetCurrent(NULL), CUDA_SUCCESS);
    GIVES(cuIpcOpenEventHandle(&event, peer.handle), CUDA_ERROR_INVALID_CONTEXT);
    event_peer_tell(&peer, 'g');
    event_peer_end(&peer); /* it has destroyed its event */
    OK(cuCtxSetCurrent(sd_ctx));
    OK(cuEventDestroy(again));
    OK(cuIpcOpenEventHandle(&event, peer.handle)); /* of a file that is mapped already */
    OK(cuEventDestroy(event));
}

/* As on an H200: none is recorded in a capture, which goes on, but for a node that does it. */
Test(softdriver_process, an_event_of_several_processes_is_recorded_by_a_graph)
{
    struct event_peer peer;
    CUgraphExec exec;
    CUdeviceptr ptr;
    CUstream stream;
    CUgraph graph;
    CUevent event;

    event_peer_start(&peer);
    sd_start();
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc(&ptr, 512));
    OK(cuIpcOpenEventHandle(&event, peer.handle));
    event_peer_tell(&peer, 'g');
    OK(cuEventSynchronize(event));
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    GIVES(cuEventRecord(event, stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    OK(cuEventRecordWithFlags(event, stream, CU_EVENT_RECORD_EXTERNAL));
    OK(cuStreamWaitEvent(stream, event, CU_EVENT_WAIT_EXTERNAL));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphInstantiate(&exec, graph, 0));
    OK(cuGraphDestroy(graph));
    for (int i = 0; i < 2; i++) {
        softcuda_hold(1);
        OK(cuMemsetD32Async(ptr, 1, 128, stream));
        OK(cuGraphLaunch(exec, stream));
        cr_assert_eq(event_peer_ask(&peer, 'q'), CUDA_ERROR_NOT_READY);
        event_peer_tell(&peer, 'w');
        softcuda_hold(0);
        cr_assert_eq(event_peer_answer(&peer), CUDA_SUCCESS);
        OK(cuStreamSynchronize(stream));
    }
    OK(cuEventDestroy(event));
    OK(cuGraphExecDestroy(exec));
    OK(cuMemFree(ptr));
    event_peer_end(&peer);
}

/* Beyond one file's places, and places that are free again. */
Test(softdriver_process, ten_thousand_events_of_several_processes)
{
    enum { COUNT = 10000 };
    static CUevent events[COUNT];
    CUipcEventHandle first, handle;

    sd_start();
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < COUNT; i++) {
            OK(cuEventCreate(&events[i], CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
            OK(cuIpcGetEventHandle(&handle, events[i]));
            cr_assert_eq(handle.reserved[8], 1 + i / 4096);
            if (i == 0 && round == 0)
                first = handle;
            else if (i == 0)
                cr_assert_arr_eq(&handle, &first, sizeof handle);
        }
        for (int i = 0; i < COUNT; i++)
            OK(cuEventDestroy(events[i]));
    }
}

static int fd_receive(int socket)
{
    char byte, control[CMSG_SPACE(sizeof(int))];
    struct iovec iov = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    int fd;

    cr_assert_eq(recvmsg(socket, &message, MSG_CMSG_CLOEXEC), 1);
    cr_assert_not_null(CMSG_FIRSTHDR(&message));
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    return fd;
}

Test(softdriver_process, a_descriptor_carries_memory_past_the_death_of_its_exporter)
{
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop;
    CUdeviceptr ptr;
    int ends[2], fd;
    pid_t child;

    cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
    child = peer_start("export_vmm", ends[1], -1);
    fd = fd_receive(ends[0]);
    kill_and_wait(child);
    sd_start();
    OK(cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd,
                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    OK(cuMemGetAllocationPropertiesFromHandle(&prop, handle));
    cr_assert_eq(prop.location.id, 0);
    OK(cuMemAddressReserve(&ptr, 2 * MIB, 0, 0, 0));
    OK(cuMemMap(ptr, 2 * MIB, 0, handle, 0));
    OK(sd_access(ptr, 2 * MIB, 0, CU_MEM_ACCESS_FLAGS_PROT_READ));
    cr_assert_eq(sd_word(ptr, NULL), 0x1234);
}

Test(softdriver_process, memory_of_a_hidden_device_can_be_imported)
{
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop;
    CUdeviceptr ptr;
    int ends[2], fd;
    pid_t child;

    cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
    child = peer_start("export_vmm", ends[1], -1);
    fd = fd_receive(ends[0]);
    setenv("CUDA_VISIBLE_DEVICES", "1", 1);
    sd_start();
    OK(cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd,
                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    OK(cuMemGetAllocationPropertiesFromHandle(&prop, handle));
    cr_assert_eq(prop.location.id, -2);
    OK(cuMemAddressReserve(&ptr, 2 * MIB, 0, 0, 0));
    OK(cuMemMap(ptr, 2 * MIB, 0, handle, 0));
    OK(sd_access(ptr, 2 * MIB, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    cr_assert_eq(sd_word(ptr, NULL), 0x1234);
    kill_and_wait(child);
}

Test(softdriver_process, a_forked_child_is_refused)
{
    char out[64];

    cr_assert_eq(peer_run("", "forked", out, sizeof out), 0);
    cr_assert_str_eq(out, "0 0");
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

/* Stopped wherever it is: with what guards the machine's memory in its hand, now and then. */
Test(softdriver_process, a_stopped_process_stops_no_other_one_of_its_machine)
{
    char path[] = "/tmp/softdriver-machine-XXXXXX";
    size_t free_bytes, total;
    CUdeviceptr block;
    pid_t child;

    machine_start(path);
    child = churning("churn", -1, 0);
    for (int i = 0; i < 200; i++) {
        const struct timespec while_ = {.tv_nsec = i * 37 % 1000 * 1000};
        kill(child, SIGSTOP);
        cr_assert_eq(waitpid(child, NULL, WUNTRACED), child);
        OK(cuMemAlloc(&block, 64 * MIB));
        OK(cuMemFree(block));
        kill(child, SIGCONT);
        nanosleep(&while_, NULL);
    }
    kill_and_wait(child);
    OK(cuMemGetInfo(&free_bytes, &total));
    cr_assert_eq(free_bytes, total, "%zu of %zu bytes free", free_bytes, total);
    unlink(path);
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
    cr_assert_eq(
        peer_run("SOFTCUDA_FAULTS=cuMemFree:*:1;cuMemCreate:*:700", "create_four", out, sizeof out),
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
