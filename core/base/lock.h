/*
 * Locks with ranks. A thread takes locks in rising rank only, so no two threads can wait for each
 * other; builds with sanitizers abort a test that breaks the rule. All of core's locks are listed
 * here.
 *
 * Who waits for one waits for its holder, and for nothing else: no holder waits for the GPU,
 * another process or a condition of another lock, nor calls code of the program's. The calls of the
 * driver that are made under a lock are those that core/gpu/driver.h says to wait for no work;
 * where one waits all the same, for a call of another thread, is said there.
 */
#ifndef GS_CORE_BASE_LOCK_H
#define GS_CORE_BASE_LOCK_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

enum gs_rank {
    GS_RANK_ORDERED = 4,        /* shim/ordered.c: memory of graphs, and of several streams */
    GS_RANK_EXTERNALS = 5,      /* shim/external.c: who attached what */
    GS_RANK_PEERS = 8,          /* core/process/peers.c: one device is let in at a time */
    GS_RANK_IMPORTER = 10,      /* core/share: what this process has opened of others */
    GS_RANK_SINGLE = 15,        /* core/gpu/single.c: whether all work goes to one stream */
    GS_RANK_CONTEXTS = 20,      /* core/process/context.c: the table of contexts and devices */
    GS_RANK_ARENA = 30,         /* core/pool/arena.h: one context's pieces, blocks and epochs */
    GS_RANK_OWN = 37,           /* core/process/own.c: memory that the program maps itself */
    GS_RANK_SHARE = 40,         /* core/share: exports, clients and leases of this process */
    GS_RANK_CAPTURE = 50,       /* core/gpu/fence.c: captures open, against events being recorded */
    GS_RANK_LINE = 51,          /* core/gpu/fence.h: one line of events */
    GS_RANK_REGISTRATIONS = 55, /* core/regcache: the index of registrations */
    GS_RANK_MAP = 60,           /* core/gpu/map.c: writers of the allocation map */
    GS_RANK_DISCARDS = 80,      /* core/share/discard.c: descriptors that closers are to close */
    GS_RANK_TRACE = 85,         /* core/record/trace.c: one thread's recorded events */
    GS_RANK_TRACE_FILE = 90,    /* core/record/trace_file.c: what they are written to */
};

struct gs_lock {
    pthread_mutex_t mutex;
    enum gs_rank rank;
};

#define GS_LOCK_INITIALIZER(its_rank) {PTHREAD_MUTEX_INITIALIZER, its_rank}

/* The check of ranks, for locks of other kinds. */
#ifdef GS_CHECK_LOCKS
void gs_rank_taken(enum gs_rank rank);
void gs_rank_released(enum gs_rank rank);
/* This thread has a lock of that rank, and so no other of the same. */
void gs_rank_assert_held(enum gs_rank rank);
#else
#define gs_rank_assert_held(rank) ((void)(rank))
#define gs_rank_taken(rank)       ((void)(rank))
#define gs_rank_released(rank)    ((void)(rank))
#endif

void gs_lock_init(struct gs_lock *lock, enum gs_rank rank);
void gs_lock_destroy(struct gs_lock *lock);
void gs_lock_take(struct gs_lock *lock);
/* Returns whether it was free; 0 or 1. */
int gs_lock_try(struct gs_lock *lock);
void gs_lock_release(struct gs_lock *lock);

/* Held from here to the end of the block. */
#define GS_HOLDING(its_lock)                                                         \
    __attribute__((cleanup(gs_lock_end), unused)) struct gs_lock *const gs_lock_of = \
        gs_lock_begin(its_lock)

static inline struct gs_lock *gs_lock_begin(struct gs_lock *lock)
{
    gs_lock_take(lock);
    return lock;
}

static inline void gs_lock_end(struct gs_lock *const *lock)
{
    gs_lock_release(*lock);
}

/* Of what is called with the lock held (_locked); builds that check locks abort where it is not. */
static inline void gs_lock_assert_held(const struct gs_lock *lock)
{
    gs_rank_assert_held(lock->rank);
}

/* What threads wait for with a lock; the time of a wait is that of gs_now_ns. */
struct gs_cond {
    pthread_cond_t cond;
};

void gs_cond_init(struct gs_cond *cond);
void gs_cond_destroy(struct gs_cond *cond);
/* Waits to be woken, which may also come of itself; the lock is let go meanwhile. False: `until_ns`
 * has come. */
bool gs_cond_wait_until(struct gs_cond *cond, struct gs_lock *lock, uint64_t until_ns);
void gs_cond_wake_all(struct gs_cond *cond);

#endif
