/*
 * Contexts: the primary one of each device, those that programs create, and each thread's stack.
 * What belongs to a context (memory of cuMemAlloc, streams, events, modules, opened IPC handles)
 * goes when it does, after the work in it is done; VMM memory and pools do not.
 */
#include "internal.h"

__thread struct sd_thread sd_thread __attribute__((tls_model("initial-exec")));

static struct sd_context *contexts; /* protected by sd_lock */
static pthread_cond_t primary_ended = PTHREAD_COND_INITIALIZER;
static pthread_key_t thread_key;
static pthread_once_t thread_once = PTHREAD_ONCE_INIT;

static void thread_ends(void *unused)
{
    if (atomic_load(&sd_gate) & SD_GATE_FORKED)
        return;
    pthread_mutex_lock(&sd_lock);
    sd_thread_drop_queues(&sd_thread);
    pthread_mutex_unlock(&sd_lock);
    free(sd_thread.stack);
    memset(&sd_thread, 0, sizeof sd_thread);
}

static void thread_key_make(void)
{
    pthread_key_create(&thread_key, thread_ends);
}

/* The thread has something that must be given back at its end. */
void sd_thread_watch(void)
{
    if (sd_thread.known)
        return;
    pthread_once(&thread_once, thread_key_make);
    pthread_setspecific(thread_key, &sd_thread);
    sd_thread.known = true;
}

void sd_contexts_each(void (*fn)(struct sd_context *, void *), void *arg)
{
    for (struct sd_context *context = contexts; context; context = context->next)
        fn(context, arg);
}

static bool slot_alive(const struct sd_slot *slot)
{
    return sd_object_check(slot->context, SD_CONTEXT) && slot->context->object.id == slot->id &&
           slot->context->active;
}

CUresult sd_current(struct sd_context **ret)
{
    const struct sd_slot *top;

    if (!sd_thread.depth || !sd_thread.stack[sd_thread.depth - 1].context)
        return CUDA_ERROR_INVALID_CONTEXT;
    top = &sd_thread.stack[sd_thread.depth - 1];
    if (!slot_alive(top))
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    *ret = top->context;
    return top->context->sticky;
}

CUresult sd_current_owner(struct sd_context **ret)
{
    CUresult result = sd_current(ret);

    if (!result && (*ret)->green_of)
        *ret = (*ret)->green_of;
    return result;
}

CUresult sd_context_get(CUcontext handle, bool current_ok, struct sd_context **ret)
{
    struct sd_context *context;

    if (!handle && current_ok)
        return sd_current(ret);
    context = sd_object_check(handle, SD_CONTEXT);
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!context->active)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    *ret = context;
    return context->sticky;
}

struct sd_context *sd_context_new(int device, unsigned flags, unsigned api)
{
    struct sd_context *context = sd_object_new(SD_CONTEXT, sizeof *context);

    if (!context)
        return NULL;
    context->device = device;
    context->flags = flags;
    context->api_version = api;
    context->active = true;
    context->life = sd_next_id();
    context->limits[CU_LIMIT_STACK_SIZE] = 1024;
    context->limits[CU_LIMIT_PRINTF_FIFO_SIZE] = 1 << 20;
    context->limits[CU_LIMIT_MALLOC_HEAP_SIZE] = 8 << 20;
    context->legacy = sd_queue_new(context, true);
    if (!context->legacy) {
        sd_object_free(context);
        return NULL;
    }
    context->next = contexts;
    contexts = context;
    return context;
}

#define ENDED 64

/* The object goes too; nothing is in it any more. A green one's handle can still be pushed, and its
 * device asked for, as measured on an H100; all else says that it has ended. So the last ones'
 * objects stay. */
static void context_free(struct sd_context *context)
{
    static struct sd_context *ended[ENDED];
    static unsigned next;
    struct sd_context **at = &contexts;

    while (*at != context)
        at = &(*at)->next;
    *at = context->next;
    if (context->green_of) {
        struct sd_context *oldest = ended[next % ENDED];
        ended[next++ % ENDED] = context;
        context = oldest;
    }
    if (context)
        sd_object_free(context);
}

/* Where `context` has the life among its peers, or an empty place (life 0); NULL: nowhere. */
static _Atomic uint64_t *peer_find(struct sd_context *context, uint64_t life)
{
    for (int i = 0; i < SD_MAX_PEERS; i++)
        if (atomic_load_explicit(&context->peers[i], memory_order_relaxed) == life)
            return &context->peers[i];
    return NULL;
}

bool sd_context_reaches(const struct sd_context *context, uint64_t life)
{
    struct sd_context *owner = context->green_of ? context->green_of : (struct sd_context *)context;

    return owner->life == life || (life && peer_find(owner, life));
}

static void peer_forget(struct sd_context *context, void *life)
{
    _Atomic uint64_t *at = peer_find(context, *(uint64_t *)life);

    if (at)
        atomic_store(at, 0);
}

