/* cuMemAlloc, cuMemAllocPitch, cuMemFree and cuMemGetAddressRange, by every way to reach them. */
#include "conform.h"

#include <criterion/criterion.h>

TestSuite(alloc, .init = conform_start, .timeout = 60);

static const size_t sizes[] = {1,         4,   100,     512,     513,         4 * KIB, 64 * KIB,
                               MIB - 512, MIB, MIB + 1, 2 * MIB, 3 * MIB + 4, 32 * MIB};
#define SIZES (sizeof sizes / sizeof sizes[0])

Test(alloc, memory_of_every_size_holds_what_is_written)
{
    for (size_t i = 0; i < SIZES; i++) {
        CUdeviceptr ptr = 0;
        size_t words = sizes[i] / 4;

        OK(cuMemAlloc(&ptr, sizes[i]));
        cr_assert_neq(ptr, 0);
        cr_assert_eq(ptr % 256, 0, "%zu bytes at %llx", sizes[i], (unsigned long long)ptr);
        OK(cuMemsetD8(ptr, 0x5a, sizes[i]));
        if (words) {
            OK(fill_now(ptr, (uint32_t)i + 1, words));
            cr_assert_eq(words_other(ptr, (uint32_t)i + 1, words), 0);
        }
        OK(cuMemFree(ptr));
    }
}

Test(alloc, blocks_never_overlap)
{
    enum { BLOCKS = 96 };
    CUdeviceptr ptr[BLOCKS];
    size_t words[BLOCKS];

    for (int i = 0; i < BLOCKS; i++) {
        words[i] = sizes[1 + (size_t)i % (SIZES - 2)] / 4;
        OK(cuMemAlloc(&ptr[i], words[i] * 4));
        OK(launch_fill(CU_STREAM_LEGACY, ptr[i], (uint32_t)i, words[i]));
    }
    OK(cuCtxSynchronize());
    for (int i = 0; i < BLOCKS; i++) {
        cr_assert_eq(words_other(ptr[i], (uint32_t)i, words[i]), 0, "block %d of %zu words", i,
                     words[i]);
        OK(cuMemFree(ptr[i]));
    }
}

Test(alloc, small_blocks_are_512_bytes_apart)
{
    CUdeviceptr a = allocated(512), b = allocated(512);
    unsigned long long apart;

    apart = a < b ? b - a : a - b;
    probe("small_blocks_apart", "%llu", apart);
    cr_assert_geq(apart, 512);
    cr_assert_eq(a % 512, 0);
    cr_assert_eq(b % 512, 0);
}

Test(alloc, zero_bytes_are_refused)
{
    CUdeviceptr ptr = 0x77;

    CHECK(CUDA_ERROR_INVALID_VALUE, cuMemAlloc(&ptr, 0));
    FAILS(cuMemAlloc(NULL, 4096));
    probe("alloc_null_output", "%s", result_name(cuMemAlloc(NULL, 4096)));
    probe("alloc_zero_leaves_output", "%llx", (unsigned long long)ptr);
}

Test(alloc, more_than_there_is_is_out_of_memory)
{
    CUdeviceptr ptr = 0;

    CHECK(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&ptr, (size_t)1 << 50));
    CHECK(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocAsync(&ptr, (size_t)1 << 50, CU_STREAM_LEGACY));
    probe("alloc_size_max", "%s", result_name(cuMemAlloc(&ptr, SIZE_MAX)));
    /* And nothing is broken by it. */
    OK(cuMemAlloc(&ptr, 4096));
}

Test(alloc, free_of_null_is_success)
{
    OK(cuMemFree(0));
}

