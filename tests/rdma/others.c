/*
 * A program that pins GPU memory through libgdrapi and registers it with libcufile, both found by
 * dlopen, as their users do. Under the library, with stand-ins for both.
 *
 *   others gdr|gdr-first|gdr-early|cufile|cufile-unkept LIBRARY
 */
#include <cuda.h>

#include "tests/check.h"
#include "pin_counts.h"
#include "softcuda.h"
#include "tests/system.h"

#define MIB ((size_t)1 << 20)

struct gdr;
typedef struct {
    unsigned long h;
} handle_t;
typedef struct {
    int err, cu_err;
} error_t_;

static void (*get_counts)(struct pin_counts *ret_counts);

static struct pin_counts counts(void)
{
    struct pin_counts now;

    get_counts(&now);
    return now;
}

static CUdeviceptr allocate(size_t size)
{
    CUdeviceptr address;

    CHECK(cuMemAlloc(&address, size) == CUDA_SUCCESS);
    return address;
}

static void trim(void)
{
    CUdeviceptr address;
    size_t left, total;

    CHECK(cuMemGetInfo(&left, &total) == CUDA_SUCCESS);
    CHECK(cuMemAlloc(&address, total - 1) == CUDA_ERROR_OUT_OF_MEMORY);
}

/* Of which each holds one piece of memory. */
static unsigned mappings(void)
{
    struct softcuda_census census;

    softcuda_census(&census);
    return census.mappings;
}

static bool crosses(void)
{
    const char *option = getenv("GPUSHIM_DEBUG_POOL_CROSS");

    return !option || strcmp(option, "off") != 0;
}

/* What the program asked for is what it gets: a pin that was made otherwise is another. */
static void other_pins(struct gdr *g, void *library)
{
    int (*pin)(struct gdr *, unsigned long, size_t, uint64_t, uint32_t, handle_t *) =
        (int (*)(struct gdr *, unsigned long, size_t, uint64_t, uint32_t,
                 handle_t *))dlsym(library, "gdr_pin_buffer");
    int (*pin_v2)(struct gdr *, unsigned long, size_t, uint32_t, handle_t *) =
        (int (*)(struct gdr *, unsigned long, size_t, uint32_t,
                 handle_t *))dlsym(library, "gdr_pin_buffer_v2");
    int (*unpin)(struct gdr *, handle_t) =
        (int (*)(struct gdr *, handle_t))dlsym(library, "gdr_unpin_buffer");
    CUdeviceptr a = allocate(4 * MIB);
    unsigned long before = counts().pinned;
    handle_t handle;

    for (int i = 0; i < 2; i++) {
        for (unsigned token = 0; token < 2; token++)
            for (unsigned space = 0; space < 2; space++)
                CHECK(pin(g, a, 64 << 10, token, space, &handle) == 0 && unpin(g, handle) == 0);
        CHECK(counts().pinned == before + 4);
    }
    for (int i = 0; i < 2; i++) {
        for (unsigned flags = 1; flags < 3; flags++)
            CHECK(pin_v2(g, a, 64 << 10, flags, &handle) == 0 && unpin(g, handle) == 0);
        CHECK(counts().pinned == before + 6);
    }
    CHECK(cuMemFree(a) == CUDA_SUCCESS);
    trim();
}

/* Its kernel's driver pins no more than one of the driver's allocations (4 MiB of this GPU). */
static void gdr_across(struct gdr *g, void *library, bool is_across)
{
    int (*pin)(struct gdr *, unsigned long, size_t, uint32_t, handle_t *) =
        (int (*)(struct gdr *, unsigned long, size_t, uint32_t,
                 handle_t *))dlsym(library, "gdr_pin_buffer_v2");
    int (*unpin)(struct gdr *, handle_t) =
        (int (*)(struct gdr *, handle_t))dlsym(library, "gdr_unpin_buffer");
    CUdeviceptr a = allocate(8 * MIB);
    unsigned long before = counts().live;
    handle_t handle;
    int error;

    for (int i = 0; i < 2; i++) {
        error = pin(g, a, 8 * MIB, 0, &handle);
        CHECK(error == (is_across ? EINVAL : 0) && (error || unpin(g, handle) == 0));
        CHECK(pin(g, a + 4 * MIB, 4 * MIB, 0, &handle) == 0 && unpin(g, handle) == 0);
    }
    CHECK(cuMemFree(a) == CUDA_SUCCESS);
    trim();
    CHECK(counts().live == before && counts().wrong == 0);
}

/* A program that opens it before it has any memory has none across allocations. */
static void gdr_opened(struct gdr *g, void *library)
{
    CHECK(g);
    allocate(MIB);
    gdr_across(g, library, false);
}

static struct gdr *open_gdr(void *library)
{
    return ((struct gdr * (*)(void)) dlsym(library, "gdr_open"))();
}

