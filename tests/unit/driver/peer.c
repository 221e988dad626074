/*
 * The other process of process.c: run as `softdriver_peer MODE`, under the environment
 * that the test sets. Prints what it saw; exits 0 unless something unforeseen happened.
 */
#include <cuda.h>

#include "softcuda.h"
#include "tests/system.h"

#define MIB ((size_t)1 << 20)

#define MUST(call)                                                            \
    do {                                                                      \
        int must_result = (int)(call);                                        \
        if (must_result) {                                                    \
            fprintf(stderr, "softdriver_peer: %s: %d\n", #call, must_result); \
            _exit(3);                                                         \
        }                                                                     \
    } while (0)

static CUcontext context;

static void start(void)
{
    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
}

static CUmemAllocationProp prop_new(void)
{
    CUmemAllocationProp prop;

    memset(&prop, 0, sizeof prop);
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    return prop;
}

static int create_four(void)
{
    CUmemAllocationProp prop = prop_new();
    CUmemGenericAllocationHandle handle;

    start();
    for (int i = 0; i < 4; i++) {
        printf("%d ", (int)cuMemCreate(&handle, 2 * MIB, &prop, 0));
        fflush(stdout);
    }
    return 0;
}

static int devices(void)
{
    int count;

    MUST(cuInit(0));
    MUST(cuDeviceGetCount(&count));
    for (int i = 0; i < count; i++) {
        CUuuid uuid;
        MUST(cuDeviceGetUuid(&uuid, i));
        for (int j = 0; j < 16; j++)
            printf("%02x", (unsigned char)uuid.bytes[j]);
        printf(" ");
    }
    return 0;
}

static int memory(void)
{
    size_t free_bytes, total;

    start();
    MUST(cuMemGetInfo(&free_bytes, &total));
    printf("%zu", total);
    return 0;
}

/* What taking 64 MiB gave, and the free MiB after it. */
static int take_64(void)
{
    size_t free_bytes, total;
    CUdeviceptr block;
    int result;

    start();
    result = (int)cuMemAlloc(&block, 64 * MIB);
    MUST(cuMemGetInfo(&free_bytes, &total));
    printf("%d %zu", result, free_bytes / MIB);
    return 0;
}

/* Takes and gives memory until it is killed; a letter on descriptor 1 when it begins. */
static int churn(void)
{
    CUdeviceptr block;

    start();
    MUST(write(1, "c", 1) != 1);
    for (;;)
        if (cuMemAlloc(&block, 2 * MIB) == CUDA_SUCCESS)
            MUST(cuMemFree(block));
}

/* The same beside a child that has all its descriptors until descriptor 0 ends. */
static int churn_forked(void)
{
    char letter;

    start();
    if (fork() == 0) {
        prctl(PR_SET_PDEATHSIG, 0);
        _exit((int)read(0, &letter, 1));
    }
    return churn();
}

static int leak(void)
{
    CUmemAllocationProp prop = prop_new();
    CUmemGenericAllocationHandle handle;
    CUevent event;
    CUstream stream;
    int fd;

    start();
    MUST(cuMemCreate(&handle, 4 * MIB, &prop, 0));
    MUST(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    MUST(cuEventCreate(&event, 0));
    MUST(cuStreamCreate(&stream, 0));
    return 0;
}

static int exit_busy(void)
{
    static const char ptx[] = ".version 8.0 .target sm_90 .visible .entry spin() {}";
    uint64_t ns = 60000000000u;
    CUmodule module;
    CUfunction function;

    start();
    MUST(cuModuleLoadData(&module, ptx));
    MUST(cuModuleGetFunction(&function, module, "spin"));
    MUST(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, (void *[]){&ns}, NULL));
    return 0;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(void);
    } modes[] = {{"take_64", take_64},         {"churn_forked", churn_forked},
                 {"create_four", create_four}, {"devices", devices},
                 {"memory", memory},           {"leak", leak},
                 {"exit_busy", exit_busy}};

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (size_t i = 0; argc == 2 && i < sizeof modes / sizeof *modes; i++)
        if (!strcmp(argv[1], modes[i].name))
            return modes[i].run();
    fprintf(stderr, "usage: softdriver_peer MODE\n");
    return 2;
}
