/*
 * Every call that submits GPU work tells the library to which stream: while all work goes to one
 * stream, freed memory is reused at once, so one call that is forgotten is memory that two kernels
 * use.
 *
 * Each call of CASES is made in processes of its own: the first work goes to one stream, the call
 * to another, and the log says that single-stream mode is over; or both go to the same, and it does
 * not. On the software driver the process is killed at the entry of the driver's function, so that
 * what the log says was told before. A copy or a fill ends nothing, and what it touches is not
 * reused at once: seen where the GPU stands still. Once on memory of the library's, once on other
 * memory.
 *
 * tests/preload/check_table.py wants each entry point that submits work to be in CASES
 * (submits_cases.h). Natively only the results are looked at.
 *
 * usage: submits LOG_FILE
 */
#include "../../shim/cuda_exact.h"
#include "../../shim/entry_points.h"
#include "copies.h"
#include "kernels.h"
#include "plain.h"
#include "submits_cases.h"
#include "tests/system.h"

#define SIZE    512               /* of a copy, bytes */
#define BLOCK   ((size_t)4 << 20) /* shares no piece */
#define SKIPPED 77
#define FAILS(call)                      \
    do {                                 \
        if ((call) == CUDA_SUCCESS)      \
            FAIL("%s: no error", #call); \
    } while (0)
#define OVER         "what is freed waits for the GPU from now on: "
#define OTHER_STREAM OVER "work goes to another stream"

/* Weak: no driver has them all. Under the library each is there. */
#define GS_ENTRY(symbol, ...) extern __typeof__(symbol) symbol __attribute__((weak));
GS_ENTRIES(GS_ENTRY)
#undef GS_ENTRY

/* cuMemcpyBatchAsync's, of which an older cuda.h knows the name alone. */
struct attributes {
    int order; /* 1: in the stream's */
    CUmemLocation src, dst;
    unsigned flags;
};

/* What the calls are made with. */
struct material {
    CUcontext context;
    CUstream a, b;
    CUdeviceptr dst, src;
    void *host;
    CUarray array;
    CUfunction kernel;
    void *arguments[1];
    unsigned long long spin;
    CUgraphExec graph;
    CUDA_MEMCPY2D rows;
    CUDA_MEMCPY3D box;
    CUDA_MEMCPY3D_PEER peer;
    CUdeviceptr dsts[1], srcs[1];
    size_t sizes[1], start[1], fail[1];
    struct attributes attribute;
    CUmemcpyAttributes *attributes;
    CUDA_MEMCPY3D_BATCH_OP boxes[1];
    CUstreamBatchMemOpParams write[1];
    CUlaunchConfig config;
    CUDA_LAUNCH_PARAMS launch[2];
};

static const CUlaunchConfig *config(struct material *m, CUstream stream)
{
    m->config.hStream = stream;
    return &m->config;
}

static CUDA_LAUNCH_PARAMS *launch(struct material *m, CUstream stream)
{
    m->launch[0].hStream = stream;
    return m->launch;
}

#define CALL(symbol, meaning, ...)                                \
    static CUresult call_##symbol(struct material *m, CUstream s) \
    {                                                             \
        (void)m, (void)s;                                         \
        return symbol(__VA_ARGS__);                               \
    }
#define CALL_COPY(symbol, meaning, touched, ...) CALL(symbol, meaning, __VA_ARGS__)
CASES(CALL_COPY, CALL, CALL)

typedef CUresult call_fn(struct material *m, CUstream s);

static const struct {
    const char *name;
    enum meaning meaning;
    enum touched touched; /* of a copy */
    bool lax;
    call_fn *call;
} cases[] = {
#define COPY_ROW(symbol, meaning, touched, ...) {#symbol, meaning, touched, false, call_##symbol},
#define ROW(symbol, meaning, ...)               {#symbol, meaning, NOTHING, false, call_##symbol},
#define LAX_ROW(symbol, meaning, ...)           {#symbol, meaning, NOTHING, true, call_##symbol},
    CASES(COPY_ROW, ROW, LAX_ROW)};

static const char *log_path;
static bool shim;

/* ---- In the child ---- */

static void *driver(void)
{
    static void *handle;

    if (!handle)
        handle = dlopen("libcuda.so.1", RTLD_NOW);
    if (!handle)
        FAIL("%s", dlerror());
    return handle;
}

/* Kills this process at the entry of the driver's function, if it is the software driver's. */
static void kill_at(const char *name)
{
    int (*order)(const char *, unsigned) =
        (int (*)(const char *, unsigned))dlsym(driver(), "softcuda_kill");

    if (order)
        order(name, 1);
}

/* A real driver wants more than there is here. */
static void only_software(void)
{
    if (!dlsym(driver(), "softcuda_hold"))
        _exit(SKIPPED);
}

/* How often the program, or the library, has called the software driver's function. */
static unsigned long calls(const char *name)
{
    unsigned long (*count)(const char *) =
        (unsigned long (*)(const char *))dlsym(driver(), "softcuda_calls");

    return count(name);
}

/* From here on nothing that is submitted runs, and the driver's function does nothing. False on a
 * real driver. */
static bool stand_still(const char *name)
{
    void (*hold)(int) = (void (*)(int))dlsym(driver(), "softcuda_hold");
    int (*fail)(const char *, unsigned, CUresult) =
        (int (*)(const char *, unsigned, CUresult))dlsym(driver(), "softcuda_fail");

    if (!hold || !fail)
        return false;
    hold(1);
    if (fail(name, 1, CUDA_ERROR_NOT_PERMITTED) != 0)
        FAIL("there is no %s", name);
    return true;
}

static CUdeviceptr memory(bool ours)
{
    CUdeviceptr address;

    OK(ours ? cuMemAlloc_v2(&address, BLOCK)
            : cuMemAllocManaged(&address, BLOCK, CU_MEM_ATTACH_GLOBAL));
    return address;
}

static void set_copies(struct material *m)
{
    m->rows = rectangle_copy(m->dst, m->src, 64, 2);
    m->box = box_copy(m->dst, m->src, 64, 2, 2);
    m->peer = peer_copy(m->dst, m->context, m->src, m->context, 64, 2, 2);
    m->dsts[0] = m->dst;
    m->srcs[0] = m->src;
    m->sizes[0] = SIZE;
    m->attribute.order = 1;
    m->attributes = (CUmemcpyAttributes *)&m->attribute;
    m->boxes[0].src.type = m->boxes[0].dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
    m->boxes[0].src.op.ptr.ptr = m->src;
    m->boxes[0].dst.op.ptr.ptr = m->dst;
    m->boxes[0].extent.width = 64;
    m->boxes[0].extent.height = m->boxes[0].extent.depth = 1;
    m->boxes[0].srcAccessOrder = 1;
    m->write[0].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    m->write[0].writeValue.address = m->dst;
}

static void set_launches(struct material *m)
{
    CUmodule module;

    OK(cuModuleLoadData(&module, kernels_ptx));
    OK(cuModuleGetFunction(&m->kernel, module, "spin"));
    m->arguments[0] = &m->spin;
    m->config.gridDimX = m->config.gridDimY = m->config.gridDimZ = 1;
    m->config.blockDimX = m->config.blockDimY = m->config.blockDimZ = 1;
    for (int i = 0; i < 2; i++)
        m->launch[i] = (CUDA_LAUNCH_PARAMS){.function = m->kernel,
                                            .gridDimX = 1,
                                            .gridDimY = 1,
                                            .gridDimZ = 1,
                                            .blockDimX = 1,
                                            .blockDimY = 1,
                                            .blockDimZ = 1,
                                            .kernelParams = m->arguments};
}

static void set_graph(struct material *m)
{
    const CUDA_MEMSET_NODE_PARAMS fill = {.dst = m->dst, .elementSize = 1, .width = 8, .height = 1};
    CUgraphNode node;
    CUgraph graph;

    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddMemsetNode(&node, graph, NULL, 0, &fill, m->context));
    OK(cuGraphInstantiateWithFlags(&m->graph, graph, 0));
}

