/*
 * A communication library that uses gpushim.h: it registers through the cache, and listens. Found
 * by dlsym, as it is meant to be; run under the library.
 */
#include <cuda.h>

#include "tests/check.h"
#include "shim/gpushim.h"
#include "tests/system.h"

#define MIB ((size_t)1 << 20)

static unsigned pins, unpins, full;
static int unpin_error;

static int pin(void *arg, uintptr_t domain, uint64_t access, uint64_t address, size_t size,
               void **ret_handle)
{
    CHECK(arg == &pins && address % (64 << 10) == 0 && size % (64 << 10) == 0);
    if (full && pins - unpins >= full)
        return ENOMEM;
    *ret_handle = (void *)(uintptr_t)++pins;
    return 0;
}

static int unpin(void *arg, void *handle)
{
    if (unpin_error)
        return unpin_error;
    unpins++;
    return 0;
}

static const struct gpushim_pinner pinner = {sizeof pinner, "test", pin, unpin, &pins};

/* What was heard of one address, in order. */
static char heard[256];
static uint64_t heard_of;

static void hear(char what, uint64_t address, size_t size)
{
    size_t length = strlen(heard);

    if (heard_of >= address && heard_of < address + size && length + 1 < sizeof heard)
        heard[length] = what;
}

static void allocated(void *arg, uint64_t address, size_t size)
{
    if (!heard_of && size == 5 * MIB)
        heard_of = address;
    hear('a', address, size);
}

static void freed(void *arg, uint64_t address, size_t size)
{
    hear('f', address, size);
}

static void unmapping(void *arg, uint64_t address, size_t size)
{
    hear('u', address, size);
}

static const struct gpushim_listener listener = {sizeof listener, allocated, freed, unmapping,
                                                 NULL};

#define MOST 16 /* listeners, and pinners */

static int heard_by_many;

static void count(void *arg, uint64_t address, size_t size)
{
    heard_by_many++;
}

static const struct gpushim_listener counting = {.size = sizeof counting, .allocated = count};
static struct gpushim_pinner pinners[MOST]; /* as the one above */

static void trim(void)
{
    CUdeviceptr address;
    size_t left, total;

    CHECK(cuMemGetInfo(&left, &total) == CUDA_SUCCESS);
    CHECK(cuMemAlloc(&address, total - 1) == CUDA_ERROR_OUT_OF_MEMORY);
}

