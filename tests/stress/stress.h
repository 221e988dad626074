/*
 * A program that allocates and frees under a busy GPU, for a given time and seed, and never trusts
 * what it was given. A plain CUDA program on the driver API: it runs natively and under the
 * library, on the software driver and on a GPU.
 *
 *   stress.c     options, eras, and the verdict
 *   world.c      a context with its kernels; stamping and checking on its streams
 *   worker.c     a thread's life: which call comes next
 *   exchange.c   blocks that one thread allocates and another one frees
 *   doing.c      what is told when something is wrong
 *   no_epochs.c  the library with its fences broken, which this program must find out
 *   old_driver.c one that takes any driver for one without cuCtxRecordEvent
 *                (tests/with.sh --old-driver)
 *   single.c     another program of the same threads, which begin with one stream for all of them
 *
 * Every block has a tag that no other block of the run has. Kernels fill the block with it, soon or
 * late, and other kernels and the host look whether all of it still is the tag. A block is freed
 * while such kernels are still to come. So memory that has two owners at a time shows: one's tag in
 * what the other reads, from whichever side comes later.
 *
 * The time is divided into eras. In each, threads start and share the primary context; beside them
 * others make contexts and destroy them under their own running kernels. At an era's end either all
 * memory is freed or the primary context is reset with what is left in it.
 */
#ifndef STRESS_H
#define STRESS_H

#include <cuda.h>

#include "tests/clock.h"
#include "tests/system.h"

#define STREAMS    6    /* of one thread: legacy, per-thread, blocking, non-blocking ones */
#define STREAM_OWN 2    /* from here on they are made by cuStreamCreate */
#define SLOTS      32   /* live blocks of one thread */
#define CHECKS     1024 /* checks on the GPU that one thread remembers */

struct options {
    unsigned seconds, threads;
    uint64_t seed;
    bool find; /* success is to find memory with two owners */
    /* Of stress, for the whole time: several at once would hang in the driver else. */
    bool one_context;
};
extern struct options options;

struct block {
    CUdeviceptr address;
    uint64_t words; /* of 32 bits, from the address on; 0: none */
    uint32_t tag;
    unsigned home; /* the stream that has its last work */
    bool ordered;  /* from cuMemAllocAsync */
};
#define OFFERED 16 /* blocks on their way from one thread to another */

/* A context as one thread uses it. */
struct world {
    CUcontext context;
    CUfunction spin_fill, count_other;
    CUstream stream[STREAMS];
    unsigned streams;  /* how many of them it uses, from the first on; all of them by itself */
    bool plain;        /* all its memory is from cuMemAlloc */
    CUevent order;     /* recorded again and again */
    uint32_t *foreign; /* CHECKS words that kernels count in, pinned memory */
    struct block checked[CHECKS]; /* what each of them was about */
    unsigned next_check;
    uint32_t *page; /* STRESS_PAGE bytes to read back into, pinned memory */
    uint64_t random;
    uint64_t behind_ns; /* delays that were submitted since all streams were waited for */
    unsigned behind;    /* and kernels */
    unsigned thread;
    bool shared;                      /* other threads are in the context as well */
    uint64_t blocks, checks, refused; /* counted for the last line; out of memory */
};
#define STRESS_PAGE ((size_t)256 << 10)

/* A context of its own, made current (world.c). */
CUcontext stress_context(CUdevice device);

/* ---- doing.c ---- */

/* What this thread has called last, and when: told when it hangs. */
struct doing {
    const char *call;
    uint64_t since_ns, calls;
};
extern _Thread_local struct doing stress_doing;
void stress_calls(const char *call);

/* From here on SIGTERM, and SIGALRM after so many seconds, tell what every thread does, and end the
 * process. The calling thread is the main one; others say when they begin and end, by their numbers
 * below STRESS_THREADS. */
void stress_watch(unsigned seconds);
void stress_thread(unsigned number, bool runs);
#define STRESS_THREADS 256

/* Any thread: something is wrong, or with options.find right. Prints the verdict and ends the
 * process. */
__attribute__((noreturn, format(printf, 1, 2))) void stress_wrong(const char *format, ...);
__attribute__((noreturn, cold)) void stress_failed(CUresult result, const char *call);
#define MUST(call)                                      \
    do {                                                \
        CUresult result_ = (stress_calls(#call), call); \
        if (result_ != CUDA_SUCCESS)                    \
            stress_failed(result_, #call);              \
    } while (0)

uint32_t stress_random(uint64_t *state);
/* From 0 to below - 1. */
uint32_t stress_below(uint64_t *state, uint32_t below);

/* The options of both programs; false: called wrongly. `jobs` is NULL where there are none. */
bool stress_options(char **argv, unsigned *jobs);

/* ---- stress.c, single.c: what each program has of its own ---- */

bool stress_over(void); /* the calling thread's time is */
/* `found`: memory that was given to two, or taken away under a kernel. Ends the process. */
__attribute__((noreturn)) void stress_verdict(bool found, const char *what);

/* ---- world.c ---- */

/* For the context that is current; `random` and `thread` are filled in already. */
void world_open(struct world *world);
/* Streams, events and pinned memory; the context stays and waits for nothing. */
void world_close(struct world *world);

/* A new one in place of stream i, whose work goes on; what had its last work there is to be moved
 * before (world_order). */
void world_new_stream(struct world *world, unsigned i);

/* What stream `to` gets from now on runs behind what `from` has. */
void world_order(struct world *world, unsigned from, unsigned to);

/* Whether a call was refused because memory is out, which is counted; no other failure is right. */
#define REFUSED(world, call) world_refused((world), (stress_calls(#call), call))
bool world_refused(struct world *world, CUresult result);
/* A new block, not written yet. False: out of memory. */
bool world_allocate(struct world *world, struct block *ret_block);
/* With all that is still to come of its work, if it is not ordered. */
void world_free(struct world *world, struct block *block);

/* Waits for all streams if the GPU may be far behind: what is submitted faster than it runs would
 * pile up without end. */
void world_keep_up(struct world *world);

/* Fill with the tag on a stream, `late`: after a while; count what is not the tag there. */
void world_stamp(struct world *world, const struct block *block, CUstream stream, bool late);
void world_check(struct world *world, const struct block *block, CUstream stream, bool late);
/* Read by the host, in part if it is large; waits for its stream. */
void world_read(struct world *world, const struct block *block);
/* What the checks on the GPU have found so far. */
void world_look(struct world *world);

/* ---- worker.c ---- */

/* Some steps of a thread's life in a world: `steps`, or while the era lasts. Blocks that are live
 * at the end are freed if `tidy`, and forgotten otherwise. */
void worker_live(struct world *world, unsigned steps, bool tidy);

/* ---- exchange.c ---- */

/* Gives a block away: true, the block is no longer the caller's. */
bool exchange_put(struct world *world, const struct block *block);
/* One that another thread of the same context gave, its home a stream of this world. */
bool exchange_take(struct world *world, struct block *ret_block);
/* Frees what nobody took; or else, of cuMemAlloc's, leaves it to the context, which is current. No
 * thread is under way. */
void exchange_clear(bool tidy);

#endif