Test(alloc, free_of_what_is_no_block_is_refused)
{
    static const size_t some[] = {512, 4096, 2 * MIB, 8 * MIB};
    CUdeviceptr ptr = 0;

    CHECK(CUDA_ERROR_INVALID_VALUE, cuMemFree(NOWHERE));
    CHECK(CUDA_ERROR_INVALID_VALUE, cuMemFree(0x1234));
    for (size_t i = 0; i < sizeof some / sizeof some[0]; i++) {
        OK(cuMemAlloc(&ptr, some[i]));
        CHECK(CUDA_ERROR_INVALID_VALUE, cuMemFree(ptr + 256));
        CHECK(CUDA_ERROR_INVALID_VALUE, cuMemFree(ptr + 1));
        OK(fill_now(ptr, 7, some[i] / 4));
        cr_assert_eq(words_other(ptr, 7, some[i] / 4), 0, "a refused free changed the block");
        OK(cuMemFree(ptr));
        CHECK(CUDA_ERROR_INVALID_VALUE, cuMemFree(ptr));
    }
}

struct handed_over {
    CUdeviceptr ptr;
    CUcontext current; /* NULL: none */
    CUresult result;
};

static void *free_elsewhere(void *arg)
{
    struct handed_over *block = arg;

    block->result = block->current ? cuCtxSetCurrent(block->current) : CUDA_SUCCESS;
    if (block->result == CUDA_SUCCESS)
        block->result = cuMemFree(block->ptr);
    return NULL;
}

Test(alloc, another_thread_may_free)
{
    for (int i = 0; i < 8; i++) {
        struct handed_over block = {.current = context};
        pthread_t thread;

        OK(cuMemAlloc(&block.ptr, 4096u << i));
        cr_assert_eq(pthread_create(&thread, NULL, free_elsewhere, &block), 0);
        pthread_join(thread, NULL);
        OK(block.result);
        CHECK(CUDA_ERROR_INVALID_VALUE, cuMemFree(block.ptr));
    }
}

Test(alloc, a_thread_without_context_frees_or_is_refused)
{
    struct handed_over block = {.current = NULL};
    pthread_t thread;

    OK(cuMemAlloc(&block.ptr, 4096));
    cr_assert_eq(pthread_create(&thread, NULL, free_elsewhere, &block), 0);
    pthread_join(thread, NULL);
    probe("free_on_thread_without_context", "%s", result_name(block.result));
    /* Refused means that the block is still there. */
    if (block.result != CUDA_SUCCESS)
        OK(cuMemFree(block.ptr));
}

/* ---- pitch ---- */

Test(alloc, pitch_rounds_the_width_up)
{
    static const size_t widths[] = {1, 4, 100, 512, 513, 1000, 1024, 4097, 100000};
    static const unsigned int elements[] = {4, 8, 16};
    CUdeviceptr ptr = 0;
    size_t pitch = 0, size = 0;
    char seen[512] = "";
    size_t at = 0;

    for (size_t w = 0; w < sizeof widths / sizeof widths[0]; w++)
        for (size_t e = 0; e < 3; e++) {
            OK(cuMemAllocPitch(&ptr, &pitch, widths[w], 10, elements[e]));
            cr_assert_geq(pitch, widths[w]);
            cr_assert_eq(pitch % elements[e], 0);
            if (widths[w] == 1000 && elements[e] == 4)
                cr_assert_eq(pitch, 1024);
            at += (size_t)snprintf(seen + at, sizeof seen - at, " %zu/%u:%zu", widths[w],
                                   elements[e], pitch);
            for (size_t row = 0; row < 10; row++)
                OK(cuMemsetD8(ptr + row * pitch, 0x11, widths[w]));
            OK(cuMemGetAddressRange(NULL, &size, ptr));
            cr_assert_geq(size, pitch * 9 + widths[w]);
            probe("pitch_range", "width %zu pitch %zu range %zu", widths[w], pitch, size);
            OK(cuMemFree(ptr));
        }
    probe("pitches", "%s", seen);
}

