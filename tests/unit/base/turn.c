/* Calls that go first: who lets them waits until they are done, and no longer than it was told
 * to. */
#include <criterion/criterion.h>
#include <pthread.h>

#include "core/base/clock.h"
#include "core/base/turn.h"

#define LONG_NS UINT64_C(60000000000)

struct one {
    struct gs_turn *turn;
    bool let; /* atomic */
    uint64_t left_ns;
};

static void *let(void *arg)
{
    struct one *one = arg;

    gs_turn_let(one->turn, &one->left_ns);
    __atomic_store_n(&one->let, true, __ATOMIC_SEQ_CST);
    return NULL;
}

Test(turn, nobody_is_waited_for)
{
    struct gs_turn turn = {0};
    uint64_t left_ns = LONG_NS;

    gs_turn_let(NULL, &left_ns);
    gs_turn_let(&turn, &left_ns);
    gs_turn_begin(&turn);
    gs_turn_end(&turn);
    gs_turn_let(&turn, &left_ns);
    cr_assert_gt(left_ns, LONG_NS / 2);
}

Test(turn, all_who_go_first_are_waited_for, .timeout = 30)
{
    struct gs_turn turn = {0};
    struct one one = {.turn = &turn, .left_ns = LONG_NS};
    pthread_t thread;

    gs_turn_begin(&turn);
    gs_turn_begin(&turn);
    cr_assert_eq(pthread_create(&thread, NULL, let, &one), 0);
    while (!__atomic_load_n(&turn.awaited, __ATOMIC_SEQ_CST))
        gs_yield();
    gs_turn_end(&turn);
    for (int i = 0; i < 100; i++)
        gs_yield();
    cr_assert_not(__atomic_load_n(&one.let, __ATOMIC_SEQ_CST));
    gs_turn_end(&turn);
    cr_assert_eq(pthread_join(thread, NULL), 0);
    cr_assert(one.let);
}

Test(turn, nobody_is_waited_for_longer_than_that, .timeout = 30)
{
    struct gs_turn turn = {0};
    uint64_t left_ns = 20 * GS_NS_PER_MS, began = gs_now_ns();

    gs_turn_begin(&turn);
    gs_turn_let(&turn, &left_ns);
    cr_assert_geq(gs_now_ns() - began, 20 * GS_NS_PER_MS);
    cr_assert_eq(left_ns, 0);
    gs_turn_let(&turn, &left_ns);
}