static void gdr(void *library)
{
    int (*pin)(struct gdr *, unsigned long, size_t, uint64_t, uint32_t, handle_t *) =
        (int (*)(struct gdr *, unsigned long, size_t, uint64_t, uint32_t,
                 handle_t *))dlsym(library, "gdr_pin_buffer");
    int (*unpin)(struct gdr *, handle_t) =
        (int (*)(struct gdr *, handle_t))dlsym(library, "gdr_unpin_buffer");
    int (*map)(struct gdr *, handle_t, void **, size_t) =
        (int (*)(struct gdr *, handle_t, void **, size_t))dlsym(library, "gdr_map");
    int (*unmap)(struct gdr *, handle_t, void *, size_t) =
        (int (*)(struct gdr *, handle_t, void *, size_t))dlsym(library, "gdr_unmap");
    int (*close_)(struct gdr *) = (int (*)(struct gdr *))dlsym(library, "gdr_close");
    CUdeviceptr a = allocate(4 * MIB), b;
    struct gdr *g = open_gdr(library), *other = open_gdr(library);
    handle_t handle, second;
    void *va;

    for (int i = 0; i < 5; i++) {
        CHECK(pin(g, a, 64 << 10, 0, 0, &handle) == 0);
        CHECK(map(g, handle, &va, 64 << 10) == 0 && unmap(g, handle, va, 64 << 10) == 0);
        CHECK(unpin(g, handle) == 0);
    }
    CHECK(counts().pinned == 1 && counts().live == 1);
    CHECK(unpin(g, handle) == EINVAL); /* twice */
    CHECK(pin(other, a, 64 << 10, 0, 0, &second) == 0 && second.h != handle.h);
    CHECK(pin(g, a, 128 << 10, 0, 0, &handle) == 0 && counts().pinned == 3);
    CHECK(map(g, handle, &va, 128 << 10) == 0);
    CHECK(unpin(g, handle) == 0); /* mapped: that has to unmap it */
    CHECK(counts().live == 2);
    CHECK(cuMemFree(a) == CUDA_SUCCESS);
    CHECK(pin(g, a, 64 << 10, 0, 0, &handle) == EINVAL); /* freed, though a pin of it is kept */
    trim();
    b = allocate(4 * MIB);
    CHECK(b != a);                                      /* `second` is in use: it waits */
    CHECK(pin(g, b, 8 * MIB, 0, 0, &handle) == EINVAL); /* past its end */
    CHECK(close_(other) == 0 && counts().left_to_close == 1);
    trim();
    CHECK(counts().live == 0 && counts().wrong == 0);
    other = open_gdr(library);
    CHECK(pin(g, b, 64 << 10, 0, 0, &handle) == 0 && close_(other) == 0);
    CHECK(cuMemFree(b) == CUDA_SUCCESS);
    trim();
    CHECK(counts().live == 1); /* that is in use, whichever else was closed */
    CHECK(unpin(g, handle) == 0 && counts().wrong == 0);
    trim();
    other_pins(g, library);
    gdr_across(g, library, crosses());
    b = allocate(4 * MIB);
    CHECK(pin(g, b, 64 << 10, 0, 0, &handle) == 0 && unpin(g, handle) == 0);
    CHECK(close_(g) == 0);
    CHECK(counts().left_to_close == 1 && counts().wrong == 0 && counts().live == 0);
}

/* The same; but what is not registered is moved all the same, so a program need not know. */
static void cufile_across(error_t_ (*reg)(const void *, size_t, int),
                          error_t_ (*dereg)(const void *))
{
    unsigned parts = mappings();
    CUdeviceptr a = allocate(8 * MIB);
    unsigned long before = counts().pinned;
    void *p = (void *)a;

    for (int i = 0; i < 2; i++) {
        CHECK(reg(p, 8 * MIB, 0).err == 0);
        CHECK(dereg(p).err == 0);
        CHECK(dereg(p).err == 5024);
    }
    CHECK(counts().pinned == before + !crosses());
    CHECK(reg(p, 12 * MIB, 0).err == 5014); /* past its end */
    CHECK(reg((char *)p + 4 * MIB, MIB, 0).err == 0);
    CHECK(reg(p, 8 * MIB, 0).err == 5023); /* the library's own error */
    CHECK(dereg((char *)p + 4 * MIB).err == 0);
    CHECK(reg(p, 8 * MIB, 0).err == 0);
    CHECK(cuMemFree(a) == CUDA_SUCCESS);
    trim();
    CHECK(dereg(p).err == 0);
    trim();
    CHECK(counts().live == 0 && counts().wrong == 0 && mappings() <= parts);
}

