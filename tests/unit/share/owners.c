/* Whose memory a process has open, and that its owner has ended. */
#include <criterion/criterion.h>

#include "core/share/internal.h"
#include "scene.h"

static void setup(void)
{
    scene_new();
    options.isolate = true; /* what is given back is unmapped */
    other_start(&other, dir, "strict=1");
}

TestSuite(share_owners, .init = setup, .fini = scene_end, .timeout = 120);

static struct gs_wire_opened told(uint32_t index)
{
    struct gs_wire_opened opened = {.owners = 0};

    gs_owners_tell(side.share, index, &opened);
    return opened;
}

Test(share_owners, what_is_open_is_told_until_it_is_closed_whoever_has_ended)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE], second[GS_IPC_HANDLE_SIZE],
        beside[GS_IPC_HANDLE_SIZE];
    struct gs_wire_opened opened;
    struct other third = {0};
    CUdeviceptr address, of_third, beside_address;
    struct gs_export *export;
    pid_t pid;

    scene_block(&export, ipc_handle); /* whoever is asked has the thread that answers */
    opened = told(0);
    cr_assert_eq(opened.owners + opened.bytes + opened.owner_blocks, 0);
    other_start(&third, dir, "strict=1");
    other_export(&other, 0, 4096, 1, ipc_handle);
    other_export(&third, 0, 512, 2, second);
    address = scene_open(ipc_handle);
    of_third = scene_open(second);
    opened = told(0);
    cr_assert_eq(opened.owners, 2);
    cr_assert_eq(opened.bytes, 4 * MIB);
    cr_assert_eq(opened.ended_bytes, 0);
    cr_assert_eq(opened.owner_pid, (uint64_t)other.pid);
    cr_assert_eq(opened.owner_ended, 0);
    cr_assert_eq(opened.owner_blocks, 1);
    cr_assert_eq(opened.owner_bytes, 4096);
    cr_assert_eq(opened.owner_mapped, 2 * MIB);
    cr_assert_eq(told(1).owner_pid, (uint64_t)third.pid);
    other_export(&other, 4096, 512, 3, beside);
    beside_address = scene_open(beside);
    opened = told(0);
    cr_assert_eq(opened.owner_blocks, 2);
    cr_assert_eq(opened.owner_bytes, 4096 + 512);
    cr_assert_eq(opened.owner_mapped, 2 * MIB, "one mapping has both");
    opened = told(2);
    cr_assert_eq(opened.owners, 2);
    cr_assert_eq(opened.owner_pid + opened.owner_blocks, 0, "there is no third");
    pid = other.pid;
    other_kill(&other);
    cr_assert(SIDE_WAIT(told(0).owner_ended == 1));
    opened = told(0);
    cr_assert_eq(opened.owner_pid, (uint64_t)pid);
    cr_assert_eq(opened.owner_blocks, 2);
    cr_assert_eq(opened.bytes, 4 * MIB);
    cr_assert_eq(opened.ended_bytes, 2 * MIB);
    cr_assert_eq(told(1).owner_ended, 0);
    cr_assert_eq(gs_share_close(side.share, beside_address), GS_OK);
    cr_assert(SIDE_WAIT(told(0).owner_bytes == 4096));
    cr_assert_eq(gs_share_close(side.share, address), GS_OK);
    cr_assert(SIDE_WAIT(told(0).owners == 1));
    opened = told(0);
    cr_assert_eq(opened.owner_pid, (uint64_t)third.pid);
    cr_assert_eq(opened.bytes, 2 * MIB);
    cr_assert_eq(opened.ended_bytes, 0);
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(gs_share_close(side.share, of_third), GS_OK);
        other_ask(&third, "withdraw"); /* which calls it back */
        cr_assert(SIDE_WAIT(told(0).owners == 0));
        cr_assert_eq(told(0).bytes, 0);
        other_export(&third, 0, 512, 2, second);
        of_third = scene_open(second);
        opened = told(0);
        cr_assert_eq(opened.bytes, 2 * MIB);
        cr_assert_eq(opened.owner_blocks, 1);
        cr_assert_eq(opened.owner_bytes, 512);
    }
    cr_assert_eq(gs_share_close(side.share, of_third), GS_OK);
    other_stop(&third);
    cr_assert(SIDE_WAIT(told(0).owners == 0));
    cr_assert(side_withdraws(&side, export));
}
