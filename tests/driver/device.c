/*
 * cuInit and the devices: how many, which of them CUDA_VISIBLE_DEVICES shows, what they can do.
 * What one can do is what an H200 can, as far as a test or the library asks.
 */
#include "internal.h"

pthread_mutex_t sd_lock = PTHREAD_MUTEX_INITIALIZER;
struct sd_device sd_devices[SD_MAX_DEVICES];
int sd_device_count;

static int devices_wanted(void)
{
    const char *text = getenv("SOFTCUDA_DEVICES");
    char *end;
    long count = text ? strtol(text, &end, 10) : 2;

    if (text && (end == text || *end || count < 0 || count > SD_MAX_DEVICES))
        sd_refuse("SOFTCUDA_DEVICES", text, "a number from 0 to 16");
    return count;
}

static size_t memory_wanted(void)
{
    const char *text = getenv("SOFTCUDA_MEMORY");
    char *end;
    unsigned long long bytes;
    unsigned shift = 0;

    if (!text)
        return (size_t)1 << 30;
    bytes = strtoull(text, &end, 10);
    switch (*end) {
    case 'G':
        shift += 10; /* fall through */
    case 'M':
        shift += 10; /* fall through */
    case 'K':
        shift += 10;
        end++;
    }
    if (end == text || *end || bytes > (1ull << 44) >> shift)
        sd_refuse("SOFTCUDA_MEMORY", text, "bytes, or a number with K, M or G, up to 16384G");
    return bytes << shift;
}

/* A device has one UUID, in every process and every run. */
static CUuuid uuid_of(int physical)
{
    CUuuid uuid;
    uint64_t x = 0x9E3779B97F4A7C15u * (physical + 1);

    for (int i = 0; i < 16; i++) {
        x ^= x >> 31;
        x *= 0xD6E8FEB86659FD93u;
        uuid.bytes[i] = x >> 56;
    }
    return uuid;
}

static void uuid_text(const CUuuid *uuid, char text[48])
{
    char *p = text + sprintf(text, "GPU-");

    for (int i = 0; i < 16; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10)
            *p++ = '-';
        p += sprintf(p, "%02x", (unsigned char)uuid->bytes[i]);
    }
}

/* The physical index that one word of CUDA_VISIBLE_DEVICES means, -1 for none. */
static int visible_word(const char *word, int machine)
{
    char *end;
    long index = strtol(word, &end, 10);

    if (end != word && !*end)
        return index >= 0 && index < machine ? index : -1;
    for (int i = 0; i < machine && !strncmp(word, "GPU-", 4) && word[4]; i++) {
        CUuuid uuid = uuid_of(i);
        char text[48];
        uuid_text(&uuid, text);
        if (!strncmp(text, word, strlen(word)))
            return i;
    }
    return -1;
}

static void device_add(int physical, size_t memory)
{
    struct sd_device *device = &sd_devices[sd_device_count++];

    device->physical = physical;
    device->uuid = uuid_of(physical);
    device->memory = memory;
    snprintf(device->name, sizeof device->name, "Software GPU %d", physical);
}

/* A word that names no device, or one named before, ends the list. */
static void add_visible(const char *list, int machine, size_t memory)
{
    char *copy = strdup(list), *save = NULL;
    unsigned seen = 0;

    for (char *p = copy ? strtok_r(copy, ", ", &save) : NULL; p; p = strtok_r(NULL, ", ", &save)) {
        int physical = visible_word(p, machine);
        if (physical < 0 || (seen & 1u << physical))
            break;
        seen |= 1u << physical;
        device_add(physical, memory);
    }
    free(copy);
}

CUresult sd_init(unsigned flags)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");

    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (!(atomic_load(&sd_gate) & SD_GATE_UNINITIALISED))
        return CUDA_SUCCESS;
    if (!sd_device_count) {
        int machine = devices_wanted();
        size_t memory = memory_wanted();
        sd_machine_init();
        if (visible)
            add_visible(visible, machine, memory);
        else
            for (int i = 0; i < machine; i++)
                device_add(i, memory);
    }
    if (!sd_device_count)
        return CUDA_ERROR_NO_DEVICE;
    atomic_fetch_and(&sd_gate, ~SD_GATE_UNINITIALISED);
    return CUDA_SUCCESS;
}

struct sd_device *sd_device_get_ptr(CUdevice dev)
{
    return dev >= 0 && dev < sd_device_count ? &sd_devices[dev] : NULL;
}

int sd_device_by_uuid(const CUuuid *uuid)
{
    for (int i = 0; i < sd_device_count; i++)
        if (!memcmp(&sd_devices[i].uuid, uuid, sizeof *uuid))
            return i;
    return -1;
}

