/* Room for what the driver takes by itself (core/process/process.h): how long it is looked for. */
#include <criterion/criterion.h>

#include "core/base/clock.h"
#include "core/process/context.h"
#include "core/process/reclaim.h"
#include "tests/unit/fixture.h"

static uint64_t ahead_ns; /* what the clock says more than it is; 0: it goes */

uint64_t __real_gs_now_ns(void);
uint64_t __wrap_gs_now_ns(void);

uint64_t __wrap_gs_now_ns(void)
{
    return ahead_ns ? ahead_ns : __real_gs_now_ns();
}

static bool is_room(struct fixture *f)
{
    unsigned step = GS_ROOM_AFTER_REFUSAL;

    return gs_core_make_room(f->core, 0, 0, &step);
}

/* The driver clears what it got back for up to half a second before it gives it out. */
Test(room, the_driver_is_given_time_to_clear_what_it_got_back, .timeout = 60)
{
    unsigned step = GS_ROOM_AFTER_REFUSAL, times = 0;
    struct fixture f;
    uint64_t released;

    fixture_options(&f);
    fixture_start(&f);
    MUST(gs_core_free(f.core, must_alloc(&f, 8 * MIB)));
    fixture_drain(&f);
    cr_assert_not(is_room(&f), "the driver got nothing back");
    cr_assert_gt(fixture_release(&f, true), 0);
    released = __atomic_load_n(&f.core->releases.last_ns, __ATOMIC_SEQ_CST);
    ahead_ns = released + 500 * MS;
    cr_assert(is_room(&f));
    while (times < 100 && gs_core_make_room(f.core, 0, 0, &step))
        times++;
    cr_assert_eq(times, 20, "though it gets more back all the time");
    ahead_ns = released + 501 * MS;
    cr_assert_not(is_room(&f));
    ahead_ns = 0;
    fixture_end(&f);
}
