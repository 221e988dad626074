/*
 * Every form of the calls that copy and fill, for the legacy and for the per-thread default stream,
 * as a program's look-up finds it: it does its work inside one allocation and is refused past its
 * end.
 */
#include "crossing.h"

TestSuite(forms, .init = conform_start, .timeout = 60);

#define BYTES ((size_t)1024)
#define MORE  ((size_t)16) /* what is past the end */
#define WORD  0xababababu

static uint32_t host[(BYTES + MORE) / 4];

/* ---- copies and fills ---- */

/* A call with `n` bytes at ptr; what it writes there is all WORD. `other` is as large as it takes,
 * and all WORD. */
typedef CUresult form_fn(void *function, CUdeviceptr ptr, CUdeviceptr other, size_t n);

/* FORM(name, whether it reads from ptr to the host, arguments) */
/* clang-format off */
#define ALL_FORMS(FORM) \
    FORM(cuMemsetD8, false, ptr, 0xab, n) \
    FORM(cuMemsetD16, false, ptr, 0xabab, n / 2) \
    FORM(cuMemsetD32, false, ptr, WORD, n / 4) \
    FORM(cuMemsetD2D8, false, ptr, n / 4, 0xab, n / 4, 4) \
    FORM(cuMemsetD2D16, false, ptr, n / 4, 0xabab, n / 8, 4) \
    FORM(cuMemsetD2D32, false, ptr, n / 4, WORD, n / 16, 4) \
    FORM(cuMemsetD8Async, false, ptr, 0xab, n, NULL) \
    FORM(cuMemsetD16Async, false, ptr, 0xabab, n / 2, NULL) \
    FORM(cuMemsetD32Async, false, ptr, WORD, n / 4, NULL) \
    FORM(cuMemsetD2D8Async, false, ptr, n / 4, 0xab, n / 4, 4, NULL) \
    FORM(cuMemsetD2D16Async, false, ptr, n / 4, 0xabab, n / 8, 4, NULL) \
    FORM(cuMemsetD2D32Async, false, ptr, n / 4, WORD, n / 16, 4, NULL) \
    FORM(cuMemcpy, false, ptr, other, n) \
    FORM(cuMemcpyDtoD, false, ptr, other, n) \
    FORM(cuMemcpyHtoD, false, ptr, host, n) \
    FORM(cuMemcpyDtoH, true, host, ptr, n) \
    FORM(cuMemcpyPeer, false, ptr, context, other, context, n) \
    FORM(cuMemcpyAsync, false, ptr, other, n, NULL) \
    FORM(cuMemcpyDtoDAsync, false, ptr, other, n, NULL) \
    FORM(cuMemcpyHtoDAsync, false, ptr, host, n, NULL) \
    FORM(cuMemcpyDtoHAsync, true, host, ptr, n, NULL) \
    FORM(cuMemcpyPeerAsync, false, ptr, context, other, context, n, NULL) \
    FORM(cuMemcpy2D, false, &(CUDA_MEMCPY2D[]){rectangle_copy(ptr, other, n / 4, 4)}[0]) \
    FORM(cuMemcpy2DUnaligned, false, &(CUDA_MEMCPY2D[]){rectangle_copy(ptr, other, n / 4, 4)}[0]) \
    FORM(cuMemcpy2DAsync, false, &(CUDA_MEMCPY2D[]){rectangle_copy(ptr, other, n / 4, 4)}[0], NULL) \
    FORM(cuMemcpy3D, false, &(CUDA_MEMCPY3D[]){box_copy(ptr, other, n / 4, 2, 2)}[0]) \
    FORM(cuMemcpy3DAsync, false, &(CUDA_MEMCPY3D[]){box_copy(ptr, other, n / 4, 2, 2)}[0], NULL) \
    FORM(cuMemcpy3DPeer, false, &(CUDA_MEMCPY3D_PEER[]){peer_copy(ptr, context, other, context, n / 4, 2, 2)}[0]) \
    FORM(cuMemcpy3DPeerAsync, false, &(CUDA_MEMCPY3D_PEER[]){peer_copy(ptr, context, other, context, n / 4, 2, 2)}[0], NULL)
/* clang-format on */

#define FORM(name, reads, ...)                                                                \
    static CUresult form_##name(void *function, CUdeviceptr ptr, CUdeviceptr other, size_t n) \
    {                                                                                         \
        return ((__typeof__(&name))function)(__VA_ARGS__);                                    \
    }
