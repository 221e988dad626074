/*
 * What is seen from outside the program: see usage.h.
 */
#include "usage.h"
#include "bench.h"
#include "../driver/softcuda.h"

#include <dlfcn.h>

/* nvmlMemory_t and the calls, as NVML's documentation gives them. */
struct nvml_memory {
    unsigned long long total, free, used;
};
static int (*nvml_memory_info)(void *device, struct nvml_memory *ret_memory);
static void *nvml_device;

static void (*census)(struct softcuda_census *ret_census);

static void *symbol(void *library, const char *name)
{
    void *found = dlsym(library, name);

    if (!found)
        bench_die("there is no %s: %s", name, dlerror());
    return found;
}

static bool nvml_start(void)
{
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    char bus[32];

    if (!library)
        return false;
    int (*init)(void) = symbol(library, "nvmlInit_v2");
    int (*find)(const char *, void **) = symbol(library, "nvmlDeviceGetHandleByPciBusId_v2");
    nvml_memory_info = symbol(library, "nvmlDeviceGetMemoryInfo");
    MUST(cuDeviceGetPCIBusId(bus, sizeof bus, 0));
    return init() == 0 && find(bus, &nvml_device) == 0;
}

bool usage_start(void)
{
    if (!bench_software_driver())
        return nvml_start();
    census = symbol(RTLD_DEFAULT, "softcuda_census");
    return true;
}

uint64_t usage_bytes(void)
{
    struct softcuda_census now;
    struct nvml_memory memory;

    if (census) {
        census(&now);
        return now.device_bytes;
    }
    int result = nvml_memory_info(nvml_device, &memory);
    if (result != 0)
        bench_die("NVML does not say how much memory is used: error %d", result);
    return memory.used;
}

uint64_t usage_driver_calls(void)
{
    unsigned long (*calls)(const char *) = symbol(RTLD_DEFAULT, "softcuda_calls");

    return calls("*");
}
