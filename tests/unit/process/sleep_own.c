/* What the program makes and maps itself goes off the GPU and comes back as it was
 * (core/process/sleep_own.c). The calls here do what the hooks do. */
#include <criterion/criterion.h>

#include "core/process/context.h"
#include "core/process/own.h"
#include "tests/unit/process/sleeping.h"

#define OWN(f) ((f)->core->programs.own)

static const CUmemAllocationProp plain = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                          .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE,
                                                       .id = 0}};

static CUmemGenericAllocationHandle create(struct fixture *f, size_t size)
{
    CUmemGenericAllocationHandle handle;

    MUST(cuMemCreate(&handle, size, &plain, 0));
    return gs_own_made(OWN(f), handle, &(struct gs_own_memory){.size = size, .properties = plain});
}

static CUresult release(struct fixture *f, CUmemGenericAllocationHandle handle)
{
    handle = gs_own_releasing(OWN(f), handle);
    return handle ? cuMemRelease(handle) : CUDA_SUCCESS;
}

static CUmemGenericAllocationHandle retain(struct fixture *f, CUdeviceptr at)
{
    CUmemGenericAllocationHandle handle;

    MUST(cuMemRetainAllocationHandle(&handle, (void *)at));
    return gs_own_retained(OWN(f), handle, at);
}

static CUdeviceptr reserve(struct fixture *f, size_t size)
{
    CUdeviceptr base;

    MUST(cuMemAddressReserve(&base, size, 0, 0, 0));
    gs_own_reserved(OWN(f), base, size);
    return base;
}

static CUresult map(struct fixture *f, CUdeviceptr at, size_t size,
                    CUmemGenericAllocationHandle handle)
{
    CUresult result = cuMemMap(at, size, 0, gs_own_real(OWN(f), handle), 0);

    if (result == CUDA_SUCCESS)
        gs_own_mapped(OWN(f), at, size, 0, handle);
    return result;
}

static void let_in(struct fixture *f, CUdeviceptr at, size_t size, CUdevice device,
                   CUmemAccess_flags flags)
{
    const CUmemAccessDesc access = {{.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}, flags};

    MUST(cuMemSetAccess(at, size, &access, 1));
    gs_own_access_set(OWN(f), at, size, &access, 1);
}

static void unmap(struct fixture *f, CUdeviceptr at, size_t size)
{
    struct gs_own_mapping *taken = gs_own_unmapping(OWN(f), at, size);

    MUST(cuMemUnmap(at, size));
    gs_own_unmapped(OWN(f), taken, true);
}

static unsigned long long access_of(CUdeviceptr at, CUdevice device)
{
    const CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
    unsigned long long flags = 77;

    MUST(cuMemGetAccess(&flags, &location, at));
    return flags;
}

/* ---- One of each ----------------------------------------------------------------------------- */

enum { PLAIN, TWICE, RELEASED, UNMAPPED, CLOSED, READ_ONLY, RETAINED, KINDS };
static const size_t sizes[KINDS] = {4 * MIB, 2 * MIB, 6 * MIB, 2 * MIB, 4 * MIB, 2 * MIB, 2 * MIB};
static CUmemGenericAllocationHandle handles[KINDS];
static CUdeviceptr at[KINDS], second;
static struct fixture *now;
static size_t before; /* bytes of the device's */
static size_t stay;   /* of what cannot be copied: it stays on the GPU */

static void follow(struct fixture *f)
{
    fixture_home(f); /* the context is known */
    f->core->programs.own = gs_own_new(f->core->share, false);
    now = f;
}

static void start(struct fixture *f)
{
    sleeping_start(f, "1G");
    follow(f);
}

