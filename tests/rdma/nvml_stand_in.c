/* A libnvidia-ml.so.1 of three GPUs, of which the one in the midst has a small BAR1, and a fourth
 * that does not say what it has. Who asks for one more hears of a yet smaller one. */
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
    *count = 4;
    return 0;
}

static const unsigned long long windows[5] = {128ull << 20, 64ull << 20, 256ull << 20, 0,
                                              1ull << 20};

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{
    *device = (void *)&windows[index];
    return index > 4;
}

EXPORT int nvmlDeviceGetBAR1MemoryInfo(void *device, bar1_t *memory)
{
    const unsigned long long total = *(const unsigned long long *)device;

    *memory = (bar1_t){total, total / 2, total / 2};
    return 0;
}
