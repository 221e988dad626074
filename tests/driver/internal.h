/*
 * The software driver's inside: one struct an object of CUDA, and who may call what.
 *
 *   entry.c       every exported symbol, made from the rows of entry_points.h
 *   faults.c      the gate each call passes: not initialised, forked, ordered to fail
 *   object.c      handles that can be checked without touching foreign memory
 *   engine.c      work that runs later: operations, what they wait for, the threads that run them
 *   stream.c event.c eventshare.c capture.c graph.c nodes.c   order of work
 *   segment.c     physical memory, its mappings, and each access that work makes to it
 *   space.c       where mappings may be
 *   span.c block.c memory.c array.c texture.c pool.c poolshare.c vmm.c ipc.c host.c   allocations as programs see them
 *   attributes.c copy.c copy2d.c copy3d.c batch.c module.c kernels.c device.c context.c green.c
 *   errors.c procaddress.c
 *
 * One lock, sd_lock, protects every struct here; the bodies of calls hold it, the work itself (the
 * copying, the kernels, host functions) runs without it. The only other lock, in segment.c, lets
 * work read the table of mapped memory while it touches that memory; it is taken after sd_lock or
 * alone, never before it.
 *
 * No code here calls an exported symbol of CUDA: a preloaded library would be in between.
 */
#ifndef SD_INTERNAL_H
#define SD_INTERNAL_H

#define __CUDA_API_VERSION_INTERNAL
#define __CUDA_API_PUSH_VISIBILITY_DEFAULT
#include <cuda.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#pragma GCC visibility push(default)
#include "softcuda.h"

#include "shim/cuda_interop.h"
#include "shim/cuda_newer.h"
#pragma GCC visibility pop

#define SD_DRIVER_VERSION 13040
#define SD_MAX_DEVICES    16
#define SD_MAX_PEERS      16 /* of a context */
#define SD_GRANULE        ((size_t)2 << 20) /* VMM granularity, and the size of a small piece */
#define SD_SMALL_LIMIT    ((size_t)1 << 20) /* cuMemAlloc sub-allocates below it */
#define SD_BLOCK_ALIGN    ((size_t)512)

#define SD_LIKELY(x)   __builtin_expect(!!(x), 1)
#define SD_UNLIKELY(x) __builtin_expect(!!(x), 0)

extern pthread_mutex_t sd_lock;

static inline size_t sd_round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

struct sd_block;
struct sd_capture;
struct sd_context;
struct sd_event;
struct sd_exec;
struct sd_graph;
struct sd_node;
struct sd_pool;
struct sd_queue;
struct sd_shared;
struct sd_stream;

/* ---- object.c: handles ---- */

enum sd_kind {
    SD_CONTEXT = 1,
    SD_STREAM,
    SD_EVENT,
    SD_MODULE,
    SD_FUNCTION,
    SD_GRAPH,
    SD_NODE,
    SD_EXEC,
    SD_POOL,
    SD_ALLOCATION,
    SD_ARRAY,
    SD_MIPMAPPED,
    SD_LIBRARY,
    SD_TEXTURE,
    SD_KINDS
};

/* First member of everything a program gets a handle of. */
struct sd_object {
    uint32_t magic;
    uint32_t kind;
    uint64_t id; /* never used twice in a process */
};

/* A zeroed object of `size` bytes, NULL when there is no room. */
void *sd_object_new(enum sd_kind kind, size_t size);
/* The handle is stale from now on; its memory is not handed out again soon. */
void sd_object_free(void *object);
/* The object behind a handle, NULL for anything else: junk, stale, another kind. */
void *sd_object_check(const void *handle, enum sd_kind kind);
uint64_t sd_next_id(void);
unsigned sd_object_count(enum sd_kind kind);

/* Address ranges that do not overlap, found by any address inside: a sorted array. */
struct sd_range {
    uint64_t base;
    uint64_t size;
    void *value;
};

struct sd_ranges {
    struct sd_range *at;
    size_t count;
    size_t room;
};

bool sd_ranges_add(struct sd_ranges *ranges, uint64_t base, uint64_t size, void *value);
void sd_ranges_remove(struct sd_ranges *ranges, uint64_t base);
void *sd_ranges_find(const struct sd_ranges *ranges, uint64_t address);
/* Index of the first range that ends after `address`; count when there is none. */
size_t sd_ranges_after(const struct sd_ranges *ranges, uint64_t address);

/* ---- faults.c: the gate ---- */

enum sd_feature {
    SD_WITH_VMM = 1,
    SD_WITH_POSIX_FD = 2,
    SD_WITH_RDMA = 4,
    SD_WITH_CTX_RECORD_EVENT = 8,
    SD_WITH_ASYNC = 16,
    SD_WITH_PEER = 32, /* devices reach each other */
    SD_WITH_SYNC_MEMOPS = 64 /* new memory has it on */
};

enum sd_gate_bit {
    SD_GATE_UNINITIALISED = 1,
    SD_GATE_FORKED = 2,
    SD_GATE_RULES = 4,
    SD_GATE_FEATURES = 8,
    SD_GATE_CALLBACK = 16
};

extern _Atomic unsigned sd_gate;
extern _Atomic unsigned long sd_call_counts[];
CUresult sd_enter_slow(unsigned row);
bool sd_feature(enum sd_feature feature);
bool sd_row_hidden(unsigned row);
/* Says on stderr what a variable should have been, and ends the process with status 125. */
_Noreturn void sd_refuse(const char *variable, const char *value, const char *wanted);

/* Every entry point passes here first: counted, and let through with CUDA_SUCCESS. */
static inline CUresult sd_enter(unsigned row)
{
    atomic_fetch_add_explicit(&sd_call_counts[row], 1, memory_order_relaxed);
    if (SD_LIKELY(!atomic_load_explicit(&sd_gate, memory_order_acquire)))
        return CUDA_SUCCESS;
    return sd_enter_slow(row);
}