/* Everything in it goes; the object stays. */
static void context_clear(struct sd_context *context)
{
    sd_context_drain(context);
    sd_context_drop_modules(context);
    sd_context_drop_events(context);
    sd_context_drop_ipc(context);
    sd_context_drop_arrays(context);
    sd_context_drop_textures(context);
    sd_context_drop_blocks(context);
    sd_context_drop_queues(context);
    sd_contexts_each(peer_forget, &context->life);
    for (int i = 0; i < SD_MAX_PEERS; i++)
        atomic_store(&context->peers[i], 0);
    context->life = sd_next_id();
    context->sticky = CUDA_SUCCESS;
}

static CUresult stack_push(struct sd_context *context)
{
    if (sd_thread.depth == sd_thread.room) {
        unsigned room = sd_thread.room ? sd_thread.room * 2 : 8;
        struct sd_slot *stack = realloc(sd_thread.stack, room * sizeof *stack);
        if (!stack)
            return CUDA_ERROR_OUT_OF_MEMORY;
        sd_thread.stack = stack;
        sd_thread.room = room;
    }
    sd_thread_watch();
    sd_thread.stack[sd_thread.depth++] =
        (struct sd_slot){context, context ? context->object.id : 0};
    return CUDA_SUCCESS;
}

CUresult sd_ctx_create(CUcontext *pctx, unsigned flags, CUdevice dev, unsigned api)
{
    struct sd_context *context;
    CUresult result;

    if (!pctx)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sd_device_get_ptr(dev))
        return CUDA_ERROR_INVALID_DEVICE;
    context = sd_context_new(dev, flags, api);
    if (!context)
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = stack_push(context);
    if (result) {
        sd_context_drop_queues(context);
        context_free(context);
        return result;
    }
    *pctx = (CUcontext)context;
    return CUDA_SUCCESS;
}

CUresult sd_ctx_create_v4(CUcontext *pctx, CUctxCreateParams *params, unsigned flags, CUdevice dev)
{
    if (params && (params->numExecAffinityParams || params->cigParams))
        return CUDA_ERROR_NOT_SUPPORTED;
    return sd_ctx_create(pctx, flags, dev, 3020);
}

void sd_context_end(struct sd_context *context)
{
    context->active = false;
    context_clear(context);
    context_free(context);
}

CUresult sd_ctx_destroy(CUcontext ctx)
{
    struct sd_context *context = sd_object_check(ctx, SD_CONTEXT);

    if (!context || context->primary || context->green_of)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!context->active) /* another thread is at it */
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    sd_context_end(context);
    if (sd_thread.depth && sd_thread.stack[sd_thread.depth - 1].context == context)
        sd_thread.depth--;
    return CUDA_SUCCESS;
}

/* Only the context that is current may be detached. */
CUresult sd_ctx_detach(CUcontext ctx)
{
    struct sd_context *context;
    CUresult result = sd_current(&context);

    if (result)
        return result;
    if ((CUcontext)context != ctx)
        return CUDA_ERROR_INVALID_CONTEXT;
    return sd_ctx_destroy(ctx);
}

