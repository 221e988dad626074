/*
 * External memory (gpushim.h): what callers give is checked here; what of it is there, core knows
 * (core/api/core.h). Who attached what is listed here, and one thread, made with the first,
 * calls the deleters: where core says that nothing uses the memory any more, or at the end of the
 * process.
 *
 *   HERE ─► (gpushim_detach, its context's end) ─► GOING ─► core: over ─► CALLING, without a lock
 *        ─► none
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "shim/gpushim.h"
#include "shim/hooks/hook.h"
#include "shim/log.h"
#include "shim/lookup/driver.h"
#include "shim/start.h"

#include "core/api/core.h"
#include "core/base/clock.h"

struct external {
    struct external *next;
    uint64_t number; /* never again */
    struct gpushim_attached is;
    CUcontext context;
    void (*deleter)(void *arg);
    void *arg;
    bool retained; /* the primary context, for the deleter */
    enum state { HERE, GOING, CALLING } state;
};

static struct gs_lock lock = GS_LOCK_INITIALIZER(GS_RANK_EXTERNALS); /* protects all below */
static struct gs_cond changed;                                       /* one has ended */
static struct external *externals;
static uint64_t last_number;
static bool has_thread;
static _Thread_local bool in_deleter;

/* ---- Calling deleters ------------------------------------------------------------------------ */

/* The one whose deleter the thread is calling: a deleter may end it (pthread_exit). */
static pthread_key_t calling;

/* In the context that it was attached in, or else the primary one. */
static void call_deleter(struct external *external)
{
    CUresult (*push)(CUcontext) = gs_driver_symbol("cuCtxPushCurrent_v2");
    CUresult (*pop)(CUcontext *) = gs_driver_symbol("cuCtxPopCurrent_v2");
    CUcontext context = external->context, popped;
    bool pushed;

    if (!external->deleter)
        return;
    if (!gs_core_context_exists(gs_core, context))
        external->retained =
            cuDevicePrimaryCtxRetain(&context, external->is.device) == CUDA_SUCCESS;
    pushed = push(context) == CUDA_SUCCESS;
    in_deleter = true;
    external->deleter(external->arg);
    in_deleter = false;
    if (pushed)
        pop(&popped);
}

/* Its deleter was called. */
static void forget(struct external *external)
{
    struct external **link = &externals;

    if (external->retained)
        cuDevicePrimaryCtxRelease_v2(external->is.device);
    gs_lock_take(&lock);
    while (*link != external)
        link = &(*link)->next;
    *link = external->next;
    free(external);
    gs_cond_wake_all(&changed);
    gs_lock_release(&lock);
}

/* The lock is held, and let go meanwhile. */
static void end_locked(struct external *external)
{
    external->state = CALLING;
    gs_lock_release(&lock);
    pthread_setspecific(calling, external);
    call_deleter(external);
    pthread_setspecific(calling, NULL);
    forget(external);
    gs_lock_take(&lock);
}

static struct external *numbered_locked(uint64_t number)
{
    struct external *external = externals;

    while (external && external->number != number)
        external = external->next;
    return external;
}

static void *run(void *unused)
{
    pthread_setname_np(pthread_self(), "gpushim-ends");
    for (;;) {
        uint64_t number = gs_share_external_next(gs_core_share(gs_core), UINT64_MAX);
        struct external *external;

        gs_lock_take(&lock);
        external = numbered_locked(number);
        if (external && external->state != CALLING) /* else who ends the process has called it */
            end_locked(external);
        gs_lock_release(&lock);
    }
    return NULL;
}

/* The lock is held, and let go meanwhile. What is just being attached is not there yet. */
static struct external *of_state_locked(enum state state)
{
    struct external *external = externals;

    while (external && (external->state != state || !external->is.address))
        external = external->next;
    return external;
}

/* Before libcuda's own end, whose handler was there when the first was attached. What a forked
 * child has is its parent's. */
static void at_exit(void)
{
    struct external *external;
    uint64_t until;

    if (!gs_state_is_on())
        return;
    until = gs_now_ns() + gs_core_settle_ns(gs_core);
    gs_lock_take(&lock);
    while ((external = of_state_locked(HERE))) {
        const CUdeviceptr address = external->is.address;

        external->state = GOING;
        gs_lock_release(&lock);
        gs_share_detach(gs_core_share(gs_core), address);
        gs_lock_take(&lock);
    }
    while (externals && !in_deleter && gs_cond_wait_until(&changed, &lock, until))
        continue;
    while ((external = of_state_locked(GOING)))
        end_locked(external);
    gs_lock_release(&lock);
}

