/*
 * What the first export of a process costs in the driver alone, without the shim, and what of it is
 * the process's, the thread's and the chunk's, or that of having no other. Prints lines "FACT name =
 * answer" in microseconds, asserts nothing.
 *
 *   cc -O1 -o export_costs export_costs.c -ldl -lpthread && ./export_costs
 *
 * Each line is the median, least and most of RUNS processes, since what comes first in a process
 * and in a thread happens once.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "costs.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

#define SIZE (2 * MIB)
#define RUNS 7

enum { BY_MAIN, CLOSED, RELEASED, BY_THREAD, BY_BOTH, KINDS };
static const char *const kinds[] = {"the first thread exports",
                                    "it closes its first one before the second",
                                    "it releases its first chunk, and keeps the descriptor",
                                    "a new thread exports",
                                    "a new thread exports after the first"};

enum { CREATE, MAIN_FIRST, MAIN_SECOND, START, MALLOC, THREAD_FIRST, THREAD_SECOND, STEPS };
static const char *const steps[] = {"a chunk",          "the first thread's first export",
                                    "its second",       "a new thread's start",
                                    "its first malloc", "its first export",
                                    "its second"};

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static __typeof__(&cuMemExportToShareableHandle) export;
static CUmemGenericAllocationHandle chunks[4];
static void *volatile allocated;
static double began;

static int last_fd;

static double export_one(int chunk)
{
    double start = now();

    MUST(export(&last_fd, chunks[chunk], CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    return now() - start;
}

static void *thread(void *arg)
{
    double *us = arg, start = now();

    us[START] = start - began;
    allocated = malloc(100);
    us[MALLOC] = now() - start;
    free(allocated);
    us[THREAD_FIRST] = export_one(2);
    us[THREAD_SECOND] = export_one(3);
    return NULL;
}

static void measure(int kind, double *us)
{
    static const CUmemAllocationProp properties = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location.type = CU_MEM_LOCATION_TYPE_DEVICE, /* the first one */
    };
    CUcontext context;
    pthread_t other;

    export = D(cuMemExportToShareableHandle);
    MUST(D(cuInit)(0));
    MUST(D(cuDevicePrimaryCtxRetain)(&context, 0));
    MUST(D(cuCtxSetCurrent)(context));
    for (int i = 0; i < 4; i++) {
        double start = now();

        MUST(D(cuMemCreate)(&chunks[i], SIZE, &properties, 0));
        us[CREATE] = now() - start;
    }
    if (kind != BY_THREAD) {
        us[MAIN_FIRST] = export_one(0);
        if (kind == CLOSED)
            close(last_fd);
        if (kind == RELEASED)
            MUST(D(cuMemRelease)(chunks[0]));
        us[MAIN_SECOND] = export_one(1);
    }
    if (kind != BY_THREAD && kind != BY_BOTH)
        return;
    began = now();
    if (pthread_create(&other, NULL, thread, us) == 0)
        pthread_join(other, NULL);
}

static int by_size(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;

    return (left > right) - (left < right);
}

int main(void)
{
    double(*us)[STEPS] =
        mmap(NULL, RUNS * sizeof *us, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    libcuda = dlopen("libcuda.so.1", RTLD_NOW);
    if (!libcuda || us == MAP_FAILED) {
        printf("FACT stopped = %s\n", libcuda ? "no memory" : dlerror());
        return 1;
    }
    for (int kind = 0; kind < KINDS; kind++) {
        for (int run = 0; run < RUNS; run++) {
            if (fork() == 0) {
                measure(kind, us[run]);
                _exit(0);
            }
            wait(NULL);
        }
        for (int step = 0; step < STEPS; step++) {
            double all[RUNS];

            for (int run = 0; run < RUNS; run++)
                all[run] = us[run][step];
            qsort(all, RUNS, sizeof *all, by_size);
            if (all[RUNS - 1] > 0)
                printf("FACT %s: %s = %.1f (%.1f to %.1f)\n", kinds[kind], steps[step],
                       all[RUNS / 2], all[0], all[RUNS - 1]);
        }
        memset(us, 0, RUNS * sizeof *us);
    }
    return 0;
}
