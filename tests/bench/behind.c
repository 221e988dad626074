/*
 * How long cuMemFree and cuMemAlloc take while the GPU runs a long kernel on another stream.
 *
 * The native cuMemFree waits for the kernel. An allocator that does not wait must not hand the
 * memory out before the kernel has ended either: "reused_while_busy" says whether the address came
 * back while it ran.
 */
#include "bench.h"
#include "../conformance/kernels.h"

static const char usage[] = "behind [--ms N] [--size BYTES]";

struct measured {
    uint64_t free_ns, alloc_ns;
    bool busy_after_free, busy_after_alloc, reused;
};

static bool is_busy(CUstream stream)
{
    CUresult result = cuStreamQuery(stream);

    if (result != CUDA_ERROR_NOT_READY)
        MUST(result);
    return result == CUDA_ERROR_NOT_READY;
}

static void start_kernel(CUfunction spin, CUstream stream, uint64_t ns)
{
    void *arguments[] = {&ns};

    MUST(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL));
}

static struct measured measure(CUfunction spin, CUstream stream, uint64_t ns, size_t size)
{
    CUdeviceptr before, after, block;
    struct measured measured;

    /* Both calls are warm, and there is a block that could be handed out at once. */
    MUST(cuMemAlloc(&block, size));
    MUST(cuMemAlloc(&before, size));
    MUST(cuMemFree(block));
    MUST(cuCtxSynchronize());

    start_kernel(spin, stream, ns);
    uint64_t began = bench_now();
    MUST(cuMemFree(before));
    measured.free_ns = bench_now() - began;
    measured.busy_after_free = is_busy(stream);
    MUST(cuStreamSynchronize(stream));

    MUST(cuMemAlloc(&before, size));
    start_kernel(spin, stream, ns);
    if (measured.busy_after_free)
        MUST(cuMemFree(before));
    began = bench_now();
    MUST(cuMemAlloc(&after, size));
    measured.alloc_ns = bench_now() - began;
    measured.busy_after_alloc = is_busy(stream);
    measured.reused = measured.busy_after_free && measured.busy_after_alloc && after == before;
    MUST(cuStreamSynchronize(stream));
    if (!measured.busy_after_free)
        MUST(cuMemFree(before));
    MUST(cuMemFree(after));
    return measured;
}

int main(int argc, char **argv)
{
    uint64_t ms = 500, size = 64 << 10;
    const struct bench_option options[] = {{"ms", BENCH_NUMBER, &ms},
                                           {"size", BENCH_NUMBER, &size},
                                           {NULL}};
    CUmodule module;
    CUfunction spin;
    CUstream stream;

    if (bench_options(argv, options, usage) || ms == 0 || ms > 10000 || size == 0)
        bench_die("--ms is from 1 to 10000\nusage: %s", usage);
    bench_start();
    MUST(cuModuleLoadData(&module, kernels_ptx));
    MUST(cuModuleGetFunction(&spin, module, "spin"));
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    start_kernel(spin, stream, 1000); /* loads what is loaded at the first launch */
    start_kernel(spin, NULL, 1000);   /* with all work in one stream, its order would do */
    MUST(cuCtxSynchronize());
    struct measured measured = measure(spin, stream, ms * 1000000, size);
    MUST(cuStreamDestroy(stream));
    MUST(cuModuleUnload(module));

    json_begin("behind");
    json_count("kernel_ms", ms);
    json_count("size", size);
    json_number("free_us", (double)measured.free_ns / 1000);
    json_bool("kernel_ran_after_free", measured.busy_after_free);
    json_number("alloc_us", (double)measured.alloc_ns / 1000);
    json_bool("kernel_ran_after_alloc", measured.busy_after_alloc);
    json_bool("reused_while_busy", measured.reused);
    json_end();
    return 0;
}