/* No work is submitted. */
static struct material *prepare(bool ours)
{
    static struct material material;
    struct material *m = &material;
    const CUDA_ARRAY_DESCRIPTOR line = {.Width = SIZE,
                                        .Format = CU_AD_FORMAT_UNSIGNED_INT8,
                                        .NumChannels = 1};

    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&m->context, 0));
    OK(cuCtxSetCurrent(m->context));
    OK(cuStreamCreate(&m->a, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&m->b, CU_STREAM_NON_BLOCKING));
    m->dst = memory(ours);
    m->src = memory(ours);
    OK(cuMemAllocHost_v2(&m->host, SIZE));
    OK(cuArrayCreate_v2(&m->array, &line));
    set_copies(m);
    set_launches(m);
    set_graph(m);
    return m;
}

static void first_work(struct material *m, CUstream stream)
{
    OK(cuLaunchKernel(m->kernel, 1, 1, 1, 1, 1, 1, 0, stream, m->arguments, NULL));
}

/* ---- In the parent, which never calls the driver ---- */

/* What is done in a process of its own. */
struct task {
    void (*run)(const struct task *task);
    const char *name;
    size_t which; /* of cases, or of the ways to make a context */
    bool ours;
    CUstream first, then; /* A and B stand for the streams of the material */
    const char *over;     /* the line that the log is to have; NULL: it has none */
    bool elsewhere;       /* of a copy: `then` is another stream */
};
#define A ((CUstream)0xa)
#define B ((CUstream)0xb)

