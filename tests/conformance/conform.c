/* The ground the conformance tests stand on: see conform.h. */
#include "conform.h"
#include "kernels.h"

#include <criterion/criterion.h>

#define KERNELS  6
#define CONTEXTS 8

static const char *const kernel_names[KERNELS] = {"spin",     "fill",        "spin_fill",
                                                  "scribble", "count_other", "copy_words"};
enum kernel { SPIN, FILL, SPIN_FILL, SCRIBBLE, COUNT_OTHER, COPY_WORDS };

/* The kernels of one context; a module belongs to the context it was loaded in. */
struct kernels {
    CUcontext owner;
    CUfunction function[KERNELS];
};

CUdevice device;
CUcontext context;

static pthread_mutex_t kernels_lock = PTHREAD_MUTEX_INITIALIZER; /* protects loaded */
static struct kernels loaded[CONTEXTS];

const char *result_name(CUresult result)
{
    static __thread char numbers[8][32];
    static __thread unsigned int next;
    const char *name = NULL;
    char *number;

    if (cuGetErrorName(result, &name) == CUDA_SUCCESS && name)
        return name;
    number = numbers[next++ % 8];
    snprintf(number, sizeof numbers[0], "CUresult %d", (int)result);
    return number;
}

void probe(const char *name, const char *format, ...)
{
    char line[1024];
    va_list args;
    int n = snprintf(line, sizeof line, "PROBE %s = ", name);

    va_start(args, format);
    n += vsnprintf(line + n, sizeof line - 1 - (size_t)n, format, args);
    va_end(args);
    if (n > (int)sizeof line - 2)
        n = (int)sizeof line - 2;
    line[n++] = '\n';
    /* One write, so that tests running side by side do not mix their lines. */
    if (write(STDOUT_FILENO, line, (size_t)n) != n)
        cr_assert_fail("cannot write a probe to stdout");
}

bool under_shim(void)
{
    const char *enable = getenv("GPUSHIM_ENABLE");

    if (enable && (strcmp(enable, "0") == 0 || strcmp(enable, "off") == 0))
        return false;
    /* Whatever the file is called: there are some that are made otherwise (tests/stress). */
    return dlsym(RTLD_DEFAULT, "gpushim_memory") != NULL;
}

bool under_shim_with_events(void)
{
    const char *preload = getenv("LD_PRELOAD");

    return under_shim() && driver_lookup("cuCtxRecordEvent", 12050, 0) &&
           !(preload && strstr(preload, "old-driver")); /* tests/stress/old_driver.c */
}

bool software_driver(void)
{
    return dlsym(RTLD_DEFAULT, "softcuda_version") != NULL;
}

void *driver_lookup(const char *name, int version, cuuint64_t flags)
{
    void *address = NULL;

    if (cuGetProcAddress(name, &address, version, flags, NULL) != CUDA_SUCCESS)
        return NULL;
    return address;
}

void sleep_ms(unsigned int ms)
{
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};

    nanosleep(&t, NULL);
}

void conform_start(void)
{
    OK(cuInit(0));
    OK(cuDeviceGet(&device, 0));
    OK(cuDevicePrimaryCtxRetain(&context, device));
    OK(cuCtxSetCurrent(context));
}

bool is_busy(CUstream stream)
{
    CUresult r = cuStreamQuery(stream);

    if (r != CUDA_ERROR_NOT_READY)
        OK(r);
    return r == CUDA_ERROR_NOT_READY;
}