/* ---- entry.c ---- */

enum sd_mode {
    SD_PLAIN = 0,
    SD_LEGACY = 1,     /* handle 0 is the legacy default stream */
    SD_PER_THREAD = 2, /* handle 0 is the thread's own default stream */
    SD_EARLY = 4,      /* may be called before cuInit */
    SD_UNLOCKED = 8    /* the body wants no sd_lock */
};

struct sd_row {
    const char *name;
    const char *symbol;
    int since; /* CUDA version as cuGetProcAddress counts */
    unsigned mode;
    void *address;
};

extern const struct sd_row sd_rows[];
extern const unsigned sd_row_count;

/* ---- device.c ---- */

struct sd_device {
    int physical; /* index before CUDA_VISIBLE_DEVICES */
    CUuuid uuid;
    char name[32];
    size_t memory;
    size_t used;
    struct sd_context *primary;
    struct sd_pool *default_pool;
    struct sd_pool *pool; /* the current one */
};

extern struct sd_device sd_devices[SD_MAX_DEVICES];
extern int sd_device_count;

CUresult sd_init(unsigned flags);
/* NULL when there is no such device. */
struct sd_device *sd_device_get_ptr(CUdevice dev);
int sd_device_by_uuid(const CUuuid *uuid); /* -1: hidden or unknown */

/* machine.c: what is taken of a device's memory, by all processes of the machine. sd_lock is held. */
void sd_machine_init(void);
uint64_t sd_device_used(const struct sd_device *device);
bool sd_device_take(struct sd_device *device, size_t size); /* false: that much is not free */
void sd_device_give(struct sd_device *device, size_t size);
/* Memory that several processes may hold, and that this one has `counted` so far; false: it stays
   counted so. */
bool sd_machine_list(const struct sd_device *device, uint64_t inode, size_t size, bool counted);
void sd_machine_unlist(uint64_t inode);

CUresult sd_driver_get_version(int *version);
CUresult sd_device_get(CUdevice *device, int ordinal);
CUresult sd_device_get_count(int *count);
CUresult sd_device_get_name(char *name, int len, CUdevice dev);
CUresult sd_device_get_uuid(CUuuid *uuid, CUdevice dev);
CUresult sd_device_total_mem(size_t *bytes, CUdevice dev);
CUresult sd_device_total_mem_v1(unsigned int *bytes, CUdevice dev);
CUresult sd_device_get_attribute(int *value, CUdevice_attribute attribute, CUdevice dev);
CUresult sd_device_compute_capability(int *major, int *minor, CUdevice dev);
CUresult sd_device_can_access_peer(int *can, CUdevice dev, CUdevice peer);
CUresult sd_device_get_p2p_attribute(int *value, CUdevice_P2PAttribute attribute, CUdevice src,
                                     CUdevice dst);
CUresult sd_device_get_pci_bus_id(char *id, int len, CUdevice dev);

CUresult sd_multicast_bind(CUmemGenericAllocationHandle group);
CUresult sd_egl_present(const gs_egl_connection *connection);
CUresult sd_multicast_granularity(size_t *granularity, const CUmulticastObjectProp *prop,
                                  CUmulticastGranularity_flags option);
CUresult sd_get_export_table(const void **table, const CUuuid *id);
CUresult sd_checkpoint_state(int pid, CUprocessState *state);

CUresult sd_get_error_name(CUresult error, const char **name);
CUresult sd_get_error_string(CUresult error, const char **text);

CUresult sd_get_proc_address(const char *symbol, void **pfn, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status);

/* ---- context.c ---- */

/* What a thread has: its stack of contexts, its default streams, its capture mode. */
struct sd_thread {
    struct sd_slot {
        struct sd_context *context;
        uint64_t id; /* the context's when it was pushed: tells a destroyed one */
    } * stack;
    unsigned depth, room;
    CUstreamCaptureMode mode;
    bool in_callback;
    bool known; /* its end is watched */
};

extern __thread struct sd_thread sd_thread;

struct sd_context {
    struct sd_object object;
    struct sd_context *next; /* all there are */
    int device;
    bool primary;
    struct sd_context *green_of; /* a green one's primary one, which has all but its queues */
    bool active;       /* false: a primary one that nobody retains */
    bool ending;       /* a primary one whose work is waited for */
    unsigned retained; /* a primary one: how often */
    unsigned attached; /* a created one: uses beyond the first, of cuCtxAttach */
    unsigned flags;
    unsigned api_version;
    uint64_t life;     /* never that of another one; a primary one's changes when it ends */
    _Atomic uint64_t peers[SD_MAX_PEERS]; /* lives of contexts whose memory it may use, or 0; read
                                             by running work */
    CUresult sticky;        /* the error that killed it, CUDA_SUCCESS while well */
    struct sd_queue *legacy;
    struct sd_queue *queues; /* all of them: legacy, per-thread, created, destroyed but busy */
    struct sd_event *events;
    struct sd_module *modules;
    struct sd_chunk *chunks; /* pieces that small cuMemAlloc blocks are cut from */
    size_t limits[16];
};

/* The calling thread's context, well and alive; else INVALID_CONTEXT, CONTEXT_IS_DESTROYED or
   the sticky error. */