CUresult sd_driver_get_version(int *version)
{
    if (!version)
        return CUDA_ERROR_INVALID_VALUE;
    *version = SD_DRIVER_VERSION;
    return CUDA_SUCCESS;
}

CUresult sd_device_get(CUdevice *device, int ordinal)
{
    if (!device)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sd_device_get_ptr(ordinal))
        return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

CUresult sd_device_get_count(int *count)
{
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    *count = sd_device_count;
    return CUDA_SUCCESS;
}

CUresult sd_device_get_name(char *name, int len, CUdevice dev)
{
    struct sd_device *device = sd_device_get_ptr(dev);

    if (!name || len <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    snprintf(name, len, "%s", device->name);
    return CUDA_SUCCESS;
}

CUresult sd_device_get_uuid(CUuuid *uuid, CUdevice dev)
{
    struct sd_device *device = sd_device_get_ptr(dev);

    if (!uuid)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    *uuid = device->uuid;
    return CUDA_SUCCESS;
}

CUresult sd_device_total_mem(size_t *bytes, CUdevice dev)
{
    struct sd_device *device = sd_device_get_ptr(dev);

    if (!bytes)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    *bytes = device->memory;
    return CUDA_SUCCESS;
}

CUresult sd_device_total_mem_v1(unsigned *bytes, CUdevice dev)
{
    size_t total;
    CUresult result = sd_device_total_mem(&total, dev);

    if (!bytes)
        return CUDA_ERROR_INVALID_VALUE;
    if (!result)
        *bytes = total > UINT32_MAX ? UINT32_MAX : total;
    return result;
}

static int attribute_value(CUdevice_attribute attribute)
{
    switch ((int)attribute) {
    case CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT:
        return 512;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        return 9;
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
    case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS:
    case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED:
        return 1;
    case CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED:
        return sd_feature(SD_WITH_DMA_BUF);
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
        return sd_feature(SD_WITH_VMM);
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
        return sd_feature(SD_WITH_VMM) && sd_feature(SD_WITH_POSIX_FD);
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
        return sd_feature(SD_WITH_VMM) && sd_feature(SD_WITH_RDMA);
    case CU_DEVICE_ATTRIBUTE_GENERIC_COMPRESSION_SUPPORTED: /* memory of it is as any other here */
        return sd_feature(SD_WITH_VMM);
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED:
        return sd_feature(SD_WITH_VMM); /* says so, and creation is then not permitted */
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
        return sd_feature(SD_WITH_ASYNC);
    default:
        return 0;
    }
}

CUresult sd_device_get_attribute(int *value, CUdevice_attribute attribute, CUdevice dev)
{
    if (!value || (int)attribute <= 0 || attribute >= CU_DEVICE_ATTRIBUTE_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sd_device_get_ptr(dev))
        return CUDA_ERROR_INVALID_DEVICE;
    *value = attribute_value(attribute);
    return CUDA_SUCCESS;
}

CUresult sd_device_can_access_peer(int *can, CUdevice dev, CUdevice peer)
{
    if (!can)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sd_device_get_ptr(dev) || !sd_device_get_ptr(peer))
        return CUDA_ERROR_INVALID_DEVICE;
    *can = dev != peer && sd_feature(SD_WITH_PEER);
    return CUDA_SUCCESS;
}

CUresult sd_device_get_pci_bus_id(char *id, int len, CUdevice dev)
{
    struct sd_device *device = sd_device_get_ptr(dev);

    if (!id || len < 13)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    snprintf(id, len, "0000:00:%02x.0", device->physical + 1);
    return CUDA_SUCCESS;
}

/* ---- Calls that only answer ---- */

CUresult sd_multicast_granularity(size_t *granularity, const CUmulticastObjectProp *prop,
                                  CUmulticastGranularity_flags option)
{
    if (!granularity || !prop || !prop->numDevices ||
        (unsigned)option > CU_MULTICAST_GRANULARITY_RECOMMENDED)
        return CUDA_ERROR_INVALID_VALUE;
    *granularity = SD_GRANULE;
    return CUDA_SUCCESS;
}

/* There are no multicast objects, and no streams of EGL. */
CUresult sd_multicast_none(void)
{
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult sd_multicast_bind(CUmemGenericAllocationHandle group)
{
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult sd_egl_present(const gs_egl_connection *connection)
{
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult sd_get_export_table(const void **table, const CUuuid *id)
{
    if (!table || !id)
        return CUDA_ERROR_INVALID_VALUE;
    *table = NULL;
    return CUDA_ERROR_NOT_FOUND;
}
