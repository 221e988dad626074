/*
 * What a program pays for a registration that is kept: ibv_reg_mr and ibv_dereg_mr of one of a few
 * GPU buffers, again and again, through every layer of the library.
 *
 *   register_pair [--buffers N] [--rounds N]
 *
 * Prints one JSON line. The time is the thread's own, the middle one of five. With the stand-in
 * libibverbs only the run under the library means something: there the card does nothing. Natively
 * it would be what the stand-in costs, so that is not measured, and the line says so.
 */
#include <infiniband/verbs.h>
#include <stdlib.h>
#include <time.h>

#include "bench.h"

#define SIZE    ((size_t)64 << 10)
#define REPEATS 5

static struct ibv_pd *pd;
static CUdeviceptr *buffer;
static uint64_t buffers = 16, rounds = 100000;

static uint64_t own_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void pair(uint64_t i)
{
    struct ibv_mr *mr = ibv_reg_mr(pd, (void *)buffer[i % buffers], SIZE, IBV_ACCESS_LOCAL_WRITE);

    if (!mr || ibv_dereg_mr(mr) != 0)
        bench_die("a buffer could not be registered");
}

int main(int argc, char **argv)
{
    const struct bench_option options[] = {{"buffers", BENCH_NUMBER, &buffers},
                                           {"rounds", BENCH_NUMBER, &rounds},
                                           {NULL}};
    struct ibv_device **list;
    struct ibv_context *card;
    uint64_t took[REPEATS];

    bench_options(argv, options, "register_pair [--buffers N] [--rounds N]");
    if (buffers < 1 || buffers > 100 || rounds < 1) /* the stand-in looks at all of them */
        bench_die("--buffers is from 1 to 100, --rounds from 1");
    bench_start();
    list = ibv_get_device_list(NULL);
    card = list && list[0] ? ibv_open_device(list[0]) : NULL;
    pd = card ? ibv_alloc_pd(card) : NULL;
    if (!pd)
        bench_die("no network card");
    ibv_free_device_list(list);
    buffer = bench_array(buffers, sizeof *buffer);
    for (uint64_t i = 0; i < buffers; i++) {
        MUST(cuMemAlloc(&buffer[i], (size_t)2 << 20));
        pair(i);
    }
    for (int repeat = 0; bench_under_shim() && repeat < REPEATS; repeat++) {
        uint64_t begin = own_ns();

        for (uint64_t i = 0; i < rounds; i++)
            pair(i);
        took[repeat] = (own_ns() - begin) * 1000 / rounds;
    }
    json_begin("register_pair");
    json_count("buffers", buffers);
    if (bench_under_shim())
        json_number("ns", (double)bench_median(took, REPEATS) / 1000);
    else
        json_null("ns");
    json_end();
    for (uint64_t i = 0; i < buffers; i++)
        MUST(cuMemFree(buffer[i]));
    ibv_dealloc_pd(pd);
    ibv_close_device(card);
    free(buffer);
    return 0;
}
