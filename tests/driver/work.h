/*
 * The software driver's inside: work that runs later, what it waits for, and how it is recorded.
 * Part of internal.h, which includes it.
 */
#ifndef SD_WORK_H
#define SD_WORK_H

/* ---- engine.c: work that runs later ---- */

enum sd_work_kind {
    SD_JOIN, /* nothing to run: done when what it waits for is */
    SD_COPY,
    SD_SET,
    SD_KERNEL,
    SD_HOST_FUNCTION,
    SD_STREAM_CALLBACK,
    SD_FREE,   /* a block freed in stream order */
    SD_SIGNAL, /* a record of an event of several processes is done */
    SD_AWAIT   /* until one is that another process may have made */
};

struct sd_kernel;

#define SD_KERNEL_ARGS 4

/* What one operation does; also what a graph's node remembers. */
struct sd_work {
    enum sd_work_kind kind;
    union {
        struct {
            uint64_t dst, src;
            size_t bytes;
            bool dst_host, src_host; /* ordinary host memory, not in the table of segments */
            size_t more_rows;        /* rows of `bytes` after the first, at these distances */
            size_t dst_pitch, src_pitch;
        } copy;
        struct {
            uint64_t dst;
            uint64_t count;
            uint32_t value;
            uint8_t width; /* bytes an element: 1, 2 or 4 */
            size_t more_rows, pitch;
            const struct sd_context *in; /* of a node added by hand: the context it was added in */
        } set;
        struct {
            const struct sd_kernel *kernel;
            uint64_t args[SD_KERNEL_ARGS];
            bool early; /* may begin before a kernel before it in its stream has ended, and does */
        } kernel;
        struct {
            CUhostFn fn;
            void *data;
        } host;
        struct {
            CUstreamCallback fn;
            void *data;
            CUstream stream;
        } callback;
        struct {
            struct sd_block *block;
        } free;
        struct {
            struct sd_shared *shared; /* a reference, which goes with the operation */
            uint32_t record;
        } event; /* signal, await */
    };
};

struct sd_op {
    unsigned refs;
    unsigned waits; /* operations it waits for, and one while it is being put together */
    bool done;
    struct sd_context *context;
    struct sd_work work;
    void *staging;         /* owned: the source of a copy from pageable memory */
    uint64_t done_at;      /* CLOCK_MONOTONIC when it was done */
    struct sd_op **follow; /* those that wait for this one */
    size_t follow_count, follow_room;
    struct sd_op *next_ready;
};

/* Makes an operation with one reference, the caller's. NULL: no memory. */
struct sd_op *sd_op_new(struct sd_context *context, const struct sd_work *work);
/* `op`, not submitted yet, waits for `before`, which may be NULL or done. */
void sd_op_after(struct sd_op *op, struct sd_op *before);
/* All it waits for is said: it may run. */
void sd_op_submit(struct sd_op *op);
struct sd_op *sd_op_ref(struct sd_op *op);
void sd_op_unref(struct sd_op *op);
/* Waits, giving sd_lock up meanwhile. NULL is done. */
void sd_op_wait(struct sd_op *op);
void sd_engine_hold(bool held);
uint64_t sd_now(void);

/* Runs the work without sd_lock: copy.c, kernels.c. */
CUresult sd_copy_run(struct sd_context *context, const struct sd_work *work);
CUresult sd_set_run(struct sd_context *context, const struct sd_work *work);
CUresult sd_kernel_run(struct sd_context *context, const struct sd_work *work);

/* ---- stream.c ---- */

/* A queue outlives the stream that a program destroyed while work is in it. */
struct sd_queue {
    struct sd_queue *next; /* in its context */
    struct sd_context *context;
    struct sd_op *tail;       /* last operation submitted, NULL when none is known to be running */
    bool blocking;            /* ordered with the legacy default stream */
    bool orphan;              /* its stream is destroyed or its thread gone: goes when empty */
    struct sd_thread *owner;  /* of a per-thread default stream */
    struct sd_stream *stream; /* NULL: a default stream, or destroyed */
    struct sd_capture *capture;
    struct sd_node **nodes; /* while capturing: the last nodes, which the next one follows */
    size_t node_count;
    uint64_t id;
};

struct sd_stream {
    struct sd_object object;
    struct sd_queue *queue;
    unsigned flags;
};

static inline CUstream sd_per_thread(CUstream stream)
{
    return stream ? stream : CU_STREAM_PER_THREAD;
}