CUstream new_stream(void)
{
    CUstream stream = NULL;

    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

CUstream blocking_stream(void)
{
    CUstream stream = NULL;

    OK(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
    return stream;
}

CUresult capture_result(CUstream stream)
{
    CUgraph graph = NULL;
    CUresult r = cuStreamEndCapture(stream, &graph);

    if (graph)
        OK(cuGraphDestroy(graph));
    return r;
}

CUevent new_event(void)
{
    CUevent event = NULL;

    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    return event;
}

CUmemoryPool new_pool(CUmemAllocationHandleType types)
{
    const CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                  .handleTypes = types,
                                  .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
    CUmemoryPool pool = NULL;

    OK(cuMemPoolCreate(&pool, &props));
    return pool;
}

const cuuint64_t default_streams[2] = {CU_GET_PROC_ADDRESS_LEGACY_STREAM,
                                       CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM};

void end_capture(CUstream stream)
{
    CUgraph graph = NULL;

    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphDestroy(graph));
}

const struct software *software(void)
{
    static struct software calls;

    if (!software_driver())
        return NULL;
    *(void **)&calls.fail = dlsym(RTLD_DEFAULT, "softcuda_fail");
    *(void **)&calls.delay = dlsym(RTLD_DEFAULT, "softcuda_delay");
    *(void **)&calls.calls = dlsym(RTLD_DEFAULT, "softcuda_calls");
    *(void **)&calls.reset = dlsym(RTLD_DEFAULT, "softcuda_reset");
    *(void **)&calls.hold = dlsym(RTLD_DEFAULT, "softcuda_hold");
    return &calls;
}

CUresult memory_alloc(enum memory_kind kind, CUdeviceptr *ret_ptr, size_t size)
{
    size_t pitch;

    if (kind == MEMORY_ASYNC)
        return cuMemAllocAsync(ret_ptr, size, CU_STREAM_LEGACY);
    if (kind == MEMORY_PITCH)
        return cuMemAllocPitch(ret_ptr, &pitch, size < 4096 ? size : 4096, (size + 4095) / 4096, 4);
    return cuMemAlloc(ret_ptr, size);
}

CUresult memory_free(enum memory_kind kind, CUdeviceptr ptr)
{
    return kind == MEMORY_ASYNC ? cuMemFreeAsync(ptr, CU_STREAM_LEGACY) : cuMemFree(ptr);
}

CUdeviceptr allocated(size_t size)
{
    CUdeviceptr ptr = 0;

    OK(cuMemAlloc(&ptr, size));
    return ptr;
}

CUdeviceptr filled(size_t size, uint32_t value)
{
    CUdeviceptr ptr = allocated(size);

    OK(fill_now(ptr, value, size / 4));
    return ptr;
}

static CUresult kernels_load(struct kernels *kernels, CUcontext owner)
{
    CUmodule module;
    CUresult r = cuModuleLoadData(&module, kernels_ptx);

    for (int i = 0; i < KERNELS && r == CUDA_SUCCESS; i++)
        r = cuModuleGetFunction(&kernels->function[i], module, kernel_names[i]);
    if (r == CUDA_SUCCESS)
        kernels->owner = owner;
    return r;
}

/* The current context's kernel, loaded when first asked for. */
static CUresult kernel_find(enum kernel which, CUfunction *ret_function)
{
    CUcontext current = NULL;
    CUresult r = cuCtxGetCurrent(&current);

    if (r != CUDA_SUCCESS)
        return r;
    if (!current)
        return CUDA_ERROR_INVALID_CONTEXT;
    r = CUDA_ERROR_NOT_FOUND;
    pthread_mutex_lock(&kernels_lock);
    for (int i = 0; i < CONTEXTS; i++) {
        struct kernels *kernels = &loaded[i];
        if (kernels->owner && kernels->owner != current)
            continue;
        r = kernels->owner ? CUDA_SUCCESS : kernels_load(kernels, current);
        if (r == CUDA_SUCCESS)
            *ret_function = kernels->function[which];
        break;
    }
    pthread_mutex_unlock(&kernels_lock);
    return r;
}

void kernels_forget(void)
{
    CUcontext current = NULL;

    OK(cuCtxGetCurrent(&current));
    pthread_mutex_lock(&kernels_lock);
    for (int i = 0; i < CONTEXTS; i++)
        if (loaded[i].owner == current) {
            int last = i;
            while (last + 1 < CONTEXTS && loaded[last + 1].owner)
                last++;
            loaded[i] = loaded[last];
            loaded[last].owner = NULL;
        }
    pthread_mutex_unlock(&kernels_lock);
}

static CUresult kernel_launch(enum kernel which, CUstream stream, size_t words, void **args)
{
    CUfunction function;
    unsigned int blocks = words >= 32768 ? 128 : (unsigned int)((words + 255) / 256);
    CUresult r = kernel_find(which, &function);

    if (r != CUDA_SUCCESS)
        return r;
    if (which == SPIN)
        return cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, args, NULL);
    return cuLaunchKernel(function, blocks ? blocks : 1, 1, 1, 256, 1, 1, 0, stream, args, NULL);
}

CUresult launch_early_fill(CUstream stream, CUdeviceptr ptr, uint32_t value, size_t words)
{
    __typeof__(&cuLaunchKernelEx) launch =
        (__typeof__(launch))driver_lookup("cuLaunchKernelEx", 11060, 0);
    CUlaunchAttribute attribute = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                                   .value.programmaticStreamSerializationAllowed = 1};
    const CUlaunchConfig config = {.gridDimX = 1,
                                   .gridDimY = 1,
                                   .gridDimZ = 1,
                                   .blockDimX = 256,
                                   .blockDimY = 1,
                                   .blockDimZ = 1,
                                   .hStream = stream,
                                   .attrs = &attribute,
                                   .numAttrs = 1};
    uint64_t count = words;
    CUfunction function;
    CUresult r = kernel_find(FILL, &function);

    if (r != CUDA_SUCCESS || !launch)
        return r ? r : CUDA_ERROR_NOT_SUPPORTED;
    return launch(&config, function, (void *[]){&ptr, &value, &count}, NULL);
}

