/*
 * Streams: queues of work, and the order between them. The legacy default stream and the blocking
 * streams of its context wait for each other; non-blocking ones do not.
 */
#include "internal.h"

struct sd_queue *sd_queue_new(struct sd_context *context, bool blocking)
{
    struct sd_queue *queue = calloc(1, sizeof *queue);

    if (!queue)
        return NULL;
    queue->context = context;
    queue->blocking = blocking && !context->green_of;
    queue->id = sd_next_id();
    queue->next = context->queues;
    context->queues = queue;
    return queue;
}

struct sd_op *sd_queue_tail(struct sd_queue *queue)
{
    if (queue->tail && queue->tail->done) {
        sd_op_unref(queue->tail);
        queue->tail = NULL;
    }
    return queue->tail;
}

static void queue_free(struct sd_queue *queue)
{
    sd_capture_lose(queue);
    sd_op_unref(queue->tail);
    if (queue->stream)
        sd_object_free(queue->stream);
    free(queue);
}

/* Queues whose stream is gone go once their work is done. */
static void queues_reap(struct sd_context *context)
{
    struct sd_queue **at = &context->queues;

    while (*at) {
        struct sd_queue *queue = *at;
        if (queue->orphan && !sd_queue_tail(queue)) {
            *at = queue->next;
            queue_free(queue);
        } else {
            at = &queue->next;
        }
    }
}

static void queue_orphan(struct sd_queue *queue)
{
    sd_capture_lose(queue);
    queue->orphan = true;
    queue->owner = NULL;
    queues_reap(queue->context);
}

void sd_context_drop_queues(struct sd_context *context)
{
    while (context->queues) {
        struct sd_queue *queue = context->queues;
        context->queues = queue->next;
        queue_free(queue);
    }
    context->legacy = NULL;
}

static void thread_leaves(struct sd_context *context, void *thread)
{
    for (struct sd_queue *queue = context->queues, *next; queue; queue = next) {
        next = queue->next;
        if (queue->owner == thread) {
            queue_orphan(queue);
            next = context->queues; /* others may have gone too */
        }
    }
}

void sd_thread_drop_queues(struct sd_thread *thread)
{
    sd_contexts_each(thread_leaves, thread);
}

static CUresult per_thread_queue(struct sd_context *context, struct sd_queue **ret)
{
    for (struct sd_queue *queue = context->queues; queue; queue = queue->next) {
        if (queue->owner == &sd_thread) {
            *ret = queue;
            return CUDA_SUCCESS;
        }
    }
    *ret = sd_queue_new(context, true);
    if (!*ret)
        return CUDA_ERROR_OUT_OF_MEMORY;
    (*ret)->owner = &sd_thread;
    sd_thread_watch();
    return CUDA_SUCCESS;
}

CUresult sd_queue_get(CUstream stream, struct sd_queue **ret)
{
    struct sd_context *context;
    struct sd_stream *object;

    if (!stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD) {
        CUresult result = sd_current(&context);
        if (result)
            return result;
        /* measured on an H200 */
        if (context->no_default || (context->green_of && stream == CU_STREAM_PER_THREAD))
            return CUDA_ERROR_INVALID_HANDLE;
        if (stream == CU_STREAM_PER_THREAD)
            return per_thread_queue(context, ret);
        *ret = context->legacy;
        return CUDA_SUCCESS;
    }
    object = sd_object_check(stream, SD_STREAM);
    if (!object)
        return CUDA_ERROR_INVALID_HANDLE;
    *ret = object->queue;
    return object->queue->context->sticky;
}

/* `op` waits for everything that the queue's order puts before it. */
static void order(struct sd_queue *queue, struct sd_op *op)
{
    struct sd_context *context = queue->context;

    sd_op_after(op, sd_queue_tail(queue));
    if (queue == context->legacy) {
        for (struct sd_queue *other = context->queues; other; other = other->next)
            if (other->blocking && other != queue)
                sd_op_after(op, sd_queue_tail(other));
    } else if (queue->blocking) {
        sd_op_after(op, sd_queue_tail(context->legacy));
    }
}

bool sd_queue_idle(struct sd_queue *queue)
{
    struct sd_context *context = queue->context;

    if (sd_queue_tail(queue))
        return false;
    if (queue != context->legacy)
        return !queue->blocking || !sd_queue_tail(context->legacy);
    for (struct sd_queue *other = context->queues; other; other = other->next)
        if (other->blocking && sd_queue_tail(other))
            return false;
    return true;
}

