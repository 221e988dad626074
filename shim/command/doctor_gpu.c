/* gpushim doctor: each GPU, and what it can do, tried as the library does. */
#include <stdio.h>
#include <string.h>

#include "core/gpu/device.h"
#include "shim/command/doctor_cuda.h"
#include "shim/command/show.h"

static const struct {
    enum doctor_state state;
    const char *found, *remedy;
} modes[] = {
    [GS_MODE_FD_RDMA] = {DOCTOR_OK, "all of the library, and GPUDirect RDMA", ""},
    [GS_MODE_FD] = {DOCTOR_OK, "all of the library; no GPUDirect RDMA", ""},
    [GS_MODE_UNKNOWN] = {DOCTOR_WARN, "it is full now, so nothing could be tried", "ask again when it has 2 MiB free"},
    [GS_MODE_NATIVE] = {DOCTOR_FAIL, NULL, /* as the library says it */
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

static void say_gpu(struct doctor *doctor, const struct doctor_cuda *cuda, const struct gs_device *probed, const char *subject)
{
    struct doctor_nvml_memory memory = {0};
    char name[128] = "", uuid[SHOWN_UUID], total[SHOWN], left[SHOWN + 8] = "an unknown part (no NVML)";
    bool is_mig;
    void *in_nvml = doctor_in_nvml(&cuda->nvml, probed->uuid, &is_mig);

    cuda->device_name(name, sizeof name - 1, probed->ordinal);
    if (in_nvml && cuda->nvml.memory && cuda->nvml.memory(in_nvml, &memory) == 0)
        show_size(memory.left, left);
    doctor_say(doctor, modes[probed->mode].state, subject, modes[probed->mode].remedy, "%s, %s, %s, of which %s is free: %s",
               name, show_uuid(is_mig ? "MIG" : "GPU", probed->uuid, uuid), show_size(probed->total, total), left,
               modes[probed->mode].found ? modes[probed->mode].found : probe_said);
}

/* Whether its memory can leave the machine, tried as the library does where that is asked for. */
static void say_reach(struct doctor *doctor, const struct doctor_cuda *cuda, struct gs_device *probed,
                      const struct gs_log *log, const char *subject)
{
    gs_device_reach(&cuda->core, log, probed);
    if ((unsigned)probed->properties.requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC)
        doctor_say(doctor, DOCTOR_OK, subject, "", "its memory can be opened on other machines of its NVLink domain");
    else
        doctor_say(doctor, DOCTOR_WARN, subject,
                   "have nvidia-imex run, with a channel that this process may open, or set share.reach = machine", "%s",
                   probe_said[0] ? probe_said : "its memory stays on this machine");
}

void doctor_gpus(struct doctor *doctor, const struct doctor_cuda *cuda)
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
        probe_said[0] = 0;
        if (doctor->config->share.reach == GS_CONFIG_SHARE_REACH_CLUSTER)
            say_reach(doctor, cuda, &probed, &log, subject);
    }
}