CUresult sd_ctx_push_current(CUcontext ctx)
{
    struct sd_context *context = sd_object_check(ctx, SD_CONTEXT);

    return context ? stack_push(context) : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult sd_ctx_pop_current(CUcontext *pctx)
{
    if (!sd_thread.depth)
        return CUDA_ERROR_INVALID_CONTEXT;
    sd_thread.depth--;
    if (pctx)
        *pctx = (CUcontext)sd_thread.stack[sd_thread.depth].context;
    return CUDA_SUCCESS;
}

/* Replaces the top of the stack; NULL takes it away. */
CUresult sd_ctx_set_current(CUcontext ctx)
{
    struct sd_context *context = sd_object_check(ctx, SD_CONTEXT);

    if (ctx && !context)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (sd_thread.depth)
        sd_thread.depth--;
    return context ? stack_push(context) : CUDA_SUCCESS;
}

CUresult sd_ctx_get_current(CUcontext *pctx)
{
    if (!pctx)
        return CUDA_ERROR_INVALID_VALUE;
    *pctx = sd_thread.depth ? (CUcontext)sd_thread.stack[sd_thread.depth - 1].context : NULL;
    return CUDA_SUCCESS;
}

CUresult sd_ctx_get_device(CUdevice *dev)
{
    const struct sd_slot *top = sd_thread.depth ? &sd_thread.stack[sd_thread.depth - 1] : NULL;

    if (dev && top && sd_object_check(top->context, SD_CONTEXT) && top->context->green_of &&
        top->context->object.id == top->id) {
        *dev = top->context->device; /* of an ended one too */
        return CUDA_SUCCESS;
    }
    return sd_ctx_get_device_v2(dev, NULL);
}

/* The context that is asked, NULL the current one, with a place for its answer. */
static CUresult asked(CUcontext ctx, const void *answer, struct sd_context **ret)
{
    CUresult result = sd_context_get(ctx, true, ret);

    return result || answer ? result : CUDA_ERROR_INVALID_VALUE;
}

CUresult sd_ctx_get_device_v2(CUdevice *dev, CUcontext ctx)
{
    struct sd_context *context;
    CUresult result = asked(ctx, dev, &context);

    if (!result)
        *dev = context->device;
    return result;
}

CUresult sd_ctx_synchronize(void)
{
    return sd_ctx_synchronize_v2(NULL);
}

CUresult sd_ctx_synchronize_v2(CUcontext ctx)
{
    struct sd_context *context;
    CUresult result = sd_context_get(ctx, true, &context);

    if (!result)
        result = sd_capture_forbids_context(context);
    if (!result)
        result = sd_context_drain(context);
    if (!result)
        sd_pools_at_sync();
    return result;
}

CUresult sd_ctx_get_id(CUcontext ctx, unsigned long long *id)
{
    struct sd_context *context;
    CUresult result = asked(ctx, id, &context);

    if (!result)
        *id = context->object.id;
    return result;
}

CUresult sd_ctx_get_api_version(CUcontext ctx, unsigned *version)
{
    struct sd_context *context;
    CUresult result = asked(ctx, version, &context);

    if (!result)
        *version = context->api_version;
    return result;
}

CUresult sd_ctx_set_flags(unsigned flags)
{
    struct sd_context *context;
    CUresult result = sd_current(&context);

    if (!result)
        result = sd_capture_forbids_flags(context);
    if (!result)
        context->flags = flags;
    return result;
}

CUresult sd_ctx_get_flags(unsigned *flags)
{
    struct sd_context *context;
    CUresult result = asked(NULL, flags, &context);

    if (!result)
        *flags = context->flags;
    return result;
}

CUresult sd_ctx_set_limit(CUlimit limit, size_t value)
{
    struct sd_context *context;
    CUresult result = sd_current(&context);

    if (!result)
        result = sd_capture_forbids();
    if (result)
        return result;
    if ((unsigned)limit >= sizeof context->limits / sizeof *context->limits)
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    context->limits[limit] = value;
    return CUDA_SUCCESS;
}

CUresult sd_ctx_get_limit(size_t *value, CUlimit limit)
{
    struct sd_context *context;
    CUresult result = asked(NULL, value, &context);

    if (result)
        return result;
    if ((unsigned)limit >= sizeof context->limits / sizeof *context->limits)
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    *value = context->limits[limit];
    return CUDA_SUCCESS;
}

CUresult sd_ctx_enable_peer_access(CUcontext peer, unsigned flags)
{
    struct sd_context *context, *other;
    CUresult result = sd_current_owner(&context);
    _Atomic uint64_t *at;

    if (!result)
        result = sd_context_get(peer, false, &other);
    if (result)
        return result;
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (other->device == context->device || !sd_feature(SD_WITH_PEER))
        return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    if (peer_find(context, other->life))
        return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    at = peer_find(context, 0);
    if (!at)
        return CUDA_ERROR_TOO_MANY_PEERS;
    atomic_store(at, other->life);
    return CUDA_SUCCESS;
}

CUresult sd_ctx_disable_peer_access(CUcontext peer)
{
    struct sd_context *context, *other;
    CUresult result = sd_current_owner(&context);

    if (!result)
        result = sd_context_get(peer, false, &other);
    if (result)
        return result;
    if (!peer_find(context, other->life))
        return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
    peer_forget(context, &other->life);
    return CUDA_SUCCESS;
}

CUresult sd_primary_retain(CUcontext *pctx, CUdevice dev)
{
    struct sd_device *device = sd_device_get_ptr(dev);

    if (!pctx)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    while (device->primary && device->primary->ending)
        pthread_cond_wait(&primary_ended, &sd_lock);
    if (!device->primary) {
        device->primary = sd_context_new(dev, 0, 3020);
        if (!device->primary)
            return CUDA_ERROR_OUT_OF_MEMORY;
        device->primary->primary = true;
    }
    if (!device->primary->legacy) {
        device->primary->legacy = sd_queue_new(device->primary, true);
        if (!device->primary->legacy)
            return CUDA_ERROR_OUT_OF_MEMORY;
    }
    device->primary->active = true;
    device->primary->retained++;
    *pctx = (CUcontext)device->primary;
    return CUDA_SUCCESS;
}

/* Waits for the work in it without the lock: who retains it meanwhile waits for its end. */
static void primary_end(struct sd_context *context)
{
    context->retained = 0;
    context->active = false;
    context->ending = true;
    context_clear(context);
    context->ending = false;
    context->flags = 0;
    pthread_cond_broadcast(&primary_ended);
}

CUresult sd_primary_release(CUdevice dev)
{
    struct sd_device *device = sd_device_get_ptr(dev);

    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!device->primary || !device->primary->retained)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (--device->primary->retained == 0)
        primary_end(device->primary);
    return CUDA_SUCCESS;
}

CUresult sd_primary_reset(CUdevice dev)
{
    struct sd_device *device = sd_device_get_ptr(dev);

    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    if (device->primary && device->primary->active)
        primary_end(device->primary);
    sd_shared_forget();
    return CUDA_SUCCESS;
}

CUresult sd_primary_get_state(CUdevice dev, unsigned *flags, int *active)
{
    struct sd_device *device = sd_device_get_ptr(dev);

    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!flags || !active)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = device->primary ? device->primary->flags : 0;
    *active = device->primary && device->primary->active;
    return CUDA_SUCCESS;
}
