/*
 * What sharing costs in the driver alone, without the shim: exporting, importing and mapping by
 * descriptor against the driver's own IPC, the first time in a process and later. Prints lines
 * "FACT name = answer" in microseconds, asserts nothing.
 *
 *   cc -O1 -o share_costs share_costs.c -ldl -lpthread && ./share_costs
 *
 * Each consumer is a process of its own, since what comes first in a process costs more.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "costs.h"

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <time.h>

#define SIZE  (2 * MIB)
#define COUNT 48 /* chunks that every consumer gets */
#define RESTS 8  /* of those, the ones that are opened after a pause of their own */
#define REST_US 200000

static __typeof__(&cuMemCreate) create;
static __typeof__(&cuMemRelease) release;
static __typeof__(&cuMemAddressReserve) reserve;
static __typeof__(&cuMemAddressFree) unreserve;
static __typeof__(&cuMemMap) map;
static __typeof__(&cuMemUnmap) unmap;
static __typeof__(&cuMemSetAccess) set_access;
static __typeof__(&cuMemExportToShareableHandle) export;
static __typeof__(&cuMemImportFromShareableHandle) import;

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int by_size(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;

    return (left > right) - (left < right);
}

/* First, second, and of the rest the middle and the largest. */
static void say(const char *who, const char *what, const double *us, int count)
{
    double rest[COUNT];

    memcpy(rest, us + 2, (size_t)(count - 2) * sizeof *us);
    qsort(rest, (size_t)(count - 2), sizeof *rest, by_size);
    printf("FACT %s: %s = first %.1f, second %.1f, median %.1f, most %.1f\n", who, what, us[0],
           us[1], rest[(count - 2) / 2], rest[count - 3]);
    fflush(stdout);
}

static void start(void)
{
    CUcontext context;

    MUST(D(cuInit)(0));
    MUST(D(cuDevicePrimaryCtxRetain)(&context, 0));
    MUST(D(cuCtxSetCurrent)(context));
    create = D(cuMemCreate);
    release = D(cuMemRelease);
    reserve = D(cuMemAddressReserve);
    unreserve = D(cuMemAddressFree);
    map = D(cuMemMap);
    unmap = D(cuMemUnmap);
    set_access = D(cuMemSetAccess);
    export = D(cuMemExportToShareableHandle);
    import = D(cuMemImportFromShareableHandle);
}

static const CUmemAllocationProp properties = {
    .type = CU_MEM_ALLOCATION_TYPE_PINNED,
    .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
    .location.type = CU_MEM_LOCATION_TYPE_DEVICE, /* the first one */
};
static const CUmemAccessDesc access_all = {
    .location.type = CU_MEM_LOCATION_TYPE_DEVICE, /* the first one */
    .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
};

/* ---- consumers ---- */

struct chunk {
    CUmemGenericAllocationHandle handle;
    CUdeviceptr at;
};

