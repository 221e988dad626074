/*
 * A process that memory is handed over from or to: it does what the lines of its standard input
 * say, N being one of its blocks, and answers each with one line. handover.py has the tests.
 *
 *   alloc N MIB     the driver's result; free N, too
 *   fill N BYTE     all of it, and waits for that
 *   sum N           how many of its bytes are not zero
 *   handle N        its IPC handle, or the result
 *   open N HANDLE   of another process: the result
 *   close N         of that
 *   busy            from now on the GPU is, until `idle`
 *   capture         one begins; `captured`: it ends
 *   fail, kill, delay CALL NUMBER   what the software driver does to the call (softcuda.h)
 *   calls CALL      how often it was called
 *   info            free memory is asked for: what was freed is seen to be idle
 *   census          VMM handles, address ranges and mappings that there are
 *   close-all       closes all descriptors and opens a file of its own by each lower number
 *   check-all       whether those are still open
 *   fork            a child that sleeps: its pid
 *   storm THREADS ROUNDS   threads take, fill, check and free blocks: how many they had
 *   context         all goes on in a new context; the one before is destroyed
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/driver/softcuda.h"
#include "tests/share/program.h"

#define BLOCKS      32
#define PIECE       ((size_t)1 << 20)
#define DESCRIPTORS 128

static struct block {
    CUdeviceptr at;
    size_t size;
} blocks[BLOCKS];

static ino_t reopened[DESCRIPTORS]; /* 0: none */

static CUresult fill(const struct block *block, unsigned byte)
{
    CUresult result = cuMemsetD8(block->at, (unsigned char)byte, block->size);

    return result == CUDA_SUCCESS ? cuCtxSynchronize() : result;
}

static size_t count_set(const struct block *block)
{
    static unsigned char host[PIECE];
    size_t count = 0;

    for (size_t at = 0; at < block->size; at += PIECE) {
        must("cuMemcpyDtoH", cuMemcpyDtoH(host, block->at + at, PIECE));
        for (size_t i = 0; i < PIECE; i++)
            count += host[i] != 0;
    }
    return count;
}

static void say_handle(const struct block *block)
{
    CUipcMemHandle handle;
    CUresult result = cuIpcGetMemHandle(&handle, block->at);

    if (result != CUDA_SUCCESS) {
        printf("%d\n", (int)result);
        return;
    }
    for (size_t i = 0; i < sizeof handle; i++)
        printf("%02x", (unsigned char)handle.reserved[i]);
    putchar('\n');
}