static void make(struct fixture *f)
{
    if (!OWN(f))
        follow(f);
    before = device_bytes();
    stay = sizes[UNMAPPED] + sizes[CLOSED] + sizes[READ_ONLY];
    for (unsigned i = 0; i < KINDS; i++) {
        handles[i] = create(f, sizes[i]);
        at[i] = reserve(f, sizes[i]);
        MUST(map(f, at[i], sizes[i], handles[i]));
        let_in(f, at[i], sizes[i], 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        fill(at[i], sizes[i], 10 + i);
    }
    gs_own_mapped(OWN(f), at[PLAIN], sizes[PLAIN], 0,
                  handles[PLAIN]); /* ended where nobody saw it */
    let_in(f, at[PLAIN], sizes[PLAIN], 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    second = reserve(f, sizes[TWICE]);
    MUST(map(f, second, sizes[TWICE], handles[TWICE]));
    let_in(f, second, sizes[TWICE], 0, CU_MEM_ACCESS_FLAGS_PROT_READ);
    MUST(release(f, handles[RELEASED]));
    unmap(f, at[UNMAPPED], sizes[UNMAPPED]);
    cr_assert_eq(gs_own_bytes_of(OWN(f), 0), 22 * MIB, "of all handles that are there");
    let_in(f, at[CLOSED], sizes[CLOSED], 0, CU_MEM_ACCESS_FLAGS_PROT_NONE);
    let_in(f, at[READ_ONLY], sizes[READ_ONLY], 0, CU_MEM_ACCESS_FLAGS_PROT_READ);
    MUST(release(f, handles[READ_ONLY]));
    cr_assert_eq(retain(f, at[RETAINED]), handles[RETAINED]);
}

/* Also that the access is as it was, and that what is nobody's to read has its contents. */
static bool are_right(void)
{
    bool right = is_filled(second, sizes[TWICE], 10 + TWICE) &&
                 access_of(second, 0) == CU_MEM_ACCESS_FLAGS_PROT_READ &&
                 access_of(at[READ_ONLY], 0) == CU_MEM_ACCESS_FLAGS_PROT_READ &&
                 access_of(at[CLOSED], 0) == CU_MEM_ACCESS_FLAGS_PROT_NONE;

    MUST(map(now, at[UNMAPPED], sizes[UNMAPPED], handles[UNMAPPED]));
    let_in(now, at[UNMAPPED], sizes[UNMAPPED], 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    let_in(now, at[CLOSED], sizes[CLOSED], 0, CU_MEM_ACCESS_FLAGS_PROT_READ);
    for (unsigned i = 0; i < KINDS; i++)
        right &= is_filled(at[i], sizes[i], 10 + i);
    unmap(now, at[UNMAPPED], sizes[UNMAPPED]);
    let_in(now, at[CLOSED], sizes[CLOSED], 0, CU_MEM_ACCESS_FLAGS_PROT_NONE);
    return right;
}

/* Whoever has a handle gives it back as often as they have it, and nothing is left, where the
 * driver took back what it was given. */
static void end(struct fixture *f)
{
    const bool took = strcmp(softcuda_last_failed(), "cuMemRelease") != 0;

    unmap(f, second, sizes[TWICE]);
    for (unsigned i = 0; i < KINDS; i++) {
        if (i != UNMAPPED)
            unmap(f, at[i], sizes[i]);
        if (i == RETAINED)
            MUST(release(f, handles[i]));
        if (i != RELEASED && i != READ_ONLY)
            MUST(release(f, handles[i]));
        else if (took)
            cr_assert_eq(release(f, handles[i]), CUDA_ERROR_INVALID_VALUE);
        MUST(cuMemAddressFree(at[i], sizes[i]));
    }
    MUST(cuMemAddressFree(second, sizes[TWICE]));
    fixture_release(f, true);
    if (took)
        cr_assert_eq(device_bytes(), before, "after %s failed", softcuda_last_failed());
    cr_assert_eq(HASH_COUNT(OWN(f)->handles), 0);
    cr_assert_eq(gs_own_bytes(OWN(f)), 0);
    fixture_end(f);
}

static const struct slept own_slept = {make, are_right, end};

Test(sleep_own, it_goes_and_comes_back_as_it_was, .timeout = 60)
{
    struct gs_sleep_why why;
    struct fixture f;
    size_t all;

    start(&f);
    make(&f);
    all = device_bytes() - before;
    fixture_driver(&f)->mem_release = release_what_is_had;
    for (int round = 0; round < 3; round++) {
        cr_assert(goes(&f, &why), "%s", why.text);
        cr_assert_eq(device_bytes(), stay);
        cr_assert_geq(asleep(&f).copied, all - stay);
        cr_assert_eq(asleep(&f).stays[GS_STAYS_OWN], stay);
        cr_assert_eq(asleep(&f).stays[GS_STAYS_SHARED], 0);
        cr_assert(comes(&f, &why), "%s", why.text);
        cr_assert(are_right(), "round %d", round);
        for (struct gs_own_handle *handle = OWN(&f)->handles; handle; handle = handle->hh.next)
            cr_assert_null(handle->away);
    }
    MUST(release(&f, handles[RETAINED])); /* one reference is left, and holds it */
    unmap(&f, at[RETAINED], sizes[RETAINED]);
    MUST(map(&f, at[RETAINED], sizes[RETAINED], handles[RETAINED]));
    let_in(&f, at[RETAINED], sizes[RETAINED], 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    cr_assert(is_filled(at[RETAINED], sizes[RETAINED], 10 + RETAINED));
    cr_assert_eq(retain(&f, at[RETAINED]), handles[RETAINED]);
    end(&f);
}

/* What is on the second is copied in a context of that one, and by parts; the first may read it. */
Test(sleep_own, of_two_gpus_each_has_its_own, .timeout = 60)
{
    const CUmemAllocationProp there = {.type = plain.type,
                                       .location = {.type = plain.location.type, .id = 1}};
    const struct gs_own_memory memory = {.size = 70 * MIB, .device = 1, .properties = there};
    size_t left[2], total;
    CUmemGenericAllocationHandle handle;
    struct gs_sleep_why why;
    CUcontext context;
    CUdeviceptr base, block;
    struct fixture f;

    start(&f);
    MUST(cuDevicePrimaryCtxRetain(&context, 1));
    MUST(cuCtxSetCurrent(context));
    block = must_alloc(&f, 2 * MIB);
    MUST(cuMemCreate(&handle, memory.size, &there, 0));
    handle = gs_own_made(OWN(&f), handle, &memory);
    base = reserve(&f, memory.size);
    MUST(map(&f, base, memory.size, handle));
    let_in(&f, base, memory.size, 1, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    let_in(&f, base, memory.size, 0, CU_MEM_ACCESS_FLAGS_PROT_READ);
    MUST(cuMemGetInfo(&left[0], &total));
    for (int in_file = 0; in_file < 2; in_file++) {
        fill(base, memory.size, 7 + (unsigned)in_file);
        cr_assert(gs_core_sleep(f.core, in_file ? "/tmp" : NULL, NULL, gs_now_ns() + SECOND, &why),
                  "%s", why.text);
        cr_assert_geq(asleep(&f).copied, 72 * MIB);
        cr_assert_eq(gs_core_away(f.core, 1), asleep(&f).away);
        cr_assert_eq(device_bytes(), 0);
        cr_assert(comes(&f, &why), "%s", why.text);
        cr_assert(is_filled(base, memory.size, 7 + (unsigned)in_file));
        cr_assert_eq(access_of(base, 0), CU_MEM_ACCESS_FLAGS_PROT_READ);
        cr_assert_eq(access_of(base, 1), CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        cr_assert_eq(access_of(block, 1), CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        MUST(cuMemGetInfo(&left[1], &total));
        cr_assert_eq(left[1], left[0], "all of it is on this one");
    }
}

/* Such a number comes when the driver likes. */
Test(sleep_own, a_number_that_the_driver_gives_anew_is_another, .timeout = 60)
{
    const struct gs_own_memory other = {.size = 2 * MIB, .properties = plain};
    CUmemGenericAllocationHandle anew;
    struct gs_sleep_why why;
    struct fixture f;
    CUdeviceptr base;

    start(&f);
    make(&f);
    cr_assert_eq(gs_own_made(OWN(&f), 4711, &other), 4711);
    cr_assert_eq(gs_own_releasing(OWN(&f), 4711), 4711);
    cr_assert(goes(&f, &why), "%s", why.text);
    cr_assert(comes(&f, &why), "%s", why.text);
    anew = gs_own_made(OWN(&f), handles[PLAIN], &other);
    cr_assert_neq(anew, handles[PLAIN]);
    cr_assert_eq(gs_own_real(OWN(&f), anew), handles[PLAIN]);
    cr_assert_neq(gs_own_made(OWN(&f), handles[TWICE], &other), anew);
    base = reserve(&f, 2 * MIB);
    gs_own_mapped(OWN(&f), base, 2 * MIB, 0, anew);
    cr_assert_eq(gs_own_retained(OWN(&f), handles[PLAIN], base), anew);
    cr_assert_eq(gs_own_retained(OWN(&f), 4712, base + 2 * MIB), 4712, "of what nobody saw");
    cr_assert_eq(gs_own_releasing(OWN(&f), anew), handles[PLAIN]);
    cr_assert_eq(gs_own_releasing(OWN(&f), anew), handles[PLAIN]);
    cr_assert(are_right());
}

/* The driver may not be asked by the program's number: that may be another handle's. */
Test(sleep_own, properties_of_what_has_moved_are_known_here, .timeout = 60)
{
    CUmemAllocationProp told = {0};
    struct gs_sleep_why why;
    struct fixture f;

    start(&f);
    make(&f);
    cr_assert(goes(&f, &why), "%s", why.text);
    cr_assert(comes(&f, &why), "%s", why.text);
    cr_assert(gs_own_properties(OWN(&f), handles[PLAIN], &told));
    cr_assert_eq(memcmp(&told, &plain, sizeof told), 0);
    cr_assert_not(gs_own_properties(OWN(&f), handles[RELEASED], &told), "it is no handle any more");
    cr_assert_not(gs_own_properties(OWN(&f), 4711, &told));
    cr_assert(are_right());
}

/* What others may have, and what is not understood, and why. */
Test(sleep_own, what_is_not_the_programs_alone_stays, .timeout = 60)
{
    const CUmemAccessDesc and_host[] = {{plain.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE},
                                        {{.type = CU_MEM_LOCATION_TYPE_HOST, .id = 0},
                                         CU_MEM_ACCESS_FLAGS_PROT_READ}};
    struct gs_sleep_why why;
    struct fixture f;
    CUdeviceptr unknown;
    CUmemGenericAllocationHandle imported, foreign;
    bool shared;

    start(&f);
    make(&f);
    gs_own_used(OWN(&f), handles[PLAIN], GS_OWN_LENT);
    gs_own_used_at(OWN(&f), second, MIB, GS_OWN_BOUND);
    gs_own_access_set(OWN(&f), at[RETAINED], sizes[RETAINED], and_host, 2);
    unknown = reserve(&f, 4 * MIB);
    MUST(cuMemCreate(&foreign, 2 * MIB, &plain, 0));
    MUST(map(&f, unknown, 2 * MIB, foreign));
    cr_assert_not(gs_own_is_added_at(OWN(&f), second, &shared), "it was asked for as it is");
    MUST(cuMemCreate(&imported, 2 * MIB, &plain, 0));
    gs_own_made(OWN(&f), imported,
                &(struct gs_own_memory){
                    .size = 2 * MIB, .imported = true, .device = -1, .why = "imported"});
    MUST(map(&f, unknown + 2 * MIB, 2 * MIB, imported));
    cr_assert(goes(&f, &why), "%s", why.text);
    cr_assert_eq(asleep(&f).stays[GS_STAYS_SHARED], sizes[PLAIN] + 2 * MIB);
    cr_assert_eq(asleep(&f).stays[GS_STAYS_OWN], stay + sizes[TWICE] + sizes[RETAINED] + 2 * MIB);
    cr_assert_eq(device_bytes(),
                 asleep(&f).stays[GS_STAYS_SHARED] + asleep(&f).stays[GS_STAYS_OWN]);
    cr_assert(comes(&f, &why), "%s", why.text);
    cr_assert_eq(gs_own_real(OWN(&f), handles[PLAIN]), handles[PLAIN]);
    unmap(&f, unknown, 4 * MIB);
    MUST(cuMemRelease(foreign));
    MUST(release(&f, imported));
    MUST(cuMemAddressFree(unknown, 4 * MIB));
    cr_assert(are_right());
    end(&f);
}

/* It may be mapped in more places than one, of which the driver leaves some. */
Test(sleep_own, what_is_not_unmapped_comes_back_all_the_same, .timeout = 60)
{
    struct gs_sleep_why why;
    struct fixture f;

    for (unsigned nth = 1; nth <= 5; nth++) {
        start(&f);
        make(&f);
        MUST(softcuda_fail("cuMemUnmap", nth, CUDA_ERROR_UNKNOWN));
        cr_assert(goes(&f, &why), "%s", why.text);
        cr_assert_eq(device_bytes(), stay + asleep(&f).stays[GS_STAYS_REFUSED]);
        cr_assert_gt(device_bytes(), stay, "%u", nth);
        cr_assert(comes(&f, &why), "%s", why.text);
        cr_assert(are_right());
        end(&f);
    }
}

/* Others are asked for it, though none of the library's own memory is away. */
Test(sleep_own, a_full_gpu_is_tried_again, .timeout = 60)
{
    struct gs_sleep_why why;
    struct fixture f;

    start(&f);
    make(&f);
    cr_assert(goes(&f, &why), "%s", why.text);
    MUST(softcuda_fail("cuMemCreate", 1, CUDA_ERROR_OUT_OF_MEMORY));
    MUST(softcuda_fail("cuMemCreate", 4, CUDA_ERROR_OUT_OF_MEMORY));
    cr_assert(gs_core_wake(f.core, gs_now_ns() + 50 * SECOND, &why), "%s", why.text);
    cr_assert(are_right());
    end(&f);
}

Test(sleep_own, each_call_of_a_sleep_fails_in_turn, .timeout = 120)
{
    cr_assert_gt(fail_each(&own_slept, false, CUDA_ERROR_UNKNOWN), 30);
}

Test(sleep_own, each_call_of_a_wake_fails_in_turn, .timeout = 120)
{
    cr_assert_gt(fail_each(&own_slept, true, CUDA_ERROR_UNKNOWN), 20);
    cr_assert_gt(fail_each(&own_slept, true, CUDA_ERROR_OUT_OF_MEMORY), 20);
}
