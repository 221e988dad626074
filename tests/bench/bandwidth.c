/*
 * How fast the GPU reads and writes memory of the allocator underneath: whether what an allocator
 * does with physical memory (page sizes, where pieces lie) costs its user anything.
 *
 * Two blocks of --size, and as many blocks of --piece as fill the same size, each copied to its
 * partner by the copy engine and by a kernel; and to and from pinned host memory. A figure is the
 * median of --rounds, bytes read and written counted once each.
 */
#include "bench.h"
#include "../conformance/kernels.h"

#include <stdlib.h>

static const char usage[] = "bandwidth [--size BYTES] [--piece BYTES] [--rounds N]";

#define LAUNCHES 4 /* in one round: their start and end weigh less */

enum way { BY_COPY, BY_KERNEL, TO_DEVICE, TO_HOST };

/* Equal blocks that are copied from and to. */
struct blocks {
    CUdeviceptr *from, *to;
    size_t count;
    uint64_t bytes; /* of each */
};

static CUfunction copy_words;
static CUstream stream;
static void *host; /* pinned, as large as all of the blocks */
static uint64_t rounds = 15;

static struct blocks make(size_t count, uint64_t bytes)
{
    struct blocks blocks = {bench_array(count, sizeof(CUdeviceptr)),
                            bench_array(count, sizeof(CUdeviceptr)), count, bytes};

    for (size_t i = 0; i < count; i++) {
        MUST(cuMemAlloc(&blocks.from[i], bytes));
        MUST(cuMemAlloc(&blocks.to[i], bytes));
        MUST(cuMemsetD32Async(blocks.from[i], (unsigned)i, bytes / 4, stream));
    }
    MUST(cuStreamSynchronize(stream));
    return blocks;
}

static void drop(struct blocks *blocks)
{
    for (size_t i = 0; i < blocks->count; i++) {
        MUST(cuMemFree(blocks->from[i]));
        MUST(cuMemFree(blocks->to[i]));
    }
    free(blocks->from);
    free(blocks->to);
}

static void submit(const struct blocks *blocks, size_t i, enum way way)
{
    CUdeviceptr from = blocks->from[i], to = blocks->to[i];
    uint64_t words = blocks->bytes / 4, grid = words / 256 + 1;
    char *there = (char *)host + i * blocks->bytes;
    void *arguments[] = {&to, &from, &words};

    switch (way) {
    case BY_COPY:
        MUST(cuMemcpyDtoDAsync(to, from, blocks->bytes, stream));
        break;
    case BY_KERNEL:
        MUST(cuLaunchKernel(copy_words, (unsigned)(grid < 4096 ? grid : 4096), 1, 1, 256, 1, 1, 0,
                            stream, arguments, NULL));
        break;
    case TO_DEVICE:
        MUST(cuMemcpyHtoDAsync(to, there, blocks->bytes, stream));
        break;
    case TO_HOST:
        MUST(cuMemcpyDtoHAsync(there, from, blocks->bytes, stream));
        break;
    }
}

/* GB/s, 10^9 bytes. */
static double rate(const struct blocks *blocks, enum way way)
{
    uint64_t *times = bench_array(rounds, sizeof *times);
    double bytes = (double)blocks->bytes * (double)blocks->count * LAUNCHES, seconds;

    for (uint64_t round = 0; round <= rounds; round++) { /* the first does not count */
        uint64_t began = bench_now();

        for (int launch = 0; launch < LAUNCHES; launch++)
            for (size_t i = 0; i < blocks->count; i++)
                submit(blocks, i, way);
        MUST(cuStreamSynchronize(stream));
        if (round)
            times[round - 1] = bench_now() - began;
    }
    seconds = (double)bench_median(times, rounds) / 1e9;
    free(times);
    return bytes * (way == BY_COPY || way == BY_KERNEL ? 2 : 1) / seconds / 1e9;
}

int main(int argc, char **argv)
{
    uint64_t size = (uint64_t)1 << 30, piece = (uint64_t)4 << 20;
    const struct bench_option options[] = {{"size", BENCH_NUMBER, &size},
                                           {"piece", BENCH_NUMBER, &piece},
                                           {"rounds", BENCH_NUMBER, &rounds},
                                           {NULL}};
    struct blocks whole, pieces;
    CUmodule module;

    if (bench_options(argv, options, usage) || piece < 4096 || size < piece || size % 4 ||
        piece % 4 || !rounds || rounds > 10000)
        bench_die("--piece is from 4K to --size, --rounds from 1\nusage: %s", usage);
    bench_start();
    MUST(cuModuleLoadData(&module, kernels_ptx));
    MUST(cuModuleGetFunction(&copy_words, module, "copy_words"));
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuMemAllocHost(&host, size));

    json_begin("bandwidth");
    json_count("size", size);
    json_count("piece", piece);
    whole = make(1, size);
    json_number("copy_gb_s", rate(&whole, BY_COPY));
    json_number("kernel_gb_s", rate(&whole, BY_KERNEL));
    json_number("to_device_gb_s", rate(&whole, TO_DEVICE));
    json_number("to_host_gb_s", rate(&whole, TO_HOST));
    drop(&whole);
    pieces = make(size / piece, piece);
    json_number("copy_pieces_gb_s", rate(&pieces, BY_COPY));
    json_number("kernel_pieces_gb_s", rate(&pieces, BY_KERNEL));
    drop(&pieces);
    json_end();
    MUST(cuMemFreeHost(host));
    MUST(cuStreamDestroy(stream));
    MUST(cuModuleUnload(module));
    return 0;
}
