/*
 * A driver that is newer than the library. The first call, or form of a call, that no list knows
 * ends single-stream mode when it is looked up, and one line says so: what it submits is not seen.
 * Events leave a capture alone that such a call began, and come again when one of those ended it.
 * What is known and has no hook ends nothing; that is asked of a real driver as well.
 *
 * usage: newer CASE LOG_FILE
 */
#include "../../shim/cuda_exact.h"
#include "../../shim/entry_points.h"
#include "shim/lookup/known_names.h"
#include "kernels.h"
#include "plain.h"
#include "tests/system.h"

#define SKIPPED 77
#define NEWER   14000 /* what the software driver has that no CUDA has */
#define BLOCK   ((size_t)1 << 20)
#define MANY    400
#define ROUNDS  64
#define OVER    "what is freed waits for the GPU from now on: "

static void *driver;
static CUfunction spin;
static CUstream a, b;

static void *proc(const char *name, int version, cuuint64_t flags)
{
    CUdriverProcAddressQueryResult status;
    void *found = NULL;

    return cuGetProcAddress_v2(name, &found, version, flags, &status) == CUDA_SUCCESS ? found
                                                                                      : NULL;
}

static void hold(int yes)
{
    ((void (*)(int))dlsym(driver, "softcuda_hold"))(yes);
}

static void start(void)
{
    CUcontext context;
    CUmodule module;

    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    OK(cuModuleLoadData(&module, kernels_ptx));
    OK(cuModuleGetFunction(&spin, module, "spin"));
    OK(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
}

static void *argument(void)
{
    static unsigned long long ns;

    return &ns;
}

static void work(CUstream stream)
{
    OK(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, (void *[]){argument()}, NULL));
}

/* Whether what is freed now is handed out at once, while the GPU stands still. */
static bool reused(void)
{
    CUdeviceptr block, next;

    OK(cuMemAlloc_v2(&block, BLOCK));
    OK(cuMemFree_v2(block));
    OK(cuMemAlloc_v2(&next, BLOCK));
    OK(cuMemFree_v2(next));
    return next == block;
}

/* ---- Cases ---- */

/* What the call submits is not seen, so memory that it uses is not another's yet. */
static void launch(void *found)
{
    typedef CUresult CUDAAPI launch_fn(const CUlaunchConfig *, CUfunction, void **, void **);
    const CUlaunchConfig config = {.gridDimX = 1,
                                   .gridDimY = 1,
                                   .gridDimZ = 1,
                                   .blockDimX = 1,
                                   .blockDimY = 1,
                                   .blockDimZ = 1,
                                   .hStream = b};

    if (!found)
        FAIL("it was not found");
    hold(1);
    OK(((launch_fn *)found)(&config, spin, (void *[]){argument()}, NULL));
    if (reused())
        FAIL("memory has two owners");
    hold(0);
}

static void form(void)
{
    work(a);
    launch(proc("cuLaunchKernelEx", NEWER, 0));
}

static void form_without_hook(void)
{
    proc("cuCtxGetFlags", GS_KNOWN_CUDA, 0);
    if (!reused())
        FAIL("the form that is known ends single-stream mode");
    proc("cuCtxGetFlags", NEWER, 0);
}

static void name(void)
{
    launch(proc("cuLaunchKernelNext", NEWER, 0));
}

static void symbol(void)
{
    launch(dlsym(driver, "cuLaunchKernelNext"));
}

/* Enough memory comes and goes that events would be recorded. */
static void come_and_go(void)
{
    CUdeviceptr block[MANY];

    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < MANY; i++)
            OK(cuMemAlloc_v2(&block[i], BLOCK));
        for (int i = 0; i < MANY; i++)
            OK(cuMemFree_v2(block[i]));
    }
}

/* Blocks come back where events are recorded. */
static bool comes_back(void)
{
    CUdeviceptr block[ROUNDS];

    for (int i = 0; i < ROUNDS; i++) {
        OK(cuMemAlloc_v2(&block[i], BLOCK));
        for (int before = 0; before < i; before++)
            if (block[before] == block[i])
                return true;
        OK(cuMemFree_v2(block[i]));
        OK(cuCtxSynchronize());
    }
    return false;
}

typedef CUresult CUDAAPI begin_fn(CUstream, CUstreamCaptureMode);
typedef CUresult CUDAAPI end_fn(CUstream, CUgraph *);