void sd_queue_submit(struct sd_queue *queue, struct sd_op *op)
{
    order(queue, op);
    sd_op_unref(queue->tail);
    queue->tail = op;
    sd_op_submit(op);
}

/* The stream goes on behind both. */
static void submit_early(struct sd_queue *queue, struct sd_op *op)
{
    struct sd_op *before = sd_queue_tail(queue), *join;

    if (!before || before->work.kind != SD_KERNEL) {
        sd_queue_submit(queue, op);
        return;
    }
    join = sd_op_new(queue->context, NULL);
    if (!join)
        abort(); /* as in sd_op_after */
    sd_op_after(join, before);
    queue->tail = NULL;
    order(queue, op);
    sd_op_after(join, op);
    queue->tail = join;
    sd_op_submit(op);
    sd_op_submit(join);
    sd_op_unref(before);
    sd_op_unref(op);
}

CUresult sd_queue_do(struct sd_queue *queue, const struct sd_work *work, void *staging)
{
    struct sd_op *op;
    CUresult result = sd_capture_forbids_legacy(queue);

    if (result || queue->capture) {
        free(staging);
        return result ? result : sd_capture_add(queue, work);
    }
    op = sd_op_new(queue->context, work);
    if (!op) {
        free(staging);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    op->staging = staging;
    if (work->kind == SD_KERNEL && work->kernel.early)
        submit_early(queue, op);
    else
        sd_queue_submit(queue, op);
    return CUDA_SUCCESS;
}

struct joining {
    struct sd_context *context; /* NULL: all of the device */
    int device;
    struct sd_op *join; /* NULL while nothing runs */
};

static void join_queues(struct sd_context *context, void *arg)
{
    struct joining *joining = arg;

    if (joining->context ? !sd_context_within(context, joining->context)
                         : context->device != joining->device)
        return;
    queues_reap(context);
    for (struct sd_queue *queue = context->queues; queue; queue = queue->next) {
        struct sd_op *tail = sd_queue_tail(queue);
        if (!tail)
            continue;
        if (!joining->join)
            joining->join = sd_op_new(context, NULL);
        if (!joining->join)
            abort(); /* as in sd_op_after */
        sd_op_after(joining->join, tail);
    }
}

static struct sd_op *join(struct joining joining)
{
    sd_contexts_each(join_queues, &joining);
    if (joining.join)
        sd_op_submit(joining.join);
    return joining.join;
}

struct sd_op *sd_context_join(struct sd_context *context)
{
    return join((struct joining){.context = context});
}

CUresult sd_context_drain(struct sd_context *context)
{
    struct sd_op *join = sd_context_join(context);

    sd_op_wait(join);
    sd_op_unref(join);
    return context->sticky;
}

void sd_device_drain(int device)
{
    struct sd_op *op = join((struct joining){.device = device});

    sd_op_wait(op);
    sd_op_unref(op);
}

CUresult sd_stream_create(CUstream *stream, unsigned flags)
{
    struct sd_context *context;
    CUresult result = sd_current(&context);

    return result ? result : sd_stream_create_in(context, stream, flags);
}

CUresult sd_stream_create_in(struct sd_context *context, CUstream *stream, unsigned flags)
{
    struct sd_stream *object;

    if (!stream || (flags & ~(unsigned)CU_STREAM_NON_BLOCKING))
        return CUDA_ERROR_INVALID_VALUE;
    object = sd_object_new(SD_STREAM, sizeof *object);
    if (!object)
        return CUDA_ERROR_OUT_OF_MEMORY;
    object->queue = sd_queue_new(context, !(flags & CU_STREAM_NON_BLOCKING));
    if (!object->queue) {
        sd_object_free(object);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    object->queue->stream = object;
    object->flags = flags;
    *stream = (CUstream)object;
    return CUDA_SUCCESS;
}

CUresult sd_stream_destroy(CUstream stream)
{
    struct sd_stream *object = sd_object_check(stream, SD_STREAM);

    if (!object)
        return CUDA_ERROR_INVALID_HANDLE;
    object->queue->stream = NULL;
    queue_orphan(object->queue);
    sd_object_free(object);
    return CUDA_SUCCESS;
}

/* Asking about a stream, or waiting for it, is no part of a graph. */
static CUresult query_allowed(struct sd_queue *queue)
{
    CUresult result = sd_capture_forbids_legacy(queue);

    if (!result && queue->capture) {
        sd_capture_invalidate(queue->capture);
        result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return result;
}

CUresult sd_stream_query(CUstream stream)
{
    struct sd_queue *queue;
    CUresult result = sd_queue_get(stream, &queue);

    if (!result)
        result = query_allowed(queue);
    if (!result)
        result = sd_capture_forbids();
    if (result)
        return result;
    return sd_queue_idle(queue) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult sd_stream_synchronize(CUstream stream)
{
    struct sd_queue *queue;
    struct sd_context *context;
    struct sd_op *join;
    CUresult result = sd_queue_get(stream, &queue);

    if (!result)
        result = query_allowed(queue);
    if (!result)
        result = sd_capture_forbids(); /* another stream's as well, measured on an H200 */
    if (result)
        return result;
    context = queue->context;
    if (!sd_queue_idle(queue)) {
        join = sd_op_new(context, NULL);
        if (!join)
            return CUDA_ERROR_OUT_OF_MEMORY;
        order(queue, join);
        sd_op_submit(join);
        sd_op_wait(join);
        sd_op_unref(join);
    }
    if (!context->sticky)
        sd_pools_at_sync();
    return context->sticky;
}

CUresult sd_stream_wait_event(CUstream stream, CUevent handle, unsigned flags)
{
    struct sd_event *event = sd_object_check(handle, SD_EVENT);
    struct sd_queue *queue;
    struct sd_op *join, *op;
    CUresult result = sd_queue_get(stream, &queue);

    if (result)
        return result;
    if (!event)
        return CUDA_ERROR_INVALID_HANDLE;
    if (flags == CU_EVENT_WAIT_EXTERNAL && event->shared && queue->capture)
        return sd_capture_external(queue, SD_AWAIT, event->shared);
    if (flags)
        return flags == CU_EVENT_WAIT_EXTERNAL ? CUDA_ERROR_NOT_SUPPORTED
                                               : CUDA_ERROR_INVALID_VALUE;
    if (queue->capture || sd_capture_by_id(event->capture))
        return sd_capture_wait(queue, event);
    result = sd_capture_forbids_legacy(queue);
    op = result ? NULL : sd_event_op(event);
    if (!op)
        return result;
    join = sd_op_new(queue->context, NULL);
    if (join) {
        sd_op_after(join, op);
        sd_queue_submit(queue, join);
    }
    sd_op_unref(op);
    return join ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult sd_stream_add_callback(CUstream stream, CUstreamCallback fn, void *data, unsigned flags)
{
    struct sd_work work = {.kind = SD_STREAM_CALLBACK,
                           .callback = {.fn = fn, .data = data, .stream = stream}};
    struct sd_queue *queue;
    CUresult result = sd_queue_get(stream, &queue);

    if (result)
        return result;
    if (!fn || flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (queue->capture) {
        sd_capture_invalidate(queue->capture);
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return sd_queue_do(queue, &work, NULL);
}

CUresult sd_launch_host_func(CUstream stream, CUhostFn fn, void *data)
{
    struct sd_work work = {.kind = SD_HOST_FUNCTION, .host = {.fn = fn, .data = data}};
    struct sd_queue *queue;
    CUresult result = sd_queue_get(stream, &queue);

    if (result)
        return result;
    return fn ? sd_queue_do(queue, &work, NULL) : CUDA_ERROR_INVALID_VALUE;
}

/* The stream that is asked, with a place for its answer. To ask about the legacy one breaks
 * captures beside it (measured on an H200). */
static CUresult asked(CUstream stream, const void *answer, struct sd_queue **ret)
{
    CUresult result = sd_queue_get(stream, ret);

    if (!result && !answer)
        result = CUDA_ERROR_INVALID_VALUE;
    return result ? result : sd_capture_forbids_legacy(*ret);
}

/* What breaks the capture of the stream itself as well (measured on an H200). */
static CUresult asked_not_captured(CUstream stream, const void *answer, struct sd_queue **ret)
{
    CUresult result = asked(stream, answer, ret);

    if (result || !(*ret)->capture)
        return result;
    sd_capture_invalidate((*ret)->capture);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult sd_stream_get_ctx(CUstream stream, CUcontext *ctx)
{
    struct sd_queue *queue;
    CUresult result = asked(stream, ctx, &queue);

    if (!result)
        *ctx = (CUcontext)queue->context;
    return result;
}

CUresult sd_stream_get_flags(CUstream stream, unsigned *flags)
{
    struct sd_queue *queue;
    CUresult result = asked_not_captured(stream, flags, &queue);

    if (!result)
        *flags = queue->blocking ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING;
    return result;
}

CUresult sd_stream_get_id(CUstream stream, unsigned long long *id)
{
    struct sd_queue *queue;
    CUresult result = asked_not_captured(stream, id, &queue);

    if (!result)
        *id = queue->id;
    return result;
}
