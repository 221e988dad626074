/*
 * Captures: what is submitted to a capturing stream becomes a node of a graph instead of work. A
 * stream joins a capture by waiting for an event that was recorded in it.
 *
 * What the real driver forbids meanwhile, measured: recording a context event in any mode and from
 * any thread, and it breaks the capture; in GLOBAL mode cuEventQuery, cuStreamQuery, cuMemAlloc,
 * cuMemFree, cuMemAllocAsync in another stream, cuMemHostRegister and more from any thread, in
 * THREAD_LOCAL from the capturing one, in RELAXED from none, nor in any from a thread whose own
 * mode is RELAXED; neither cuMemGetInfo nor cuStreamWaitEvent in any.
 */
#include "internal.h"

static struct sd_capture *captures; /* the open ones; protected by sd_lock */

void sd_capture_invalidate(struct sd_capture *capture)
{
    capture->invalid = true;
}

struct sd_capture *sd_capture_by_id(uint64_t id)
{
    struct sd_capture *capture = captures;

    while (capture && (!id || capture->id != id))
        capture = capture->next;
    return capture;
}

CUresult sd_capture_forbids(void)
{
    CUresult result = CUDA_SUCCESS;

    if (SD_LIKELY(!captures) || sd_thread.mode == CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_SUCCESS;
    for (struct sd_capture *capture = captures; capture; capture = capture->next) {
        bool everywhere = capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                          sd_thread.mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
        if (capture->mode == CU_STREAM_CAPTURE_MODE_RELAXED ||
            (!everywhere && capture->thread != &sd_thread))
            continue;
        sd_capture_invalidate(capture);
        result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return result;
}

struct forbidding {
    struct sd_context *context;
    CUresult result;
};

static void forbid(struct sd_context *context, void *arg)
{
    struct forbidding *forbidding = arg;

    if (!sd_context_within(context, forbidding->context))
        return;
    for (struct sd_queue *queue = context->queues; queue; queue = queue->next) {
        if (!queue->capture)
            continue;
        sd_capture_invalidate(queue->capture);
        forbidding->result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
}

CUresult sd_capture_forbids_context(struct sd_context *context)
{
    struct forbidding forbidding = {context, CUDA_SUCCESS};

    if (SD_LIKELY(!captures))
        return CUDA_SUCCESS;
    sd_contexts_each(forbid, &forbidding);
    return forbidding.result;
}

static CUresult invalidate_blocking(struct sd_context *context, CUresult reason)
{
    CUresult result = CUDA_SUCCESS;

    if (SD_LIKELY(!captures))
        return CUDA_SUCCESS;
    for (struct sd_queue *other = context->queues; other; other = other->next) {
        if (!other->capture || !other->blocking)
            continue;
        sd_capture_invalidate(other->capture);
        result = reason;
    }
    return result;
}

CUresult sd_capture_forbids_legacy(struct sd_queue *queue)
{
    return queue == queue->context->legacy
               ? invalidate_blocking(queue->context, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
               : CUDA_SUCCESS;
}

CUresult sd_capture_forbids_flags(struct sd_context *context)
{
    return invalidate_blocking(context, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

void sd_capture_leave(struct sd_queue *queue)
{
    free(queue->nodes);
    queue->nodes = NULL;
    queue->node_count = 0;
    queue->capture = NULL;
}

static CUresult set_nodes(struct sd_node ***at, size_t *at_count, struct sd_node *const *nodes,
                          size_t count)
{
    struct sd_node **copy = malloc((count ? count : 1) * sizeof *copy);

    if (!copy)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (count)
        memcpy(copy, nodes, count * sizeof *copy);
    free(*at);
    *at = copy;
    *at_count = count;
    return CUDA_SUCCESS;
}

/* The graph's next node, if it is one like this. */
static struct sd_node *node_again(struct sd_queue *queue, const struct sd_work *work)
{
    struct sd_capture *capture = queue->capture;
    struct sd_node *node =
        capture->at < capture->graph->count ? capture->graph->nodes[capture->at++] : NULL;
    bool same = node && node->work.kind == work->kind && node->after_count == queue->node_count;

    for (size_t i = 0; same && i < node->after_count; i++)
        same = node->after[i] == queue->nodes[i];
    if (!same) {
        sd_capture_invalidate(capture);
        return NULL;
    }
    sd_work_unref(&node->work);
    node->work = *work;
    sd_work_ref(work);
    return node;
}

CUresult sd_capture_add(struct sd_queue *queue, const struct sd_work *work)
{
    struct sd_node *node;

    if (queue->capture->invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    node = queue->capture->again
               ? node_again(queue, work)
               : sd_graph_add(queue->capture->graph, work, queue->nodes, queue->node_count);
    if (!node)
        return queue->capture->again ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                                     : CUDA_ERROR_OUT_OF_MEMORY;
    return set_nodes(&queue->nodes, &queue->node_count, &node, 1);
}

CUresult sd_capture_add_graph(struct sd_queue *queue, const struct sd_exec *exec)
{
    const struct sd_work join = {.kind = SD_JOIN};
    struct sd_graph *graph = queue->capture->graph;
    struct sd_node **added, **after;
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;

    if (queue->capture->invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    added = calloc(2 * exec->count + 1, sizeof *added);
    if (!added)
        return CUDA_ERROR_OUT_OF_MEMORY;
    after = added + exec->count;
    for (size_t i = 0; i < exec->count; i++) {
        const struct sd_exec_node *node = &exec->nodes[i];
        for (size_t j = 0; j < node->after_count; j++)
            after[j] = added[node->after[j]];
        added[i] = node->after_count
                       ? sd_graph_add(graph, &node->work, after, node->after_count)
                       : sd_graph_add(graph, &node->work, queue->nodes, queue->node_count);
        if (!added[i])
            goto out;
    }
    result = exec->count ? set_nodes(&queue->nodes, &queue->node_count, added, exec->count)
                         : CUDA_SUCCESS;
    if (!result)
        result = sd_capture_add(queue, &join);
out:
    free(added);
    return result;
}

CUresult sd_capture_external(struct sd_queue *queue, enum sd_work_kind kind,
                             struct sd_shared *shared)
{
    const struct sd_work work = {.kind = kind, .event = {.shared = shared}};

    return sd_capture_add(queue, &work);
}

CUresult sd_capture_record(struct sd_queue *queue, struct sd_event *event)
{
    if (queue->capture->invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    event->capture = queue->capture->id;
    return set_nodes(&event->nodes, &event->node_count, queue->nodes, queue->node_count);
}

static CUresult merge_nodes(struct sd_queue *queue, const struct sd_event *event)
{
    size_t count = queue->node_count;
    struct sd_node **all = realloc(queue->nodes, (count + event->node_count + 1) * sizeof *all);

    if (!all)
        return CUDA_ERROR_OUT_OF_MEMORY;
    queue->nodes = all;
    for (size_t i = 0; i < event->node_count; i++) {
        size_t j = 0;
        while (j < count && all[j] != event->nodes[i])
            j++;
        if (j == count)
            all[count++] = event->nodes[i];
    }
    queue->node_count = count;
    return CUDA_SUCCESS;
}

CUresult sd_capture_wait(struct sd_queue *queue, struct sd_event *event)
{
    struct sd_capture *theirs = sd_capture_by_id(event->capture);

    if (!event->recorded)
        return CUDA_SUCCESS;
    if ((theirs && theirs->invalid) || (queue->capture && queue->capture->invalid))
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (queue->capture && theirs == queue->capture)
        return merge_nodes(queue, event);
    if (queue->capture) {
        sd_capture_invalidate(queue->capture);
        if (!theirs)
            return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
        sd_capture_invalidate(theirs);
        return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    }
    if (queue == queue->context->legacy) {
        sd_capture_invalidate(theirs);
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    queue->capture = theirs;
    return set_nodes(&queue->nodes, &queue->node_count, event->nodes, event->node_count);
}

static CUresult begin(struct sd_queue *queue, CUstreamCaptureMode mode, struct sd_graph *graph,
                      bool own_graph)
{
    struct sd_capture *capture = calloc(1, sizeof *capture);

    if (!capture)
        return CUDA_ERROR_OUT_OF_MEMORY;
    capture->id = sd_next_id();
    capture->mode = mode;
    capture->thread = &sd_thread;
    capture->context = queue->context;
    capture->origin = queue;
    capture->graph = graph;
    capture->own_graph = own_graph;
    capture->next = captures;
    captures = capture;
    queue->capture = capture;
    sd_thread_watch();
    return CUDA_SUCCESS;
}

static CUresult may_begin(CUstream stream, CUstreamCaptureMode mode, struct sd_queue **ret)
{
    CUresult result = sd_queue_get(stream, ret);

    if (result)
        return result;
    if ((unsigned)mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    if (*ret == (*ret)->context->legacy)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    return (*ret)->capture ? CUDA_ERROR_ILLEGAL_STATE : CUDA_SUCCESS;
}

CUresult sd_stream_begin_capture(CUstream stream, CUstreamCaptureMode mode)
{
    struct sd_queue *queue;
    struct sd_graph *graph;
    CUresult result = may_begin(stream, mode, &queue);

    if (result)
        return result;
    graph = sd_graph_new();
    if (!graph)
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = begin(queue, mode, graph, true);
    if (result)
        sd_graph_free(graph);
    return result;
}

CUresult sd_stream_begin_capture_to_graph(CUstream stream, CUgraph handle, const CUgraphNode *after,
                                          size_t count, CUstreamCaptureMode mode)
{
    struct sd_graph *graph = sd_object_check(handle, SD_GRAPH);
    struct sd_queue *queue;
    CUresult result = may_begin(stream, mode, &queue);

    if (result)
        return result;
    if (!graph || (count && !after))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        struct sd_node *node = sd_object_check(after[i], SD_NODE);
        if (!node || node->graph != graph)
            return CUDA_ERROR_INVALID_VALUE;
    }
    result = set_nodes(&queue->nodes, &queue->node_count, (struct sd_node *const *)after, count);
    if (!result)
        result = begin(queue, mode, graph, false);
    if (result)
        sd_capture_leave(queue);
    return result;
}

/* A difference ends it; the callback that real drivers ask is not called. */
CUresult sd_stream_begin_recapture(CUstream stream, CUstreamCaptureMode mode, CUgraph handle)
{
    struct sd_graph *graph = sd_object_check(handle, SD_GRAPH);
    struct sd_queue *queue;
    CUresult result = may_begin(stream, mode, &queue);

    if (result)
        return result;
    if (!graph)
        return CUDA_ERROR_INVALID_VALUE;
    result = begin(queue, mode, graph, false);
    if (!result)
        queue->capture->again = true;
    return result;
}

static void mark_before(const struct sd_node *node, bool *seen)
{
    if (seen[node->index])
        return;
    seen[node->index] = true;
    for (size_t i = 0; i < node->after_count; i++)
        mark_before(node->after[i], seen);
}

struct join_check {
    struct sd_capture *capture;
    bool *seen;
    bool unjoined;
};

static void check_joined(struct sd_context *context, void *arg)
{
    struct join_check *check = arg;

    for (struct sd_queue *queue = context->queues; queue; queue = queue->next)
        for (size_t i = 0; queue->capture == check->capture && i < queue->node_count; i++)
            check->unjoined |= !check->seen[queue->nodes[i]->index];
}

static void leave_all(struct sd_context *context, void *capture)
{
    for (struct sd_queue *queue = context->queues; queue; queue = queue->next)
        if (queue->capture == capture)
            sd_capture_leave(queue);
}

/* Work that was forked off must have been waited for by the stream where the capture began. */
static CUresult joined(struct sd_capture *capture)
{
    struct join_check check = {.capture = capture};
    const struct sd_queue *origin = capture->origin;

    check.seen = calloc(capture->graph->count + 1, sizeof *check.seen);
    if (!check.seen)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < origin->node_count; i++)
        mark_before(origin->nodes[i], check.seen);
    sd_contexts_each(check_joined, &check);
    free(check.seen);
    return check.unjoined ? CUDA_ERROR_STREAM_CAPTURE_UNJOINED : CUDA_SUCCESS;
}

/* It is no more, and its own graph neither unless `keep`. */
static void capture_close(struct sd_capture *capture, bool keep)
{
    struct sd_capture **at = &captures;

    while (*at != capture)
        at = &(*at)->next;
    *at = capture->next;
    sd_contexts_each(leave_all, capture);
    if (!keep && capture->own_graph)
        sd_graph_free(capture->graph);
    free(capture);
}

void sd_capture_lose(struct sd_queue *queue)
{
    if (queue->capture)
        sd_capture_invalidate(queue->capture);
    if (queue->capture && queue->capture->origin == queue)
        capture_close(queue->capture, false);
    sd_capture_leave(queue);
}

static CUresult capture_end(struct sd_capture *capture, CUgraph *ret_graph)
{
    bool whole = !capture->invalid && (!capture->again || capture->at == capture->graph->count);
    CUresult result = whole ? joined(capture) : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;

    if (ret_graph) /* measured on an H200: without a place for it the capture ends all the same */
        *ret_graph = result ? NULL : (CUgraph)capture->graph;
    capture_close(capture, !result);
    return result;
}

CUresult sd_stream_end_capture(CUstream stream, CUgraph *graph)
{
    struct sd_queue *queue;
    CUresult result = sd_queue_get(stream, &queue);

    if (result)
        return result;
    if (!queue->capture)
        return CUDA_ERROR_ILLEGAL_STATE;
    if (queue->capture->origin != queue) {
        sd_capture_invalidate(queue->capture);
        return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    }
    if (queue->capture->thread != &sd_thread &&
        queue->capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED) {
        capture_close(queue->capture, false); /* measured on an H200 */
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    }
    return capture_end(queue->capture, graph);
}

static CUstreamCaptureStatus status_of(const struct sd_queue *queue)
{
    if (!queue->capture)
        return CU_STREAM_CAPTURE_STATUS_NONE;
    return queue->capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                   : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

/* Asked about the legacy stream while a blocking one captures, the answer would be a guess. */
static CUresult implicit(const struct sd_queue *queue)
{
    if (!captures || queue != queue->context->legacy)
        return CUDA_SUCCESS;
    for (struct sd_queue *other = queue->context->queues; other; other = other->next)
        if (other->capture && other->blocking)
            return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    return CUDA_SUCCESS;
}

CUresult sd_stream_is_capturing(CUstream stream, CUstreamCaptureStatus *status)
{
    struct sd_queue *queue;
    CUresult result = sd_queue_get(stream, &queue);

    if (!result && !status)
        result = CUDA_ERROR_INVALID_VALUE;
    if (!result)
        result = implicit(queue);
    if (!result)
        *status = status_of(queue);
    return result;
}

CUresult sd_thread_exchange_capture_mode(CUstreamCaptureMode *mode)
{
    CUstreamCaptureMode before = sd_thread.mode;

    if (!mode || (unsigned)*mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    sd_thread.mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}