CUresult launch_spin(CUstream stream, uint64_t ns)
{
    return kernel_launch(SPIN, stream, 1, (void *[]){&ns});
}

CUresult launch_fill(CUstream stream, CUdeviceptr ptr, uint32_t value, size_t words)
{
    uint64_t count = words;

    return kernel_launch(FILL, stream, words, (void *[]){&ptr, &value, &count});
}

CUresult launch_spin_fill(CUstream stream, CUdeviceptr ptr, uint32_t value, size_t words,
                          uint64_t ns)
{
    uint64_t count = words;

    return kernel_launch(SPIN_FILL, stream, words, (void *[]){&ptr, &value, &count, &ns});
}

CUresult launch_scribble(CUstream stream, CUdeviceptr ptr, size_t words, uint64_t ns)
{
    uint64_t count = words;

    return kernel_launch(SCRIBBLE, stream, words, (void *[]){&ptr, &count, &ns});
}

CUresult launch_count_other(CUstream stream, CUdeviceptr ptr, uint32_t value, size_t words,
                            CUdeviceptr out)
{
    uint64_t count = words;

    return kernel_launch(COUNT_OTHER, stream, words, (void *[]){&ptr, &value, &count, &out});
}

CUresult launch_copy(CUstream stream, CUdeviceptr dst, CUdeviceptr src, size_t words)
{
    uint64_t count = words;

    return kernel_launch(COPY_WORDS, stream, words, (void *[]){&dst, &src, &count});
}

CUresult fill_now(CUdeviceptr ptr, uint32_t value, size_t words)
{
    CUresult r = launch_fill(CU_STREAM_LEGACY, ptr, value, words);

    return r == CUDA_SUCCESS ? cuStreamSynchronize(CU_STREAM_LEGACY) : r;
}

typedef CUresult (*batch_fn)(CUdeviceptr *, CUdeviceptr *, size_t *, size_t, CUmemcpyAttributes *,
                             size_t *, size_t, size_t *, CUstream);
typedef CUresult (*batch_v2_fn)(CUdeviceptr *, CUdeviceptr *, size_t *, size_t,
                                CUmemcpyAttributes *, size_t *, size_t, CUstream);

CUresult copy_batch(int form, CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t *ret_fail,
                    CUstream stream)
{
    CUmemcpyAttributes order = {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
    void *function = driver_lookup("cuMemcpyBatchAsync", form ? 13000 : 12080, 0);
    size_t first = 0;

    *ret_fail = 77;
    if (!function)
        return CUDA_ERROR_NOT_FOUND;
    return form ? ((batch_v2_fn)function)(dsts, srcs, sizes, 2, &order, &first, 1, stream)
                : ((batch_fn)function)(dsts, srcs, sizes, 2, &order, &first, 1, ret_fail, stream);
}

size_t words_other(CUdeviceptr ptr, uint32_t value, size_t words)
{
    uint32_t *host = malloc(words * sizeof *host);
    size_t other = 0;

    if (!host || cuMemcpyDtoH(host, ptr, words * sizeof *host) != CUDA_SUCCESS) {
        free(host);
        return SIZE_MAX;
    }
    for (size_t i = 0; i < words; i++)
        other += host[i] != value;
    free(host);
    return other;
}

size_t memory_free_bytes(void)
{
    size_t free_bytes = 0, total = 0;

    OK(cuMemGetInfo(&free_bytes, &total));
    return free_bytes;
}

CUmemAllocationProp device_memory(CUmemAllocationHandleType types)
{
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .requestedHandleTypes = types,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
}

void access_set(CUdeviceptr ptr, size_t size, CUmemAccess_flags flags)
{
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
                              .flags = flags};

    OK(cuMemSetAccess(ptr, size, &access, 1));
}

CUresult physical_memory(size_t size)
{
    const CUmemAllocationProp prop = device_memory(CU_MEM_HANDLE_TYPE_NONE);
    CUmemGenericAllocationHandle handle = 0;
    CUresult r = cuMemCreate(&handle, size, &prop, 0);

    return r ? r : cuMemRelease(handle);
}

