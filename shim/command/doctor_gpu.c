/* gpushim doctor: each GPU, what it can do (tried as the library does), BAR1, MIG and MPS. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/gpu/device.h"
#include "shim/command/doctor_cuda.h"
#include "shim/command/show.h"

#define GIB         ((double)(1 << 30))
#define REASON_SIZE 256

/* What the last probe said; it has nowhere else to put it. */
static char probe_said[REASON_SIZE];

static void keep_line(enum gs_log_level level, const void *place, const char *text)
{
    snprintf(probe_said, sizeof probe_said, "%s", text);
}

static int attribute(const struct doctor_cuda *cuda, CUdevice device, CUdevice_attribute which)
{
    int value = 0;

    return cuda->core.device_get_attribute(&value, which, device) == CUDA_SUCCESS ? value : 0;
}

static void say_name(struct doctor *doctor, const struct doctor_cuda *cuda, CUdevice device,
                     const char *subject, const CUuuid *uuid, void *in_nvml, bool is_mig)
{
    char name[128] = "", text[SHOWN_UUID], left[48] = "what is free is not to be seen (no NVML)";
    struct doctor_nvml_memory memory = {0};
    size_t total = 0;

    cuda->device_name(name, sizeof name - 1, device);
    cuda->core.device_total_mem(&total, device);
    if (in_nvml && cuda->nvml.memory && cuda->nvml.memory(in_nvml, &memory) == 0)
        snprintf(left, sizeof left, "%.1f GiB free", (double)memory.left / GIB);
    doctor_say(doctor, DOCTOR_OK, subject, "", "%s, %s, %.1f GiB, %s", name,
               show_uuid(is_mig ? "MIG" : "GPU", (const unsigned char *)uuid->bytes, text), (double)total / GIB, left);
}

/* Devices report what they then refuse: it is tried as the library does. */
static void say_abilities(struct doctor *doctor, const struct doctor_cuda *cuda, const struct gs_device *probed,
                          const char *subject)
{
    const char *fabric = attribute(cuda, probed->ordinal, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED)
                             ? "it reports fabric handles"
                             : "no fabric handles";

    if (!attribute(cuda, probed->ordinal, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED))
        doctor_say(
            doctor, DOCTOR_FAIL, subject,
            "programs run on it as without the library; take a GPU of Volta or later, and no "
            "virtual GPU without unified memory",
            "no virtual memory management (VMM): all its memory stays the driver's");
    else if (probed->mode == GS_MODE_NATIVE)
        doctor_say(
            doctor, DOCTOR_FAIL, subject,
            "programs run on it as without the library; take a GPU and driver that have POSIX descriptors (Linux, no "
            "virtual GPU), and let filters of system calls pass them",
            "VMM, but no POSIX descriptors: %s", probe_said);
    else if (probed->mode == GS_MODE_UNKNOWN)
        doctor_say(doctor, DOCTOR_WARN, subject, "ask again when it has 2 MiB free",
                   "VMM; it is full now, so nothing could be tried");
    else if (probed->mode == GS_MODE_FD)
        doctor_say(
            doctor, DOCTOR_WARN, subject,
            "nothing, without such devices; else take a GPU for data centres or workstations",
            "VMM, POSIX descriptors; no GPUDirect RDMA: network cards and storage do not reach "
            "its memory; %s",
            fabric);
    else
        doctor_say(doctor, DOCTOR_OK, subject, "", "VMM, POSIX descriptors, GPUDirect RDMA; %s",
                   fabric);
}

#define IMEX_CHANNELS "/dev/nvidia-caps-imex-channels"