static void captures(begin_fn *begin, CUstream stream, end_fn *end)
{
    const CUstream meant = stream ? stream : CU_STREAM_PER_THREAD;
    CUgraph graph;

    if (!begin || !end)
        FAIL("it was not found");
    work(a);
    work(b);
    OK(cuCtxSynchronize());
    OK(begin(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    work(meant);
    come_and_go();
    OK(end(meant, &graph));
    if (!comes_back())
        FAIL("no event is recorded after the capture");
}

static void capture(void)
{
    captures((begin_fn *)proc("cuStreamBeginCaptureNext", NEWER, 0), a, cuStreamEndCapture);
}

static void capture_by_symbol(void)
{
    captures((begin_fn *)dlsym(driver, "cuStreamBeginCaptureNext"), a, cuStreamEndCapture);
}

static void capture_per_thread(void)
{
    captures((begin_fn *)proc("cuStreamBeginCaptureNext", NEWER,
                              CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM),
             NULL, cuStreamEndCapture);
}

static void capture_refused(void)
{
    begin_fn *begin = (begin_fn *)proc("cuStreamBeginCaptureNext", NEWER, 0);

    if (begin(CU_STREAM_LEGACY, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS)
        FAIL("the legacy stream captures");
    work(b);
    if (!comes_back())
        FAIL("no event is recorded");
}

static void end(void)
{
    captures(cuStreamBeginCapture_v2, a, (end_fn *)proc("cuStreamEndCaptureNext", NEWER, 0));
}

static void look_up(const char *known, int version)
{
    dlsym(driver, known);
    for (cuuint64_t flags = 0; flags <= CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM; flags++) {
        proc(known, version, flags);
        proc(known, 12000, flags);
    }
}

/* What a program is given for a name and a version is what it is given for the symbol: never the
 * driver's own of what has a hook. */
static void as_its_symbol(const char *symbol, int version)
{
    char name[128];
    const char *end = strstr(symbol, "_pt");
    size_t length = end ? (size_t)(end - symbol) : strlen(symbol);

    if (length > 3 && memcmp(&symbol[length - 3], "_v", 2) == 0)
        length -= 3;
    snprintf(name, sizeof name, "%.*s", (int)length, symbol);
    for (cuuint64_t flags = 0; flags <= CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM; flags++) {
        void *found = proc(name, version, flags);
        Dl_info info;

        if (found && dladdr(found, &info) && info.dli_sname && info.dli_saddr == found &&
            dlsym(driver, info.dli_sname) != found)
            FAIL("for %s the driver's %s is given, which has a hook", name, info.dli_sname);
    }
}

static void known(void)
{
    static char names[] = GS_KNOWN_NAMES;
    char *rest = NULL;
    int version;

    OK(cuDriverGetVersion(&version));
    if (version > GS_KNOWN_CUDA)
        version = GS_KNOWN_CUDA;
    for (char *word = strtok_r(names, " ", &rest); word; word = strtok_r(NULL, " ", &rest))
        look_up(word, version);
#define GS_ENTRY(symbol, ...) look_up(#symbol, version), as_its_symbol(#symbol, version);
    GS_ENTRIES(GS_ENTRY)
#undef GS_ENTRY
    /* and what is known, for a CUDA that is not */
    proc("cuCtxGetDevice", NEWER, 0);
    proc("cuCtxSynchronize", NEWER, 0);
    proc("cuStreamQuery", NEWER, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
}

static const struct {
    const char *name;
    void (*run)(void);
    const char *says; /* NULL: nothing */
} cases[] = {
    {"form", form, "cuLaunchKernelEx for CUDA 14.0 is newer than this library"},
    {"form without a hook", form_without_hook, "cuCtxGetFlags for CUDA 14.0 is newer than this"},
    {"name", name, "cuLaunchKernelNext for CUDA 14.0 is newer than this library"},
    {"symbol", symbol, "cuLaunchKernelNext is newer than this library"},
    {"capture", capture, "cuStreamBeginCaptureNext for CUDA 14.0 is newer than this library"},
    {"capture by symbol", capture_by_symbol, "cuStreamBeginCaptureNext is newer than this library"},
    {"capture per thread", capture_per_thread, "cuStreamBeginCaptureNext for CUDA 14.0 is newer"},
    {"capture refused", capture_refused, "cuStreamBeginCaptureNext for CUDA 14.0 is newer"},
    {"end", end, "cuStreamEndCaptureNext for CUDA 14.0 is newer than this library"},
    {"known", known, NULL},
};

static void check_log(const char *path, const char *says)
{
    static char log[65536];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? 0 : read(fd, log, sizeof log - 1);
    const char *warning = strstr(log, "warning: ");

    log[got > 0 ? got : 0] = '\0';
    if (!says && (warning || strstr(log, OVER)))
        FAIL("there was nothing to say:\n%s", log);
    if (says && (!strstr(log, says) || !strstr(log, OVER) || strstr(warning + 1, "warning: ")))
        FAIL("it was to be said, once, that %s:\n%s", says, log);
}

int main(int argc, char **argv)
{
    const bool shim = getenv("LD_PRELOAD") && strstr(getenv("LD_PRELOAD"), "libgpushim");

    if (argc != 3)
        FAIL("usage: newer CASE LOG_FILE");
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver)
        FAIL("%s", dlerror());
    if (shim) {
        unlink(argv[2]);
        setenv("GPUSHIM_LOG", "info", 1);
        setenv("GPUSHIM_LOG_TARGET", argv[2], 1);
    }
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (strcmp(cases[i].name, argv[1]) != 0)
            continue;
        if (cases[i].says && !dlsym(driver, "softcuda_hold"))
            return SKIPPED;
        start();
        cases[i].run();
        if (shim) {
            check_log(argv[2], cases[i].says);
            unlink(argv[2]);
        }
        return 0;
    }
    FAIL("no case %s", argv[1]);
}
