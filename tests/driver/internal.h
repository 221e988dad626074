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
 *   span.c block.c memory.c array.c texture.c pool.c poolshare.c vmm.c ipc.c host.c
 *                 allocations as programs see them
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

#include <stdatomic.h>

#include "tests/system.h"

#pragma GCC visibility push(default)
#include "softcuda.h"

#include "shim/cuda_interop.h"
#include "shim/cuda_newer.h"
#pragma GCC visibility pop

#define SD_DRIVER_VERSION 13040
#define SD_NEWER_VERSION  14000 /* of its calls that no CUDA has */
#define SD_MAX_DEVICES    16
#define SD_MAX_PEERS      16                /* of a context */
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
    SD_WITH_PEER = 32,        /* devices reach each other */
    SD_WITH_SYNC_MEMOPS = 64, /* new memory has it on */
    SD_WITH_DMA_BUF = 128
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

/* NULL when there is no such device. */
struct sd_device *sd_device_get_ptr(CUdevice dev);
int sd_device_by_uuid(const CUuuid *uuid); /* -1: hidden or unknown */

/* machine.c: what is taken of a device's memory, by all processes of the machine. sd_lock is
 * held. */
void sd_machine_init(void);
uint64_t sd_device_used(const struct sd_device *device);
bool sd_device_take(struct sd_device *device, size_t size); /* false: that much is not free */
void sd_device_give(struct sd_device *device, size_t size);
/* Memory that several processes may hold, and that this one has `counted` so far; false: it stays
   counted so. */
bool sd_machine_list(const struct sd_device *device, uint64_t inode, size_t size, bool counted);
void sd_machine_unlist(uint64_t inode);

CUresult sd_multicast_none(void);
CUresult sd_multicast_bind(CUmemGenericAllocationHandle group);
CUresult sd_egl_present(const gs_egl_connection *connection);

/* ---- context.c ---- */

/* What a thread has: its stack of contexts, its default streams, its capture mode. */
struct sd_thread {
    struct sd_slot {
        struct sd_context *context;
        uint64_t id; /* the context's when it was pushed: tells a destroyed one */
    } *stack;
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
    bool no_default;             /* no call may name its default stream */
    bool active;                 /* false: a primary one that nobody retains */
    bool ending;                 /* a primary one whose work is waited for */
    unsigned retained;           /* a primary one: how often */
    unsigned flags;
    unsigned api_version;
    uint64_t life; /* never that of another one; a primary one's changes when it ends */
    _Atomic uint64_t peers[SD_MAX_PEERS]; /* lives of contexts whose memory it may use, or 0; read
                                             by running work */
    CUresult sticky;                      /* the error that killed it, CUDA_SUCCESS while well */
    struct sd_queue *legacy;
    struct sd_queue *queues; /* all of them: legacy, per-thread, created, destroyed but busy */
    struct sd_event *events;
    struct sd_module *modules;
    struct sd_piece *pieces; /* pieces that small cuMemAlloc blocks are cut from */
    size_t limits[16];
};

/* The calling thread's context, well and alive; else INVALID_CONTEXT, CONTEXT_IS_DESTROYED or
   the sticky error. */
CUresult sd_current(struct sd_context **ret);
/* The context for what outlives a green context: that is its primary one's. */
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
void sd_context_end(struct sd_context *context);                             /* and what is in it */

CUresult sd_ctx_create(CUcontext *pctx, unsigned flags, CUdevice dev, unsigned api);
CUresult sd_ctx_get_device_v2(CUdevice *dev, CUcontext ctx);
CUresult sd_ctx_synchronize_v2(CUcontext ctx);

#include "work.h"
#include "storage.h"

/* What the calls do: the functions of the table. */
#define ROW(name, symbol, since, mode, parameters, body)
#define CALL(name, symbol, since, mode, parameters, function, arguments) \
    CUresult function parameters;
#define ALIAS(name, symbol, since, mode)
#include "entry_points.h"

#endif
