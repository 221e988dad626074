/*
 * Pins of libgdrapi, through which the CPU maps GPU memory. A pin is kept under exactly the range
 * it was made for: gdr_get_info tells the program where it begins, and gdr_map counts from there.
 * One that the program unpins while it is mapped is really unpinned, as that also unmaps it.
 */
#include "shim/hooks/hook.h"
#include "pinning.h"
#include "shim/start.h"

struct call {
    bool v2;
    uint64_t token;
    uint32_t va_space, flags;
};

bool gs_pin_apart;

/* What lies across the driver's allocations cannot be pinned. */
GS_HOOK struct gdr *gdr_open(void)
{
    GS_AROUND_AT_GATE(gdr_open);
    __typeof__(&gdr_open) real = GS_PIN_REAL(gdr_open);
    struct gdr *g = real ? real() : NULL;

    if (!g)
        return NULL;
    __atomic_store_n(&gs_pin_apart, true, __ATOMIC_RELAXED);
    if (gs_pin_active())
        gs_core_pin_apart(gs_core);
    return g;
}

static struct gs_gdr_handle handle_of(void *handle)
{
    return (struct gs_gdr_handle){(unsigned long)(uintptr_t)handle};
}

static int pin(const struct gs_reg_key *key, uint64_t base, size_t size, void *arg,
               void **ret_handle)
{
    struct gdr *g = (struct gdr *)key->domain;
    const struct call *call = arg;
    struct gs_gdr_handle handle = {0};
    int error;

    gs_pin_bound_by_bar1();
    gs_pin_inside++;
    if (call->v2)
        error = GS_PIN_REAL(gdr_pin_buffer_v2)(g, base, size, call->flags, &handle);
    else
        error = GS_PIN_REAL(gdr_pin_buffer)(g, base, size, call->token, call->va_space, &handle);
    gs_pin_inside--;
    if (error && gs_core_pin_crosses(gs_core, base, size))
        gs_pin_say_across("libgdrapi", base, size);
    *ret_handle = (void *)(uintptr_t)handle.h;
    return error;
}

static int unpin(const struct gs_reg_key *key, void *handle)
{
    GS_WITHIN_A_CALL;
    int error;

    gs_pin_inside++;
    error = GS_PIN_REAL(gdr_unpin_buffer)((struct gdr *)key->domain, handle_of(handle));
    gs_pin_inside--;
    return error;
}

static const struct gs_reg_backend gdrcopy = {.name = "libgdrapi",
                                              .lends = true,
                                              .pin = pin,
                                              .unpin = unpin};

static struct gs_reg *find(struct gs_gdr_handle handle)
{
    return gs_regcache_find(gs_core_regcache(gs_core), &gdrcopy, (void *)(uintptr_t)handle.h);
}

/* True: *ret_error is the answer. */
static bool acquire(struct gdr *g, unsigned long addr, size_t size, struct call *call,
                    struct gs_gdr_handle *handle, int *ret_error)
{
    const struct gs_pin wanted = {
        .key = {.backend = &gdrcopy,
                .domain = (uintptr_t)g,
                .access = (uint64_t)call->va_space << 32 | call->flags,
                .shift = call->token},
        .base = addr,
        .size = size,
        .keep = gs_pin_keep != GS_PIN_KEEP_NONE,
        .exact = true,
        .arg = call,
    };
    struct gs_reg *reg;
    gs_status status = gs_core_pin(gs_core, &wanted, &reg);

    if (status == GS_NOT_OURS)
        return false;
    if (status == GS_NO_HOST_MEMORY)
        status = ENOMEM;
    else if (status < 0)
        status = EINVAL; /* what the kernel's driver says of memory that is not there */
    *ret_error = status;
    if (status == GS_OK) {
        gs_reg_note(reg)[0] = 0; /* how often it is mapped */
        *handle = handle_of(gs_reg_handle(reg));
    }
    return true;
}

GS_HOOK int gdr_pin_buffer(struct gdr *g, unsigned long addr, size_t size, uint64_t p2p_token,
                           uint32_t va_space, struct gs_gdr_handle *handle)
{
    GS_AROUND_AT_GATE(gdr_pin_buffer);
    __typeof__(&gdr_pin_buffer) real = GS_PIN_REAL(gdr_pin_buffer);
    struct call call = {.token = p2p_token, .va_space = va_space};
    int error;

    if (!real)
        return ENOSYS;
    if (g && handle && gs_pin_active() && acquire(g, addr, size, &call, handle, &error))
        return error;
    return real(g, addr, size, p2p_token, va_space, handle);
}

GS_HOOK int gdr_pin_buffer_v2(struct gdr *g, unsigned long addr, size_t size, uint32_t flags,
                              struct gs_gdr_handle *handle)
{
    GS_AROUND_AT_GATE(gdr_pin_buffer_v2);
    __typeof__(&gdr_pin_buffer_v2) real = GS_PIN_REAL(gdr_pin_buffer_v2);
    struct call call = {.v2 = true, .flags = flags};
    int error;

    if (!real)
        return ENOSYS;
    if (g && handle && gs_pin_active() && acquire(g, addr, size, &call, handle, &error))
        return error;
    return real(g, addr, size, flags, handle);
}

GS_HOOK int gdr_unpin_buffer(struct gdr *g, struct gs_gdr_handle handle)
{
    GS_AROUND_AT_GATE(gdr_unpin_buffer);
    __typeof__(&gdr_unpin_buffer) real = GS_PIN_REAL(gdr_unpin_buffer);
    struct gs_reg *reg;

    if (!real)
        return ENOSYS;
    reg = gs_pin_active() ? find(handle) : NULL;
    if (reg) {
        if (gs_reg_note(reg)[0])
            gs_reg_drop(reg);
        return gs_regcache_release(gs_core_regcache(gs_core), reg);
    }
    if (gs_pin_active() &&
        gs_regcache_knows(gs_core_regcache(gs_core), &gdrcopy, (void *)(uintptr_t)handle.h))
        return EINVAL; /* it was unpinned already */
    return real(g, handle);
}

GS_HOOK int gdr_map(struct gdr *g, struct gs_gdr_handle handle, void **va, size_t size)
{
    GS_AROUND_AT_GATE(gdr_map);
    __typeof__(&gdr_map) real = GS_PIN_REAL(gdr_map);
    struct gs_reg *reg;
    int error;

    if (!real)
        return ENOSYS;
    error = real(g, handle, va, size);
    reg = !error && gs_pin_active() ? find(handle) : NULL;
    if (reg)
        gs_reg_note(reg)[0]++;
    return error;
}

GS_HOOK int gdr_unmap(struct gdr *g, struct gs_gdr_handle handle, void *va, size_t size)
{
    GS_AROUND_AT_GATE(gdr_unmap);
    __typeof__(&gdr_unmap) real = GS_PIN_REAL(gdr_unmap);
    struct gs_reg *reg;
    int error;

    if (!real)
        return ENOSYS;
    error = real(g, handle, va, size);
    reg = !error && gs_pin_active() ? find(handle) : NULL;
    if (reg && gs_reg_note(reg)[0])
        gs_reg_note(reg)[0]--;
    return error;
}

static bool of_session(const struct gs_regcache_info *info, void *g)
{
    return info->key.backend == &gdrcopy && info->key.domain == (uintptr_t)g;
}

/* It unpins what the program had left. */
GS_PIN_ENDS(gdr_close, struct gdr, of_session)
