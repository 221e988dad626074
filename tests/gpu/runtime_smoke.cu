// A program on the CUDA runtime, as people write them: allocations of every kind with kernels on
// them, a captured graph, and sharing with a second process. Prints "RESULT what outcome" lines
// that tests/gpu/run.sh compares with and without the shim; nothing in them depends on addresses,
// times or the machine. Built twice: with the static and with the shared runtime library.

#include <cuda_runtime.h>

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace
{

int failures;

__attribute__((format(printf, 2, 3))) void result(const char *what, const char *format, ...)
{
    va_list args;

    printf("RESULT %s ", what);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    putchar('\n');
    fflush(stdout);
}

void expect(const char *what, bool good)
{
    result(what, good ? "ok" : "WRONG");
    failures += !good;
}

// Ends the program where a call fails that never should.
void must(cudaError_t e, const char *call, int line)
{
    if (e == cudaSuccess)
        return;
    result(call, "line %d: %s", line, cudaGetErrorName(e));
    exit(1);
}
#define MUST(call) must(call, #call, __LINE__)

__global__ void fill(uint32_t *p, uint32_t value, size_t n)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x)
        p[i] = value + (uint32_t)i;
}

__global__ void late_fill(uint32_t *p, uint32_t value, size_t n, long long cycles)
{
    long long start = clock64();

    while (clock64() - start < cycles)
        ;
    for (size_t i = threadIdx.x; i < n; i += blockDim.x)
        p[i] = value;
}

__global__ void count_wrong(const uint32_t *p, uint32_t value, size_t n, unsigned int *wrong)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x)
        if (p[i] != value + (uint32_t)i)
            atomicAdd(wrong, 1);
}

void write_words(void *p, uint32_t value, size_t bytes)
{
    fill<<<64, 256>>>((uint32_t *)p, value, bytes / 4);
    MUST(cudaGetLastError());
    MUST(cudaDeviceSynchronize());
}

bool holds(const void *p, uint32_t value, size_t bytes)
{
    unsigned int *wrong, seen = 1;

    MUST(cudaMalloc(&wrong, sizeof *wrong));
    MUST(cudaMemset(wrong, 0, sizeof *wrong));
    count_wrong<<<64, 256>>>((const uint32_t *)p, value, bytes / 4, wrong);
    MUST(cudaGetLastError());
    MUST(cudaMemcpy(&seen, wrong, sizeof seen, cudaMemcpyDeviceToHost));
    MUST(cudaFree(wrong));
    return seen == 0;
}

void plain_memory()
{
    bool good = true;

    for (size_t bytes = 4; bytes <= ((size_t)256 << 20); bytes *= 4) {
        void *p;
        MUST(cudaMalloc(&p, bytes));
        write_words(p, 7, bytes);
        good = good && holds(p, 7, bytes);
        MUST(cudaFree(p));
    }
    expect("malloc", good);
}

void async_memory()
{
    cudaStream_t stream;
    bool good = true;

    MUST(cudaStreamCreate(&stream));
    for (size_t bytes = 4; bytes <= ((size_t)64 << 20); bytes *= 4) {
        void *p;
        MUST(cudaMallocAsync(&p, bytes, stream));
        fill<<<64, 256, 0, stream>>>((uint32_t *)p, 9, bytes / 4);
        MUST(cudaStreamSynchronize(stream));
        good = good && holds(p, 9, bytes);
        MUST(cudaFreeAsync(p, stream));
    }
    MUST(cudaStreamSynchronize(stream));
    expect("malloc_async", good);
    MUST(cudaStreamDestroy(stream));
}

void pitched_memory()
{
    std::vector<unsigned char> in(1000 * 50), out(in.size());
    size_t pitch;
    void *p;

    for (size_t i = 0; i < in.size(); i++)
        in[i] = (unsigned char)(i * 31);
    MUST(cudaMallocPitch(&p, &pitch, 1000, 50));
    MUST(cudaMemcpy2D(p, pitch, in.data(), 1000, 1000, 50, cudaMemcpyHostToDevice));
    MUST(cudaMemcpy2D(out.data(), 1000, p, pitch, 1000, 50, cudaMemcpyDeviceToHost));
    result("pitch", "%zu", pitch);
    expect("pitch_contents", in == out);
    MUST(cudaFree(p));
}