static void own_memory(int with_export)
{
    struct chunk own;
    int fd;

    MUST(create(&own.handle, SIZE, &properties, 0));
    MUST(reserve(&own.at, SIZE, 0, 0, 0));
    MUST(map(own.at, SIZE, 0, own.handle, 0));
    MUST(set_access(own.at, SIZE, &access_all, 1));
    if (with_export) {
        double began = now();
        MUST(export(&fd, own.handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
        printf("FACT probing consumer: its first export = %.1f\n", now() - began);
        close(fd);
    }
    MUST(unmap(own.at, SIZE));
    MUST(unreserve(own.at, SIZE));
    MUST(release(own.handle));
}

enum { IMPORT, RESERVE, MAP, ACCESS, CLOSE, ALL, STEPS };
static const char *const steps[] = {"import", "reserve", "map", "access", "close of the descriptor",
                                    "all five"};

static void open_one(int fd, struct chunk *chunk, double *us[], int at)
{
    double t[STEPS];

    t[IMPORT] = now();
    MUST(import(&chunk->handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    t[RESERVE] = now();
    MUST(reserve(&chunk->at, SIZE, 0, 0, 0));
    t[MAP] = now();
    MUST(map(chunk->at, SIZE, 0, chunk->handle, 0));
    t[ACCESS] = now();
    MUST(set_access(chunk->at, SIZE, &access_all, 1));
    t[CLOSE] = now();
    close(fd);
    t[ALL] = now();
    for (int step = 0; step < ALL; step++)
        us[step][at] = t[step + 1] - t[step];
    us[ALL][at] = t[ALL] - t[IMPORT];
}

static void open_all(const char *who, const int *fds)
{
    static struct chunk chunks[COUNT];
    double values[STEPS][COUNT], *us[STEPS], undo[COUNT];

    for (int step = 0; step < STEPS; step++)
        us[step] = values[step];
    for (int i = 0; i < COUNT; i++)
        open_one(fds[i], &chunks[i], us, i);
    for (int step = 0; step < STEPS; step++)
        say(who, steps[step], us[step], COUNT);
    for (int i = 0; i < COUNT; i++) {
        double began = now();
        MUST(unmap(chunks[i].at, SIZE));
        MUST(unreserve(chunks[i].at, SIZE));
        MUST(release(chunks[i].handle));
        undo[i] = now() - began;
    }
    say(who, "unmap, unreserve and release", undo, COUNT);
}

/* Mapped side by side, with one set access over all of them. */
static void open_together(const char *who, const int *fds)
{
    struct chunk chunks[COUNT];
    double began = now(), mapped, done;
    CUdeviceptr base;

    MUST(reserve(&base, COUNT * SIZE, 0, 0, 0));
    for (int i = 0; i < COUNT; i++) {
        MUST(import(&chunks[i].handle, (void *)(intptr_t)fds[i],
                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
        MUST(map(base + (size_t)i * SIZE, SIZE, 0, chunks[i].handle, 0));
    }
    mapped = now();
    MUST(set_access(base, COUNT * SIZE, &access_all, 1));
    done = now();
    printf("FACT %s: import and map of one = %.1f, one set access over all, of one = %.1f\n", who,
           (mapped - began) / COUNT, (done - mapped) / COUNT);
}

static void *open_half(void *arg)
{
    double values[STEPS][COUNT], *us[STEPS];
    struct chunk chunk;

    for (int step = 0; step < STEPS; step++)
        us[step] = values[step];
    for (int i = 0; i < COUNT / 2; i++)
        open_one(((int *)arg)[i], &chunk, us, i);
    return NULL;
}

static void open_by_two(const char *who, int *fds)
{
    pthread_t other;
    double began = now();

    pthread_create(&other, NULL, open_half, fds + COUNT / 2);
    open_half(fds);
    pthread_join(other, NULL);
    printf("FACT %s: all five of one = %.1f\n", who, (now() - began) / COUNT);
}

static void open_natively(const char *who, int socket, bool rests)
{
    CUipcMemHandle handle;
    CUdeviceptr at;
    double us[COUNT];

    for (int i = 0; i < COUNT; i++) {
        if (recv(socket, &handle, sizeof handle, MSG_WAITALL) != sizeof handle)
            _exit(1);
        usleep(rests && i < RESTS ? REST_US : 0);
        double began = now();
        MUST(D(cuIpcOpenMemHandle_v2)(&at, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
        us[i] = now() - began;
    }
    say(who, "cuIpcOpenMemHandle", us, rests ? RESTS : COUNT);
}

/* Each after a pause in which CPUs and caches go to sleep. What wakes them: nothing, time on the
 * CPU alone, a reservation, an import of what is imported already, or all that an open does. */
enum waking { NOTHING, TIME, RESERVATION, IMPORTED, WHOLE, WAKINGS };
static const char *const wakings[] = {"nothing", "300 us of looking at the clock", "a reservation",
                                      "an import", "another open"};

static void wake(enum waking waking, int fd)
{
    CUmemGenericAllocationHandle again;
    double values[STEPS][1], *us[STEPS];
    struct chunk chunk;
    CUdeviceptr at;

    for (int step = 0; step < STEPS; step++)
        us[step] = values[step];
    for (double began = now(); waking == TIME && now() < began + 300;)
        continue;
    if (waking == RESERVATION) {
        MUST(reserve(&at, SIZE, 0, 0, 0));
        MUST(unreserve(at, SIZE));
    }
    if (waking == IMPORTED) {
        MUST(import(&again, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
        MUST(release(again));
    }
    if (waking == WHOLE)
        open_one(dup(fd), &chunk, us, 0);
}

static void open_rested(const char *who, const int *fds)
{
    struct chunk chunk;
    double values[STEPS][COUNT], *us[STEPS], woken[COUNT];
    char what[100];
    int used = dup(fds[COUNT - 1]);

    for (int step = 0; step < STEPS; step++)
        us[step] = values[step];
    for (int i = 0; i < COUNT; i += RESTS) /* the first of a process are told above */
        open_one(dup(fds[i]), &chunk, us, i);
    for (enum waking waking = NOTHING; waking < WAKINGS; waking++) {
        for (int i = 0; i < RESTS; i++) {
            usleep(REST_US);
            woken[i] = now();
            wake(waking, used);
            woken[i] = now() - woken[i];
            open_one(dup(fds[i]), &chunk, us, i);
        }
        snprintf(what, sizeof what, "woken by %s", wakings[waking]);
        say(who, what, woken, RESTS);
        for (int step = 0; step < STEPS; step++) {
            snprintf(what, sizeof what, "woken by %s: %s", wakings[waking], steps[step]);
            say(who, what, us[step], RESTS);
        }
    }
}

enum kind { FRESH, MAPPED, PROBING, TOGETHER, BY_TWO, RESTED, NATIVE, NATIVE_RESTED, KINDS };
static const char *const names[] = {"fresh consumer",          "consumer that mapped before",
                                    "probing consumer",        "consumer of one range",
                                    "consumer of two threads", "rested consumer",
                                    "native consumer",         "rested native consumer"};

static bool is_native(enum kind kind)
{
    return kind == NATIVE || kind == NATIVE_RESTED;
}

/* A byte to say that the context is there, COUNT descriptors (or handles), a byte at the end. */
static void consume(enum kind kind, int socket)
{
    int fds[COUNT];
    char byte = 0;

    start();
    if (kind == MAPPED || kind == PROBING || kind == TOGETHER || kind == BY_TWO ||
        kind == RESTED)
        own_memory(kind != MAPPED);
    if (write(socket, &byte, 1) != 1)
        _exit(1);
    if (is_native(kind)) {
        open_natively(names[kind], socket, kind == NATIVE_RESTED);
    } else {
        for (int i = 0; i < COUNT; i++)
            fds[i] = receive_fd(socket);
        if (kind == TOGETHER)
            open_together(names[kind], fds);
        else if (kind == BY_TWO)
            open_by_two(names[kind], fds);
        else if (kind == RESTED)
            open_rested(names[kind], fds);
        else
            open_all(names[kind], fds);
    }
    fflush(stdout);
    if (write(socket, &byte, 1) != 1)
        _exit(1);
    _exit(0);
}

/* ---- a round trip without any driver ---- */

static void *echo(void *arg)
{
    int socket = *(int *)arg, set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    char message[96];

    epoll_ctl(set, EPOLL_CTL_ADD, socket, &event);
    while (epoll_wait(set, &event, 1, -1) == 1 && recv(socket, message, sizeof message, 0) > 0)
        send(socket, message, sizeof message, MSG_NOSIGNAL);
    close(set);
    return NULL;
}

/* A thread that is woken is often put on the CPU of who woke it, who then should not keep it. */
static void rested_round_trips(int socket)
{
    static const char *const ways[] = {"asleep", "looking", "looking and yielding"};
    char message[96] = {0}, what[100];
    double us[RESTS];

    for (int way = 0; way < 3; way++) {
        for (int i = 0; i < RESTS; i++) {
            double began;

            usleep(REST_US);
            began = now();
            send(socket, message, sizeof message, MSG_NOSIGNAL);
            while (recv(socket, message, sizeof message, way ? MSG_DONTWAIT : 0) < 0)
                if (way == 2)
                    sched_yield();
            us[i] = now() - began;
        }
        snprintf(what, sizeof what, "200 ms apart, waited for %s", ways[way]);
        say("round trip to a thread in epoll_wait", what, us, RESTS);
    }
}

static void round_trips(void)
{
    double close_by[COUNT], apart[COUNT];
    char message[96] = {0};
    pthread_t thread;
    int pair[2];

    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) != 0)
        return;
    pthread_create(&thread, NULL, echo, &pair[1]);
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < COUNT; i++) {
            double began;

            usleep(pass ? 2000 : 0);
            began = now();
            send(pair[0], message, sizeof message, MSG_NOSIGNAL);
            recv(pair[0], message, sizeof message, 0);
            (pass ? apart : close_by)[i] = now() - began;
        }
    say("round trip to a thread in epoll_wait", "one after the other", close_by, COUNT);
    say("round trip to a thread in epoll_wait", "2 ms apart", apart, COUNT);
    rested_round_trips(pair[0]);
    shutdown(pair[0], SHUT_RDWR);
    pthread_join(thread, NULL);
    close(pair[0]);
    close(pair[1]);
}

int main(void)
{
    static struct chunk chunks[COUNT];
    int sockets[KINDS], fds[COUNT];
    double us[COUNT];
    char byte;

    libcuda = dlopen("libcuda.so.1", RTLD_NOW);
    if (!libcuda) {
        printf("FACT stopped = %s\n", dlerror());
        return 1;
    }
    for (int kind = 0; kind < KINDS; kind++) { /* before any CUDA call here */
        int pair[2];

        if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0)
            return 1;
        fflush(stdout);
        if (fork() == 0) {
            close(pair[0]);
            if (read(pair[1], &byte, 1) == 1) /* one consumer at a time */
                consume((enum kind)kind, pair[1]);
            _exit(1);
        }
        close(pair[1]);
        sockets[kind] = pair[0];
    }
    round_trips();
    start();
    for (int i = 0; i < COUNT; i++)
        MUST(create(&chunks[i].handle, SIZE, &properties, 0));
    for (int i = 0; i < COUNT; i++) {
        double began = now();
        MUST(export(&fds[i], chunks[i].handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
        us[i] = now() - began;
    }
    say("exporter", "export", us, COUNT);
    for (int i = 0; i < COUNT; i++) {
        int fd;
        double began;

        MUST(export(&fd, chunks[i].handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
        began = now();
        close(fd);
        us[i] = now() - began;
    }
    say("exporter", "close of an export", us, COUNT);
    for (int kind = 0; kind < KINDS; kind++) {
        if (write(sockets[kind], &byte, 1) != 1 || read(sockets[kind], &byte, 1) != 1)
            continue;
        for (int i = 0; i < COUNT; i++) {
            if (is_native((enum kind)kind)) {
                CUipcMemHandle handle;
                CUdeviceptr block;

                MUST(D(cuMemAlloc_v2)(&block, SIZE));
                MUST(D(cuIpcGetMemHandle)(&handle, block));
                if (write(sockets[kind], &handle, sizeof handle) != sizeof handle)
                    break;
            } else {
                send_fd(sockets[kind], fds[i]);
            }
        }
        if (read(sockets[kind], &byte, 1) != 1)
            printf("FACT %s = did not end\n", names[kind]);
    }
    for (int kind = 0; kind < KINDS; kind++)
        close(sockets[kind]);
    while (wait(NULL) > 0)
        continue;
    return 0;
}
