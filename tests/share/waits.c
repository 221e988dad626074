/*
 * Threads that wait for a process which does not answer.
 *
 *   waits cancelled  a thread is cancelled in cuIpcOpenMemHandle: the next one that opens memory of
 *                    the same process, which has gone on, gets it
 *   waits together   four threads open blocks of a process that is stopped: none waits for the others
 *   waits relays     what an ended process had shared is passed on by sockets that nobody serves: all
 *                    of them together are waited for once
 *   waits exporter   shares blocks and says their handles
 *
 * The library is preloaded, with a share.timeout of TIMEOUT_MS.
 */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "program.h"

#define BLOCKS     8
#define THREADS    4
#define RELAYS     12
#define SIZE       ((size_t)4 << 20)
#define SOCKET     3
#define TIMEOUT_MS 2000 /* as the tests' environment has it */
#define PATIENCE_S 60

static CUipcMemHandle handles[BLOCKS];

static double now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static int exporter(void)
{
    char end;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    start_driver();
    for (int i = 0; i < BLOCKS; i++) {
        CUdeviceptr block;

        must("cuMemAlloc", cuMemAlloc(&block, SIZE));
        must("cuIpcGetMemHandle", cuIpcGetMemHandle(&handles[i], block));
    }
    send(SOCKET, handles, sizeof handles, MSG_NOSIGNAL);
    return (int)recv(SOCKET, &end, 1, 0);
}

static pid_t exporter_start(int *ret_socket)
{
    int pair[2];
    pid_t child;

    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0 || (child = fork()) < 0)
        fail("socketpair, fork", errno);
    if (child == 0) {
        close(pair[0]);
        if (pair[1] != SOCKET) {
            dup2(pair[1], SOCKET);
            close(pair[1]);
        }
        execl("/proc/self/exe", "waits", "exporter", (char *)NULL);
        _exit(127);
    }
    close(pair[1]);
    if (recv(pair[0], handles, sizeof handles, MSG_WAITALL) != (ssize_t)sizeof handles)
        fail("no handles", errno);
    *ret_socket = pair[0];
    return child;
}

struct opening {
    pthread_t thread;
    unsigned block;
    atomic_int task;
    CUresult result;
    double took;
};

