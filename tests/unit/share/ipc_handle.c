/* IPC handles: every byte counts and is defined. */
#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "core/share/ipc_handle.h"
#include "side.h"

static void sample(unsigned char *ret_bytes)
{
    struct gs_ipc_handle ipc_handle;

    memset(&ipc_handle, 0xee, sizeof ipc_handle);
    ipc_handle.block_id = 7;
    ipc_handle.chunk_id = 3;
    ipc_handle.size = 4096;
    gs_ipc_handle_write(&ipc_handle, ret_bytes);
}

Test(share_ipc_handle, is_read_as_written_and_by_this_version)
{
    unsigned char bytes[GS_IPC_HANDLE_SIZE];
    struct gs_ipc_handle ipc_handle;

    sample(bytes);
    cr_assert(gs_ipc_handle_is_ours(bytes));
    cr_assert_eq(gs_ipc_handle_read(bytes, &ipc_handle), GS_OK);
    cr_assert_eq(ipc_handle.block_id, 7);
    cr_assert_eq(ipc_handle.chunk_id, 3);
    cr_assert_eq(ipc_handle.size, 4096);
    cr_assert_eq(ipc_handle.secret[15], 0xee);
    ipc_handle.version++;                                          /* it is ours, and no good */
    ipc_handle.check = (uint16_t)((ipc_handle.check + 3) % 65521); /* the version's weight */
    memcpy(bytes, &ipc_handle, sizeof ipc_handle);
    cr_assert_eq(gs_ipc_handle_read(bytes, &ipc_handle), GS_BAD_HANDLE);
    cr_assert(gs_ipc_handle_is_ours(bytes));
    for (int junk = 0; junk < 256; junk += 255) { /* it is the driver's */
        memset(bytes, junk, sizeof bytes);
        cr_assert_not(gs_ipc_handle_is_ours(bytes));
    }
}

Test(share_ipc_handle, every_changed_bit_is_noticed)
{
    for (unsigned bit = 0; bit < 8 * GS_IPC_HANDLE_SIZE; bit++) {
        unsigned char bytes[GS_IPC_HANDLE_SIZE];
        struct gs_ipc_handle ipc_handle;
        gs_status status;

        sample(bytes);
        bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
        status = gs_ipc_handle_read(bytes, &ipc_handle);
        /* Magic and version decide whose it is; anything else is ours and damaged. */
        cr_assert_eq(status, bit / 8 < 6 ? GS_NOT_OURS : GS_BAD_HANDLE, "bit %u: %d", bit, status);
        cr_assert_eq(gs_ipc_handle_is_ours(bytes), bit / 8 >= 6);
    }
}

/* Some seccomp filters refuse it. */
static int random_error;

ssize_t __real_getrandom(void *bytes, size_t size, unsigned flags);
ssize_t __wrap_getrandom(void *bytes, size_t size, unsigned flags);
ssize_t __wrap_getrandom(void *bytes, size_t size, unsigned flags)
{
    if (!random_error)
        return __real_getrandom(bytes, size, flags);
    errno = random_error;
    return -1;
}

Test(share_ipc_handle, no_random_bytes_have_a_name_of_their_own)
{
    struct gs_share_options options;
    struct gs_export *export;
    struct side side;
    char dir[64];

    side_dir_new(dir, sizeof dir);
    side_options(&options, dir);
    random_error = EPERM;
    cr_assert_eq(side_try_start(&side, &options), GS_NO_RANDOM);
    cr_assert_not_null(strstr(side_logged(), "getrandom: Operation not permitted"));
    random_error = 0;
    side_start(&side, &options);
    struct side_chunk chunk = side_chunk_new(&side, 2 * MIB);
    random_error = ENOSYS;
    cr_assert_eq(side_export(&side, &chunk, 0, 512, &export), GS_NO_RANDOM);
    cr_assert_not_null(strstr(side_logged(), "random bytes for its handle (getrandom)"));
    random_error = 0;
    cr_assert_eq(side_export(&side, &chunk, 0, 512, &export), GS_OK);
    cr_assert(side_gets_back(&side, export));
    side_stop(&side);
    side_chunk_free(&side, &chunk);
    side_dir_remove(dir);
}
