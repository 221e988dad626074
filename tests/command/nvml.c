/*
 * A stand-in of libnvidia-ml.so.1, for gpushim doctor: GPUs of the software driver under their
 * uuids. NVML_BAR1 is the BAR1's size in bytes, NVML_MIG says that MIG is on.
 */
#include <stdlib.h>
#include <string.h>

struct memory {
    unsigned long long total, left, used;
};

__attribute__((visibility("default"))) int nvmlInit_v2(void);
__attribute__((visibility("default"))) int nvmlDeviceGetHandleByUUID(const char *uuid,
                                                                     void **device);
__attribute__((visibility("default"))) int nvmlDeviceGetBAR1MemoryInfo(void *device,
                                                                       struct memory *bar1);
__attribute__((visibility("default"))) int nvmlDeviceGetMemoryInfo(void *device,
                                                                   struct memory *memory);
__attribute__((visibility("default"))) int nvmlDeviceGetMigMode(void *device, unsigned *now,
                                                                unsigned *pending);

static int ready;

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
    *device = &ready;
    return 0;
}

int nvmlDeviceGetBAR1MemoryInfo(void *device, struct memory *bar1)
{
    const char *size = getenv("NVML_BAR1");

    if (device != &ready || !size)
        return 3;
    bar1->total = strtoull(size, NULL, 10);
    bar1->left = bar1->total / 2;
    bar1->used = bar1->total - bar1->left;
    return 0;
}

int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory)
{
    memory->total = 1ull << 30;
    memory->left = 768ull << 20;
    memory->used = memory->total - memory->left;
    return device == &ready ? 0 : 1;
}

int nvmlDeviceGetMigMode(void *device, unsigned *now, unsigned *pending)
{
    *now = *pending = getenv("NVML_MIG") != NULL;
    return device == &ready ? 0 : 1;
}