static void *open_one(void *arg)
{
    struct opening *opening = arg;
    double begin;
    CUdeviceptr address;

    start_driver();
    begin = now();
    atomic_store(&opening->task, (int)syscall(SYS_gettid));
    opening->result = cuIpcOpenMemHandle(&address, handles[opening->block],
                                         CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    opening->took = now() - begin;
    pthread_testcancel();
    return opening;
}

/* Until it sleeps: then the call is on its way. */
static void await_asleep(const struct opening *opening)
{
    char path[64], text[512];
    int looks = 0;

    for (int i = 0; i < PATIENCE_S * 1000 && looks < 50; i++) {
        int task = atomic_load(&opening->task), fd = -1;
        ssize_t size = 0;

        if (task) {
            snprintf(path, sizeof path, "/proc/self/task/%d/stat", task);
            fd = open(path, O_RDONLY | O_CLOEXEC);
        }
        if (fd >= 0) {
            size = read(fd, text, sizeof text - 1);
            close(fd);
        }
        text[size > 0 ? size : 0] = 0;
        looks = strstr(text, ") S ") ? looks + 1 : 0; /* in a row */
        usleep(1000);
    }
    if (looks < 50)
        fail("the thread never waits", looks);
}

static void begin(struct opening *opening, unsigned block)
{
    *opening = (struct opening){.block = block, .result = CUDA_ERROR_UNKNOWN};
    if (pthread_create(&opening->thread, NULL, open_one, opening) != 0)
        fail("pthread_create", errno);
}

static void *end(struct opening *opening)
{
    struct timespec limit;
    void *result;

    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += PATIENCE_S;
    if (pthread_timedjoin_np(opening->thread, &result, &limit) != 0)
        fail("a thread is in cuIpcOpenMemHandle for ever, with block", (int)opening->block);
    return result;
}

/* Returns when all its threads stand: until then one may still answer. */
static void stop(pid_t child)
{
    kill(child, SIGSTOP);
    waitpid(child, NULL, WUNTRACED);
}

static void cancelled(void)
{
    struct opening first, next;
    int socket;
    pid_t child = exporter_start(&socket);

    start_driver();
    stop(child);
    begin(&first, 0);
    await_asleep(&first);
    pthread_cancel(first.thread);
    kill(child, SIGCONT);
    if (end(&first) != PTHREAD_CANCELED)
        fail("the thread was not cancelled", 0);
    begin(&next, 1);
    end(&next);
    must("cuIpcOpenMemHandle after a cancelled one", next.result);
    begin(&next, 0); /* what the cancelled one opened, it has open */
    end(&next);
    must("cuIpcOpenMemHandle of the same block", next.result);
    kill(child, SIGKILL);
}

static void together(void)
{
    struct opening openings[THREADS];
    int socket;
    pid_t child = exporter_start(&socket);

    start_driver();
    stop(child);
    for (unsigned i = 0; i < THREADS; i++)
        begin(&openings[i], i);
    for (unsigned i = 0; i < THREADS; i++) {
        end(&openings[i]);
        if (openings[i].result == CUDA_SUCCESS)
            fail("a stopped process gave memory", (int)i);
        printf("thread %u: %.2f s\n", i, openings[i].took);
        if (openings[i].took > 1.7 * TIMEOUT_MS / 1000)
            fail("it waited for other threads as well, ms", (int)(openings[i].took * 1000));
    }
    kill(child, SIGCONT); /* it is open to all when it goes on */
    begin(&openings[0], 0);
    end(&openings[0]);
    must("cuIpcOpenMemHandle once it goes on", openings[0].result);
    kill(child, SIGKILL);
}

/* Names under which a third process would look, and whose sockets nobody serves. */
static void put_up(const char *dir, const unsigned char *instance)
{
    for (unsigned i = 0; i < RELAYS; i++) {
        struct sockaddr_un at = {.sun_family = AF_UNIX};
        char name[160], *to = name;
        int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

        for (unsigned k = 0; k < 16; k++)
            to += sprintf(to, "%02x", instance[k]);
        sprintf(to, ".%032x", i + 1);
        if (snprintf(at.sun_path, sizeof at.sun_path, "%s/%s", dir, name) >=
                (int)sizeof at.sun_path ||
            bind(fd, (struct sockaddr *)&at, sizeof at) != 0 || listen(fd, 4) != 0)
            fail("bind", errno);
    }
}

static void relays(void)
{
    struct opening opening;
    int socket;
    pid_t child = exporter_start(&socket);

    start_driver();
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    put_up(getenv("GPUSHIM_SHARE_DIR"), (const unsigned char *)handles[0].reserved + 8);
    begin(&opening, 0);
    end(&opening);
    printf("%d that do not answer: %.2f s\n", RELAYS, opening.took);
    if (opening.result == CUDA_SUCCESS)
        fail("memory of nobody", 0);
    if (opening.took > 1.7 * TIMEOUT_MS / 1000)
        fail("each was waited for, ms", (int)(opening.took * 1000));
}

/* A directory of its own, so that nobody else's sockets are in it. */
static void make_directory(void)
{
    static char dir[] = "/tmp/gs-waits-XXXXXX";

    if (!mkdtemp(dir))
        fail("mkdtemp", errno);
    setenv("GPUSHIM_SHARE_DIR", dir, 1);
}

static void remove_directory(void)
{
    char command[128];

    snprintf(command, sizeof command, "rm -rf %s", getenv("GPUSHIM_SHARE_DIR"));
    unsetenv("LD_PRELOAD");
    if (system(command) != 0)
        fail("rm", 0);
}

int main(int argc, char **argv)
{
    const char *how = argc == 2 ? argv[1] : "";

    if (strcmp(how, "exporter") == 0)
        return exporter();
    make_directory();
    if (strcmp(how, "cancelled") == 0)
        cancelled();
    else if (strcmp(how, "together") == 0)
        together();
    else if (strcmp(how, "relays") == 0)
        relays();
    else
        fail("how?", 0);
    remove_directory();
    return 0;
}
