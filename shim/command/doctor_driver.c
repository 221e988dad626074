/*
 * gpushim doctor: the driver, libcuda.so.1, and the kernel's half of it. All that loads it runs in
 * a child: it may wait for ever, or end its process, and then that is what was found.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <glob.h>
#include <link.h>
#include <signal.h>
#include <sys/wait.h>

#include "core/gpu/device.h"
#include "core/gpu/driver.h"
#include "shim/command/doctor.h"
#include "shim/command/old_dl.h"
#include "shim/lookup/elf_symbols.h"

#define ANSWER_S     60 /* for the next row; starting with 8 GPUs has been seen to take seconds */
#define EVENTS_SINCE 12050 /* cuCtxRecordEvent */

OLDEST(dlopen);
OLDEST(dlerror);
#ifdef __x86_64__
__asm__(".symver dlinfo, dlinfo@GLIBC_2.3.3");
#else
OLDEST(dlinfo);
#endif

static struct link_map *doctor_load(const char *name, const char **ret_reason)
{
    void *handle = dlopen(name, RTLD_LAZY);
    struct link_map *map = NULL;

    if (handle && dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0)
        return map;
    *ret_reason = dlerror();
    if (!*ret_reason)
        *ret_reason = "unknown reason";
    return NULL;
}

/* Past the hooks of a library that is preloaded here. */
#define SYMBOL(pointer, library, name) \
    (pointer) = (__typeof__(pointer))gs_elf_symbol((library)->l_addr, (library)->l_ld, name)

struct cuda {
    struct gs_driver core; /* what core uses of it */
    CUresult (*init)(unsigned);
    CUresult (*version)(int *);
    CUresult (*device_get)(CUdevice *, int);
    CUresult (*device_name)(char *, int, CUdevice);
    CUresult (*error_name)(CUresult, const char **);
};