Test(alloc, pitch_rows_hold_what_is_copied)
{
    enum { WIDTH = 1000, HEIGHT = 33 };
    unsigned char in[WIDTH * HEIGHT], out[WIDTH * HEIGHT];
    CUdeviceptr ptr = 0;
    size_t pitch = 0;

    for (int i = 0; i < WIDTH * HEIGHT; i++)
        in[i] = (unsigned char)(i * 7);
    OK(cuMemAllocPitch(&ptr, &pitch, WIDTH, HEIGHT, 4));
    for (size_t row = 0; row < HEIGHT; row++)
        OK(cuMemcpyHtoD(ptr + row * pitch, in + row * WIDTH, WIDTH));
    for (size_t row = 0; row < HEIGHT; row++)
        OK(cuMemcpyDtoH(out + row * WIDTH, ptr + row * pitch, WIDTH));
    cr_assert_eq(memcmp(in, out, sizeof in), 0);
}

Test(alloc, pitch_errors)
{
    CUdeviceptr ptr = 0;
    size_t pitch = 0;

    FAILS(cuMemAllocPitch(NULL, &pitch, 64, 4, 4));
    FAILS(cuMemAllocPitch(&ptr, NULL, 64, 4, 4));
    FAILS(cuMemAllocPitch(&ptr, &pitch, (size_t)1 << 40, 1 << 10, 4));
    CHECK(CUDA_ERROR_INVALID_VALUE, cuMemAllocPitch(&ptr, &pitch, 64, 0, 4));
    cr_assert_eq(pitch, 0, "no rows have one");
    probe("pitch_width_0", "%s", result_name(cuMemAllocPitch(&ptr, &pitch, 0, 4, 4)));
    probe("pitch_height_0", "%s", result_name(cuMemAllocPitch(&ptr, &pitch, 64, 0, 4)));
    for (unsigned int element = 0; element <= 32; element += element < 5 ? 1 : 9)
        probe("pitch_element", "%u: %s", element,
              result_name(cuMemAllocPitch(&ptr, &pitch, 64, 4, element)));
    probe("pitch_overflow", "%s",
          result_name(cuMemAllocPitch(&ptr, &pitch, SIZE_MAX - 4, SIZE_MAX - 4, 4)));
    probe("pitch_product_overflow", "%s",
          result_name(cuMemAllocPitch(&ptr, &pitch, (size_t)1 << 33, (size_t)1 << 33, 4)));
}

/* It gives what the product is modulo 2^64 (measured on an H200). */
Test(alloc, rows_that_are_beyond_counting_are_the_drivers_to_answer)
{
    const struct software *driver = software();
    CUdeviceptr ptr = 0;
    unsigned long before;
    size_t pitch = 0;

    if (!driver)
        cr_skip_test("only the software driver tells what it was asked");
    before = driver->calls("cuMemAllocPitch");
    if (cuMemAllocPitch(&ptr, &pitch, MIB, ((size_t)1 << 44) + 1, 4) == CUDA_SUCCESS)
        OK(cuMemFree(ptr));
    cr_assert_eq(driver->calls("cuMemAllocPitch"), before + 1);
}

/* ---- address range ---- */

/* Whether odd sizes are rounded up is not documented; into the next 512 bytes they must not go. */
static void check_size(size_t size, size_t asked)
{
    cr_assert(size >= asked && size < asked + 512, "%zu instead of %zu", size, asked);
}

Test(alloc, address_range_is_the_block)
{
    CUdeviceptr nowhere = 0;
    size_t nothing = 0;
    for (size_t i = 0; i < SIZES; i++) {
        CUdeviceptr ptr = 0, base = 0;
        size_t size = 0;

        OK(cuMemAlloc(&ptr, sizes[i]));
        OK(cuMemGetAddressRange(&base, &size, ptr));
        cr_assert_eq(base, ptr);
        probe("address_range_size", "%zu: %zu", sizes[i], size);
        check_size(size, sizes[i]);
        base = size = 0;
        OK(cuMemGetAddressRange(&base, &size, ptr + sizes[i] - 1));
        cr_assert_eq(base, ptr);
        check_size(size, sizes[i]);
        base = size = 0;
        OK(cuMemGetAddressRange(&base, NULL, ptr));
        cr_assert_eq(base, ptr);
        OK(cuMemGetAddressRange(NULL, &size, ptr));
        check_size(size, sizes[i]);
        probe("address_range_null_null", "%s", result_name(cuMemGetAddressRange(NULL, NULL, ptr)));
        OK(cuMemFree(ptr));
        CHECK(CUDA_ERROR_NOT_FOUND, cuMemGetAddressRange(&base, &size, ptr));
    }
    CHECK(CUDA_ERROR_NOT_FOUND, cuMemGetAddressRange(&nowhere, NULL, NOWHERE));
    CHECK(CUDA_ERROR_NOT_FOUND, cuMemGetAddressRange(NULL, &nothing, 0x1234));
    /* Measured on an H200: with nothing to answer nothing is looked up. */
    OK(cuMemGetAddressRange(NULL, NULL, NOWHERE));
}