/* Of a block as large as the one that was allocated last under the number. */
static CUresult open_handle(struct block *block, const char *text)
{
    CUipcMemHandle handle;
    CUresult result;

    for (size_t i = 0; i < sizeof handle; i++)
        if (sscanf(text + 2 * i, "%2hhx", (unsigned char *)&handle.reserved[i]) != 1)
            fail("no handle", (int)i);
    result = cuIpcOpenMemHandle(&block->at, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (result == CUDA_SUCCESS)
        result = cuMemGetAddressRange(NULL, &block->size, block->at);
    return result;
}

static CUresult be_busy(void)
{
    static CUdeviceptr byte;
    CUstream stream;

    must("cuStreamCreate", cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    if (!byte)
        must("cuMemAlloc", cuMemAlloc(&byte, 1));
    softcuda_hold(1);
    return cuMemsetD8Async(byte, 1, 1, stream);
}

static CUstream capturing;

static CUresult capture(void)
{
    must("cuStreamCreate", cuStreamCreate(&capturing, CU_STREAM_NON_BLOCKING));
    return cuStreamBeginCapture(capturing, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

static CUresult end_capture(void)
{
    CUgraph graph;

    return cuStreamEndCapture(capturing, &graph);
}

static CUresult change_context(void)
{
    static CUcontext made;
    CUcontext before = made;
    CUdevice device;

    must("cuDeviceGet", cuDeviceGet(&device, 0));
#if CUDA_VERSION >= 13000
    must("cuCtxCreate", cuCtxCreate(&made, NULL, 0, device));
#else
    must("cuCtxCreate", cuCtxCreate(&made, 0, device));
#endif
    return before ? cuCtxDestroy(before) : CUDA_SUCCESS;
}

static int close_all(void)
{
    struct rlimit limit;
    int count = 0;

    getrlimit(RLIMIT_NOFILE, &limit);
    for (int fd = 3; fd < (int)limit.rlim_cur; fd++)
        close(fd);
    for (;;) {
        struct stat info;
        int own = open("/tmp", O_TMPFILE | O_RDWR, 0600);

        if (own < 0 || own >= DESCRIPTORS || fstat(own, &info) != 0) {
            close(own);
            return count;
        }
        reopened[own] = info.st_ino;
        count++;
    }
}

static int count_gone(void)
{
    int gone = 0;

    for (int fd = 3; fd < DESCRIPTORS; fd++) {
        struct stat info;

        gone += reopened[fd] && (fstat(fd, &info) != 0 || info.st_ino != reopened[fd]);
    }
    return gone;
}

/* ---- Many at once ---- */

#define STORM_LEAST ((size_t)64 << 20)
#define STORM_MORE  4 /* sizes, STORM_STEP apart */
#define STORM_STEP  ((size_t)24 << 20)
#define STORM_PAUSE_US 40000
#define THREADS     8

static unsigned long storm_rounds;
static atomic_uint storm_had, storm_marks;

/* Whether all of it holds the mark. */
static bool holds(const struct block *block, unsigned mark)
{
    uint32_t *host = malloc(PIECE);
    bool same = true;

    for (size_t at = 0; at < block->size && same; at += 8 * PIECE) {
        must("cuMemcpyDtoH", cuMemcpyDtoH(host, block->at + at, PIECE));
        for (size_t i = 0; i < PIECE / sizeof *host && same; i++)
            same = host[i] == mark;
    }
    free(host);
    return same;
}

static void take_and_check(const struct block *block, CUstream stream, bool shared)
{
    unsigned mark = (unsigned)getpid() << 12 ^ atomic_fetch_add(&storm_marks, 1);
    CUipcMemHandle handle;

    must("cuMemsetD32Async", cuMemsetD32Async(block->at, mark, block->size / 4, stream));
    if (shared)
        must("cuIpcGetMemHandle", cuIpcGetMemHandle(&handle, block->at));
    must("cuStreamSynchronize", cuStreamSynchronize(stream));
    if (!holds(block, mark))
        fail("bytes of somebody else", (int)mark);
    must("cuMemFree", cuMemFree(block->at));
    atomic_fetch_add(&storm_had, 1);
}

static void *storm_thread(void *arg)
{
    unsigned seed = (unsigned)(uintptr_t)arg;
    CUcontext context;
    CUstream stream;

    must("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&context, 0));
    must("cuCtxSetCurrent", cuCtxSetCurrent(context));
    must("cuStreamCreate", cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (unsigned long i = 0; i < storm_rounds; i++) {
        struct block block = {
            .size = STORM_LEAST + (size_t)(rand_r(&seed) % STORM_MORE) * STORM_STEP};
        CUresult result = cuMemAlloc(&block.at, block.size);

        if (result == CUDA_SUCCESS)
            take_and_check(&block, stream, rand_r(&seed) % 8 == 0);
        else if (result != CUDA_ERROR_OUT_OF_MEMORY)
            fail("cuMemAlloc", (int)result);
        usleep(rand_r(&seed) % STORM_PAUSE_US); /* the GPU is idle at times */
    }
    must("cuStreamDestroy", cuStreamDestroy(stream));
    return NULL;
}

static unsigned storm(unsigned threads, unsigned long rounds)
{
    pthread_t thread[THREADS];

    storm_rounds = rounds;
    for (unsigned i = 0; i < threads && i < THREADS; i++)
        if (pthread_create(&thread[i], NULL, storm_thread,
                           (void *)(uintptr_t)((unsigned)getpid() * THREADS + i)) != 0)
            fail("no thread", errno);
    for (unsigned i = 0; i < threads && i < THREADS; i++)
        pthread_join(thread[i], NULL);
    return storm_had;
}

static int fork_one(void)
{
    int pid = fork();

    while (pid == 0)
        pause();
    return pid;
}

static void say_census(void)
{
    struct softcuda_census census;

    softcuda_census(&census);
    printf("%u %u %u\n", census.handles, census.reservations, census.mappings);
}

static CUresult look_at_memory(void)
{
    size_t left, total;
    CUresult result = CUDA_SUCCESS;

    for (int i = 0; i < 2 && result == CUDA_SUCCESS; i++) {
        must("cuMemGetInfo", cuMemGetInfo(&left, &total));
        result = cuCtxSynchronize();
    }
    return result;
}

static bool steer(const char *order, const char *call, unsigned long number)
{
    if (!strcmp(order, "fail"))
        printf("%d\n", softcuda_fail(call, (unsigned)number, CUDA_ERROR_UNKNOWN));
    else if (!strcmp(order, "kill"))
        printf("%d\n", softcuda_kill(call, (unsigned)number));
    else if (!strcmp(order, "delay"))
        printf("%d\n", softcuda_delay(call, (unsigned)number));
    else if (!strcmp(order, "calls"))
        printf("%lu\n", softcuda_calls(call));
    else
        return false;
    return true;
}

static bool obey_of_all(const char *order)
{
    if (!strcmp(order, "busy"))
        printf("%d\n", (int)be_busy());
    else if (!strcmp(order, "idle"))
        softcuda_hold(0), puts("0");
    else if (!strcmp(order, "capture"))
        printf("%d\n", (int)capture());
    else if (!strcmp(order, "captured"))
        printf("%d\n", (int)end_capture());
    else if (!strcmp(order, "info"))
        printf("%d\n", (int)look_at_memory());
    else if (!strcmp(order, "census"))
        say_census();
    else if (!strcmp(order, "close-all"))
        printf("%d\n", close_all());
    else if (!strcmp(order, "check-all"))
        printf("%d\n", count_gone());
    else if (!strcmp(order, "fork"))
        printf("%d\n", fork_one());
    else if (!strcmp(order, "context"))
        printf("%d\n", (int)change_context());
    else
        return false;
    return true;
}

static bool obey_of_block(const char *order, struct block *block, const char *rest)
{
    if (!strcmp(order, "alloc")) {
        block->size = strtoull(rest, NULL, 10) << 20;
        printf("%d\n", (int)cuMemAlloc(&block->at, block->size));
    } else if (!strcmp(order, "free")) {
        must("cuCtxSynchronize", cuCtxSynchronize());
        printf("%d\n", (int)cuMemFree(block->at));
    } else if (!strcmp(order, "fill")) {
        printf("%d\n", (int)fill(block, (unsigned)atoi(rest)));
    } else if (!strcmp(order, "sum")) {
        printf("%zu\n", count_set(block));
    } else if (!strcmp(order, "handle")) {
        say_handle(block);
    } else if (!strcmp(order, "open")) {
        printf("%d\n", (int)open_handle(block, rest));
    } else if (!strcmp(order, "close")) {
        printf("%d\n", (int)cuIpcCloseMemHandle(block->at));
    } else {
        return false;
    }
    return true;
}

static bool obey(int words, const char *order, const char *word, const char *rest)
{
    if (words == 1)
        return obey_of_all(order);
    if (!strcmp(order, "storm")) {
        printf("%u\n", storm((unsigned)atoi(word), strtoul(rest, NULL, 10)));
        return true;
    }
    return steer(order, word, strtoul(rest, NULL, 10)) ||
           obey_of_block(order, &blocks[atoi(word) % BLOCKS], rest);
}

int main(void)
{
    char line[512], order[16], word[64], rest[256];

    start_driver();
    setvbuf(stdout, NULL, _IOLBF, 0);
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        int words = sscanf(line, "%15s %63s %255s", order, word, rest);

        if (words < 3)
            rest[0] = '\0';
        if (words < 1 || !obey(words, order, word, rest))
            fail(line, words);
    }
    return 0;
}