CUresult sd_current(struct sd_context **ret);
/* The same for what outlives a green context: that is its primary one's. */
CUresult sd_current_owner(struct sd_context **ret);
/* Whether work in `context` is work of `of` as well: the same, or a green one of it. */
static inline bool sd_context_within(const struct sd_context *context, const struct sd_context *of)
{
    return context == of || context->green_of == of;
}
/* Context behind a handle, NULL means the current one where `current_ok`. */
CUresult sd_context_get(CUcontext handle, bool current_ok, struct sd_context **ret);
/* Whether it is the context with that life, or has enabled access to its memory. */
bool sd_context_reaches(const struct sd_context *context, uint64_t life);
void sd_thread_watch(void);
/* Calls fn for every context with queues. */
void sd_contexts_each(void (*fn)(struct sd_context *, void *), void *arg);
struct sd_context *sd_context_new(int device, unsigned flags, unsigned api); /* NULL: no room */
void sd_context_end(struct sd_context *context); /* and what is in it */

CUresult sd_ctx_create(CUcontext *pctx, unsigned flags, CUdevice dev, unsigned api);
CUresult sd_ctx_create_v4(CUcontext *pctx, CUctxCreateParams *params, unsigned flags, CUdevice dev);
CUresult sd_ctx_destroy(CUcontext ctx);
CUresult sd_ctx_attach(CUcontext *pctx, unsigned flags);
CUresult sd_ctx_detach(CUcontext ctx);
CUresult sd_ctx_push_current(CUcontext ctx);
CUresult sd_ctx_pop_current(CUcontext *pctx);
CUresult sd_ctx_set_current(CUcontext ctx);
CUresult sd_ctx_get_current(CUcontext *pctx);
CUresult sd_ctx_get_device(CUdevice *dev);
CUresult sd_ctx_get_device_v2(CUdevice *dev, CUcontext ctx);
CUresult sd_ctx_synchronize(void);
CUresult sd_ctx_synchronize_v2(CUcontext ctx);
CUresult sd_ctx_get_id(CUcontext ctx, unsigned long long *id);
CUresult sd_ctx_get_api_version(CUcontext ctx, unsigned *version);
CUresult sd_ctx_set_flags(unsigned flags);
CUresult sd_ctx_get_flags(unsigned *flags);
CUresult sd_ctx_set_limit(CUlimit limit, size_t value);
CUresult sd_ctx_get_limit(size_t *value, CUlimit limit);
CUresult sd_ctx_get_stream_priority_range(int *least, int *greatest);
CUresult sd_ctx_enable_peer_access(CUcontext peer, unsigned flags);
CUresult sd_ctx_disable_peer_access(CUcontext peer);
CUresult sd_primary_retain(CUcontext *pctx, CUdevice dev);
CUresult sd_primary_release(CUdevice dev);
CUresult sd_primary_reset(CUdevice dev);
CUresult sd_primary_get_state(CUdevice dev, unsigned *flags, int *active);
CUresult sd_primary_set_flags(CUdevice dev, unsigned flags);

/* ---- engine.c: work that runs later ---- */

enum sd_work_kind {
    SD_JOIN, /* nothing to run: done when what it waits for is */
    SD_COPY,
    SD_SET,
    SD_KERNEL,
    SD_HOST_FUNCTION,
    SD_STREAM_CALLBACK,
    SD_FREE,  /* a block freed in stream order */
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
    int priority;
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
/* The same for all contexts of the device. */
void sd_device_drain(int device);
/* All queues of a dead context, which has no work left. */
void sd_context_drop_queues(struct sd_context *context);
void sd_thread_drop_queues(struct sd_thread *thread);

CUresult sd_stream_create(CUstream *stream, unsigned flags, int priority);
CUresult sd_stream_create_in(struct sd_context *context, CUstream *stream, unsigned flags,
                             int priority);
CUresult sd_stream_destroy(CUstream stream);
CUresult sd_stream_query(CUstream stream);
CUresult sd_stream_synchronize(CUstream stream);
CUresult sd_stream_wait_event(CUstream stream, CUevent event, unsigned flags);
CUresult sd_stream_add_callback(CUstream stream, CUstreamCallback fn, void *data, unsigned flags);
CUresult sd_launch_host_func(CUstream stream, CUhostFn fn, void *data);
CUresult sd_stream_get_ctx(CUstream stream, CUcontext *ctx);
CUresult sd_stream_get_flags(CUstream stream, unsigned *flags);
CUresult sd_stream_get_priority(CUstream stream, int *priority);
CUresult sd_stream_get_id(CUstream stream, unsigned long long *id);
CUresult sd_stream_get_device(CUstream stream, CUdevice *dev);

/* ---- green.c ---- */

CUresult sd_device_get_resource(CUdevice dev, CUdevResource *resource, CUdevResourceType type);
CUresult sd_resource_describe(CUdevResourceDesc *desc, CUdevResource *resources, unsigned count);
CUresult sd_green_create(CUgreenCtx *green, CUdevResourceDesc desc, CUdevice dev, unsigned flags);
CUresult sd_green_destroy(CUgreenCtx green);
CUresult sd_ctx_from_green(CUcontext *ctx, CUgreenCtx green);
CUresult sd_green_stream_create(CUstream *stream, CUgreenCtx green, unsigned flags, int priority);
CUresult sd_stream_get_contexts(CUstream stream, CUcontext *ctx, CUgreenCtx *green);

/* ---- event.c ---- */

struct sd_event {
    struct sd_object object;
    struct sd_event *next, *prev; /* in its context */
    struct sd_context *context;
    unsigned flags;
    bool recorded;
    struct sd_shared *shared; /* of several processes: what it stands for is told there */
    struct sd_op *op; /* what it stands for; NULL: done, at `at` */
    uint64_t at;
    uint64_t capture; /* id of the capture it was recorded in, 0 outside of any */
    struct sd_node **nodes;
    size_t node_count;
};

CUresult sd_event_create(CUevent *event, unsigned flags);
/* Takes `shared` over, also where it fails; NULL: the event is this process's alone. */
CUresult sd_event_new(struct sd_context *context, unsigned flags, struct sd_shared *shared,
                      CUevent *event);
/* A reference to the operation that it waits for who waits for the event; NULL: it is done. */
struct sd_op *sd_event_op(struct sd_event *event);
CUresult sd_event_destroy(CUevent event);
CUresult sd_event_record(CUevent event, CUstream stream, unsigned flags);
CUresult sd_event_query(CUevent event);
CUresult sd_event_synchronize(CUevent event);
CUresult sd_event_elapsed_time(float *ms, CUevent start, CUevent end);
CUresult sd_ctx_record_event(CUcontext ctx, CUevent event);
CUresult sd_ctx_wait_event(CUcontext ctx, CUevent event);
/* Everything of a dead context goes. */
void sd_context_drop_events(struct sd_context *context);

/* ---- eventshare.c: what all processes see of an event ---- */

struct sd_shared *sd_shared_new(void); /* NULL: no room */
struct sd_shared *sd_shared_ref(struct sd_shared *shared);
void sd_shared_unref(struct sd_shared *shared); /* may be NULL */
/* One record more: its number. */
uint32_t sd_shared_record(struct sd_shared *shared);
uint32_t sd_shared_last(const struct sd_shared *shared);
bool sd_shared_is_done(const struct sd_shared *shared, uint32_t record);
void sd_shared_done(struct sd_shared *shared, uint32_t record);
void sd_shared_wait(struct sd_shared *shared, uint32_t record); /* without sd_lock */

CUresult sd_ipc_get_event_handle(CUipcEventHandle *handle, CUevent event);
CUresult sd_ipc_open_event_handle(CUevent *event, CUipcEventHandle handle);

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
    bool again;  /* its nodes are the graph's, in their order, with other work */
    size_t at;   /* the one that comes next then */
};