/* With a stack as the program's threads have: a deleter may be of any language. */
static bool has_new_thread(void)
{
    sigset_t all, mask;
    pthread_t thread;
    bool has;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &mask);
    has = pthread_create(&thread, NULL, run, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &mask, NULL);
    if (has)
        pthread_detach(thread);
    return has;
}

/* A deleter has ended the thread that called it: another one goes on. Where none is to be had, the
 * next attach makes it. */
static void thread_ended(void *external)
{
    forget(external);
    gs_lock_take(&lock);
    has_thread = has_new_thread();
    gs_lock_release(&lock);
}

static bool start_locked(void)
{
    static bool begun;

    if (has_thread)
        return true;
    if (!begun) {
        gs_cond_init(&changed);
        if (pthread_key_create(&calling, thread_ended) != 0)
            return false;
        atexit(at_exit);
    }
    begun = true;
    has_thread = has_new_thread();
    return has_thread;
}

/* ---- Attaching ------------------------------------------------------------------------------- */

static const char *why_not(const struct gpushim_external *external)
{
    if (external->access != GPUSHIM_READ_ONLY && external->access != GPUSHIM_MUTABLE)
        return "its access is neither GPUSHIM_READ_ONLY nor GPUSHIM_MUTABLE";
    if (external->bytes == 0 || external->offset + external->bytes < external->bytes ||
        external->address + external->bytes < external->bytes ||
        external->offset + external->bytes > INT64_MAX)
        return "it has no bytes, or too many";
    if (external->kind == GPUSHIM_ADDRESS && (!external->address || !external->deleter))
        return "memory at an address needs that, and a deleter";
    if (external->kind != GPUSHIM_MEMFD && external->offset)
        return "an offset is of a memfd alone";
    return NULL;
}

static bool read_external(const struct gpushim_external *external,
                          struct gs_external_memory *ret_memory, char *ret_label)
{
    static const enum gs_external_kind kinds[] = {[GPUSHIM_EXPORTED] = GS_EXTERNAL_EXPORTED,
                                                  [GPUSHIM_MEMFD] = GS_EXTERNAL_MEMFD,
                                                  [GPUSHIM_ADDRESS] = GS_EXTERNAL_ADDRESS};
    struct gs_naming naming = {.name = "-"};
    const char *why = NULL;

    if (!external || external->size < sizeof *external)
        why = "its struct is none, or a smaller one";
    else if (external->kind < GPUSHIM_EXPORTED || external->kind > GPUSHIM_ADDRESS)
        why = "it is of no kind that there is";
    else
        why = why_not(external);
    if (!why && external->label) {
        size_t length = strnlen(external->label, sizeof naming.label);

        if (length < sizeof naming.label)
            memcpy(naming.label, external->label, length);
        if (length == sizeof naming.label || !gs_naming_is_good(&naming))
            why = "its label is longer than 63 bytes, or has control characters";
    }
    if (why) {
        gs_log(GS_LOG_WARNING, "external memory is not attached: %s", why);
        return false;
    }
    memcpy(ret_label, naming.label, sizeof naming.label);
    *ret_memory = (struct gs_external_memory){.kind = kinds[external->kind],
                                              .fd = external->fd,
                                              .offset = external->offset,
                                              .address = external->address,
                                              .size = external->bytes,
                                              .read_only = external->access == GPUSHIM_READ_ONLY};
    return true;
}

static int error_of(gs_status status)
{
    switch (status) {
    case GS_OK:
        return 0;
    case GS_INVALID:
    case (gs_status)CUDA_ERROR_INVALID_VALUE:
    case (gs_status)CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED:
        return EINVAL;
    case GS_NO_CONTEXT:
    case GS_NOT_OURS:
        return ENODEV;
    case GS_NO_HOST_MEMORY:
    case (gs_status)CUDA_ERROR_OUT_OF_MEMORY:
        return ENOMEM;
    default:
        return ENOTSUP;
    }
}

/* In the list, where its end finds it. */
static struct external *enter(const struct gpushim_external *given, const char *label)
{
    struct external *external = calloc(1, sizeof *external);

