/* A libnvidia-ml.so.1 of one GPU with a small BAR1. */
typedef struct {
    unsigned long long total, free, used;
} bar1_t;

#define EXPORT __attribute__((visibility("default")))

EXPORT int nvmlInit_v2(void)
{
    return 0;
}

EXPORT int nvmlShutdown(void)
{
    return 0;
}

EXPORT int nvmlDeviceGetCount_v2(unsigned *count)
{
    *count = 1;
    return 0;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{
    *device = (void *)&nvmlInit_v2;
    return index != 0;
}

EXPORT int nvmlDeviceGetBAR1MemoryInfo(void *device, bar1_t *memory)
{
    *memory = (bar1_t){64ull << 20, 60ull << 20, 4ull << 20};
    return device != (void *)&nvmlInit_v2;
}