/* A call that no capture open now allows in this thread's mode: refused, captures invalidated. */
CUresult sd_capture_forbids(void);
/* A call that no capture in the context allows, whatever its mode. */
CUresult sd_capture_forbids_context(struct sd_context *context);
/* Work is about to enter the legacy stream: forbidden while a blocking stream captures. */
CUresult sd_capture_forbids_legacy(struct sd_queue *queue);
struct sd_capture *sd_capture_by_id(uint64_t id);
void sd_capture_invalidate(struct sd_capture *capture);
/* Adds a node for the work behind the queue's last nodes. */
CUresult sd_capture_add(struct sd_queue *queue, const struct sd_work *work);
/* The queue's last nodes become the event's, and the other way round. */
CUresult sd_capture_record(struct sd_queue *queue, struct sd_event *event);
CUresult sd_capture_wait(struct sd_queue *queue, struct sd_event *event);
/* Several nodes at once, as from a launched graph; `after` counts from the first of them. */
CUresult sd_capture_add_graph(struct sd_queue *queue, const struct sd_exec *exec);
/* The queue is no longer part of a capture. */
void sd_capture_leave(struct sd_queue *queue);
/* The same because the queue ends: one that began there ends with it. */
void sd_capture_lose(struct sd_queue *queue);

CUresult sd_stream_begin_capture(CUstream stream, CUstreamCaptureMode mode);
CUresult sd_stream_begin_capture_to_graph(CUstream stream, CUgraph graph, const CUgraphNode *after,
                                          size_t count, CUstreamCaptureMode mode);
CUresult sd_stream_begin_recapture(CUstream stream, CUstreamCaptureMode mode, CUgraph graph);
CUresult sd_stream_end_capture(CUstream stream, CUgraph *graph);
CUresult sd_stream_is_capturing(CUstream stream, CUstreamCaptureStatus *status);
/* `with_edges`: ret_edges is given (NULL edges, as all of ours are plain). */
CUresult sd_stream_get_capture_info(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id,
                                    CUgraph *graph, const CUgraphNode **nodes,
                                    const CUgraphEdgeData **edges, size_t *count);
CUresult sd_thread_exchange_capture_mode(CUstreamCaptureMode *mode);

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
    } * nodes;
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

CUresult sd_graph_create(CUgraph *graph, unsigned flags);
CUresult sd_graph_destroy(CUgraph graph);
CUresult sd_graph_get_nodes(CUgraph graph, CUgraphNode *nodes, size_t *count);
CUresult sd_graph_instantiate(CUgraphExec *exec, CUgraph graph, unsigned long long flags);
CUresult sd_graph_instantiate_params(CUgraphExec *exec, CUgraph graph,
                                     CUDA_GRAPH_INSTANTIATE_PARAMS *params);
CUresult sd_graph_upload(CUgraphExec exec, CUstream stream);
CUresult sd_graph_launch(CUgraphExec exec, CUstream stream);
CUresult sd_graph_exec_destroy(CUgraphExec exec);

/* ---- nodes.c ---- */

CUresult sd_graph_add_node(CUgraphNode *node, CUgraph graph, const CUgraphNode *after,
                           size_t count, const CUgraphNodeParams *params);
CUresult sd_node_set(CUgraphNode node, const CUgraphNodeParams *params);
CUresult sd_exec_node_set(CUgraphExec exec, CUgraphNode node, const CUgraphNodeParams *params);
CUresult sd_graph_add_memset(CUgraphNode *node, CUgraph graph, const CUgraphNode *after,
                             size_t count, const CUDA_MEMSET_NODE_PARAMS *fill, CUcontext ctx);
CUresult sd_graph_memset_set(CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *fill);
CUresult sd_exec_memset_set(CUgraphExec exec, CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *fill,
                            CUcontext ctx);
CUresult sd_graph_add_memcpy(CUgraphNode *node, CUgraph graph, const CUgraphNode *after,
                             size_t count, const CUDA_MEMCPY3D *copy, CUcontext ctx);
