/* Handles that nobody opens: whoever has not the library gets an error from the driver and cannot
 * tell, so the exporter asks. */
#include <criterion/criterion.h>
#include <string.h>
#include <unistd.h>

#include "scene.h"

static struct gs_export *export[2];

static void setup(void)
{
    scene_new();
    options.grace_ns = 100 * MS;
    scene_chunk();
    for (size_t i = 0; i < 2; i++)
        cr_assert_eq(side_export(&side, &chunk, i * MIB, MIB, &export[i]), GS_OK);
}

TestSuite(share_unopened, .init = setup, .fini = scene_end, .timeout = 120);

static int times_said(void)
{
    int times = 0;

    for (const char *at = side_logged(); (at = strstr(at, "none was ever opened")); at++)
        times++;
    return times;
}

/* Freed, and its grace is over. */
static void ends(int i)
{
    uint64_t freed = side_now();

    gs_share_freed(side.share, export[i], freed);
    cr_assert(SIDE_WAIT(gs_share_withdraw(side.share, export[i])));
}

Test(share_unopened, it_is_said_once_and_with_their_number)
{
    cr_assert_eq(times_said(), 0, "neither is freed yet");
    ends(0);
    if (side_with_broker()) {
        cr_assert_eq(times_said(), 0, "others may ask the broker");
        ends(1);
        return;
    }
    cr_assert_not_null(
        strstr(side_logged(), "2 IPC handles were given out and none was ever opened"));
    ends(1);
    gs_share_at_exit(side.share);
    cr_assert_eq(times_said(), 1, "%s", side_logged());
}

Test(share_unopened, who_has_opened_one_has_the_library)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    unsigned long address;

    other_start(&other, dir, "strict=1");
    gs_export_handle(export[0], ipc_handle);
    cr_assert_eq(other_open(&other, ipc_handle, &address), GS_OK);
    cr_assert_str_eq(other_ask(&other, "close %lx", address), "status 0");
    ends(1);
    ends(0);
    gs_share_at_exit(side.share);
    cr_assert_eq(times_said(), 0, "%s", side_logged());
}