    if (!external)
        return NULL;
    external->is = (struct gpushim_attached){.kind = given->kind,
                                             .access = given->access,
                                             .device = given->device,
                                             .bytes = given->bytes};
    memcpy(external->is.label, label, sizeof external->is.label);
    external->deleter = given->deleter;
    external->arg = given->arg;
    gs_lock_take(&lock);
    external->number = ++last_number;
    external->next = externals;
    externals = external;
    gs_lock_release(&lock);
    return external;
}

/* It is attached now; or was not after all, and nothing of it is left. */
static void settle(uint64_t number, gs_status status, CUdeviceptr address, CUcontext context)
{
    struct external **link = &externals, *external;

    gs_lock_take(&lock);
    while ((external = *link) && external->number != number)
        link = &external->next;
    if (external && status == GS_OK) {
        external->is.address = address;
        external->context = context;
    } else if (external) {
        *link = external->next;
        free(external);
    }
    gs_lock_release(&lock);
}

GS_HOOK int gpushim_attach(const struct gpushim_external *given, uint64_t *ret_address)
{
    GS_AROUND_AT_GATE_AS(GS_GATE_OTHER);
    struct gs_external_memory memory;
    char label[sizeof((struct gpushim_attached *)0)->label];
    struct external *external;
    CUcontext context = NULL;
    CUdeviceptr address = 0;
    uint64_t number;
    gs_status status;
    bool started;

    if (!ret_address || !read_external(given, &memory, label))
        return EINVAL;
    if (!gs_state_enter())
        return ENODEV;
    GS_KEEP_CALLER;
    gs_lock_take(&lock);
    started = start_locked();
    gs_lock_release(&lock);
    if (!started) {
        gs_log(GS_LOG_WARNING, "external memory is not attached: no thread can be had for its end");
        return EAGAIN;
    }
    external = enter(given, label);
    if (!external)
        return ENOMEM;
    number = external->number;
    status = gs_core_attach(gs_core, &memory, given->device, number, &address, &context);
    settle(number, status, address, context);
    if (status == GS_NO_CONTEXT)
        gs_log(GS_LOG_WARNING,
               "external memory is not attached: no context of device %d is current, and its "
               "primary one is not active",
               given->device);
    if (status == GS_OK)
        *ret_address = address;
    return error_of(status);
}

/* ---- Detaching ------------------------------------------------------------------------------- */

/* False: nothing is attached there. */
static bool number_at(CUdeviceptr address, uint64_t *ret_number)
{
    struct external *external;

    gs_lock_take(&lock);
    external = externals;
    while (external && (external->is.address != address || !address))
        external = external->next;
    if (external)
        *ret_number = external->number;
    gs_lock_release(&lock);
    return external != NULL;
}

/* False: it is there still. */
static bool await(uint64_t number, uint64_t timeout_ns)
{
    uint64_t now = gs_now_ns(),
             until = timeout_ns < UINT64_MAX - now ? now + timeout_ns : UINT64_MAX;
    bool more = timeout_ns > 0;
    struct external *external;

    gs_lock_take(&lock);
    while ((external = numbered_locked(number))) {
        if (external->state == HERE)
            external->state = GOING;
        external->is.detached = 1;
        if (!more)
            break;
        more = gs_cond_wait_until(&changed, &lock, until);
    }
    gs_lock_release(&lock);
    return !external;
}

GS_HOOK int gpushim_detach(uint64_t address, uint64_t timeout_ns)
{
    GS_AROUND_AT_GATE_AS(GS_GATE_OTHER);
    uint64_t number;

    if (!gs_state_enter())
        return ENODEV;
    GS_KEEP_CALLER;
    if (!number_at(address, &number))
        return ENOENT;
    if (gs_share_detach(gs_core_share(gs_core), address) == GS_NO_HOST_MEMORY)
        return ENOMEM;
    if (await(number, in_deleter ? 0 : timeout_ns))
        return 0;
    if (timeout_ns > 0)
        gs_core_external_say(gs_core, address);
    return EBUSY;
}

GS_HOOK size_t gpushim_externals(struct gpushim_attached *attached, size_t room)
{
    size_t count = 0;

    if (!gs_state_enter())
        return 0;
    gs_lock_take(&lock);
    for (const struct external *external = externals; external; external = external->next) {
        if (!external->is.address)
            continue;
        if (attached && count < room)
            attached[count] = external->is;
        count++;
    }
    gs_lock_release(&lock);
    return count;
}
