// Two GPUs through the CUDA runtime, as programs use them: copies with and without peer access,
// kernels on the other GPU's memory, memory that comes while access is on, and its end. Prints
// "RESULT what outcome" lines that tests/gpu/run.sh compares with and without the shim.

#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <unistd.h>
#include <vector>

namespace
{

constexpr size_t words = 3 << 20;
constexpr size_t bytes = words * 4;
int failures;

void must(cudaError_t e, const char *call, int line)
{
    if (e == cudaSuccess)
        return;
    printf("RESULT %s line %d: %s\n", call, line, cudaGetErrorName(e));
    exit(1);
}
#define MUST(call) must(call, #call, __LINE__)

void expect(const char *what, bool good)
{
    printf("RESULT %s %s\n", what, good ? "ok" : "WRONG");
    fflush(stdout);
    failures += !good;
}

void outcome(const char *what, cudaError_t e)
{
    printf("RESULT %s %s\n", what, cudaGetErrorName(e));
    fflush(stdout);
    cudaGetLastError();
}

__global__ void fill(uint32_t *p, uint32_t value, size_t n)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x)
        p[i] = value + (uint32_t)i;
}

__global__ void add(uint32_t *to, const uint32_t *from, size_t n)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x)
        to[i] += from[i];
}

uint32_t *made_on(int device, uint32_t value)
{
    uint32_t *p;

    MUST(cudaSetDevice(device));
    MUST(cudaMalloc(&p, bytes));
    fill<<<128, 256>>>(p, value, words);
    MUST(cudaDeviceSynchronize());
    return p;
}

bool holds(int device, const uint32_t *p, uint32_t value, uint32_t step)
{
    std::vector<uint32_t> host(words);

    MUST(cudaSetDevice(device));
    MUST(cudaMemcpy(host.data(), p, bytes, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < words; i++)
        if (host[i] != value + step * (uint32_t)i)
            return false;
    return true;
}

// Copies need no peer access; each returns once the memory it reads may be freed.
void copies(const char *when)
{
    uint32_t *a = made_on(0, 10), *b = made_on(1, 20);
    char what[64];

    MUST(cudaMemcpyPeer(b, 1, a, 0, bytes));
    snprintf(what, sizeof what, "%s_memcpy_peer", when);
    expect(what, holds(1, b, 10, 1));
    MUST(cudaSetDevice(1));
    fill<<<128, 256>>>(b, 30, words);
    MUST(cudaMemcpy(a, b, bytes, cudaMemcpyDeviceToDevice));
    MUST(cudaDeviceSynchronize());
    snprintf(what, sizeof what, "%s_memcpy_device_to_device", when);
    expect(what, holds(0, a, 30, 1));
    MUST(cudaMemcpy(b, a, bytes, cudaMemcpyDefault));
    MUST(cudaMemcpy2D(b, 4096, a, 8192, 1000, 100, cudaMemcpyDeviceToDevice));
    MUST(cudaDeviceSynchronize());
    snprintf(what, sizeof what, "%s_memcpy_2d", when);
    uint32_t row;
    MUST(cudaMemcpy(&row, b + 1024 * 99, 4, cudaMemcpyDeviceToHost));
    expect(what, row == 30 + 2048 * 99);
    MUST(cudaFree(a));
    MUST(cudaFree(b));
}

// Frees right behind a copy that has been asked for but has not run.
void freed_behind_a_copy()
{
    cudaStream_t stream;
    bool good = true;

    MUST(cudaSetDevice(0));
    MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    uint32_t *to = made_on(1, 0);
    for (uint32_t i = 0; i < 50; i++) {
        uint32_t *from;
        MUST(cudaSetDevice(0));
        MUST(cudaMallocAsync(&from, bytes, stream));
        fill<<<128, 256, 0, stream>>>(from, i, words);
        MUST(cudaMemcpyPeerAsync(to, 1, from, 0, bytes, stream));
        MUST(cudaFreeAsync(from, stream));
        if (i % 10 == 9) {
            MUST(cudaStreamSynchronize(stream));
            good = good && holds(1, to, i, 1);
        }
    }
    expect("freed_behind_a_copy", good);
    MUST(cudaSetDevice(0));
    MUST(cudaStreamDestroy(stream));
    MUST(cudaFree(to));
}

void kernels()
{
    uint32_t *before = made_on(1, 100); // there when access comes

    MUST(cudaSetDevice(0));
    MUST(cudaDeviceEnablePeerAccess(1, 0));
    outcome("enabled_again", cudaDeviceEnablePeerAccess(1, 0));
    uint32_t *mine = made_on(0, 5), *after = made_on(1, 200); // comes later
    MUST(cudaSetDevice(0));
    add<<<128, 256>>>(mine, before, words);
    add<<<128, 256>>>(mine, after, words);
    MUST(cudaDeviceSynchronize());
    expect("kernel_reads_the_other", holds(0, mine, 305, 3));
    MUST(cudaSetDevice(0));
    add<<<128, 256>>>(after, mine, words);
    MUST(cudaDeviceSynchronize());
    expect("kernel_writes_the_other", holds(1, after, 505, 4));
    for (int i = 0; i < 20; i++) { // memory comes and goes while access is on
        uint32_t *other = made_on(1, 1000);
        MUST(cudaSetDevice(0));
        fill<<<128, 256>>>(mine, 0, words);
        add<<<128, 256>>>(mine, other, words);
        MUST(cudaFree(other));
    }
    expect("comes_and_goes", holds(0, mine, 1000, 2));
    copies("with_access");
    MUST(cudaSetDevice(0));
    MUST(cudaDeviceDisablePeerAccess(1));
    outcome("disabled_again", cudaDeviceDisablePeerAccess(1));
    expect("still_there", holds(1, before, 100, 1));
    for (uint32_t *p : {before, mine, after})
        MUST(cudaFree(p));
}

void attributes()
{
    uint32_t *there = made_on(1, 1);
    cudaPointerAttributes a;

    MUST(cudaSetDevice(0));
    MUST(cudaPointerGetAttributes(&a, there));
    printf("RESULT attributes type %d device %d\n", (int)a.type, a.device);
    MUST(cudaFree(there)); // from the other device
}

} // namespace

int main()
{
    int count = 0, reach = 0;

    alarm(100);
    MUST(cudaGetDeviceCount(&count));
    if (count < 2) {
        printf("RESULT devices %d\n", count);
        return 1;
    }
    copies("before");
    freed_behind_a_copy();
    MUST(cudaDeviceCanAccessPeer(&reach, 0, 1));
    printf("RESULT can_access_peer %d\n", reach);
    if (reach)
        kernels();
    copies("afterwards");
    attributes();
    printf("RESULT failures %d\n", failures);
    return failures != 0;
}