/* The queue behind a stream handle, with its context well; NULL is the legacy default stream. */
CUresult sd_queue_get(CUstream stream, struct sd_queue **ret);
/* The operation behind everything in the queue; NULL when that is all done. */
struct sd_op *sd_queue_tail(struct sd_queue *queue);
struct sd_queue *sd_queue_new(struct sd_context *context, bool blocking);
/* Nothing is pending that new work in the queue would wait for. */
bool sd_queue_idle(struct sd_queue *queue);
/* Submits behind the queue's order; takes the caller's reference over. */
void sd_queue_submit(struct sd_queue *queue, struct sd_op *op);
/* New operation for the queue: work now, or a node when the queue captures. */
CUresult sd_queue_do(struct sd_queue *queue, const struct sd_work *work, void *staging);
/* An operation behind everything submitted to the context; NULL when nothing runs. */
struct sd_op *sd_context_join(struct sd_context *context);
/* Wait for all work in the context; its sticky error. */
CUresult sd_context_drain(struct sd_context *context);
/* Wait for all work in all contexts of the device. */
void sd_device_drain(int device);
/* All queues of a dead context, which has no work left. */
void sd_context_drop_queues(struct sd_context *context);
void sd_thread_drop_queues(struct sd_thread *thread);

CUresult sd_stream_create_in(struct sd_context *context, CUstream *stream, unsigned flags);

/* ---- green.c ---- */

/* ---- event.c ---- */

struct sd_event {
    struct sd_object object;
    struct sd_event *next, *prev; /* in its context */
    struct sd_context *context;
    unsigned flags;
    bool recorded;
    struct sd_shared *shared; /* of several processes: what it stands for is told there */
    struct sd_op *op;         /* what it stands for; NULL: done, at `at` */
    uint64_t at;
    uint64_t capture; /* id of the capture it was recorded in, 0 outside of any */
    struct sd_node **nodes;
    size_t node_count;
};

/* Takes `shared` over, also where it fails; NULL: the event is this process's alone. */
CUresult sd_event_new(struct sd_context *context, unsigned flags, struct sd_shared *shared,
                      CUevent *event);
/* A reference to the operation that it waits for who waits for the event; NULL: it is done. */
struct sd_op *sd_event_op(struct sd_event *event);
/* Everything of a dead context goes. */
void sd_context_drop_events(struct sd_context *context);

/* ---- eventshare.c: what all processes see of an event ---- */

struct sd_shared *sd_shared_new(void); /* NULL: no room */
struct sd_shared *sd_shared_ref(struct sd_shared *shared);
void sd_shared_unref(struct sd_shared *shared); /* may be NULL */
/* Of what an operation, or a node, has to do with one. */
void sd_work_ref(const struct sd_work *work);
void sd_work_unref(const struct sd_work *work);
/* A graph's record, or wait, as it is launched: which one. */
void sd_shared_number(struct sd_work *work);
/* One record more: its number. */
uint32_t sd_shared_record(struct sd_shared *shared);
uint32_t sd_shared_last(const struct sd_shared *shared);
bool sd_shared_is_done(const struct sd_shared *shared, uint32_t record);
void sd_shared_done(struct sd_shared *shared, uint32_t record);
void sd_shared_wait(struct sd_shared *shared, uint32_t record); /* without sd_lock */

/* Another process's are to be found again. */
void sd_shared_forget(void);

/* ---- capture.c ---- */

struct sd_capture {
    struct sd_capture *next; /* in the list of those open */
    uint64_t id;
    CUstreamCaptureMode mode;
    struct sd_thread *thread;
    struct sd_context *context;
    struct sd_queue *origin;
    struct sd_graph *graph;
    bool own_graph; /* made by the capture: dies with one that failed */
    bool invalid;
    bool again; /* its nodes are the graph's, in their order, with other work */
    size_t at;  /* the one that comes next then */
};

/* A call that no capture open now allows in this thread's mode: refused, captures invalidated. */
CUresult sd_capture_forbids(void);
/* A call that no capture in the context allows, whatever its mode. */
CUresult sd_capture_forbids_context(struct sd_context *context);
/* Work is about to enter the legacy stream: forbidden while a blocking stream captures. */
CUresult sd_capture_forbids_legacy(struct sd_queue *queue);
/* The flags of a context are about to change: refused, and breaks them, while a blocking stream
 * captures. */
