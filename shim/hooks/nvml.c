/*
 * NVML's figures of a device's memory, to a program that is bounded (bound.h). A process may ask
 * NVML that never calls CUDA: then nothing of ours has started, and it has nothing of the device.
 */
#include "bound.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

#include "shim/lookup/elf_symbols.h"
#include "shim/registration/pinning.h"
#include "shim/start.h"

#define NVML_NOT_FOUND 12 /* NVML_ERROR_LIBRARY_NOT_FOUND */
#define UUID_TEXT      96

typedef int uuid_fn(void *device, char *uuid, unsigned length);

/* Found once. Threads that come together find the same. */
static uuid_fn *find_get_uuid(void)
{
    static _Atomic(void *) found;
    void *get = atomic_load(&found);
    struct link_map *nvml;

    if (get)
        return (uuid_fn *)get;
    nvml = gs_elf_open("libnvidia-ml.so.1", RTLD_LAZY | RTLD_NOLOAD);
    get = nvml ? gs_elf_symbol(nvml->l_addr, nvml->l_ld, "nvmlDeviceGetUUID") : NULL;
    atomic_store(&found, get);
    return (uuid_fn *)get;
}

static int digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* "GPU-", or "MIG-", and 32 digits with dashes between them. */
static bool read_uuid(const char *text, unsigned char ret_uuid[16])
{
    unsigned digits = 0;

    while (*text && *text++ != '-')
        continue;
    for (; *text && digits < 32; text++) {
        if (*text == '-')
            continue;
        if (digit(*text) < 0)
            return false;
        ret_uuid[digits / 2] =
            (unsigned char)(digits % 2 ? ret_uuid[digits / 2] << 4 | digit(*text) : digit(*text));
        digits++;
    }
    return digits == 32;
}

static CUdevice device_of(void *device)
{
    uuid_fn *get_uuid = find_get_uuid();
    char text[UUID_TEXT] = "";
    unsigned char uuid[16];

    if (!get_uuid || get_uuid(device, text, sizeof text) != 0 || !read_uuid(text, uuid))
        return GS_NO_DEVICE;
    return gs_core_device_of_uuid(gs_core, uuid);
}

/* False: they are as they were. */
static bool bound(void *device, unsigned long long *free, unsigned long long *total)
{
    size_t free_bytes = *free, total_bytes = *total;
    GS_KEEP_CALLER;

    if (!gs_bound_applies())
        return false;
    if (gs_state_is_on())
        gs_core_bound(gs_core, device_of(device), &free_bytes, &total_bytes);
    else
        gs_bound_ahead(&free_bytes, &total_bytes);
    *free = free_bytes;
    *total = total_bytes;
    return true;
}

#define MEMORY_INFO(symbol, type, told)                               \
    GS_HOOK int symbol(void *device, struct type *memory)             \
    {                                                                 \
        __typeof__(&symbol) real = GS_PIN_REAL(symbol);               \
        int error = real ? real(device, memory) : NVML_NOT_FOUND;     \
                                                                      \
        if (!error && bound(device, &memory->free, &memory->total)) { \
            told;                                                     \
        }                                                             \
        return error;                                                 \
    }

MEMORY_INFO(nvmlDeviceGetMemoryInfo, gs_nvml_memory, memory->used = memory->total - memory->free)
/* What the driver reserves for itself is none of what a bounded program has. */
MEMORY_INFO(nvmlDeviceGetMemoryInfo_v2, gs_nvml_memory_v2,
            memory->used = memory->total - memory->free;
            memory->reserved = 0)