/* Whether its memory can leave the machine, tried as the library does where that is asked for. */
static void say_reach(struct doctor *doctor, const struct doctor_cuda *cuda, struct gs_device *probed,
                      const struct gs_log *log, const char *subject)
{
    if (doctor->config->share.reach != GS_CONFIG_SHARE_REACH_CLUSTER)
        return;
    probe_said[0] = 0;
    if (probed->mode == GS_MODE_FD_RDMA || probed->mode == GS_MODE_FD)
        gs_device_reach(&cuda->core, log, probed);
    if ((unsigned)probed->properties.requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC)
        doctor_say(doctor, DOCTOR_OK, subject, "",
                   "its memory can be opened on other machines of its NVLink domain");
    else
        doctor_say(doctor, DOCTOR_WARN, subject,
                   "have nvidia-imex run, with a channel (" IMEX_CHANNELS ") that this process may open, or set "
                   "share.reach = machine",
                   "%s", probe_said[0] ? probe_said : "its memory stays on this machine");
}

/* Whether a network card, or what else registers GPU memory, is seen here. */
static bool has_rdma(void)
{
    return access("/dev/infiniband", F_OK) == 0 || access("/dev/gdrdrv", F_OK) == 0 || access("/dev/nvidia-fs0", F_OK) == 0;
}

static void say_bar1(struct doctor *doctor, const struct doctor_cuda *cuda, CUdevice device,
                     const char *subject, void *in_nvml)
{
    struct doctor_nvml_memory bar1 = {0};
    size_t total = 0;

    if (!in_nvml || !cuda->nvml.bar1 || cuda->nvml.bar1(in_nvml, &bar1) != 0 || bar1.total == 0)
        return;
    cuda->core.device_total_mem(&total, device);
    if (bar1.total >= total || !has_rdma())
        doctor_say(doctor, DOCTOR_OK, subject, "", "BAR1 of %.1f GiB, %.1f GiB free",
                   (double)bar1.total / GIB, (double)bar1.left / GIB);
    else
        doctor_say(
            doctor, DOCTOR_WARN, subject,
            "switch Resizable BAR (and above 4G decoding) on in the machine's setup",
            "BAR1 of %.1f GiB, %.1f GiB free: no more of its memory can be registered at a time",
            (double)bar1.total / GIB, (double)bar1.left / GIB);
}

void doctor_gpus(struct doctor *doctor, const struct doctor_cuda *cuda)
{
    static int level = GS_LOG_INFO;
    const struct gs_log log = {.line = keep_line, .level = &level};
    int count = 0;

    if (cuda->core.device_get_count)
        cuda->core.device_get_count(&count);
    for (int i = 0; i < count; i++) {
        struct gs_device probed;
        CUuuid uuid = {{0}};
        CUdevice device;
        char subject[32];
        void *in_nvml;
        bool is_mig;

        snprintf(subject, sizeof subject, "GPU %d", i);
        if (cuda->device_get(&device, i) != CUDA_SUCCESS)
            continue;
        if (cuda->core.device_get_uuid)
            cuda->core.device_get_uuid(&uuid, device);
        in_nvml = doctor_in_nvml(&cuda->nvml, (const unsigned char *)uuid.bytes, &is_mig);
        say_name(doctor, cuda, device, subject, &uuid, in_nvml, is_mig);
        probe_said[0] = 0;
        gs_device_probe(&cuda->core, &log, device, false, false, &probed);
        say_abilities(doctor, cuda, &probed, subject);
        say_reach(doctor, cuda, &probed, &log, subject);
        say_bar1(doctor, cuda, device, subject, in_nvml);
        if (is_mig)
            doctor_say(doctor, DOCTOR_WARN, subject, "nothing, if what is tried above is well",
                       "it is a part of a GPU, by MIG, under which the library was not measured");
    }
}

/* A daemon that controls MPS has this there; one that has ended may have left it. */
void doctor_mps(struct doctor *doctor)
{
    const char *folder = getenv("CUDA_MPS_PIPE_DIRECTORY");
    char path[PATH_MAX];

    snprintf(path, sizeof path, "%s/control", folder && folder[0] ? folder : "/tmp/nvidia-mps");
    if (access(path, F_OK) == 0)
        doctor_say(
            doctor, DOCTOR_WARN, "MPS",
            "nothing, if the GPUs above are well; else end it: echo quit | "
            "nvidia-cuda-mps-control",
            "%s is there: programs may run under MPS, under which the library was not measured",
            path);
}
