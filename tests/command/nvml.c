/*
 * A stand-in of libnvidia-ml.so.1: GPUs of the software driver under their uuids, with 1 GiB each
 * of which a quarter is used. NVML_MIG ("part") says that they are parts by MIG.
 */
#include <stdlib.h>
#include <string.h>

struct memory {
    unsigned long long total, left, used;
};

struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, left, used;
};

__attribute__((visibility("default"))) int nvmlInit_v2(void);
__attribute__((visibility("default"))) int nvmlDeviceGetHandleByUUID(const char *uuid,
                                                                     void **device);
__attribute__((visibility("default"))) int nvmlDeviceGetMemoryInfo(void *device,
                                                                   struct memory *memory);
__attribute__((visibility("default"))) int nvmlDeviceGetMemoryInfo_v2(void *device,
                                                                      struct memory_v2 *memory);
__attribute__((visibility("default"))) int nvmlDeviceGetUUID(void *device, char *uuid,
                                                             unsigned length);

static int ready;
static char asked_for[64]; /* the uuid of the device, of which it knows one at a time */

int nvmlInit_v2(void)
{
    ready = 1;
    return 0;
}

/* 6: not found, and 1: not initialised, as of NVML. */
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device)
{
    const char *kind = getenv("NVML_MIG") && !strcmp(getenv("NVML_MIG"), "part") ? "MIG-" : "GPU-";

    if (!ready)
        return 1;
    if (strncmp(uuid, kind, 4) != 0 || strlen(uuid) != 40)
        return 6;
    strcpy(asked_for, uuid);
    *device = &ready;
    return 0;
}

int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory)
{
    memory->total = 1ull << 30;
    memory->left = 768ull << 20;
    memory->used = memory->total - memory->left;
    return device == &ready ? 0 : 1;
}

int nvmlDeviceGetMemoryInfo_v2(void *device, struct memory_v2 *memory)
{
    if (memory->version != (sizeof *memory | 2u << 24))
        return 25; /* NVML_ERROR_ARGUMENT_VERSION_MISMATCH */
    memory->total = 1ull << 30;
    memory->reserved = 16ull << 20;
    memory->left = 768ull << 20;
    memory->used = memory->total - memory->left - memory->reserved;
    return device == &ready ? 0 : 1;
}

int nvmlDeviceGetUUID(void *device, char *uuid, unsigned length)
{
    if (device != &ready || strlen(asked_for) >= length)
        return 7; /* NVML_ERROR_INSUFFICIENT_SIZE */
    strcpy(uuid, asked_for);
    return 0;
}
