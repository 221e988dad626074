/*
 * While all work goes to one stream, freed memory is used again at once. What lets others reach
 * memory beside that stream ends it, and nothing else does; one case a run, under the library.
 *
 * usage: order CASE
 */
#include <cuda.h>

#include "tests/check.h"
#include "shim/gpushim.h"
#include "softcuda.h"
#include "tests/system.h"

#define SIZE ((size_t)64 << 10)

static CUcontext context;
static CUstream stream;
static CUdeviceptr block;

/* The software driver takes its own kernel by the name it finds here. */
static const char kernels[] = ".version 6.0\n.target sm_52\n.address_size 64\n"
                              ".visible .entry fill(\n.param .u64 p\n)\n";
static CUfunction fill;

static void launch(CUdeviceptr address, CUstream where)
{
    unsigned long long words = SIZE / 4;
    unsigned value = 1;
    void *parameters[] = {&address, &value, &words};

    CHECK(cuLaunchKernel(fill, 1, 1, 1, 1, 1, 1, 0, where, parameters, NULL) == CUDA_SUCCESS);
}

/* Whether what is freed behind work that has not begun is the next allocation's. */
static bool is_used_again_at_once(void)
{
    CUdeviceptr first, next;

    softcuda_hold(1);
    CHECK(cuMemAlloc(&first, SIZE) == CUDA_SUCCESS);
    launch(first, stream);
    CHECK(cuMemFree(first) == CUDA_SUCCESS);
    CHECK(cuMemAlloc(&next, SIZE) == CUDA_SUCCESS);
    softcuda_hold(0);
    CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    CHECK(cuMemFree(next) == CUDA_SUCCESS);
    return first == next;
}

/* ---- What ends it -------------------------------------------------------------------------- */

static int pin(void *arg, uintptr_t domain, uint64_t access, uint64_t address, size_t size,
               void **ret_handle)
{
    *ret_handle = arg;
    return 0;
}

static int unpin(void *arg, void *handle)
{
    return 0;
}

static void registration(void)
{
    static int handle;
    static const struct gpushim_pinner pinner = {sizeof pinner, "test", pin, unpin, &handle};
    __typeof__(&gpushim_pinner_add) add =
        (__typeof__(add))dlsym(RTLD_DEFAULT, "gpushim_pinner_add");
    __typeof__(&gpushim_pin) register_it =
        (__typeof__(register_it))dlsym(RTLD_DEFAULT, "gpushim_pin");
    void *of_the_device, *made;

    CHECK(add && register_it && add(&pinner) == 0);
    CHECK(register_it(&pinner, 1, 0, block, SIZE, &of_the_device, &made) == 0);
}

static void dmabuf(void)
{
    int fd;

    CHECK(cuMemGetHandleForAddressRange(&fd, block, SIZE, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0) ==
          CUDA_SUCCESS);
    close(fd);
}

static void tokens(void)
{
    CUDA_POINTER_ATTRIBUTE_P2P_TOKENS asked;

    cuPointerGetAttribute(&asked, CU_POINTER_ATTRIBUTE_P2P_TOKENS, block);
}

static void tokens_among_others(void)
{
    CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                   CU_POINTER_ATTRIBUTE_P2P_TOKENS};
    CUDA_POINTER_ATTRIBUTE_P2P_TOKENS asked;
    unsigned type;
    void *data[] = {&type, &asked};

    cuPointerGetAttributes(2, which, data, block);
}

static void sync_memops(void)
{
    unsigned on = 1;

    CHECK(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, block) == CUDA_SUCCESS);
}

static void ipc_handle(void)
{
    CUipcMemHandle handle;

    CHECK(cuIpcGetMemHandle(&handle, block) == CUDA_SUCCESS);
}

static void other_stream(void)
{
    CUstream other;

    CHECK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    launch(block, other);
    CHECK(cuStreamSynchronize(other) == CUDA_SUCCESS);
}

static void other_context(void)
{
    CUdeviceptr there;
    CUcontext other;

    CHECK(cuDevicePrimaryCtxRetain(&other, 1) == CUDA_SUCCESS);
    CHECK(cuCtxSetCurrent(other) == CUDA_SUCCESS && cuMemAlloc(&there, SIZE) == CUDA_SUCCESS);
    CHECK(cuCtxSetCurrent(context) == CUDA_SUCCESS);
}

static void capture(void)
{
    CUgraph graph;

    CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
    CHECK(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
}

static void allocated(void *arg, uint64_t address, size_t size)
{
}

static void listener(void)
{
    static const struct gpushim_listener listening = {.size = sizeof listening,
                                                      .allocated = allocated};
    __typeof__(&gpushim_listen) listen_to =
        (__typeof__(listen_to))dlsym(RTLD_DEFAULT, "gpushim_listen");

    CHECK(listen_to && listen_to(&listening) == 0);
}

/* ---- What does not ------------------------------------------------------------------------- */

static void nothing(void)
{
}

static void questions(void)
{
    unsigned value[4], off = 0;
    size_t size;

    CHECK(cuPointerGetAttribute(value, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, block) == CUDA_SUCCESS);
    CHECK(cuPointerSetAttribute(&off, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, block) == CUDA_SUCCESS);
    CHECK(cuMemGetAddressRange(NULL, &size, block) == CUDA_SUCCESS && size == SIZE);
}

static void work(void)
{
    char host[64];

    for (int i = 0; i < 100; i++)
        launch(block, stream);
    CHECK(cuMemcpyDtoHAsync(host, block, sizeof host, stream) == CUDA_SUCCESS);
    CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
}

static const struct {
    const char *name;
    void (*act)(void);
    bool ends;
} cases[] = {{"registration", registration, true},
             {"dma-buf", dmabuf, true},
             {"tokens", tokens, true},
             {"tokens among others", tokens_among_others, true},
             {"sync_memops", sync_memops, true},
             {"IPC handle", ipc_handle, true},
             {"other stream", other_stream, true},
             {"other context", other_context, true},
             {"capture", capture, true},
             {"listener", listener, true},
             {"nothing", nothing, false},
             {"questions", questions, false},
             {"work", work, false}};

int main(int argc, char **argv)
{
    CUmodule module;

    CHECK(cuInit(0) == CUDA_SUCCESS && cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
    CHECK(cuCtxSetCurrent(context) == CUDA_SUCCESS);
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    CHECK(cuModuleLoadData(&module, kernels) == CUDA_SUCCESS);
    CHECK(cuModuleGetFunction(&fill, module, "fill") == CUDA_SUCCESS);
    CHECK(cuMemAlloc(&block, SIZE) == CUDA_SUCCESS);
    CHECK(is_used_again_at_once());
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (argc != 2 || strcmp(argv[1], cases[i].name) != 0)
            continue;
        cases[i].act();
        CHECK(is_used_again_at_once() != cases[i].ends);
        return 0;
    }
    return 2;
}
