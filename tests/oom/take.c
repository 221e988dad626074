/*
 * A program that takes memory as its input says, a line at a time, and answers each with a line of
 * words: results of the driver as numbers, and sizes in bytes.
 *
 *   alloc|async|pitch|managed|create BYTES   result
 *   thread|handler BYTES                     result of alloc in a thread whose stack is the smallest that
 *                                            there is (16 KiB), in a signal's handler on one of 8 KiB
 *   refuse TIMES BYTES                       how many of so many allocations failed
 *   free N                                   result, of the N-th block that there is
 *   info | info32                            result, free, total
 *   total | total32                          result and total: of a direct call, of one that was
 *                                            looked up, and of one by cuGetProcAddress
 *   where SYMBOL                             the file whose function a look-up of it gives
 *   nvml [N] | nvml_v2 | nvml_direct         result, total, free, used, of the N-th device or the first: of
 *                                            functions that were looked up, and of a direct call
 *   nvml_reserved                            result, and what nvml_v2 has as the driver's own
 *   nvml_where SYMBOL                        as where, of NVML
 *
 * With an argument it does not begin with CUDA: only NVML may be asked. It is linked with the
 * driver, and with NVML, so that its direct calls meet what is exported before those.
 */
#include <cuda.h>

#include "tests/system.h"

#define BLOCKS 1024
#define NVML   "libnvidia-ml.so.1"

static CUdeviceptr blocks[BLOCKS];
static int count;
static bool has_context;

typedef CUresult total_fn(size_t *bytes, CUdevice device);
typedef CUresult total32_fn(unsigned *bytes, CUdevice device);
typedef CUresult info32_fn(unsigned *free, unsigned *total);
typedef CUresult find_fn(const char *symbol, void **pfn, int version, cuuint64_t flags,
                         CUdriverProcAddressQueryResult *status);

static void *look_up(const char *library, const char *symbol)
{
    void *handle = dlopen(library, RTLD_NOW);
    void *found = handle ? dlsym(handle, symbol) : NULL;

    if (!found)
        exit((fprintf(stderr, "no %s: %s\n", symbol, dlerror()), 1));
    return found;
}

static void *by_proc_address(const char *name, int version)
{
    find_fn *find = (find_fn *)look_up("libcuda.so.1", "cuGetProcAddress_v2");
    CUdriverProcAddressQueryResult status;
    void *found = NULL;

    if (find(name, &found, version, 0, &status) != CUDA_SUCCESS || !found)
        exit((fprintf(stderr, "no %s by cuGetProcAddress\n", name), 1));
    return found;
}

static void say_where(const void *function)
{
    Dl_info info;

    printf("%s\n", dladdr(function, &info) ? info.dli_fname : "nowhere");
}

/* Whatever it is, it leaves errno alone. */
static CUresult take_block(CUdeviceptr *block, size_t bytes)
{
    CUresult result;

    errno = EXDEV;
    result = cuMemAlloc(block, bytes);
    if (errno != EXDEV)
        exit((fprintf(stderr, "cuMemAlloc has set errno to %d\n", errno), 1));
    return result;
}

static CUresult take(const char *how, size_t bytes)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location.type = CU_MEM_LOCATION_TYPE_DEVICE};
    CUmemGenericAllocationHandle handle;
    CUdeviceptr *block = &blocks[count];
    CUresult result;
    size_t pitch;

    if (!strcmp(how, "create"))
        return cuMemCreate(&handle, bytes, &prop, 0);
    if (!strcmp(how, "async"))
        result = cuMemAllocAsync(block, bytes, NULL);
    else if (!strcmp(how, "managed"))
        result = cuMemAllocManaged(block, bytes, CU_MEM_ATTACH_GLOBAL);
    else if (!strcmp(how, "pitch"))
        result = cuMemAllocPitch(block, &pitch, 1024, bytes / 1024, 4);
    else
        result = take_block(block, bytes);
    count += result == CUDA_SUCCESS && count < BLOCKS - 1;
    return result;
}

/* ---- On small stacks ------------------------------------------------------------------------- */

#define SMALL_THREAD  16384
#define SMALL_HANDLER 8192

static size_t small_bytes;
static CUresult small_result;
static CUcontext small_context;

static void *take_in_thread(void *unused)
{
    (void)unused;
    small_result = cuCtxSetCurrent(small_context);
    if (!small_result)
        small_result = take("alloc", small_bytes);
    return NULL;
}

static void handle(int unused)
{
    (void)unused;
    small_result = take("alloc", small_bytes);
}