static CUstream stream_of(const struct material *m, CUstream which)
{
    return which == A ? m->a : which == B ? m->b : which;
}

static const char *stream_name(CUstream which)
{
    return which == A                  ? "A"
           : which == B                ? "B"
           : which == NULL             ? "0"
           : which == CU_STREAM_LEGACY ? "the legacy stream"
                                       : "the thread's stream";
}

static void log_read(char *text, size_t size)
{
    int fd = open(log_path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? 0 : read(fd, text, size - 1);

    text[got > 0 ? got : 0] = '\0';
    if (fd >= 0)
        close(fd);
}

static void task_fail(const struct task *task, const char *what, const char *log)
{
    FAIL("%s%s, %s memory, first work on %s, then on %s: %s\n%s", task->name,
         shim ? "" : " (native)", task->ours ? "the library's" : "other", stream_name(task->first),
         stream_name(task->then), what, log);
}

static void task_do(const struct task *task)
{
    char log[4096];
    int status;
    pid_t pid;

    if (truncate(log_path, 0) != 0 && errno != ENOENT)
        FAIL("%s: %s", log_path, strerror(errno));
    fflush(stdout);
    pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        task->run(task);
        _exit(0);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        FAIL("fork: %s", strerror(errno));
    if (WIFEXITED(status) && WEXITSTATUS(status) == SKIPPED)
        return;
    log_read(log, sizeof log);
    if (!(WIFEXITED(status) && WEXITSTATUS(status) == 0) &&
        !(task->over && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL))
        task_fail(task, "the process failed", log);
    if (!shim)
        return;
    if (task->over && !strstr(log, task->over))
        task_fail(task, "the library was not told", log);
    if (!task->over && strstr(log, OVER))
        task_fail(task, "that is the same stream", log);
}

/* ---- The table ---- */

static void run_case(const struct task *task)
{
    struct material *m = prepare(task->ours);
    CUstream then = stream_of(m, task->then);
    CUresult result;
    bool offered = dlsym(driver(), task->name) != NULL;

    first_work(m, stream_of(m, task->first));
    if (!shim && !offered)
        return;
    if (task->over)
        kill_at(task->name);
    result = cases[task->which].call(m, then);
    /* Some do not take the default streams. */
    if (offered && !cases[task->which].lax && (then || cases[task->which].meaning < STREAM))
        OK(result);
}

/* Whether a block that is freed now is reused at once. */
static bool reused(CUdeviceptr block)
{
    CUdeviceptr next;

    OK(cuMemFree_v2(block));
    OK(cuMemAlloc_v2(&next, BLOCK));
    return next == block;
}

static void run_copy(const struct task *task)
{
    const enum touched touched = task->elsewhere ? cases[task->which].touched : NOTHING;
    struct material *m = prepare(true);
    CUresult result;

    if (!stand_still(task->name))
        return;
    first_work(m, stream_of(m, task->first));
    result = cases[task->which].call(m, stream_of(m, task->then));
    if (result != CUDA_ERROR_NOT_PERMITTED)
        FAIL("%s: %d, and was to be refused", task->name, (int)result);
    if (reused(m->dst) != !(touched & DST))
        FAIL("%s: where it writes, memory is%s reused", task->name, touched & DST ? "" : " not");
    if (reused(m->src) != !(touched & SRC))
        FAIL("%s: where it reads, memory is%s reused", task->name, touched & SRC ? "" : " not");
}

static void do_case(size_t which, bool ours)
{
    const enum meaning meaning = cases[which].meaning;
    const bool thread = meaning == THREAD || meaning == STREAM_THREAD;
    const CUstream own = thread ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
    const CUstream others = thread ? CU_STREAM_LEGACY : CU_STREAM_PER_THREAD;
    const bool copies = cases[which].touched != NOTHING;
    struct task task = {run_case, cases[which].name, which, ours, NULL, NULL, NULL, false};

    for (int i = 0; i < 5; i++) {
        const struct {
            CUstream first, then;
            bool over;
        } ways[] = {
            {own, NULL, false}, {A, NULL, true}, {others, NULL, true}, {A, A, false}, {A, B, true}};

        if (i > 2 && meaning != STREAM && meaning != STREAM_THREAD)
            break;
        task.first = ways[i].first;
        task.then = ways[i].then;
        task.over = ways[i].over && !copies ? OTHER_STREAM : NULL;
        task.elsewhere = ways[i].over;
        task.run = run_case;
        task_do(&task);
        task.run = run_copy;
        if (copies && ours && shim)
            task_do(&task);
    }
}

/* ---- Beside it ---- */

static CUresult launch_with(struct material *m, CUlaunchAttributeID id, int allowed)
{
    CUlaunchAttribute attribute = {.id = id};
    CUevent event;

    if (id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION) {
        attribute.value.programmaticStreamSerializationAllowed = allowed;
    } else if (id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT) {
        OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
        attribute.value.programmaticEvent.event = event;
    } else {
        attribute.value.priority = 0;
    }
    m->config.attrs = &attribute;
    m->config.numAttrs = 1;
    return cuLaunchKernelEx(config(m, m->a), m->kernel, m->arguments, NULL);
}

static void run_dependent(const struct task *task)
{
    struct material *m = prepare(true);

    first_work(m, m->a);
    OK(launch_with(m, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, 1));
}

static void run_event(const struct task *task)
{
    struct material *m = prepare(true);

    first_work(m, m->a);
    launch_with(m, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT, 0);
}

static void run_independent(const struct task *task)
{
    struct material *m = prepare(true);

    first_work(m, m->a);
    OK(launch_with(m, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, 0));
    OK(launch_with(m, CU_LAUNCH_ATTRIBUTE_PRIORITY, 0));
}

/* Pointers to the host that are none: the driver copies there as well. */
static void run_as_source(const struct task *task)
{
    struct material *m = prepare(true);
    CUdeviceptr other = memory(false);

    if (!shim || !stand_still("cuMemcpyHtoDAsync"))
        return;
    first_work(m, m->a);
    cuMemcpyHtoDAsync_v2(other, (const void *)m->src, SIZE, m->b);
    if (reused(m->src))
        FAIL("where it reads, memory is reused");
}

static void run_as_target(const struct task *task)
{
    struct material *m = prepare(true);
    CUdeviceptr other = memory(false);

    if (!shim || !stand_still("cuMemcpyDtoHAsync"))
        return;
    first_work(m, m->a);
    cuMemcpyDtoHAsync_v2((void *)m->dst, other, SIZE, m->b);
    if (reused(m->dst))
        FAIL("where it writes, memory is reused");
}

/* The second stream of a list. */
static void run_list(const struct task *task)
{
    struct material *m = prepare(true);

    first_work(m, m->a);
    m->launch[0].hStream = m->a;
    m->launch[1].hStream = m->b;
    if (cuLaunchCooperativeKernelMultiDevice)
        cuLaunchCooperativeKernelMultiDevice(m->launch, 2, 0);
}

static void run_retain_again(const struct task *task)
{
    struct material *m = prepare(true);
    CUcontext context;

    first_work(m, m->a);
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    first_work(m, m->a);
}

static CUresult create(size_t which, CUcontext *made)
{
    CUctxCreateParams *none = NULL;

    if (which > 3)
        only_software();
    switch (which) {
    case 0:
        return cuCtxCreate(made, 0, 0);
    case 1:
        return cuCtxCreate_v2(made, 0, 0);
    case 2:
        return cuCtxCreate_v3(made, NULL, 0, 0, 0);
    case 3:
        return cuCtxCreate_v4(made, none, 0, 0);
    case 4:
        return cuGLCtxCreate(made, 0, 0);
    case 5:
        return cuGLCtxCreate_v2(made, 0, 0);
    case 6:
        return cuVDPAUCtxCreate(made, 0, 0, 0, NULL);
    default:
        return cuVDPAUCtxCreate_v2(made, 0, 0, 0, NULL);
    }
}

static void run_create(const struct task *task)
{
    CUcontext context;

    prepare(true);
    OK(create(task->which, &context));
}

/* The primary one comes second. */
static void run_primary(const struct task *task)
{
    CUcontext context;

    OK(cuInit(0));
    OK(cuCtxCreate_v2(&context, 0, 0));
    prepare(true);
}

static void run_green(const struct task *task)
{
    CUdevResourceDesc description = NULL;
    CUdevResource processors;
    CUgreenCtx green;

    prepare(true);
    OK(cuDeviceGetDevResource(0, &processors, CU_DEV_RESOURCE_TYPE_SM));
    OK(cuDevResourceGenerateDesc(&description, &processors, 1));
    OK(cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM));
}