/* The first operation that core cannot do without and the driver lacks; or NULL. */
static const char *fill(struct cuda *cuda, const struct link_map *library)
{
    const char *missing = NULL;

#define FIND(field, symbol, required)           \
    SYMBOL(cuda->core.field, library, #symbol); \
    if (required && !cuda->core.field)          \
        missing = #symbol;
    GS_DRIVER_OPS(FIND)
#undef FIND
    SYMBOL(cuda->init, library, "cuInit");
    SYMBOL(cuda->version, library, "cuDriverGetVersion");
    SYMBOL(cuda->device_get, library, "cuDeviceGet");
    SYMBOL(cuda->device_name, library, "cuDeviceGetName");
    SYMBOL(cuda->error_name, library, "cuGetErrorName");
    if (!cuda->init || !cuda->version || !cuda->device_get || !cuda->device_name)
        missing = "cuInit";
    return missing;
}

bool nvml_memory(const unsigned char uuid[16], struct nvml_memory *ret, bool *ret_mig)
{
    static int (*init)(void), (*by_uuid)(const char *, void **),
        (*memory)(void *, struct nvml_memory *);
    static bool is_there;
    const char *ignored;
    const struct link_map *library = is_there ? NULL : doctor_load("libnvidia-ml.so.1", &ignored);
    void *handle = NULL;

    if (library) { /* each time: an exporter may run before the driver is there */
        SYMBOL(init, library, "nvmlInit_v2");
        SYMBOL(by_uuid, library, "nvmlDeviceGetHandleByUUID");
        SYMBOL(memory, library, "nvmlDeviceGetMemoryInfo");
        is_there = init && by_uuid && init() == 0;
    }
    *ret_mig = is_there && by_uuid(show_uuid("GPU", uuid).text, &handle) != 0 &&
               by_uuid(show_uuid("MIG", uuid).text, &handle) == 0;
    return is_there && handle && memory && memory(handle, ret) == 0;
}

static bool has_device_files(void)
{
    glob_t found;
    const bool has = glob("/dev/nvidia[0-9]*", GLOB_NOSORT, NULL, &found) == 0;

    globfree(&found);
    return has;
}

#define MAKE_FILES                                                                                               \
    "in a container give it the GPU's device files (docker --gpus all, podman --device nvidia.com/gpu=all); on " \
    "the host run nvidia-modprobe -u -c 0, as root"

#define NAME_A_GPU "unset CUDA_VISIBLE_DEVICES, or name a GPU that nvidia-smi -L lists"

static const struct {
    int error;
    const char *words, *remedy;
} init_errors[] = {
    {CUDA_ERROR_OPERATING_SYSTEM, "the GPU's device files cannot be opened", MAKE_FILES},
    {CUDA_ERROR_UNKNOWN, "the driver does not say why; often /dev/nvidia-uvm is missing",
     MAKE_FILES},
    {CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "libcuda and the kernel's module are of different versions",
     "reboot after an update of the driver; in a container take the host's libcuda, which the "
     "container runtime of NVIDIA mounts, and none of the image's"},
    {CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, "the cuda-compat libcuda does not run on this GPU",
     "take its folder out of LD_LIBRARY_PATH, so that the driver's own libcuda is found"},
    {CUDA_ERROR_SYSTEM_NOT_READY, "the GPUs are not connected yet",
     "start the service nvidia-fabricmanager, of the driver's version"},
    {CUDA_ERROR_STUB_LIBRARY, "that is the stub that comes for linking, not the driver",
     "take the toolkit's folder stubs out of LD_LIBRARY_PATH"},
    {CUDA_ERROR_DEVICE_UNAVAILABLE, "another process has the GPU for itself",
     "end that process, or set the GPU's compute mode to default (nvidia-smi -c 0)"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_VISIBLE_DEVICES names a GPU that is not there", NAME_A_GPU},
    {CUDA_ERROR_MPS_CONNECTION_FAILED, "the MPS server cannot be reached",
     "start nvidia-cuda-mps-control -d, or unset CUDA_MPS_PIPE_DIRECTORY"},
    {0, "it is not known why", /* any other */
     "look whether nvidia-smi works, and at what the kernel says (dmesg, lines with NVRM)"},
};

static void say_no_device(struct doctor *doctor)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");

    if (visible)
        doctor_say(doctor, DOCTOR_WARN, "driver", NAME_A_GPU,
                   "it shows no GPU: CUDA_VISIBLE_DEVICES is '%s'", visible);
    else
        doctor_say(
            doctor, has_device_files() ? DOCTOR_FAIL : DOCTOR_WARN, "driver", MAKE_FILES,
            "libcuda is here, and no GPU that it can use: programs that need one fail, with the library or without");
}

static void say_init_error(struct doctor *doctor, const struct cuda *cuda, CUresult error)
{
    const char *name = NULL;
    size_t i = 0;

    if (error == CUDA_ERROR_NO_DEVICE) {
        say_no_device(doctor);
        return;
    }
    if (!cuda->error_name || cuda->error_name(error, &name) != CUDA_SUCCESS || !name)
        name = "an error without a name";
    while (init_errors[i].error && init_errors[i].error != (int)error)
        i++;
    doctor_say(doctor, DOCTOR_FAIL, "driver", init_errors[i].remedy,
               "it does not start: %s (cuInit gives %s, %d)", init_errors[i].words, name,
               (int)error);
}

static void say_no_driver(struct doctor *doctor, const char *reason)
{
    const bool has = has_device_files();

    doctor_say(
        doctor, has ? DOCTOR_FAIL : DOCTOR_WARN, "driver",
        has ? "in a container let NVIDIA's runtime mount it (docker --gpus all, podman --device nvidia.com/gpu=all; "
              "NVIDIA_DRIVER_CAPABILITIES must have compute); else install the driver's libcuda1"
            : "nothing, if this machine has no GPU; else install NVIDIA's driver, or give the container the GPU "
              "(docker --gpus all, podman --device nvidia.com/gpu=all)",
        "%s, and no libcuda: %s", has ? "a GPU is here" : "no GPU for CUDA is seen here", reason);
}

static void say_version(struct doctor *doctor, const struct cuda *cuda, const char *path)
{
    int version = 0;

    if (cuda->version(&version) != CUDA_SUCCESS)
        doctor_say(doctor, DOCTOR_WARN, "driver", "install the driver again",
                   "%s does not tell its version", path);
    else if (version < EVENTS_SINCE)
        doctor_say(
            doctor, DOCTOR_WARN, "driver", "install a driver of CUDA 12.5 (555) or later",
            "CUDA %d.%d, from %s: before 12.5 each launch tells of its stream, and a free may "
            "wait for the GPU",
            version / 1000, version % 1000 / 10, path);
    else
        doctor_say(doctor, DOCTOR_OK, "driver", "", "CUDA %d.%d, from %s", version / 1000,
                   version % 1000 / 10, path);
}

/* ---- GPUs ------------------------------------------------------------------------------------ */

static const struct {
    enum doctor_state state;
    const char *found, *remedy;
} modes[] = {
    [GS_MODE_FD_RDMA] = {DOCTOR_OK, "all of the library, and GPUDirect RDMA", ""},
    [GS_MODE_FD] = {DOCTOR_OK, "all of the library; no GPUDirect RDMA", ""},
    [GS_MODE_UNKNOWN] = {DOCTOR_WARN, "it is full now, so nothing could be tried",
                         "ask again when it has 2 MiB free"},
    [GS_MODE_NATIVE] =
        {DOCTOR_FAIL, NULL, /* as the library says it */
         "programs run on it as without the library; take a GPU and driver that have virtual memory management "
         "and POSIX descriptors (Volta or later, Linux, no virtual GPU, no MPS), and let filters of system "
         "calls pass them"},
};

/* What the last probe said; it has nowhere else to put it. */
static char probe_said[DOCTOR_TEXT / 2];

static void keep_line(enum gs_log_level level, const void *place, const char *text)
{
    snprintf(probe_said, sizeof probe_said, "%s", text);
}

static void say_gpu(struct doctor *doctor, const struct cuda *cuda, const struct gs_device *probed,
                    const char *subject)
{
    struct nvml_memory memory;
    char name[128] = "";
    bool is_mig;
    const bool is_known = nvml_memory(probed->uuid, &memory, &is_mig);

    cuda->device_name(name, sizeof name - 1, probed->ordinal);
    doctor_say(doctor, modes[probed->mode].state, subject, modes[probed->mode].remedy,
               "%s, %s: %s; %s is free, %s", name, show_size(probed->total).text,
               modes[probed->mode].found ? modes[probed->mode].found : probe_said,
               is_known ? show_size(memory.left).text : "an unknown part (no NVML)",
               show_uuid(is_mig ? "MIG" : "GPU", probed->uuid).text);
}

static void doctor_gpus(struct doctor *doctor, const struct cuda *cuda)
{
    static int level = GS_LOG_INFO;
    const struct gs_log log = {.line = keep_line, .level = &level};
    struct gs_device probed;
    CUdevice device;
    char subject[32];
    int count = 0;

    if (cuda->core.device_get_count)
        cuda->core.device_get_count(&count);
    for (int i = 0; i < count; i++) {
        if (cuda->device_get(&device, i) != CUDA_SUCCESS)
            continue;
        snprintf(subject, sizeof subject, "GPU %d", i);
        probe_said[0] = 0;
        gs_device_probe(&cuda->core, &log, device, false, false, &probed);
        say_gpu(doctor, cuda, &probed, subject);
    }
}

static void ask_driver(struct doctor *doctor)
{
    struct cuda cuda = {0};
    const char *reason, *missing;
    const struct link_map *library;
    CUresult error;

    setenv("GPUSHIM_ENABLE", "0", 1); /* should the library be preloaded here */
    library = doctor_load("libcuda.so.1", &reason);
    if (!library) {
        say_no_driver(doctor, reason);
        return;
    }
    missing = fill(&cuda, library);
    if (cuda.version)
        say_version(doctor, &cuda, library->l_name);
    if (missing) {
        doctor_say(doctor, DOCTOR_FAIL, "driver", "install a driver of CUDA 11 or later",
                   "%s has no %s: the library steps aside", library->l_name, missing);
        return;
    }
    error = cuda.init(0);
    if (error != CUDA_SUCCESS)
        say_init_error(doctor, &cuda, error);
    else
        doctor_gpus(doctor, &cuda);
}

/* ---- The child that asks -------------------------------------------------------------------- */

/* Its rows, as they come. False: it has not said one for a long time. */
static bool read_rows(struct doctor *doctor, int from)
{
    struct doctor_row row;

    while (gs_conn_wait(from, -1, false, gs_now_ns() + ANSWER_S * GS_NS_PER_S) == GS_CONN_READY) {
        if (read(from, &row, sizeof row) != (ssize_t)sizeof row)
            return true;
        doctor_put(doctor, &row);
    }
    return false;
}

void doctor_driver(struct doctor *doctor)
{
    int ends[2], status = 0;
    pid_t child = -1;

    fflush(stdout);
    if (pipe2(ends, O_CLOEXEC) == 0 && (child = fork()) == 0) {
        dup2(STDERR_FILENO, STDOUT_FILENO); /* a driver that talks is not to be among the rows */
        doctor->to_parent = ends[1];
        ask_driver(doctor);
        _exit(0);
    }
    if (child < 0) {
        doctor_say(doctor, DOCTOR_FAIL, "driver", "raise the limits of processes and descriptors",
                   "it cannot be asked: %s", strerror(errno));
        return;
    }
    close(ends[1]);
    if (!read_rows(doctor, ends[0])) {
        /* Not waited for: one that hangs in the kernel does not end. */
        kill(child, SIGKILL);
        doctor_say(doctor, DOCTOR_FAIL, "driver",
                   "look at what the kernel says (dmesg, lines with NVRM or Xid); a GPU that hangs "
                   "comes back by nvidia-smi --gpu-reset, or a reboot",
                   "it has not answered for %d s", ANSWER_S);
    } else if (waitpid(child, &status, 0) == child && status != 0) {
        doctor_say(doctor, DOCTOR_FAIL, "driver",
                   "install the driver again; see whether nvidia-smi works",
                   WIFSIGNALED(status) ? "asking it ended the process by signal %d"
                                       : "asking it ended the process with status %d",
                   WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    }
    close(ends[0]);
}