#define FIND(name)                                                             \
    __typeof__(&name) name##_ = (__typeof__(&name))dlsym(RTLD_DEFAULT, #name); \
    CHECK(name##_)

int main(void)
{
    FIND(gpushim_pinner_add);
    FIND(gpushim_pin);
    FIND(gpushim_unpin);
    FIND(gpushim_flush);
    FIND(gpushim_listen);
    FIND(gpushim_registrations);
    FIND(gpushim_registration_counts);
    struct gpushim_registration_counts counts = {.size = sizeof counts};
    struct gpushim_registration list[8];
    CUdeviceptr keep, a;
    CUcontext context;
    void *handle, *first, *second, *registration;
    char host[64];

    CHECK(gpushim_listen_(&listener) == ENODEV); /* nothing has started */
    CHECK(cuInit(0) == CUDA_SUCCESS && cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS &&
          cuCtxSetCurrent(context) == CUDA_SUCCESS && cuMemAlloc(&keep, 4 * MIB) == CUDA_SUCCESS);
    CHECK(gpushim_listen_(&listener) == 0 && gpushim_listen_(NULL) == EINVAL);
    CHECK(gpushim_pin_(&pinner, 1, 0, keep, 64, &handle, &registration) == EINVAL);
    CHECK(gpushim_pinner_add_(&pinner) == 0);

    /* Users share a registration. */
    CHECK(cuMemAlloc(&a, 5 * MIB) == CUDA_SUCCESS);
    CHECK(gpushim_pin_(&pinner, 1, 0, a + 10, 1000, &handle, &first) == 0);
    CHECK(gpushim_pin_(&pinner, 1, 0, a + 500, 1000, &handle, &second) == 0);
    CHECK(pins == 1 && (uintptr_t)handle == 1 && first == second);
    CHECK(gpushim_registrations_(list, 8) == 1 && strcmp(list[0].by, "test") == 0 &&
          list[0].uses == 2 && list[0].address == a && list[0].size == 64 << 10);
    gpushim_unpin_(second);
    CHECK(gpushim_pin_(&pinner, 2, 0, a, 64, &handle, &second) == 0 && pins == 2);
    gpushim_unpin_(second);
    gpushim_flush_(&pinner, 2);
    CHECK(unpins == 1);
    CHECK(gpushim_registration_counts_(&counts) == 0 && counts.hits == 1 && counts.misses == 2 &&
          counts.pins == 2 && counts.unpins == 1 && counts.invalidations == 1 &&
          counts.failures == 0 && counts.merges == 0 && counts.evictions == 0 &&
          counts.in_use == 1 && counts.kept == 0 && counts.bytes == 64 << 10);
    counts.size = 1;
    CHECK(gpushim_registration_counts_(&counts) == EINVAL);
    counts.size = sizeof counts;

    /* A larger range takes the place of kept ones within it. */
    CHECK(gpushim_pin_(&pinner, 4, 0, keep, 64, &handle, &second) == 0);
    gpushim_unpin_(second);
    CHECK(gpushim_pin_(&pinner, 4, 0, keep, 300 << 10, &handle, &second) == 0);
    gpushim_unpin_(second);
    CHECK(gpushim_registration_counts_(&counts) == 0 && counts.merges == 1 && counts.kept == 1 &&
          counts.bytes == (64 + 320) << 10);
    gpushim_flush_(&pinner, 4);
    CHECK(pins == 4 && unpins == 3);

    CHECK(gpushim_pin_(&pinner, 1, 0, (uintptr_t)host, 64, &handle, &second) == ENODEV);
    CHECK(gpushim_pin_(&pinner, 1, 0, a, 64 * MIB, &handle, &second) == EFAULT);

    /* Freed while in use: it stays until the use ends, and then goes in order. */
    CHECK(cuMemFree(a) == CUDA_SUCCESS);
    trim();
    CHECK(strcmp(heard, "af") == 0 && unpins == 3);
    gpushim_unpin_(first);
    trim();
    CHECK(strcmp(heard, "afu") == 0 && unpins == 4 && gpushim_registrations_(NULL, 0) == 0);

    /* A device that is full. */
    full = 1;
    CHECK(gpushim_pin_(&pinner, 1, 0, keep, 64, &handle, &first) == 0);
    CHECK(gpushim_pin_(&pinner, 2, 0, keep, 64, &handle, &second) == ENOMEM);
    gpushim_unpin_(first);
    CHECK(gpushim_pin_(&pinner, 2, 0, keep, 64, &handle, &second) == 0);
    gpushim_unpin_(second);
    CHECK(gpushim_registration_counts_(&counts) == 0 && counts.evictions == 1 &&
          counts.failures == 1);
    full = 0;

    /* One that cannot be undone keeps its memory, and nothing else. */
    CHECK(cuMemAlloc(&a, 6 * MIB) == CUDA_SUCCESS);
    CHECK(gpushim_pin_(&pinner, 3, 0, a, 64, &handle, &first) == 0);
    gpushim_unpin_(first);
    unpin_error = EIO;
    gpushim_flush_(&pinner, 3);
    unpin_error = 0;
    CHECK(cuMemFree(a) == CUDA_SUCCESS);
    trim();
    CHECK(gpushim_registrations_(list, 8) == 2 && list[1].uses == 1 && list[1].address == a);

    /* As many as the header says, and each is told. */
    for (int i = 0; i < MOST; i++)
        pinners[i] = pinner;
    for (int i = 1; i < MOST; i++)
        CHECK(gpushim_listen_(&counting) == 0 && gpushim_pinner_add_(&pinners[i]) == 0);
    CHECK(gpushim_listen_(&counting) == ENOSPC && gpushim_pinner_add_(&pinners[0]) == ENOSPC);
    CHECK(cuMemAlloc(&a, MIB) == CUDA_SUCCESS && heard_by_many == MOST - 1);
    return 0;
}