CUresult sd_graph_memcpy_set(CUgraphNode node, const CUDA_MEMCPY3D *copy);
CUresult sd_exec_memcpy_set(CUgraphExec exec, CUgraphNode node, const CUDA_MEMCPY3D *copy,
                            CUcontext ctx);
CUresult sd_graph_add_alloc(CUgraphNode *node, CUgraph graph, const CUgraphNode *after,
                            size_t count, CUDA_MEM_ALLOC_NODE_PARAMS *params);
CUresult sd_graph_add_free(CUgraphNode *node, CUgraph graph, const CUgraphNode *after,
                           size_t count, CUdeviceptr ptr);

/* ---- batch.c ---- */

CUresult sd_memcpy_batch(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
                         const CUmemcpyAttributes *attributes, const size_t *first,
                         size_t attribute_count, size_t *ret_fail, CUstream stream);
CUresult sd_memcpy_boxes(size_t count, const CUDA_MEMCPY3D_BATCH_OP *boxes, size_t *ret_fail,
                         unsigned long long flags, CUstream stream);
CUresult sd_memcpy_with(CUdeviceptr dst, CUdeviceptr src, size_t size,
                        const CUmemcpyAttributes *attributes, CUstream stream);

/* ---- segment.c: physical memory and what is mapped where ---- */

/* One piece of physical memory: a memfd. Counts against its device while anything holds it. */
struct sd_phys {
    unsigned refs;
    int fd;
    size_t size;
    int device;    /* -1: memory of a device that is hidden from us */
    bool imported; /* made by another process: counts there, unless it is */
    bool listed;   /* with sd_machine_list */
    uint64_t id;
    uint64_t inode;
    struct sd_phys *next;
};

enum sd_access { SD_ACCESS_NONE = 0, SD_ACCESS_READ = 1, SD_ACCESS_WRITE = 3 };

/* Memory mapped at an address; the unit in which addresses appear and vanish. */
struct sd_segment {
    uint64_t base;
    size_t size;
    struct sd_phys *phys; /* NULL: host memory */
    int device;           /* -1: host memory, open to all */
    uint64_t life;        /* of the context whose memory it is; unless listed */
    bool listed; /* access is as set for each device, else it is the device's and the peers' */
    uint8_t access[SD_MAX_DEVICES];
};

/* A memfd sealed at its size, close-on-exec and among the driver's own; -1 where there is no room. */
int sd_memfd_new(size_t size, const char *name);
/* A close-on-exec descriptor among the driver's own; -1 where the file cannot be opened. */
int sd_open_private(const char *path, int flags);
/* New physical memory; OUT_OF_MEMORY past the device's limit. */
CUresult sd_phys_new(int device, size_t size, struct sd_phys **ret);
/* The memory behind a descriptor (not taken over); the same object when we have it already. */
CUresult sd_phys_import(int fd, struct sd_phys **ret);
/* Others get it by descriptor, or this process did. */
void sd_phys_list(struct sd_phys *phys);
struct sd_phys *sd_phys_ref(struct sd_phys *phys);
void sd_phys_unref(struct sd_phys *phys);

/* ---- space.c ---- */

/* Whether an address is of the part of the address space that is the devices' alone. */
bool sd_space_is_devices(uint64_t address);
/* Address space without memory, at `at` if that is free (0: anywhere). 0 when there is none. */
uint64_t sd_address_reserve(size_t size, size_t align, uint64_t at);
void sd_address_release(uint64_t base, size_t size);

/* ---- segment.c again ---- */

/* Maps it into reserved address space and makes it known, taking a reference of its own; `listed`
   ones can be accessed by nobody yet. A failure leaves the space reserved. */
CUresult sd_segment_map(uint64_t base, struct sd_phys *phys, bool listed, struct sd_segment **ret);
/* Host memory becomes known to the devices. */
struct sd_segment *sd_segment_add_host(uint64_t base, size_t size);
/* Unknown from now on, to running work too; leaves reserved address space without memory. */
void sd_segment_unmap(struct sd_segment *segment);
/* Access changes for one device; PROT of the mapping follows. */
CUresult sd_segment_set_access(struct sd_segment *segment, int device, enum sd_access access);
/* Memory, address and mapping in one step, all gone with sd_segment_delete. */
CUresult sd_segment_new(int device, size_t size, bool listed, struct sd_segment **ret);
/* As it, and when the device is full, unused pool memory is taken first. */
CUresult sd_segment_new_pressed(int device, size_t size, bool listed, struct sd_segment **ret);
void sd_segment_delete(struct sd_segment *segment);

enum sd_access sd_segment_access(const struct sd_segment *segment,
                                 const struct sd_context *context);

/*
 * For running work: how many bytes from `address` on the context may access so. 0: none, a fault.
 * Without a context any device's access will do: the call checked whose it is. Between begin and
 * end the memory stays mapped; keep it short.
 */
void sd_touch_begin(void);
size_t sd_touch(const struct sd_context *context, uint64_t address, enum sd_access access);
void sd_touch_end(void);

/* ---- span.c: cutting a segment into blocks ---- */

struct sd_span {
    struct sd_span *next; /* by address */
    uint64_t base;
    size_t size;
    bool used;
    struct sd_op *freed_by; /* free for all once it is done */
    uint64_t freed_in;      /* id of the queue that it is free for already */
};

struct sd_chunk {
    struct sd_chunk *next;
    struct sd_segment *segment;
    struct sd_span *spans;
};

struct sd_chunk *sd_chunk_new(struct sd_segment *segment);
void sd_chunk_free(struct sd_chunk *chunk); /* not its segment */
/* The first place that is free for the queue (NULL: for everybody); 0 when there is none. With
 * `behind` also what other queues have freed, side by side: that operation is put behind it. */