#include "submits_given.h"

static const struct task others[] = {
    {run_dependent, "a dependent launch"},
    {run_event, "an event in a launch",
     .over = OVER "an event that is recorded before the work before it has ended"},
    {run_independent, "other attributes"},
    {run_as_source, "a copy from the host that is from the device"},
    {run_as_target, "a copy to the host that is to the device"},
    {run_list, "a list of launches", .over = OTHER_STREAM},
    {run_retain_again, "the same context again"},
    {run_create, "cuCtxCreate", 0, .over = OVER "there is another context"},
    {run_create, "cuCtxCreate_v2", 1, .over = OVER "there is another context"},
    {run_create, "cuCtxCreate_v3", 2, .over = OVER "there is another context"},
    {run_create, "cuCtxCreate_v4", 3, .over = OVER "there is another context"},
    {run_create, "cuGLCtxCreate", 4, .over = OVER "there is another context"},
    {run_create, "cuGLCtxCreate_v2", 5, .over = OVER "there is another context"},
    {run_create, "cuVDPAUCtxCreate", 6, .over = OVER "there is another context"},
    {run_create, "cuVDPAUCtxCreate_v2", 7, .over = OVER "there is another context"},
    {run_bind, "cuMulticastBindAddr", .over = OVER "memory is bound to an object of the driver's"},
    {run_bind_v2, "cuMulticastBindAddr_v2",
     .over = OVER "memory is bound to an object of the driver's"},
    {run_bind_more, "cuMulticastBindAddr of what cannot be bound"},
    {run_bind_endpoint, "cuLogicalEndpointBindAddr",
     .over = OVER "memory is bound to an object of the driver's"},
    {run_bind_endpoint_more, "cuLogicalEndpointBindAddr of what cannot be bound"},
    {run_fabric_more, "cuFabricCpyBatchAsync of what cannot be copied"},
    {run_fabric_node, "a graph's copies over a fabric"},
    {run_present, "cuEGLStreamProducerPresentFrame", .over = OVER "a frame is presented"},
    {run_present_freed, "cuEGLStreamProducerPresentFrame of freed memory"},
    {run_primary, "cuDevicePrimaryCtxRetain", .over = OVER "there is another context"},
    {run_green, "cuGreenCtxCreate", .over = OVER "a green context"},
};

int main(int argc, char **argv)
{
    static char own_log[4096];
    if (argc != 2)
        FAIL("usage: submits LOG_FILE");
    /* Two of these may run at once. */
    snprintf(own_log, sizeof own_log, "%s.%d", argv[1], (int)getpid());
    log_path = own_log;
    shim = getenv("LD_PRELOAD") && strstr(getenv("LD_PRELOAD"), "libgpushim");
    setenv("GPUSHIM_LOG", "info", 1);
    setenv("GPUSHIM_LOG_TARGET", log_path, 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int ours = 0; ours <= 1; ours++)
            do_case(i, ours);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        task_do(&others[i]);
    unlink(log_path);
    printf("%zu calls\n", sizeof cases / sizeof *cases);
    return 0;
}