CUcontext second_device(void)
{
    CUcontext second = NULL;
    int count = 0;

    OK(cuDeviceGetCount(&count));
    if (count < 2)
        cr_skip_test("one device");
    OK(cuDevicePrimaryCtxRetain(&second, 1));
    OK(cuCtxSetCurrent(second));
    return second;
}

/* cuda.h renames cuCtxCreate to a form that older drivers lack; this is the one of CUDA 3.2. */
CUcontext context_create(CUdevice on)
{
    typedef CUresult (*create_fn)(CUcontext *, unsigned int, CUdevice);
    create_fn create = (create_fn)driver_lookup("cuCtxCreate", 11000, 0);
    CUcontext created = NULL;

    cr_assert(create, "no cuCtxCreate");
    OK(create(&created, 0, on));
    return created;
}

CUgraphNodeParams a_fill(CUdeviceptr dst, unsigned int value, size_t words, CUcontext in)
{
    CUgraphNodeParams params;

    memset(&params, 0, sizeof params);
    params.type = CU_GRAPH_NODE_TYPE_MEMSET;
    params.memset.dst = dst;
    params.memset.value = value;
    params.memset.elementSize = 4;
    params.memset.width = words;
    params.memset.height = 1;
    params.memset.ctx = in;
    return params;
}

CUgraphNodeParams a_copy(CUdeviceptr dst, CUdeviceptr src, size_t bytes)
{
    CUgraphNodeParams params;

    memset(&params, 0, sizeof params);
    params.type = CU_GRAPH_NODE_TYPE_MEMCPY;
    params.memcpy.copyCtx = context;
    params.memcpy.copyParams = box_copy(dst, src, bytes, 1, 1);
    return params;
}

void run_graph(CUgraph graph, CUstream stream)
{
    CUgraphExec exec = NULL;

    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphLaunch(exec, stream));
    OK(cuStreamSynchronize(stream));
    OK(cuGraphExecDestroy(exec));
}

static void in_context(CUcontext which)
{
    OK(cuCtxSetCurrent(which ? which : context));
}

static CUresult have(CUstream stream, CUdeviceptr *ret_ptr, size_t size)
{
    return stream == PLAINLY ? cuMemAlloc(ret_ptr, size) : cuMemAllocAsync(ret_ptr, size, stream);
}

static CUresult give(CUstream stream, CUdeviceptr ptr)
{
    return stream == PLAINLY ? cuMemFree(ptr) : cuMemFreeAsync(ptr, stream);
}

void turn_over(const struct turn *turn, size_t size)
{
    CUdeviceptr old = 0, fresh = 0;

    in_context(turn->owner);
    OK(have(turn->has, &old, size));
    in_context(turn->worker);
    OK(launch_spin_fill(turn->works, old, 0x01d01d01, size / 4, 5 * MILLISECOND));
    if (turn->destroys)
        OK(cuStreamDestroy(turn->works));
    in_context(turn->freer);
    OK(give(turn->frees, old));
    in_context(turn->taker);
    OK(have(turn->takes, &fresh, size));
    OK(launch_fill(turn->fills, fresh, 0x2e2e2e2e, size / 4));
    OK(cuStreamSynchronize(turn->fills));
    in_context(turn->worker);
    OK(cuCtxSynchronize());
    in_context(NULL);
    cr_assert_eq(words_other(fresh, 0x2e2e2e2e, size / 4), 0, "%zu bytes%s", size,
                 old == fresh ? ", the same block" : "");
    in_context(turn->taker);
    OK(give(turn->takes, fresh));
    OK(cuStreamSynchronize(turn->fills));
    in_context(NULL);
}

void next_owners(unsigned count, size_t size, CUstream stream, unsigned late_ms)
{
    CUdeviceptr next[16];

    for (unsigned i = 0; i < count; i++) {
        OK(cuMemAlloc(&next[i], size));
        OK(launch_fill(stream, next[i], 0x2e2e2e2e, size / 4));
    }
    OK(late_ms ? cuStreamSynchronize(stream) : cuCtxSynchronize());
    sleep_ms(late_ms);
    for (unsigned i = 0; i < count; i++) {
        cr_assert_eq(words_other(next[i], 0x2e2e2e2e, size / 4), 0, "block %u of %zu bytes", i,
                     size);
        OK(cuMemFree(next[i]));
    }
}

void turns_over(const struct turn *turn, int rounds)
{
    static const size_t sizes[] = {512, 64 * KIB, MIB, 2 * MIB, 6 * MIB};

    for (int i = 0; i < rounds; i++)
        turn_over(turn, sizes[i % 5]);
}