uint64_t sd_chunk_take(struct sd_chunk *chunk, size_t size, const struct sd_queue *queue,
                       struct sd_op *behind);
/* Free again: for `queue` at once, for others when `after` is done (NULL: now). */
void sd_chunk_give(struct sd_chunk *chunk, uint64_t base, struct sd_op *after,
                   const struct sd_queue *queue);
/* Nothing in use, and no work that something freed waits for. */
bool sd_chunk_empty(struct sd_chunk *chunk);

/* ---- block.c, memory.c: allocations ---- */

enum sd_block_kind {
    SD_BLOCK_ALLOC, /* cuMemAlloc */
    SD_BLOCK_ASYNC, /* from a pool */
    SD_BLOCK_GRAPH, /* of a graph's allocation node */
    SD_BLOCK_VMM,   /* a mapping */
    SD_BLOCK_IPC,   /* opened legacy handle */
    SD_BLOCK_MODULE, /* a module's variable */
    SD_BLOCK_HOST,
    SD_BLOCK_MANAGED
};

struct sd_block {
    uint64_t base;
    size_t size; /* as asked for; VMM, IPC: of the mapping */
    enum sd_block_kind kind;
    struct sd_segment *segment;
    struct sd_context *context; /* the owner; NULL for VMM and pool memory */
    int device;
    struct sd_chunk *chunk; /* when it is part of one */
    struct sd_pool *pool;
    struct sd_allocation *allocation; /* VMM: the handle mapped */
    uint64_t id;
    int sync_memops; /* as set; -1: as this machine has it at first */
    bool freeing; /* a free waits for the work: for all others it is gone */
    bool leaving; /* freed in a stream's order, which has not got there: no free takes it again */
    bool hidden;
    bool registered; /* host memory that is the program's own */
    unsigned host_flags;
    int preferred, prefetched; /* managed: where it was told to be; CU_DEVICE_INVALID: nowhere */
};

extern struct sd_ranges sd_blocks;

struct sd_block *sd_block_new(enum sd_block_kind kind, uint64_t base, size_t size,
                              struct sd_segment *segment, struct sd_context *context, int device);
/* Nobody finds the block any more; it and its memory are there until it is released. */
void sd_block_hide(struct sd_block *block);
/* Hides and forgets the block; the memory is the caller's business. */
void sd_block_delete(struct sd_block *block);
/* The block with this address inside, NULL when there is none or it is being freed. */
struct sd_block *sd_block_find(uint64_t address);
bool sd_block_is_device(const struct sd_block *block);
/* Every byte of the range is allocated and the context may access it so. */
bool sd_block_range_ok(const struct sd_context *context, uint64_t base, size_t size,
                       enum sd_access access, bool other_devices);
/* The block and its memory go: at once, or as sd_chunk_give has it for pool memory. */
void sd_block_release(struct sd_block *block, struct sd_op *after, const struct sd_queue *queue);
void sd_context_drop_blocks(struct sd_context *context);

CUresult sd_mem_alloc(CUdeviceptr *ptr, size_t bytes);
CUresult sd_mem_alloc_pitch(CUdeviceptr *ptr, size_t *pitch, size_t width, size_t height,
                            unsigned element);
CUresult sd_mem_free(CUdeviceptr ptr);
CUresult sd_mem_get_info(size_t *free_bytes, size_t *total);
CUresult sd_mem_get_info_v1(unsigned *free_bytes, unsigned *total);
CUresult sd_mem_get_address_range(CUdeviceptr *base, size_t *size, CUdeviceptr ptr);
CUresult sd_mem_get_address_range_v1(CUdeviceptr_v1 *base, unsigned *size, CUdeviceptr_v1 ptr);

/* ---- host.c ---- */

CUresult sd_mem_host_alloc(void **ptr, size_t bytes, unsigned flags);
CUresult sd_mem_free_host(void *ptr);
CUresult sd_mem_host_register(void *ptr, size_t bytes, unsigned flags);
CUresult sd_mem_host_unregister(void *ptr);
CUresult sd_mem_host_get_device_pointer(CUdeviceptr *dptr, void *ptr, unsigned flags);
CUresult sd_mem_host_get_flags(unsigned *flags, void *ptr);
/* ---- managed.c ---- */

CUresult sd_mem_advise(CUdeviceptr ptr, size_t bytes, CUmem_advise advice, CUmemLocation where);
CUresult sd_mem_prefetch(CUdeviceptr ptr, size_t bytes, CUmemLocation where, unsigned flags,
                         CUstream stream);
CUresult sd_mem_range_attribute(void *data, size_t size, CUmem_range_attribute attribute,
                                CUdeviceptr ptr, size_t bytes);
CUresult sd_stream_attach(CUstream stream, CUdeviceptr ptr, size_t bytes, unsigned flags);

CUresult sd_mem_alloc_managed(CUdeviceptr *ptr, size_t bytes, unsigned flags);

/* ---- pool.c ---- */

struct sd_pool {
    struct sd_object object;
    struct sd_pool *next; /* all there are, the dying ones too */
    int device;
    bool is_default;
    bool destroyed; /* goes with its last block */
    uint64_t from_process, from_id; /* an imported one: what it is elsewhere */
    unsigned handle_types;
    size_t max_size;
    struct sd_chunk *chunks;
    uint64_t reserved, reserved_high, used, used_high, threshold;
    int reuse[4]; /* the three reuse attributes by number */
    uint8_t access[SD_MAX_DEVICES];
    unsigned live;
};

struct sd_pool *sd_pool_new(int device, bool is_default, const CUmemPoolProps *props);
/* Memory that nothing uses goes back to the device until `keep` bytes are reserved. */
void sd_pool_trim(struct sd_pool *pool, uint64_t keep);
void sd_pool_give(struct sd_pool *pool, struct sd_block *block, struct sd_op *after,
                  const struct sd_queue *queue);