Test(alloc, the_rest_of_a_shared_piece_is_no_block)
{
    CUdeviceptr ptr = allocated(512), base = 0;
    size_t size = 0;

    probe("address_range_behind_a_small_block", "%s",
          result_name(cuMemGetAddressRange(&base, &size, ptr + 512)));
    if (under_shim() || software_driver())
        CHECK(CUDA_ERROR_NOT_FOUND, cuMemGetAddressRange(&base, &size, ptr + 512));
    CHECK(CUDA_ERROR_INVALID_VALUE, cuMemFree(ptr + 512));
}

Test(alloc, address_range_of_other_memory_is_the_drivers)
{
    CUdeviceptr managed = 0, base = 0;
    size_t size = 0;
    void *host = NULL;

    OK(cuMemAllocManaged(&managed, 8192, CU_MEM_ATTACH_GLOBAL));
    OK(cuMemGetAddressRange(&base, &size, managed + 100));
    cr_assert_eq(base, managed);
    cr_assert_geq(size, 8192);
    OK(cuMemFree(managed));
    OK(cuMemAllocHost(&host, 8192));
    probe("address_range_host", "%s",
          result_name(cuMemGetAddressRange(&base, &size, (CUdeviceptr)(uintptr_t)host)));
}

/* ---- past the end and after the end ---- */

Test(alloc, copies_past_the_end_or_after_the_free)
{
    CUdeviceptr ptr = allocated(4096);
    CUresult past_set, past_copy, after;

    past_set = cuMemsetD8(ptr, 1, 8192);
    past_copy = cuMemcpyDtoD(ptr + 2048, ptr, 4096);
    OK(cuMemFree(ptr));
    after = cuMemsetD8(ptr, 1, 16);
    probe("memset_past_end", "%s", result_name(past_set));
    probe("copy_past_end", "%s", result_name(past_copy));
    probe("memset_after_free", "%s", result_name(after));
    if (!under_shim()) { /* The arena's piece goes on behind the block and stays mapped. */
        CHECK(CUDA_ERROR_INVALID_VALUE, past_set);
        CHECK(CUDA_ERROR_INVALID_VALUE, past_copy);
        CHECK(CUDA_ERROR_INVALID_VALUE, after);
    }
    OK(cuCtxSynchronize());
}

/* ---- every way to reach the calls ---- */

typedef CUresult (*alloc_fn)(CUdeviceptr *, size_t);
typedef CUresult (*pitch_fn)(CUdeviceptr *, size_t *, size_t, size_t, unsigned int);
typedef CUresult (*free_fn)(CUdeviceptr);
typedef CUresult (*range_fn)(CUdeviceptr *, size_t *, CUdeviceptr);
typedef CUresult (*info_fn)(size_t *, size_t *);
typedef CUresult (*share_fn)(CUipcMemHandle *, CUdeviceptr);

/* One program's calls, found one way. */
struct way {
    const char *name;
    alloc_fn alloc;
    pitch_fn pitch;
    free_fn free;
    range_fn range;
    info_fn info;
    share_fn share;
};

