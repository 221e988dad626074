/*
 * Buffers of libcufile (GPUDirect Storage). A buffer is known by its address, and the library takes
 * no two that overlap: a kept one in the way of a new one goes first.
 */
#include "shim/hooks/hook.h"
#include "pinning.h"
#include "shim/start.h"

/* Of cufile.h. */
#define CU_FILE_NVFS_DRIVER_ERROR         5010
#define CU_FILE_CUDA_POINTER_RANGE_ERROR  5014
#define CU_FILE_INVALID_MAPPING_RANGE     5017
#define CU_FILE_MEMORY_NOT_REGISTERED     5024
#define CU_FILE_INTERNAL_ERROR            5030
#define CU_FILE_GPU_MEMORY_PINNING_FAILED 5036
#define CU_FILE_NOT_INITIALIZED           5001

struct call {
    int flags;
    struct gs_cufile_error error;
};

/* The answer to a deregistration whose error the cache only carries as a number. */
static __thread struct gs_cufile_error last_unpin __attribute__((tls_model("initial-exec")));

/* What it says of memory that its kernel module cannot pin. */
static bool is_of_memory(int err)
{
    return (err >= CU_FILE_NVFS_DRIVER_ERROR && err <= CU_FILE_INVALID_MAPPING_RANGE) ||
           err == CU_FILE_GPU_MEMORY_PINNING_FAILED;
}

/* Its kernel module pins one of the driver's allocations. What lies across several passes for
 * registered: the library moves what is not by a buffer of its own. */
static int pin(const struct gs_reg_key *key, uint64_t base, size_t size, void *arg,
               void **ret_handle)
{
    struct call *call = arg;

    gs_pin_bound_by_bar1();
    gs_pin_inside++;
    call->error = GS_PIN_REAL(cuFileBufRegister)((void *)(uintptr_t)base, size, call->flags);
    gs_pin_inside--;
    *ret_handle = (void *)(uintptr_t)base;
    if (is_of_memory(call->error.err) && gs_core_pin_crosses(gs_core, base, size))
        call->error = (struct gs_cufile_error){0, 0};
    if (call->error.err == CU_FILE_GPU_MEMORY_PINNING_FAILED)
        return ENOMEM;
    return call->error.err ? EIO : 0;
}

static int unpin(const struct gs_reg_key *key, void *handle)
{
    GS_WITHIN_A_CALL;
    gs_pin_inside++;
    last_unpin = GS_PIN_REAL(cuFileBufDeregister)(handle);
    gs_pin_inside--;
    return last_unpin.err && last_unpin.err != CU_FILE_MEMORY_NOT_REGISTERED ? EIO : 0;
}

static const struct gs_reg_backend cufile = {
    .name = "libcufile", .lends = true, .refuses = true, .pin = pin, .unpin = unpin};

static struct gs_cufile_error error_of(int err)
{
    return (struct gs_cufile_error){err, 0};
}

GS_HOOK struct gs_cufile_error cuFileBufRegister(const void *base, size_t length, int flags)
{
    GS_AROUND_AT_GATE(cuFileBufRegister);
    __typeof__(&cuFileBufRegister) real = GS_PIN_REAL(cuFileBufRegister);
    struct call call = {.flags = flags};
    const struct gs_pin wanted = {
        .key = {.backend = &cufile, .access = (unsigned)flags},
        .base = (uintptr_t)base,
        .size = length,
        .keep = gs_pin_keep != GS_PIN_KEEP_NONE,
        .exact = true,
        .arg = &call,
    };
    struct gs_reg *reg;
    gs_status status;

    if (!real)
        return error_of(CU_FILE_NOT_INITIALIZED);
    if (!gs_pin_active())
        return real(base, length, flags);
    status = gs_core_pin(gs_core, &wanted, &reg);
    if (status == GS_NOT_OURS)
        return real(base, length, flags);
    if (status == GS_OK)
        return error_of(0);
    if (status == GS_NO_HOST_MEMORY)
        return error_of(CU_FILE_INTERNAL_ERROR);
    return status < 0 ? error_of(CU_FILE_CUDA_POINTER_RANGE_ERROR) : call.error;
}

GS_HOOK struct gs_cufile_error cuFileBufDeregister(const void *base)
{
    GS_AROUND_AT_GATE(cuFileBufDeregister);
    __typeof__(&cuFileBufDeregister) real = GS_PIN_REAL(cuFileBufDeregister);
    struct gs_reg *reg;

    if (!real)
        return error_of(CU_FILE_NOT_INITIALIZED);
    reg = gs_pin_active() ? gs_regcache_find(gs_core_regcache(gs_core), &cufile, base) : NULL;
    if (reg)
        return gs_regcache_release(gs_core_regcache(gs_core), reg) ? last_unpin : error_of(0);
    if (gs_pin_active() && gs_regcache_knows(gs_core_regcache(gs_core), &cufile, base))
        return error_of(CU_FILE_MEMORY_NOT_REGISTERED);
    return real(base);
}

static bool any(const struct gs_regcache_info *info, void *arg)
{
    return info->key.backend == &cufile;
}

/* Closing ends every registration. */
static struct gs_cufile_error driver_close(struct gs_cufile_error (*real)(void))
{
    bool active = gs_pin_active();
    struct gs_cufile_error error;

    if (!real)
        return error_of(CU_FILE_NOT_INITIALIZED);
    if (active)
        gs_regcache_flush(gs_core_regcache(gs_core), any, NULL);
    error = real();
    if (active && !error.err)
        gs_regcache_abandon(gs_core_regcache(gs_core), any, NULL);
    return error;
}

GS_HOOK struct gs_cufile_error cuFileDriverClose(void)
{
    GS_AROUND_AT_GATE(cuFileDriverClose);
    return driver_close(GS_PIN_REAL(cuFileDriverClose));
}

GS_HOOK struct gs_cufile_error cuFileDriverClose_v2(void)
{
    GS_AROUND_AT_GATE(cuFileDriverClose_v2);
    return driver_close(GS_PIN_REAL(cuFileDriverClose_v2));
}