/* While the stream captures, memory belongs to the graph: one address for every launch. */
CUresult sd_graph_take(struct sd_queue *queue, size_t bytes, struct sd_block **ret);
/* After a synchronisation: pools shrink to their release thresholds. */
void sd_pools_at_sync(void);
/* The device is out of memory: all unused pool memory goes back. True when any did. */
bool sd_pools_release(int device);

CUresult sd_mem_alloc_async(CUdeviceptr *ptr, size_t bytes, CUstream stream);
CUresult sd_mem_alloc_from_pool_async(CUdeviceptr *ptr, size_t bytes, CUmemoryPool pool,
                                      CUstream stream);
CUresult sd_mem_free_async(CUdeviceptr ptr, CUstream stream);
CUresult sd_pool_create(CUmemoryPool *pool, const CUmemPoolProps *props);
CUresult sd_pool_destroy(CUmemoryPool pool);
CUresult sd_pool_trim_to(CUmemoryPool pool, size_t keep);
CUresult sd_pool_set_attribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value);
CUresult sd_pool_get_attribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value);
CUresult sd_pool_set_access(CUmemoryPool pool, const CUmemAccessDesc *map, size_t count);
CUresult sd_pool_get_access(CUmemAccess_flags *flags, CUmemoryPool pool, CUmemLocation *location);
CUresult sd_device_get_default_pool(CUmemoryPool *pool, CUdevice dev);
CUresult sd_device_get_pool(CUmemoryPool *pool, CUdevice dev);
CUresult sd_device_set_pool(CUdevice dev, CUmemoryPool pool);
CUresult sd_mem_get_default_pool(CUmemoryPool *pool, CUmemLocation *where,
                                 CUmemAllocationType type);
CUresult sd_mem_get_pool(CUmemoryPool *pool, CUmemLocation *where, CUmemAllocationType type);
CUresult sd_mem_set_pool(CUmemLocation *where, CUmemAllocationType type, CUmemoryPool pool);

/* ---- poolshare.c ---- */

CUresult sd_pool_export(void *handle, CUmemoryPool pool, CUmemAllocationHandleType type,
                        unsigned long long flags);
CUresult sd_pool_import(CUmemoryPool *pool, void *handle, CUmemAllocationHandleType type,
                        unsigned long long flags);
CUresult sd_pool_export_pointer(CUmemPoolPtrExportData *data, CUdeviceptr ptr);
CUresult sd_pool_import_pointer(CUdeviceptr *ptr, CUmemoryPool pool,
                                const CUmemPoolPtrExportData *data);

/* ---- vmm.c ---- */

/* What a CUmemGenericAllocationHandle stands for. Alive while referenced or mapped. */
struct sd_allocation {
    struct sd_object object;
    struct sd_phys *phys;
    CUmemAllocationProp prop;
    unsigned refs;
    unsigned maps;
    bool imported;
};

unsigned sd_reservation_count(void);
unsigned sd_exported_fd_count(void);
unsigned sd_handle_count(void);

CUresult sd_address_reserve_call(CUdeviceptr *ptr, size_t size, size_t align, CUdeviceptr at,
                                 unsigned long long flags);
CUresult sd_address_free_call(CUdeviceptr ptr, size_t size);
CUresult sd_vmm_create(CUmemGenericAllocationHandle *handle, size_t size,
                       const CUmemAllocationProp *prop, unsigned long long flags);
CUresult sd_vmm_release(CUmemGenericAllocationHandle handle);
CUresult sd_vmm_map(CUdeviceptr ptr, size_t size, size_t offset,
                    CUmemGenericAllocationHandle handle, unsigned long long flags);
CUresult sd_vmm_unmap(CUdeviceptr ptr, size_t size);
CUresult sd_vmm_set_access(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count);
CUresult sd_vmm_get_access(unsigned long long *flags, const CUmemLocation *location,
                           CUdeviceptr ptr);
CUresult sd_vmm_export(void *out, CUmemGenericAllocationHandle handle,
                       CUmemAllocationHandleType type, unsigned long long flags);
CUresult sd_vmm_import(CUmemGenericAllocationHandle *handle, void *os_handle,
                       CUmemAllocationHandleType type);
CUresult sd_vmm_granularity(size_t *granularity, const CUmemAllocationProp *prop,
                            CUmemAllocationGranularity_flags option);
CUresult sd_vmm_properties(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle);
CUresult sd_vmm_retain(CUmemGenericAllocationHandle *handle, void *address);
CUresult sd_vmm_range_handle(void *out, CUdeviceptr ptr, size_t size, CUmemRangeHandleType type,
                             unsigned long long flags);

/* ---- ipc.c ---- */

CUresult sd_ipc_get_mem_handle(CUipcMemHandle *handle, CUdeviceptr ptr);
CUresult sd_ipc_open_mem_handle(CUdeviceptr *ptr, CUipcMemHandle handle, unsigned flags);
CUresult sd_ipc_close_mem_handle(CUdeviceptr ptr);
void sd_context_drop_ipc(struct sd_context *context);
unsigned sd_ipc_opened_count(void);
/* Random, never 0: which process this is. */
uint64_t sd_process_token(void);
/* A descriptor of what another process has at one of its own, if that is still the file meant. */
CUresult sd_open_theirs(int pid, int their_fd, uint64_t inode, uint64_t size, int *ret_fd);
/* The memory behind a descriptor of another process, if that still has it. */
CUresult sd_open_memory(int pid, int their_fd, uint64_t inode, uint64_t size, struct sd_phys **ret);

/* ---- attributes.c ---- */