static CUresult take_on_small_stack(bool in_thread)
{
    char *guarded = mmap(NULL, 2 * SMALL_HANDLER, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const stack_t alternate = {.ss_sp = guarded + SMALL_HANDLER, .ss_size = SMALL_HANDLER};
    const struct sigaction action = {.sa_handler = handle, .sa_flags = SA_ONSTACK};
    pthread_attr_t attributes;
    pthread_t thread;

    cuCtxGetCurrent(&small_context);
    if (!in_thread) {
        if (guarded == MAP_FAILED ||
            mprotect(alternate.ss_sp, SMALL_HANDLER, PROT_READ | PROT_WRITE) ||
            sigaltstack(&alternate, NULL) || sigaction(SIGUSR1, &action, NULL) || raise(SIGUSR1))
            return CUDA_ERROR_UNKNOWN;
        return small_result;
    }
    pthread_attr_init(&attributes);
    if (pthread_attr_setstacksize(&attributes, SMALL_THREAD) ||
        pthread_create(&thread, &attributes, take_in_thread, NULL))
        return CUDA_ERROR_UNKNOWN;
    pthread_join(thread, NULL);
    pthread_attr_destroy(&attributes);
    return small_result;
}

static unsigned be_refused(unsigned times, size_t bytes)
{
    unsigned refused = 0;

    while (times-- > 0)
        refused += take("alloc", bytes) == CUDA_ERROR_OUT_OF_MEMORY;
    return refused;
}

static CUresult give(int index)
{
    CUdeviceptr block = index < count ? blocks[index] : 0;

    if (!block)
        return CUDA_ERROR_INVALID_VALUE;
    memmove(&blocks[index], &blocks[index + 1], (size_t)(--count - index) * sizeof *blocks);
    return cuMemFree(block);
}

static void say_info(void)
{
    size_t left = 0, total = 0;
    int result = cuMemGetInfo(&left, &total);

    printf("%d %zu %zu\n", result, left, total);
}

static void say_info32(void)
{
    unsigned left = 0, total = 0;
    int result = ((info32_fn *)look_up("libcuda.so.1", "cuMemGetInfo"))(&left, &total);

    printf("%d %u %u\n", result, left, total);
}

static void say_total(void)
{
    size_t a = 0, b = 0, c = 0;
    int result = cuDeviceTotalMem(&a, 0);

    result |= ((total_fn *)look_up("libcuda.so.1", "cuDeviceTotalMem_v2"))(&b, 0);
    result |= ((total_fn *)by_proc_address("cuDeviceTotalMem", 3020))(&c, 0);
    printf("%d %zu %zu %zu\n", result, a, b, c);
}

static void say_total32(void)
{
    unsigned total = 0;
    int result = ((total32_fn *)look_up("libcuda.so.1", "cuDeviceTotalMem"))(&total, 0);

    printf("%d %u\n", result, total);
}

/* ---- NVML ---------------------------------------------------------------------------------- */

struct memory {
    unsigned long long total, free, used;
};

struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

int nvmlInit_v2(void);
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device);
int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory);

typedef int memory_fn(void *device, struct memory *memory);
typedef int memory_v2_fn(void *device, struct memory_v2 *memory);

/* A device's, the first one's also before anything of CUDA is called. */
static void *nvml_device(CUdevice number)
{
    static char text[64] = "GPU-00000000-0000-0000-0000-000000000000";
    void *device = NULL;
    CUuuid uuid;

    if (has_context && cuDeviceGetUuid(&uuid, number) == CUDA_SUCCESS)
        for (int i = 0, at = 4; i < 16; i++)
            at += sprintf(text + at, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                          (unsigned char)uuid.bytes[i]);
    if (nvmlInit_v2() != 0 || nvmlDeviceGetHandleByUUID(text, &device) != 0)
        exit((fprintf(stderr, "NVML has no %s\n", text), 1));
    return device;
}

static void say_nvml(bool direct, CUdevice number)
{
    memory_fn *get = (memory_fn *)look_up(NVML, "nvmlDeviceGetMemoryInfo");
    void *device = nvml_device(number);
    struct memory memory = {0};
    int result = direct ? nvmlDeviceGetMemoryInfo(device, &memory) : get(device, &memory);

    printf("%d %llu %llu %llu\n", result, memory.total, memory.free, memory.used);
}

static void say_nvml_v2(bool reserved)
{
    memory_v2_fn *get = (memory_v2_fn *)look_up(NVML, "nvmlDeviceGetMemoryInfo_v2");
    struct memory_v2 memory = {.version = sizeof memory | 2u << 24};
    int result = get(nvml_device(0), &memory);

    if (reserved)
        printf("%d %llu\n", result, memory.reserved);
    else
        printf("%d %llu %llu %llu\n", result, memory.total, memory.free, memory.used);
}

static void act(char *line)
{
    char how[64] = "", word[64] = "";
    unsigned long long number = 0;
    unsigned times;

    sscanf(line, "%63s %63s", how, word);
    number = strtoull(word, NULL, 10);
    if (!strcmp(how, "free"))
        printf("%d\n", (int)give((int)number));
    else if (!strcmp(how, "thread") || !strcmp(how, "handler"))
        printf("%d\n", (int)(small_bytes = number, take_on_small_stack(!strcmp(how, "thread"))));
    else if (!strcmp(how, "info"))
        say_info();
    else if (!strcmp(how, "info32"))
        say_info32();
    else if (!strcmp(how, "total"))
        say_total();
    else if (!strcmp(how, "total32"))
        say_total32();
    else if (!strcmp(how, "where"))
        say_where(look_up("libcuda.so.1", word));
    else if (!strcmp(how, "nvml_where"))
        say_where(look_up(NVML, word));
    else if (!strcmp(how, "nvml") || !strcmp(how, "nvml_direct"))
        say_nvml(!strcmp(how, "nvml_direct"), (CUdevice)number);
    else if (!strcmp(how, "nvml_v2") || !strcmp(how, "nvml_reserved"))
        say_nvml_v2(!strcmp(how, "nvml_reserved"));
    else if (sscanf(line, "refuse %u %llu", &times, &number) == 2)
        printf("%u\n", be_refused(times, number));
    else
        printf("%d\n", (int)take(how, number));
    fflush(stdout);
}

int main(int argc, char **argv)
{
    CUcontext context;
    char line[256];

    has_context = argc < 2;
    if (has_context &&
        (cuInit(0) != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS ||
         cuCtxSetCurrent(context) != CUDA_SUCCESS))
        return 2;
    while (fgets(line, sizeof line, stdin))
        act(line);
    return 0;
}