static void run_program(const struct way *way)
{
    CUdeviceptr ptr = 0, pitched = 0, base = 0;
    size_t size = 0, pitch = 0;
    CUipcMemHandle handle;

    cr_assert(way->alloc && way->pitch && way->free && way->range && way->info && way->share,
              "%s: an entry point is missing", way->name);
    OK(way->alloc(&ptr, 4100));
    OK(way->pitch(&pitched, &pitch, 1000, 10, 4));
    cr_assert_eq(pitch, 1024, "%s", way->name);
    OK(way->range(&base, &size, ptr + 4099));
    cr_assert_eq(base, ptr, "%s", way->name);
    check_size(size, 4100);
    OK(way->info(&size, &size));
    OK(way->share(&handle, ptr));
    CHECK(CUDA_ERROR_INVALID_VALUE, way->alloc(&base, 0));
    CHECK(CUDA_ERROR_INVALID_VALUE, way->free(ptr + 256));
    /* Under the shim every way must reach the same allocator, the directly linked one too. */
    OK(cuMemGetAddressRange(&base, &size, ptr));
    cr_assert_eq(base, ptr, "%s", way->name);
    OK(way->free(ptr));
    OK(way->free(pitched));
    CHECK(CUDA_ERROR_INVALID_VALUE, way->free(ptr));
}

Test(alloc, linked_calls)
{
    run_program(&(struct way){"linked", cuMemAlloc, cuMemAllocPitch, cuMemFree,
                              cuMemGetAddressRange, cuMemGetInfo, cuIpcGetMemHandle});
}

Test(alloc, calls_found_by_dlsym)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    void *scopes[] = {library, RTLD_DEFAULT};

    cr_assert_not_null(library, "%s", dlerror());
    for (int i = 0; i < 2; i++)
        run_program(&(struct way){.name = "dlsym",
                                  .alloc = (alloc_fn)dlsym(scopes[i], "cuMemAlloc_v2"),
                                  .pitch = (pitch_fn)dlsym(scopes[i], "cuMemAllocPitch_v2"),
                                  .free = (free_fn)dlsym(scopes[i], "cuMemFree_v2"),
                                  .range = (range_fn)dlsym(scopes[i], "cuMemGetAddressRange_v2"),
                                  .info = (info_fn)dlsym(scopes[i], "cuMemGetInfo_v2"),
                                  .share = (share_fn)dlsym(scopes[i], "cuIpcGetMemHandle")});
}

Test(alloc, calls_found_by_cuGetProcAddress)
{
    static const cuuint64_t flags[] = {CU_GET_PROC_ADDRESS_DEFAULT,
                                       CU_GET_PROC_ADDRESS_LEGACY_STREAM,
                                       CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM};

    for (int i = 0; i < 3; i++)
        run_program(
            &(struct way){.name = "cuGetProcAddress",
                          .alloc = (alloc_fn)driver_lookup("cuMemAlloc", 12000, flags[i]),
                          .pitch = (pitch_fn)driver_lookup("cuMemAllocPitch", 12000, flags[i]),
                          .free = (free_fn)driver_lookup("cuMemFree", 12000, flags[i]),
                          .range = (range_fn)driver_lookup("cuMemGetAddressRange", 12000, flags[i]),
                          .info = (info_fn)driver_lookup("cuMemGetInfo", 12000, flags[i]),
                          .share = (share_fn)driver_lookup("cuIpcGetMemHandle", 12000, flags[i])});
}

