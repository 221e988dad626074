/* Calls that go first (core/base/turn.h). */
#include "core/base/turn.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core/base/clock.h"

void gs_turn_begin(struct gs_turn *turn)
{
    __atomic_add_fetch(&turn->first, 1, __ATOMIC_SEQ_CST);
}

void gs_turn_end(struct gs_turn *turn)
{
    if (__atomic_sub_fetch(&turn->first, 1, __ATOMIC_SEQ_CST) == 0 &&
        __atomic_load_n(&turn->awaited, __ATOMIC_SEQ_CST))
        syscall(SYS_futex, &turn->first, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* Who ends between the look and the sleep has changed the number, and nobody sleeps. */
void gs_turn_let(struct gs_turn *turn, uint64_t *left_ns)
{
    uint64_t began = gs_now_ns(), waited = 0;
    unsigned first;

    if (!turn)
        return;
    while (waited < *left_ns && (first = __atomic_load_n(&turn->first, __ATOMIC_SEQ_CST)) > 0) {
        const uint64_t left = *left_ns - waited;
        const struct timespec most = {(time_t)(left / GS_NS_PER_S), (long)(left % GS_NS_PER_S)};

        __atomic_store_n(&turn->awaited, true, __ATOMIC_SEQ_CST);
        syscall(SYS_futex, &turn->first, FUTEX_WAIT_PRIVATE, first, &most, NULL, 0);
        waited = gs_now_ns() - began;
    }
    __atomic_store_n(&turn->awaited, false, __ATOMIC_SEQ_CST);
    *left_ns = waited < *left_ns ? *left_ns - waited : 0;
}