static void cufile(void *library)
{
    error_t_ (*reg)(const void *, size_t, int) =
        (error_t_ (*)(const void *, size_t, int))dlsym(library, "cuFileBufRegister");
    error_t_ (*dereg)(const void *) =
        (error_t_ (*)(const void *))dlsym(library, "cuFileBufDeregister");
    error_t_ (*close_)(void) = (error_t_ (*)(void))dlsym(library, "cuFileDriverClose");
    void (*fail)(int) = (void (*)(int))dlsym(library, "cufile_stand_in_fail");
    CUdeviceptr a = allocate(4 * MIB), b;
    void *p = (void *)a;
    unsigned before;

    for (int i = 0; i < 5; i++) {
        CHECK(reg(p, 1 * MIB, 0).err == 0);
        CHECK(dereg(p).err == 0);
    }
    CHECK(counts().pinned == 1);
    CHECK(dereg(p).err == 5024);        /* twice */
    CHECK(reg(p, 2 * MIB, 0).err == 0); /* the kept one goes for it */
    CHECK(counts().live == 1 && counts().pinned == 2);
    CHECK(reg(p, 2 * MIB, 0).err == 5023); /* the library's own error */
    CHECK(reg((char *)p + 64, 64, 0).err == 5023);
    CHECK(reg(p, 64 * MIB, 0).err == 5014); /* past the end */
    CHECK(dereg(p).err == 0);
    CHECK(cuMemFree(a) == CUDA_SUCCESS);
    CHECK(reg(p, 2 * MIB, 0).err == 5014 && counts().live == 1); /* freed, though it is kept */
    trim();
    CHECK(counts().live == 0 && counts().wrong == 0);
    a = allocate(4 * MIB);
    CHECK(reg((void *)a, MIB, 0).err == 0 && dereg((void *)a).err == 0);
    CHECK(close_().err == 0 && counts().left_to_close == 0);
    cufile_across(reg, dereg);
    CHECK(reg((void *)a, MIB, 0).err == 0 && counts().live == 1); /* not the one of before */
    CHECK(close_().err == 0 && counts().left_to_close == 1);
    CHECK(dereg((void *)a).err == 5024);

    for (int i = 0; i < 2; i++) /* other flags, another registration; the kept one is in the way */
        for (int flags = 0; flags < 2; flags++) {
            unsigned long pinned = counts().pinned;

            CHECK(reg((void *)a, MIB, flags).err == 0 && dereg((void *)a).err == 0);
            CHECK(counts().pinned == pinned + 1 && counts().live == 1);
        }

    /* What a close has ended holds no memory, and what one that failed has not does. */
    CHECK(close_().err == 0);
    before = mappings();
    b = allocate(16 * MIB);
    CHECK(mappings() > before);
    CHECK(reg((void *)b, MIB, 0).err == 0);
    fail(5011);
    CHECK(close_().err == 5011);
    CHECK(cuMemFree(b) == CUDA_SUCCESS);
    trim();
    CHECK(mappings() > before && counts().wrong == 0);
    CHECK(close_().err == 0 && counts().live == 0);
    trim();
    CHECK(mappings() <= before && counts().wrong == 0);

    /* An error that is not this call's is not told by it. */
    b = allocate(16 * MIB);
    CHECK(reg((void *)b, MIB, 0).err == 0 && dereg((void *)b).err == 0);
    fail(5030);
    CHECK(reg((void *)b, 2 * MIB, 0).err == 5023); /* the kept one could not be ended for it */
    CHECK(reg((void *)a, MIB, 0).err == 0 && dereg((void *)a).err == 0);
    CHECK(close_().err == 0 && counts().wrong == 0);
}

/* With nothing kept, the program hears what the library says of each end. */
static void cufile_unkept(void *library)
{
    error_t_ (*reg)(const void *, size_t, int) =
        (error_t_ (*)(const void *, size_t, int))dlsym(library, "cuFileBufRegister");
    error_t_ (*dereg)(const void *) =
        (error_t_ (*)(const void *))dlsym(library, "cuFileBufDeregister");
    void (*fail)(int) = (void (*)(int))dlsym(library, "cufile_stand_in_fail");
    void *p = (void *)allocate(4 * MIB);
    error_t_ error;

    CHECK(reg(p, MIB, 0).err == 0);
    fail(5030);
    error = dereg(p);
    CHECK(error.err == 5030 && error.cu_err == 7 && counts().live == 1);
    CHECK(dereg(p).err == 0 && counts().live == 0);
    CHECK(dereg(p).err == 5024);
}

int main(int argc, char **argv)
{
    bool is_gdr = argc > 1 && strncmp(argv[1], "gdr", 3) == 0;
    void *library = argc > 2 ? dlopen(argv[2], RTLD_NOW | RTLD_LOCAL) : NULL;
    struct gdr *gdr_first = NULL;
    CUcontext context;

    if (!library)
        return 2;
    if (strcmp(argv[1], "gdr-first") == 0)
        gdr_first = open_gdr(library); /* before any call of CUDA */
    CHECK(cuInit(0) == CUDA_SUCCESS && cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS &&
          cuCtxSetCurrent(context) == CUDA_SUCCESS);
    get_counts = (void (*)(struct pin_counts *))dlsym(library, is_gdr ? "gdr_stand_in_counts"
                                                                      : "cufile_stand_in_counts");
    CHECK(get_counts);
    if (is_gdr && argv[1][3]) {
        gdr_opened(gdr_first ? gdr_first : open_gdr(library), library);
        return 0;
    }
    allocate(4 * MIB); /* so that the device is never free as a whole: trim() */
    if (is_gdr)
        gdr(library);
    else if (strcmp(argv[1], "cufile") == 0)
        cufile(library);
    else
        cufile_unkept(library);
    return 0;
}