/* The runtime's way: cuGetProcAddress by dlsym, itself by itself, the rest by that. */
Test(alloc, calls_found_as_the_runtime_does)
{
    typedef CUresult (*lookup_fn)(const char *, void **, int, cuuint64_t,
                                  CUdriverProcAddressQueryResult *);
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    lookup_fn lookup, again = NULL;
    struct way way = {.name = "runtime"};
    CUdriverProcAddressQueryResult found;

    cr_assert_not_null(library, "%s", dlerror());
    lookup = (lookup_fn)dlsym(library, "cuGetProcAddress_v2");
    cr_assert_not_null(lookup);
    OK(lookup("cuGetProcAddress", (void **)&again, 12000, 0, &found));
    cr_assert_not_null(again);
    OK(again("cuMemAlloc", (void **)&way.alloc, 12000, 2, &found));
    cr_assert_eq(found, CU_GET_PROC_ADDRESS_SUCCESS);
    OK(again("cuMemAllocPitch", (void **)&way.pitch, 12000, 2, &found));
    OK(again("cuMemFree", (void **)&way.free, 12000, 2, NULL));
    OK(again("cuMemGetAddressRange", (void **)&way.range, 12000, 2, NULL));
    OK(again("cuMemGetInfo", (void **)&way.info, 12000, 2, NULL));
    OK(again("cuIpcGetMemHandle", (void **)&way.share, 12000, 2, NULL));
    run_program(&way);
}

Test(alloc, lookups_of_what_is_not_there)
{
    CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SUCCESS;
    void *address = (void *)1;
    CUresult r = cuGetProcAddress("cuNoSuchCall", &address, 12000, 0, &found);

    probe("lookup_unknown", "%s found %d null %d", result_name(r), (int)found, address == NULL);
    cr_assert(r != CUDA_SUCCESS || !address);
    address = (void *)1;
    r = cuGetProcAddress("cuMemAllocAsync", &address, 10000, 0, &found);
    probe("lookup_too_old", "%s found %d null %d", result_name(r), (int)found, address == NULL);
    cr_assert(r != CUDA_SUCCESS || !address);
}

/* The calls of before CUDA 3.2, with 32-bit addresses: the driver still exports them. Whatever it
 * makes of them must not be worse with the shim. */
Test(alloc, calls_with_32_bit_addresses)
{
    typedef CUresult (*old_alloc_fn)(unsigned int *, unsigned int);
    typedef CUresult (*old_free_fn)(unsigned int);
    old_alloc_fn alloc = (old_alloc_fn)dlsym(RTLD_DEFAULT, "cuMemAlloc");
    old_free_fn release = (old_free_fn)dlsym(RTLD_DEFAULT, "cuMemFree");
    unsigned int ptr[2] = {0, 0x5a5a5a5a}; /* the second must not be written */
    CUresult r;

    if (!alloc || !release)
        cr_skip_test("this driver does not export them");
    r = alloc(ptr, 4096);
    probe("alloc_32_bit", "%s", result_name(r));
    if (r == CUDA_SUCCESS) {
        cr_assert_neq(ptr[0], 0);
        OK(release(ptr[0]));
    }
    cr_assert_eq(ptr[1], 0x5a5a5a5a);
}

/* ---- exhausting the device: only where it is ours alone ---- */

static size_t fill_device(CUdeviceptr *ptr, size_t capacity, size_t size)
{
    size_t n = 0;

    while (n < capacity && cuMemAlloc(&ptr[n], size) == CUDA_SUCCESS)
        n++;
    return n;
}

Test(alloc, an_exhausted_device_recovers)
{
    enum { CAPACITY = 1 << 16 };
    static CUdeviceptr ptr[CAPACITY];
    static const size_t size[] = {64 * MIB, 2 * MIB, 64 * MIB};
    size_t first = 0, before, n;

    if (!software_driver())
        cr_skip_test("the device is not this test's alone");
    before = memory_free_bytes();
    for (int round = 0; round < 3; round++) {
        n = fill_device(ptr, CAPACITY, size[round]);
        cr_assert_lt(n, CAPACITY);
        cr_assert_geq(n * size[round] + 64 * MIB, before, "out of memory after %zu of %zu MiB",
                      n * size[round] / MIB, before / MIB);
        if (round == 0)
            first = n;
        if (round == 2)
            cr_assert_eq(n, first, "%zu blocks fit instead of %zu", n, first);
        CHECK(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&ptr[n], 128 * MIB));
        while (n)
            OK(cuMemFree(ptr[--n]));
    }
    OK(cuCtxSynchronize());
    cr_assert_geq(memory_free_bytes() + 2 * MIB, before);
}