void attributes()
{
    cudaPointerAttributes a;
    void *p;

    MUST(cudaMalloc(&p, 1 << 20));
    MUST(cudaPointerGetAttributes(&a, (char *)p + 100));
    result("attributes_malloc", "type %d device %d pointer +%td host %d", (int)a.type, a.device,
           (char *)a.devicePointer - (char *)p, a.hostPointer != nullptr);
    MUST(cudaFree(p));
    MUST(cudaMallocAsync(&p, 1 << 20, 0));
    MUST(cudaPointerGetAttributes(&a, p));
    result("attributes_async", "type %d device %d", (int)a.type, a.device);
    MUST(cudaFreeAsync(p, 0));
    MUST(cudaMallocManaged(&p, 1 << 20));
    MUST(cudaPointerGetAttributes(&a, p));
    result("attributes_managed", "type %d device %d", (int)a.type, a.device);
    MUST(cudaFree(p));
    MUST(cudaMallocHost(&p, 1 << 20));
    MUST(cudaPointerGetAttributes(&a, p));
    result("attributes_host", "type %d", (int)a.type);
    MUST(cudaFreeHost(p));
    int local = 0;
    MUST(cudaPointerGetAttributes(&a, &local));
    result("attributes_stack", "type %d", (int)a.type);
}

void free_memory()
{
    size_t before, during, after, total;
    void *p;

    MUST(cudaMemGetInfo(&before, &total));
    MUST(cudaMalloc(&p, (size_t)256 << 20));
    MUST(cudaMemGetInfo(&during, &total));
    MUST(cudaFree(p));
    MUST(cudaDeviceSynchronize());
    MUST(cudaMemGetInfo(&after, &total));
    // Others may come and go on the device meanwhile, and a library takes some for itself.
    printf("NEAR memory_drops_by %zu 34\nNEAR missing_after_the_free %zu 34\n",
           (before - during) >> 20, before > after ? (before - after) >> 20 : 0);
}

void errors()
{
    void *p = nullptr, *none = (void *)0x1234000;
    cudaIpcMemHandle_t handle;

    result("free_null", "%s", cudaGetErrorName(cudaFree(nullptr)));
    result("free_unknown", "%s", cudaGetErrorName(cudaFree(none)));
    MUST(cudaMalloc(&p, 1 << 20));
    result("free_interior", "%s", cudaGetErrorName(cudaFree((char *)p + 512)));
    MUST(cudaFree(p));
    result("free_twice", "%s", cudaGetErrorName(cudaFree(p)));
    result("malloc_zero", "%s", cudaGetErrorName(cudaMalloc(&p, 0)));
    result("malloc_huge", "%s", cudaGetErrorName(cudaMalloc(&p, (size_t)1 << 50)));
    result("ipc_unknown", "%s", cudaGetErrorName(cudaIpcGetMemHandle(&handle, none)));
    cudaGetLastError();
    MUST(cudaDeviceSynchronize());
}

// The old owner's kernel is still to write when the new owner gets its memory.
void reuse()
{
    cudaStream_t user, filler;
    bool good = true;

    MUST(cudaStreamCreateWithFlags(&user, cudaStreamNonBlocking));
    MUST(cudaStreamCreateWithFlags(&filler, cudaStreamNonBlocking));
    for (int i = 0; i < 60; i++) {
        size_t bytes = (size_t)4096 << (i % 4 * 4);
        void *old, *fresh;
        MUST(cudaMalloc(&old, bytes));
        late_fill<<<1, 256, 0, user>>>((uint32_t *)old, 1, bytes / 4, 4000000);
        MUST(cudaFree(old));
        MUST(cudaMalloc(&fresh, bytes));
        fill<<<64, 256, 0, filler>>>((uint32_t *)fresh, 3, bytes / 4);
        MUST(cudaDeviceSynchronize());
        good = good && holds(fresh, 3, bytes);
        MUST(cudaFree(fresh));
    }
    expect("reuse_behind_kernels", good);
    MUST(cudaStreamDestroy(user));
    MUST(cudaStreamDestroy(filler));
}

void graph()
{
    cudaStream_t stream;
    cudaGraph_t captured;
    cudaGraphExec_t exec;
    uint32_t *p, *inside;

    MUST(cudaMalloc(&p, 1 << 20));
    MUST(cudaStreamCreate(&stream));
    MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    MUST(cudaMallocAsync(&inside, 1 << 20, stream));
    fill<<<64, 256, 0, stream>>>(inside, 21, (1 << 20) / 4);
    MUST(cudaMemcpyAsync(p, inside, 1 << 20, cudaMemcpyDeviceToDevice, stream));
    MUST(cudaFreeAsync(inside, stream));
    MUST(cudaStreamEndCapture(stream, &captured));
    MUST(cudaGraphInstantiate(&exec, captured, 0));
    MUST(cudaMemset(p, 0, 1 << 20));
    MUST(cudaGraphLaunch(exec, stream));
    MUST(cudaStreamSynchronize(stream));
    expect("graph_with_memory", holds(p, 21, 1 << 20));
    MUST(cudaGraphExecDestroy(exec));
    MUST(cudaGraphDestroy(captured));
    MUST(cudaStreamDestroy(stream));
    MUST(cudaFree(p));
}

