/*
 * The window through which other devices see a GPU's memory (BAR1) can be much smaller than that
 * memory, and everything registered takes room in it, other processes' registrations too. What is
 * kept here is bounded to half of the smallest window of the machine's GPUs. NVML knows its size;
 * without NVML the option debug.registrations_bytes alone is the bound.
 */
#include "pinning.h"

#include <dlfcn.h>

#include "shim/lookup/elf_symbols.h"
#include "shim/lookup/names.h"
#include "shim/start.h"

struct bar1_memory { /* nvmlBAR1Memory_t, bytes */
    unsigned long long total, free, used;
};

typedef int plain_fn(void);
typedef int count_fn(unsigned *);
typedef int handle_fn(unsigned, void **);
typedef int bar1_fn(void *, struct bar1_memory *);

static uint64_t smallest_window(void *nvml)
{
    gs_dlsym_fn *find = gs_next_dlsym();
    plain_fn *init = (plain_fn *)find(nvml, "nvmlInit_v2");
    plain_fn *shutdown = (plain_fn *)find(nvml, "nvmlShutdown");
    count_fn *get_count = (count_fn *)find(nvml, "nvmlDeviceGetCount_v2");
    handle_fn *get_handle = (handle_fn *)find(nvml, "nvmlDeviceGetHandleByIndex_v2");
    bar1_fn *get_bar1 = (bar1_fn *)find(nvml, "nvmlDeviceGetBAR1MemoryInfo");
    uint64_t smallest = UINT64_MAX;
    struct bar1_memory memory;
    unsigned count = 0;
    void *device;

    if (!init || !shutdown || !get_count || !get_handle || !get_bar1 || init() != 0)
        return smallest;
    if (get_count(&count) != 0)
        count = 0;
    for (unsigned i = 0; i < count; i++)
        if (get_handle(i, &device) == 0 && get_bar1(device, &memory) == 0 && memory.total > 0 &&
            memory.total < smallest)
            smallest = memory.total;
    shutdown();
    return smallest;
}

void gs_pin_bound_by_bar1(void)
{
    static bool asked;
    void *(*next_dlopen)(const char *, int) = gs_elf_next("dlopen");
    uint64_t window;
    void *nvml;

    __atomic_store_n(&gs_pin_any, true, __ATOMIC_RELAXED);
    if (__atomic_exchange_n(&asked, true, __ATOMIC_RELAXED) || !next_dlopen)
        return;
    nvml = next_dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (!nvml)
        return;
    window = smallest_window(nvml);
    if (window != UINT64_MAX)
        gs_regcache_limit_bytes(gs_core_regcache(gs_core), window / 2);
}
