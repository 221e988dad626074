/*
 * Threads that wait for a process which does not answer.
 *
 *   waits cancelled  a thread is cancelled in cuIpcOpenMemHandle: the next one that opens memory of
 *                    the same process, which has gone on, gets it
 *   waits together   four threads open blocks of a process that is stopped: none waits for the others
 *   waits exporter   shares blocks and says their handles
 *
 * The library is preloaded, with a debug.timeout of TIMEOUT_MS.
 */
#include <stdatomic.h>

#include "party.h"
#include "tests/folder.h"
#include "tests/system.h"

#define BLOCKS     8
#define THREADS    4
#define SIZE       ((size_t)4 << 20)
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

    start_driver();
    for (int i = 0; i < BLOCKS; i++) {
        CUdeviceptr block;

        must("cuMemAlloc", cuMemAlloc(&block, SIZE));
        must("cuIpcGetMemHandle", cuIpcGetMemHandle(&handles[i], block));
    }
    say(PARTY_SOCKET, handles, sizeof handles);
    return hear_or_end(PARTY_SOCKET, &end, 1);
}

static struct party exporter_start(void)
{
    struct party party = party_start("exporter", NULL);

    hear(party.socket, handles, sizeof handles);
    return party;
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
    opening->result =
        cuIpcOpenMemHandle(&address, handles[opening->block], CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
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

static void cancelled(void)
{
    struct opening first, next;
    struct party party = exporter_start();

    start_driver();
    halt(party.pid);
    begin(&first, 0);
    await_asleep(&first);
    pthread_cancel(first.thread);
    kill(party.pid, SIGCONT);
    if (end(&first) != PTHREAD_CANCELED)
        fail("the thread was not cancelled", 0);
    begin(&next, 1);
    end(&next);
    must("cuIpcOpenMemHandle after a cancelled one", next.result);
    begin(&next, 0); /* what the cancelled one opened, it has open */
    end(&next);
    must("cuIpcOpenMemHandle of the same block", next.result);
    party_kill(&party);
}

static void together(void)
{
    struct opening openings[THREADS];
    struct party party = exporter_start();

    start_driver();
    halt(party.pid);
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
    kill(party.pid, SIGCONT); /* it is open to all when it goes on */
    begin(&openings[0], 0);
    end(&openings[0]);
    must("cuIpcOpenMemHandle once it goes on", openings[0].result);
    party_kill(&party);
}

int main(int argc, char **argv)
{
    const char *how = argc == 2 ? argv[1] : "";

    if (strcmp(how, "exporter") == 0)
        return exporter();
    folder_new("waits");
    if (strcmp(how, "cancelled") == 0)
        cancelled();
    else if (strcmp(how, "together") == 0)
        together();
    else
        fail("how?", 0);
    return 0;
}
