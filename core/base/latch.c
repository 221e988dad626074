/* The slow side of latches (core/base/latch.h): a futex, as in any mutex. */
#include "core/base/latch.h"

#include <errno.h>
#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SPINS 60 /* looks before sleeping: holders let go within a microsecond */

void gs_latch_init(struct gs_latch *latch, enum gs_rank rank)
{
    latch->state = 0;
    latch->rank = rank;
}

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Ends as every wait for a lock (core/base/lock.h). */
void gs_latch_take_slow(struct gs_latch *latch)
{
    int saved = errno;

    for (int i = 0; i < SPINS; i++) {
        if (__atomic_load_n(&latch->state, __ATOMIC_RELAXED) == 0 && gs_latch_try(latch))
            return;
        relax();
    }
    gs_rank_taken(latch->rank);
    while (__atomic_exchange_n(&latch->state, 2, __ATOMIC_SEQ_CST) != 0)
        syscall(SYS_futex, &latch->state, FUTEX_WAIT_PRIVATE, 2, NULL, NULL, 0);
    errno = saved;
}

void gs_latch_wake(struct gs_latch *latch)
{
    int saved = errno;

    syscall(SYS_futex, &latch->state, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    errno = saved;
}