void threads()
{
    std::vector<std::thread> all;
    std::vector<char> good(4, 1);

    for (int t = 0; t < 4; t++)
        all.emplace_back([t, &good] {
            for (int i = 0; i < 100; i++) {
                size_t bytes = (size_t)4 << (i % 18);
                void *p;
                uint32_t word = 0, mark = (uint32_t)(t * 1000 + i);
                if (cudaMalloc(&p, bytes) != cudaSuccess ||
                    cudaMemcpy(p, &mark, 4, cudaMemcpyHostToDevice) != cudaSuccess ||
                    cudaMemcpy(&word, p, 4, cudaMemcpyDeviceToHost) != cudaSuccess ||
                    word != mark || cudaFree(p) != cudaSuccess)
                    good[t] = 0;
            }
        });
    for (auto &t : all)
        t.join();
    expect("threads", good[0] && good[1] && good[2] && good[3]);
}

// ---- sharing: the consumer is this program again, with its end of two pipes as arguments ----

struct offer {
    cudaIpcMemHandle_t handle;
    size_t bytes;
    uint32_t value;
};

int consumer(int from, int to)
{
    struct offer o;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (read(from, &o, sizeof o) == (ssize_t)sizeof o) {
        void *p = nullptr;
        int outcome = cudaIpcOpenMemHandle(&p, o.handle, cudaIpcMemLazyEnablePeerAccess);
        if (outcome == cudaSuccess) {
            outcome = holds(p, o.value, o.bytes) ? 0 : -1;
            write_words(p, o.value + 1, o.bytes);
            MUST(cudaIpcCloseMemHandle(p));
        }
        if (write(to, &outcome, sizeof outcome) != (ssize_t)sizeof outcome)
            return 1;
    }
    return 0;
}

struct process {
    pid_t pid;
    int to, from;
};

struct process start_consumer()
{
    int there[2], back[2];
    struct process p;
    char in[16], out[16];

    if (pipe(there) || pipe(back))
        exit(1);
    snprintf(in, sizeof in, "%d", there[0]);
    snprintf(out, sizeof out, "%d", back[1]);
    p.pid = fork();
    if (p.pid == 0) {
        close(there[1]);
        close(back[0]);
        execl("/proc/self/exe", "runtime_smoke", "--consumer", in, out, (char *)nullptr);
        _exit(127);
    }
    close(there[0]);
    close(back[1]);
    p.to = there[1];
    p.from = back[0];
    return p;
}

// What came of offering the memory, as a word for the result.
const char *share(struct process *p, void *memory, size_t bytes, uint32_t value)
{
    struct offer o;
    int outcome = 1;
    cudaError_t e = cudaIpcGetMemHandle(&o.handle, memory);

    if (e != cudaSuccess) {
        cudaGetLastError();
        return cudaGetErrorName(e);
    }
    o.bytes = bytes;
    o.value = value;
    write_words(memory, value, bytes);
    if (write(p->to, &o, sizeof o) != (ssize_t)sizeof o ||
        read(p->from, &outcome, sizeof outcome) != (ssize_t)sizeof outcome)
        return "the consumer died";
    if (outcome == -1)
        return "WRONG contents at the consumer";
    if (outcome != 0)
        return cudaGetErrorName((cudaError_t)outcome);
    return holds(memory, value + 1, bytes) ? "ok" : "WRONG contents after the consumer's write";
}

void sharing()
{
    struct process p = start_consumer();
    void *memory;

    MUST(cudaMalloc(&memory, (size_t)64 << 20));
    result("ipc_malloc_large", "%s", share(&p, memory, (size_t)64 << 20, 100));
    MUST(cudaFree(memory));
    MUST(cudaMalloc(&memory, 4096));
    result("ipc_malloc_small", "%s", share(&p, memory, 4096, 200));
    MUST(cudaFree(memory));
    MUST(cudaMallocAsync(&memory, 1 << 20, 0));
    MUST(cudaStreamSynchronize(0));
    // Only a library that keeps such memory shareable makes it "ok".
    printf("GAIN ipc_malloc_async %s\n", share(&p, memory, 1 << 20, 300));
    MUST(cudaFreeAsync(memory, 0));
    MUST(cudaDeviceSynchronize());
    close(p.to);
    waitpid(p.pid, nullptr, 0);
}

} // namespace

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "--consumer") == 0)
        return consumer(atoi(argv[2]), atoi(argv[3]));
    alarm(100);
    plain_memory();
    async_memory();
    pitched_memory();
    attributes();
    free_memory();
    errors();
    reuse();
    graph();
    threads();
    sharing();
    MUST(cudaDeviceSynchronize());
    result("failures", "%d", failures);
    return failures != 0;
}
