/*
 * What a program of the differential fuzzer consists of.
 *
 * A program is a list of steps. What step i does, on which slots and with which sizes, follows from
 * the seed and i alone, so steps may be left out and the others stay what they were. Objects live
 * in slots and are printed by slot and offset; handles and addresses never are. A step does some
 * calls in a row, prints one line with each call's name and result and what could be observed, and
 * leaves nothing half done.
 *
 * What two drivers may answer differently, both being right, is not asked: whether work that runs
 * has ended, which address memory has, what lies beside it, what is in memory that nobody wrote,
 * what stale handles do. So memory is written when it is made, and a stream waits for the one that
 * used a block before (world_order). A sticky error ends a context, on a real GPU the program: no
 * step touches memory in a way that faults.
 */
#ifndef DIFFERENTIAL_WORLD_H
#define DIFFERENTIAL_WORLD_H

#include <cuda.h>

#include "tests/system.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

enum {
    CONTEXTS = 4, /* 0 is the primary one of device 0, 3 that of device 1; the others come and go */
    STREAMS = 6,
    EVENTS = 4,
    BLOCKS = 20,
    POOLS = 2,
    GRAPHS = 3,
    KERNELS = 3
};

enum kind { PLAIN, PITCH, ASYNC, POOLED, VMM, MANAGED, HOST, REGISTERED, KINDS };
extern const char *const kind_names[KINDS];

/* A place in the order of work; on a per-thread default stream nothing is done. */
struct order {
    int context;          /* -1: nothing is under way */
    int stream;           /* -1: the legacy one */
    unsigned stream_life; /* another one is in the slot since: all of the context is waited for */
};

struct context {
    CUcontext handle;
    bool live;
    unsigned life; /* counts up, as in the others */
    CUdevice device;
    CUmodule module;
    CUfunction kernel[KERNELS];
};

struct stream {
    CUstream handle;
    bool live;
    unsigned life;
    int context;
};

struct event {
    CUevent handle;
    bool live, recorded;
    int context;
};

struct block {
    bool live;
    unsigned life;
    enum kind kind;
    CUdeviceptr ptr;
    size_t size;
    size_t pitch, width; /* PITCH */
    int context;         /* where it was made */
    int device;
    int pool; /* POOLED: its slot, -1 when that pool was destroyed */
    struct order last;
    void *host;                          /* HOST, REGISTERED */
    CUmemGenericAllocationHandle handle; /* VMM */
    unsigned long long id;               /* BUFFER_ID, 0 when it was not asked for */
};

struct pool {
    CUmemoryPool handle;
    bool live;
};

struct graph {
    bool live;
    CUgraph handle;
    CUgraphExec exec;
    int context;
    unsigned context_life;
    unsigned contexts; /* of its blocks, and its own: a bit each */
    unsigned uses;     /* blocks that it touches */
    struct {
        int block;
        unsigned life;
    } use[8];
};

struct world {
    int devices;
    struct context context[CONTEXTS];
    struct stream stream[STREAMS];
    struct event event[EVENTS];
    struct block block[BLOCKS];
    struct pool pool[POOLS];
    struct graph graph[GRAPHS];
    bool lets_in;       /* a context enabled peer access, which is its device's (LIMIT_STAYS) */
    bool freed_plainly; /* stream-ordered memory by cuMemFree (LIMIT_USED) */
};

extern struct world world;

/* ---- The random numbers of a step ---- */

uint64_t random_next(void);
/* From 0 to n - 1. */
unsigned pick(unsigned n);
static inline bool one_in(unsigned n)
{
    return pick(n) == 0;
}
/* A size that memory may have; `most` bounds it. */
size_t pick_size(size_t most);

/* ---- What is printed ---- */

__attribute__((format(printf, 1, 2))) void say(const char *format, ...);
void about(const char *call);
CUresult answered(CUresult result);
CUresult not_compared(CUresult result, unsigned limit);

/* Prints the call's name before it is made and its result after it. */
#define CALL(call, ...) (about(#call), answered(call(__VA_ARGS__)))

/* CALL where shim/README.md names a difference: what it gives is printed as the number of that
 * limit. */
#define LIMIT(limit, call, ...) (about(#call), not_compared(call(__VA_ARGS__), limit))

enum limit {
    LIMIT_IPC_OF_ALL,
    LIMIT_IPC_OF_OWN,
    LIMIT_RDMA,
    LIMIT_FAR,
    LIMIT_USED,
    LIMIT_STAYS,
    LIMITS
};
extern const char *const limit_texts[LIMITS]; /* words of shim/README.md */

/* Prints a hash of memory of the host. */
void say_bytes(const void *bytes, size_t size);

/* ---- Slots ---- */

/* A live one, beginning at a random place; -1 where there is none. */
int any_block(unsigned kinds); /* a mask of 1 << kind */
int any_stream(void);
int any_event(void);
int free_block(void);
#define ALL_KINDS    ((1u << KINDS) - 1)
#define DEVICE_KINDS (ALL_KINDS & ~(1u << HOST | 1u << REGISTERED))

/* The context that is current on this thread, by its slot; -1: none. */
int current_context(void);
CUcontext context_handle(int slot); /* NULL for -1 */
/* Stream-ordered memory of another device than the current one. */
bool is_far(const struct block *block);

/* Whether the step is made by the first thread: the second one has context 0 between its steps. */
bool world_alone(void);

/* The block ends: nothing more is asked about it. */
void block_gone(int slot);
/* All that dies with a context. */
void context_gone(int slot);

/* Work in `order` may touch the block: it comes behind the work that did before. False: that cannot
 * be had, nothing is to be done. */
bool world_order(int block, struct order order);
/* The block was used there. */
void world_used(int block, struct order order);
/* All work with the block is done. */
bool world_settle(int block);

/* What work submitted to a stream slot (-1: the legacy one) is ordered in. */
struct order order_of(int stream);
static inline CUstream stream_handle(int slot)
{
    return slot < 0 ? CU_STREAM_LEGACY : world.stream[slot].handle;
}

#define WRITTEN (32 * KIB) /* at either end of a block; all of one below twice that */

/* A part of the block that was written when it was made: *ret_offset and the size that is given. */
size_t pick_part(const struct block *block, size_t most, size_t *ret_offset);

/* The kernels of a context, which is current. */
bool kernels_load(int context);
/* Launches fill (0), copy_words (1) or count_other (2). */
CUresult launch(int which, int context, CUstream stream, void **args);

/* ---- Steps ---- */

typedef void step_fn(void);
step_fn step_alloc, step_free, step_range, step_attributes, step_attribute_set, step_host;
step_fn step_fill, step_copy, step_host_copy, step_launch, step_read, step_past_end;
step_fn step_context, step_current, step_primary, step_stream, step_event, step_wait, step_sync,
    step_pool, step_pool_figures, step_peer;
step_fn step_capture, step_graph_launch, step_graph_by_hand;
step_fn step_vmm;

/* Writes all of a new block that may be looked at, in the order of its making. */
void block_written(int slot, struct order order);
/* Makes one of a kind in the slot; false: it could not be made. */
bool block_make(int slot, enum kind kind, size_t size, int stream);
CUresult block_free(int slot, int stream);

#endif
