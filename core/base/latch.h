/*
 * A lock that costs one atomic instruction to take and one to let go while nobody else wants it.
 * For what is on every allocation's path; everything else uses core/base/lock.h, whose order of
 * ranks holds here as well.
 */
#ifndef GS_CORE_BASE_LATCH_H
#define GS_CORE_BASE_LATCH_H

#include <stdbool.h>

#include "core/base/lock.h"

struct gs_latch {
    int state; /* atomic: 0 free, 1 taken, 2 taken and somebody sleeps for it */
    enum gs_rank rank;
};

void gs_latch_init(struct gs_latch *latch, enum gs_rank rank);
void gs_latch_take_slow(struct gs_latch *latch);
void gs_latch_wake(struct gs_latch *latch);

/* False: another thread has it. Sequentially consistent, for who takes a line of events and then
 * looks at what others store before they take it (core/gpu/fence.c). */
static inline bool gs_latch_try(struct gs_latch *latch)
{
    int expected = 0;

    if (!__atomic_compare_exchange_n(&latch->state, &expected, 1, false, __ATOMIC_SEQ_CST,
                                     __ATOMIC_RELAXED))
        return false;
    gs_rank_taken(latch->rank);
    return true;
}

static inline void gs_latch_take(struct gs_latch *latch)
{
    if (__builtin_expect(!gs_latch_try(latch), 0))
        gs_latch_take_slow(latch);
}

static inline void gs_latch_assert_held(const struct gs_latch *latch)
{
    gs_rank_assert_held(latch->rank);
}

static inline void gs_latch_release(struct gs_latch *latch)
{
    gs_rank_released(latch->rank);
    if (__builtin_expect(__atomic_exchange_n(&latch->state, 0, __ATOMIC_RELEASE) == 2, 0))
        gs_latch_wake(latch);
}

/* As GS_HOLDING, of a latch. */
#define GS_HOLDING_LATCH(its_latch)                                                     \
    __attribute__((cleanup(gs_latch_end), unused)) struct gs_latch *const gs_latch_of = \
        gs_latch_begin(its_latch)

static inline struct gs_latch *gs_latch_begin(struct gs_latch *latch)
{
    gs_latch_take(latch);
    return latch;
}

static inline void gs_latch_end(struct gs_latch *const *latch)
{
    gs_latch_release(*latch);
}

#endif
