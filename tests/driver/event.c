/*
 * Events: each stands for an operation, or for nothing when all it was recorded behind was done.
 * A context event is a join behind the last operation of every queue the context has. One that is
 * made for several processes stands for its last record, which any of them may have made
 * (eventshare.c).
 */
#include "internal.h"

static void event_forget(struct sd_event *event)
{
    sd_op_unref(event->op);
    free(event->nodes);
    event->op = NULL;
    event->nodes = NULL;
    event->node_count = 0;
    event->capture = 0;
}

CUresult sd_event_create(CUevent *handle, unsigned flags)
{
    struct sd_shared *shared = NULL;
    struct sd_context *context;
    CUresult result = sd_current_owner(&context);

    if (result)
        return result;
    if (!handle || flags > 7 ||
        ((flags & CU_EVENT_INTERPROCESS) && !(flags & CU_EVENT_DISABLE_TIMING)))
        return CUDA_ERROR_INVALID_VALUE;
    if (flags & CU_EVENT_INTERPROCESS) {
        shared = sd_shared_new();
        if (!shared)
            return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return sd_event_new(context, flags, shared, handle);
}

CUresult sd_event_new(struct sd_context *context, unsigned flags, struct sd_shared *shared,
                      CUevent *handle)
{
    struct sd_event *event = sd_object_new(SD_EVENT, sizeof *event);

    if (!event) {
        sd_shared_unref(shared);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    event->context = context;
    event->flags = flags;
    event->shared = shared;
    event->next = context->events;
    if (event->next)
        event->next->prev = event;
    context->events = event;
    *handle = (CUevent)event;
    return CUDA_SUCCESS;
}

static void event_free(struct sd_event *event)
{
    if (event->next)
        event->next->prev = event->prev;
    if (event->prev)
        event->prev->next = event->next;
    else
        event->context->events = event->next;
    event_forget(event);
    sd_shared_unref(event->shared);
    sd_object_free(event);
}

CUresult sd_event_destroy(CUevent handle)
{
    struct sd_event *event = sd_object_check(handle, SD_EVENT);

    if (!event)
        return CUDA_ERROR_INVALID_HANDLE;
    event_free(event);
    return CUDA_SUCCESS;
}

void sd_context_drop_events(struct sd_context *context)
{
    while (context->events)
        event_free(context->events);
}

/* It was recorded, and what it stood for before is forgotten. */
static void event_renew(struct sd_event *event)
{
    event_forget(event);
    event->recorded = true;
    if (!(event->flags & CU_EVENT_DISABLE_TIMING))
        event->at = sd_now();
}

/* The operation, still to be submitted, that the event will stand for. NULL: no memory. */
static struct sd_op *event_op_new(const struct sd_event *event, struct sd_context *context)
{
    const struct sd_work signal = {.kind = SD_SIGNAL, .event = {.shared = event->shared}};
    struct sd_op *op = sd_op_new(context, event->shared ? &signal : NULL);

    if (op && event->shared)
        sd_shared_ref(event->shared);
    return op;
}

/* The event stands for `op`, made for it; NULL: for what is done already. */
static void event_set(struct sd_event *event, struct sd_op *op)
{
    uint32_t record;

    event_renew(event);
    if (!event->shared) {
        event->op = op ? sd_op_ref(op) : NULL;
        return;
    }
    record = sd_shared_record(event->shared);
    if (op)
        op->work.event.record = record;
    else
        sd_shared_done(event->shared, record);
}

struct sd_op *sd_event_op(struct sd_event *event)
{
    struct sd_work await = {.kind = SD_AWAIT, .event = {.shared = event->shared}};
    struct sd_op *op = event->op;

    if (!event->shared)
        return op && !op->done ? sd_op_ref(op) : NULL;
    await.event.record = sd_shared_last(event->shared);
    if (sd_shared_is_done(event->shared, await.event.record))
        return NULL;
    op = sd_op_new(event->context, &await);
    if (!op)
        abort(); /* as in sd_op_after */
    sd_shared_ref(event->shared);
    sd_op_submit(op);
    return op;
}

CUresult sd_event_record(CUevent handle, CUstream stream, unsigned flags)
{
    struct sd_event *event = sd_object_check(handle, SD_EVENT);
    struct sd_queue *queue;
    struct sd_op *op;
    CUresult result = sd_queue_get(stream, &queue);

    if (result)
        return result;
    if (!event || !sd_context_within(queue->context, event->context))
        return CUDA_ERROR_INVALID_HANDLE;
    if (flags == CU_EVENT_RECORD_EXTERNAL && event->shared && queue->capture)
        return sd_capture_external(queue, SD_SIGNAL, event->shared);
    if (flags)
        return flags == CU_EVENT_RECORD_EXTERNAL ? CUDA_ERROR_NOT_SUPPORTED
                                                 : CUDA_ERROR_INVALID_VALUE;
    if (queue->capture && event->shared) /* the capture goes on (measured) */
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (queue->capture) {
        event_renew(event);
        return sd_capture_record(queue, event);
    }
    result = sd_capture_forbids_legacy(queue);
    if (result)
        return result;
    if (sd_queue_idle(queue)) {
        event_set(event, NULL);
        return CUDA_SUCCESS;
    }
    op = event_op_new(event, queue->context);
    if (!op)
        return CUDA_ERROR_OUT_OF_MEMORY;
    event_set(event, op);
    sd_queue_submit(queue, op);
    return CUDA_SUCCESS;
}

CUresult sd_ctx_record_event(CUcontext ctx, CUevent handle)
{
    struct sd_event *event = sd_object_check(handle, SD_EVENT);
    struct sd_op *join, *op = NULL;
    struct sd_context *context;
    CUresult result = sd_context_get(ctx, false, &context);

    if (result)
        return result;
    if (!event || !sd_context_within(context, event->context))
        return CUDA_ERROR_INVALID_HANDLE;
    result = sd_capture_forbids_context(context);
    if (result)
        return result;
    join = sd_context_join(context);
    if (join) {
        op = event_op_new(event, context);
        if (op)
            sd_op_after(op, join);
        else
            result = CUDA_ERROR_OUT_OF_MEMORY;
        sd_op_unref(join);
    }
    if (!result)
        event_set(event, op);
    if (op) {
        sd_op_submit(op);
        sd_op_unref(op);
    }
    return result;
}

/* All later work of the context waits: in each queue there is, and through the legacy stream. */
CUresult sd_ctx_wait_event(CUcontext ctx, CUevent handle)
{
    struct sd_event *event = sd_object_check(handle, SD_EVENT);
    struct sd_context *context;
    struct sd_op *op;
    CUresult result = sd_context_get(ctx, false, &context);

    if (result)
        return result;
    if (!event)
        return CUDA_ERROR_INVALID_HANDLE;
    result = sd_capture_forbids_context(context);
    op = result ? NULL : sd_event_op(event);
    for (struct sd_queue *queue = op ? context->queues : NULL; queue; queue = queue->next) {
        struct sd_op *join = sd_op_new(context, NULL);
        if (!join) {
            result = CUDA_ERROR_OUT_OF_MEMORY;
            break;
        }
        sd_op_after(join, op);
        sd_queue_submit(queue, join);
    }
    sd_op_unref(op);
    return result;
}

/* The event may be asked: alive, its context well, no capture in the way. */
static CUresult event_get(CUevent handle, struct sd_event **ret)
{
    struct sd_event *event = sd_object_check(handle, SD_EVENT);
    CUresult result;

    if (!event)
        return CUDA_ERROR_INVALID_HANDLE;
    if (event->context->sticky)
        return event->context->sticky;
    result = sd_capture_forbids();
    if (!result && event->capture)
        result = CUDA_ERROR_CAPTURED_EVENT;
    *ret = event;
    return result;
}

CUresult sd_event_query(CUevent handle)
{
    struct sd_event *event;
    CUresult result = event_get(handle, &event);

    if (result)
        return result;
    if (event->shared)
        return sd_shared_is_done(event->shared, sd_shared_last(event->shared))
                   ? CUDA_SUCCESS
                   : CUDA_ERROR_NOT_READY;
    return !event->op || event->op->done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult sd_event_synchronize(CUevent handle)
{
    struct sd_event *event;
    struct sd_context *context;
    struct sd_op *op;
    CUresult result = event_get(handle, &event);

    if (result)
        return result;
    context = event->context;
    op = sd_event_op(event);
    sd_op_wait(op);
    sd_op_unref(op);
    if (!context->sticky)
        sd_pools_at_sync();
    return context->sticky;
}

static uint64_t event_time(const struct sd_event *event)
{
    return event->op ? event->op->done_at : event->at;
}

CUresult sd_event_elapsed_time(float *ms, CUevent first, CUevent last)
{
    struct sd_event *start = sd_object_check(first, SD_EVENT);
    struct sd_event *end = sd_object_check(last, SD_EVENT);

    if (!start || !end || start->context != end->context || !start->recorded || !end->recorded ||
        ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!ms)
        return CUDA_ERROR_INVALID_VALUE;
    if (start->context->sticky)
        return start->context->sticky;
    if ((start->op && !start->op->done) || (end->op && !end->op->done))
        return CUDA_ERROR_NOT_READY;
    *ms = (float)((double)(int64_t)(event_time(end) - event_time(start)) / 1e6);
    return CUDA_SUCCESS;
}
