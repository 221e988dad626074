/*
 * The driver's own look-up. The driver answers first, by its rules for name, version and flags; the
 * address that it gives says which variant it chose, and leads to that one's hook.
 */
#include "hook.h"
#include "newer.h"
#include "shim/lookup/known_names.h"
#include "shim/lookup/lookup.h"
#include "shim/lookup/names.h"

/* CUDA 2's forms, with 32-bit addresses, are passed on without a word. */
#define FIRST_OURS 3020

/* Whether the driver gives the same for the newest CUDA that is known. */
static bool is_known_form(const char *symbol, void *found, cuuint64_t flags)
{
    CUdriverProcAddressQueryResult status;
    void *known = NULL;

    return gs_real.cuGetProcAddress_v2(symbol, &known, GS_KNOWN_CUDA, flags, &status) ==
               CUDA_SUCCESS &&
           known == found;
}

/* A form that is newer than the table reaches the driver: it would not be safe to guess what its
 * parameters mean. */
static void *lead(const char *symbol, void *found, int version, cuuint64_t flags)
{
    void *led = gs_lookup_lead(found);

    if (led != found || !found || version < FIRST_OURS || !gs_state_is_on())
        return led;
    if (!gs_lookup_is_ours(symbol) && gs_name_row(symbol) != GS_NAME_UNKNOWN &&
        (version <= GS_KNOWN_CUDA || is_known_form(symbol, found, flags)))
        return led;
    return gs_newer_found(symbol, version, found,
                          flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
}

#define GS_MAKES_LEADS GS_ALWAYS
#define GS_MAKE_LEADS(symbol, order, async, real) \
    return GS_NOTED(real, if (ret) * ret = lead(name, *ret, version, flags));

#include "made.h"