CUresult sd_capture_forbids_flags(struct sd_context *context);
struct sd_capture *sd_capture_by_id(uint64_t id);
void sd_capture_invalidate(struct sd_capture *capture);
/* Adds a node for the work behind the queue's last nodes. */
CUresult sd_capture_add(struct sd_queue *queue, const struct sd_work *work);
/* The queue's last nodes become the event's, and the other way round. */
CUresult sd_capture_record(struct sd_queue *queue, struct sd_event *event);
/* A node that records an event of several processes, or waits for it, whenever the graph runs. */
CUresult sd_capture_external(struct sd_queue *queue, enum sd_work_kind kind,
                             struct sd_shared *shared);
CUresult sd_capture_wait(struct sd_queue *queue, struct sd_event *event);
/* Several nodes at once, as from a launched graph; `after` counts from the first of them. */
CUresult sd_capture_add_graph(struct sd_queue *queue, const struct sd_exec *exec);
/* The queue is no longer part of a capture. */
void sd_capture_leave(struct sd_queue *queue);
/* The queue is no longer part of it because the queue ends: one that began there ends with it. */
void sd_capture_lose(struct sd_queue *queue);

CUresult sd_stream_begin_capture_to_graph(CUstream stream, CUgraph graph, const CUgraphNode *after,
                                          size_t count, CUstreamCaptureMode mode);
CUresult sd_stream_begin_recapture(CUstream stream, CUstreamCaptureMode mode, CUgraph graph);
/* `with_edges`: ret_edges is given (NULL edges, as all of ours are plain). */

/* ---- graph.c ---- */

struct sd_node {
    struct sd_object object;
    struct sd_graph *graph;
    size_t index; /* in its graph; what it follows has lower ones */
    struct sd_work work;
    struct sd_node **after;
    size_t after_count;
};

/* Memory that a graph's allocation nodes gave out: lives while the graph or an instance does. */
struct sd_graph_memory {
    unsigned refs;
    struct sd_block **blocks;
    size_t count;
    struct sd_op *last; /* behind all uses by instances that are gone; may be NULL */
};

struct sd_graph {
    struct sd_object object;
    struct sd_node **nodes;
    size_t count, room;
    struct sd_graph_memory *memory;
};

struct sd_exec {
    struct sd_object object;
    struct sd_context *context;
    struct sd_exec_node {
        struct sd_work work;
        size_t *after;
        size_t after_count;
    } *nodes;
    size_t count;
    struct sd_graph_memory *memory;
    struct sd_op *last; /* behind its latest launch: launches of one instance do not overlap */
};

struct sd_graph *sd_graph_new(void);
void sd_graph_free(struct sd_graph *graph);
struct sd_node *sd_graph_add(struct sd_graph *graph, const struct sd_work *work,
                             struct sd_node **after, size_t after_count);
/* The graph's memory from now on; false: no room. */
bool sd_graph_keep(struct sd_graph *graph, struct sd_block *block);
bool sd_graph_owns(const struct sd_graph *graph, const struct sd_block *block);

/* ---- nodes.c ---- */

/* What a node of one kind is as one of any kind, in `ret`; NULL: nothing was given. */
CUgraphNodeParams *sd_copy_params(const CUDA_MEMCPY3D *copy, CUcontext ctx, CUgraphNodeParams *ret);
CUgraphNodeParams *sd_fill_params(const CUDA_MEMSET_NODE_PARAMS *fill, CUcontext ctx,
                                  CUgraphNodeParams *ret);
CUresult sd_graph_add_node(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                           const CUgraphNodeParams *params);
CUresult sd_node_set(CUgraphNode node, const CUgraphNodeParams *params);
CUresult sd_exec_node_set(CUgraphExec exec, CUgraphNode node, const CUgraphNodeParams *params);

/* ---- batch.c ---- */

CUresult sd_memcpy_batch(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
                         const CUmemcpyAttributes *attributes, const size_t *first,
                         size_t attribute_count, size_t *ret_fail, CUstream stream);
CUresult sd_memcpy_boxes(size_t count, const CUDA_MEMCPY3D_BATCH_OP *boxes, size_t *ret_fail,
                         unsigned long long flags, CUstream stream);
CUresult sd_memcpy_with(CUdeviceptr dst, CUdeviceptr src, size_t size,
                        const CUmemcpyAttributes *attributes, CUstream stream);

#endif