ALL_FORMS(FORM)

static const struct {
    const char *name;
    form_fn *call;
    bool reads;
} forms[] = {
#define ROW(name, reads, ...) {#name, form_##name, reads},
    ALL_FORMS(ROW)};
#define FORMS (sizeof forms / sizeof *forms)

static void one_form(size_t i, void *function, CUdeviceptr ptr, CUdeviceptr other)
{
    CUresult r;

    memset(host, forms[i].reads ? 0 : 0xab, sizeof host);
    OK(fill_now(ptr, forms[i].reads ? WORD : 0, BYTES / 4));
    r = forms[i].call(function, ptr, other, BYTES);
    cr_assert_eq(r, CUDA_SUCCESS, "%s: %s", forms[i].name, result_name(r));
    OK(cuCtxSynchronize());
    if (forms[i].reads)
        cr_assert_eq(host[BYTES / 4 - 1], WORD, "%s read something else", forms[i].name);
    else
        cr_assert_eq(words_other(ptr, WORD, BYTES / 4), 0, "%s wrote something else",
                     forms[i].name);
}

static void past_the_end(size_t i, void *function, CUdeviceptr ptr, CUdeviceptr other)
{
    CUresult r = forms[i].call(function, ptr, other, BYTES + MORE);

    cr_assert_eq(r, CUDA_ERROR_INVALID_VALUE, "%s past the end: %s", forms[i].name, result_name(r));
    OK(cuCtxSynchronize());
}

Test(forms, every_copy_and_fill_works_inside_and_is_refused_past_the_end)
{
    CUdeviceptr ptr = allocated(BYTES), neighbour = allocated(BYTES), other = 0;

    other = filled(MIB, WORD);
    OK(fill_now(neighbour, 1, BYTES / 4));
    for (size_t i = 0; i < FORMS; i++)
        for (int k = 0; k < 2; k++) {
            void *function = driver_lookup(forms[i].name, 12000, default_streams[k]);

            cr_assert(function, "%s is not found", forms[i].name);
            one_form(i, function, ptr, other);
            past_the_end(i, function, ptr, other);
        }
    cr_assert_eq(words_other(neighbour, 1, BYTES / 4), 0);
}

/* Wherever the driver's allocations may begin that a block lies in, from and to there. */
Test(forms, every_copy_and_fill_passes_every_border)
{
    CUdeviceptr block[SIZES], other = 0;

    blocks_start(block);
    OK(cuMemAlloc(&other, 5 * MIB));
    OK(cuMemsetD32(other, WORD, 5 * MIB / 4));
    for (size_t i = 0; i < FORMS; i++) {
        void *function = driver_lookup(forms[i].name, 12000, CU_GET_PROC_ADDRESS_LEGACY_STREAM);

        for (size_t k = 0; k < SIZES; k++) {
            for (CUdeviceptr at = next_border(block[k], sizes[k], 0); at;
                 at = next_border(block[k], sizes[k], at))
                one_form(i, function, at - 480, next_border(other, 5 * MIB, 0) - 544);
            past_the_end(i, function, block[k] + sizes[k] - BYTES, other);
        }
    }
}

/* Whatever the driver says: it is its answer, and nothing is touched. */
Test(forms, without_a_current_context_every_copy_and_fill_is_refused)
{
    CUdeviceptr ptr = allocated(BYTES), other = allocated(MIB);

    OK(fill_now(ptr, 3, BYTES / 4));
    OK(cuCtxSetCurrent(NULL));
    for (size_t i = 0; i < FORMS; i++) {
        void *function = driver_lookup(forms[i].name, 12000, CU_GET_PROC_ADDRESS_LEGACY_STREAM);
        CUresult r = forms[i].call(function, ptr, other, BYTES);

        probe("without_a_context", "%s: %s", forms[i].name, result_name(r));
        /* Those that name their contexts may do without. */
        if (!strstr(forms[i].name, "Peer"))
            cr_assert_neq(r, CUDA_SUCCESS, "%s", forms[i].name);
        if (software_driver())
            cr_assert_eq(r, CUDA_ERROR_INVALID_CONTEXT, "%s: %s", forms[i].name, result_name(r));
    }
    OK(cuCtxSetCurrent(context));
    OK(cuCtxSynchronize());
    if (software_driver())
        cr_assert_eq(words_other(ptr, 3, BYTES / 4), 0);
}
