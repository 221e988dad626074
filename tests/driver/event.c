/*
 * Events: each stands for an operation, or for nothing when all it was recorded behind was done.
 * A context event is a join behind the last operation of every queue the context has.
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
    struct sd_context *context;
    struct sd_event *event;
    CUresult result = sd_current_owner(&context);

    if (result)
        return result;
    if (!handle || flags > 7 ||
        ((flags & CU_EVENT_INTERPROCESS) && !(flags & CU_EVENT_DISABLE_TIMING)))
        return CUDA_ERROR_INVALID_VALUE;
    event = sd_object_new(SD_EVENT, sizeof *event);
    if (!event)
        return CUDA_ERROR_OUT_OF_MEMORY;
    event->context = context;
    event->flags = flags;
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

/* The event stands for `op`, a reference that it takes; NULL: for what is done already. */
static void event_set(struct sd_event *event, struct sd_op *op)
{
    event_forget(event);
    event->recorded = true;
    event->op = op;
    if (!op && !(event->flags & CU_EVENT_DISABLE_TIMING))
        event->at = sd_now();
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
    if (flags)
        return flags == CU_EVENT_RECORD_EXTERNAL ? CUDA_ERROR_NOT_SUPPORTED
                                                 : CUDA_ERROR_INVALID_VALUE;
    if (queue->capture) {
        event_set(event, NULL);
        return sd_capture_record(queue, event);
    }
    result = sd_capture_forbids_legacy(queue);
    if (result)
        return result;
    if (sd_queue_idle(queue)) {
        event_set(event, NULL);
        return CUDA_SUCCESS;
    }
    op = sd_op_new(queue->context, NULL);
    if (!op)
        return CUDA_ERROR_OUT_OF_MEMORY;
    event_set(event, sd_op_ref(op));
    sd_queue_submit(queue, op);
    return CUDA_SUCCESS;
}

CUresult sd_ctx_record_event(CUcontext ctx, CUevent handle)
{
    struct sd_event *event = sd_object_check(handle, SD_EVENT);
    struct sd_context *context;
    CUresult result = sd_context_get(ctx, false, &context);

    if (result)
        return result;
    if (!event || !sd_context_within(context, event->context))
        return CUDA_ERROR_INVALID_HANDLE;
    result = sd_capture_forbids_context(context);
    if (!result)
        event_set(event, sd_context_join(context));
    return result;
}

/* All later work of the context waits: in each queue there is, and through the legacy stream. */
CUresult sd_ctx_wait_event(CUcontext ctx, CUevent handle)
{
    struct sd_event *event = sd_object_check(handle, SD_EVENT);
    struct sd_context *context;
    CUresult result = sd_context_get(ctx, false, &context);

    if (result)
        return result;
    if (!event)
        return CUDA_ERROR_INVALID_HANDLE;
    result = sd_capture_forbids_context(context);
    if (result || !event->op || event->op->done)
        return result;
    for (struct sd_queue *queue = context->queues; queue; queue = queue->next) {
        struct sd_op *join = sd_op_new(context, NULL);
        if (!join)
            return CUDA_ERROR_OUT_OF_MEMORY;
        sd_op_after(join, event->op);
        sd_queue_submit(queue, join);
    }
    return CUDA_SUCCESS;
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
    return !event->op || event->op->done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult sd_event_synchronize(CUevent handle)
{
    struct sd_event *event;
    struct sd_context *context;
    CUresult result = event_get(handle, &event);

    if (result)
        return result;
    context = event->context;
    sd_op_wait(event->op);
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