CUresult sd_pointer_get_attribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr);
CUresult sd_pointer_get_attributes(unsigned count, CUpointer_attribute *attributes, void **data,
                                   CUdeviceptr ptr);
CUresult sd_pointer_set_attribute(const void *value, CUpointer_attribute attribute,
                                  CUdeviceptr ptr);

/* ---- copy.c ---- */

CUresult sd_memcpy(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream, bool async);
CUresult sd_memcpy_htod(CUdeviceptr dst, const void *src, size_t bytes, CUstream stream,
                        bool async);
CUresult sd_memcpy_dtoh(void *dst, CUdeviceptr src, size_t bytes, CUstream stream, bool async);
CUresult sd_memcpy_dtod(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream);
CUresult sd_memcpy_peer(CUdeviceptr dst, CUcontext dst_ctx, CUdeviceptr src, CUcontext src_ctx,
                        size_t bytes, CUstream stream);
CUresult sd_memset(CUdeviceptr dst, uint32_t value, unsigned width, size_t count, CUstream stream);
CUresult sd_memcpy_3d(const CUDA_MEMCPY3D *copy, CUstream stream, bool async);
CUresult sd_memcpy_3d_peer(const CUDA_MEMCPY3D_PEER *copy, CUstream stream);
CUresult sd_memset_2d(CUdeviceptr dst, size_t pitch, uint32_t value, unsigned width, size_t count,
                      size_t rows, CUstream stream);
/* On a queue that was checked. */
CUresult sd_queue_fill(struct sd_queue *queue, CUdeviceptr dst, size_t pitch, uint32_t value,
                       unsigned width, size_t count, size_t rows, bool other_devices);
/* Memory that the host can read and write, for all that is known: not of the devices' part of the
   address space, or live there. */
bool sd_may_be_host(uint64_t address, size_t bytes);
/* Ordinary memory over the whole range, or memory that the driver knows to be the host's. */
bool sd_known_host(uint64_t address, size_t bytes);
CUresult sd_sync_allowed(struct sd_queue *queue, bool async);

/* ---- array.c ---- */

struct sd_array {
    struct sd_object object;
    struct sd_array *next; /* all there are */
    struct sd_context *context;
    CUDA_ARRAY3D_DESCRIPTOR shape;
    size_t pitch, rows; /* bytes a row; those of all slices, which follow each other */
    struct sd_segment *segment;
    bool level; /* of a mipmapped array, with which it goes */
};

/* Of one element, 0 where there is no such format. */
size_t sd_element_bytes(CUarray_format format, unsigned channels);
CUresult sd_array_create(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *flat);
CUresult sd_array_create_3d(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *shape);
CUresult sd_array_get_descriptor(CUDA_ARRAY3D_DESCRIPTOR *shape, CUarray array);
CUresult sd_array_destroy(CUarray array);
CUresult sd_mipmapped_create(CUmipmappedArray *mipmapped, const CUDA_ARRAY3D_DESCRIPTOR *shape,
                             unsigned levels);
CUresult sd_mipmapped_get_level(CUarray *array, CUmipmappedArray mipmapped, unsigned level);
CUresult sd_mipmapped_destroy(CUmipmappedArray mipmapped);
void sd_context_drop_arrays(struct sd_context *context);

/* ---- texture.c ---- */

CUresult sd_texture_create(CUtexObject *texture, const CUDA_RESOURCE_DESC *resource,
                           const CUDA_TEXTURE_DESC *reads, const CUDA_RESOURCE_VIEW_DESC *view);
CUresult sd_texture_resource(CUDA_RESOURCE_DESC *resource, CUtexObject texture);
CUresult sd_texture_destroy(CUtexObject texture);
void sd_context_drop_textures(struct sd_context *context);

/* ---- copy2d.c ---- */

CUresult sd_memcpy_2d(const CUDA_MEMCPY2D *copy, CUstream stream, bool async);
/* On a queue that was checked. */
CUresult sd_queue_copy(struct sd_queue *queue, const CUDA_MEMCPY2D *copy, bool async);
/* A slice of the box, as a rectangle. */
CUDA_MEMCPY2D sd_slice_of(const CUDA_MEMCPY3D *copy, size_t z);
CUresult sd_memcpy_2d_v1(const CUDA_MEMCPY2D_v1 *copy, CUstream stream, bool async);
/* A copy between memory that work may touch; copies what it can, false at a fault. */
bool sd_move(const struct sd_context *context, uint64_t dst, bool dst_host, uint64_t src,
             bool src_host, size_t bytes);

/* ---- module.c, kernels.c ---- */

struct sd_kernel {
    const char *name;
    uint8_t arg_bytes[SD_KERNEL_ARGS];                                   /* 0 ends the list */
    bool (*run)(const struct sd_context *context, const uint64_t *args); /* false: it faulted */
};

const struct sd_kernel *sd_kernel_find(const char *name);

CUresult sd_module_load_data(CUmodule *module, const void *image);
CUresult sd_module_unload(CUmodule module);
CUresult sd_module_get_global(CUdeviceptr *ptr, size_t *bytes, CUmodule module, const char *name);
CUresult sd_library_load_data(CUlibrary *library, const void *code);
CUresult sd_library_unload(CUlibrary library);
CUresult sd_library_get_global(CUdeviceptr *ptr, size_t *bytes, CUlibrary library,
                               const char *name);
CUresult sd_module_get_function(CUfunction *function, CUmodule module, const char *name);
CUresult sd_launch_kernel(CUfunction function, const unsigned grid[3], const unsigned block[3],
                          CUstream stream, void **params, void **extra);
CUresult sd_launch_kernel_ex(const CUlaunchConfig *config, CUfunction function, CUstream stream,
                             void **params, void **extra);
void sd_context_drop_modules(struct sd_context *context);

#endif
