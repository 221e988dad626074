/* IPC handles (core/share/ipc_handle.h): whatever 64 bytes a program passes. */
#include "fuzz.h"

#include "core/share/ipc_handle.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    unsigned char bytes[GS_IPC_HANDLE_SIZE], again[GS_IPC_HANDLE_SIZE];
    struct fuzz_input input = {data, size};
    struct gs_ipc_handle ipc_handle;
    gs_status status;

    fuzz_bytes(&input, bytes, sizeof bytes);
    memset(&ipc_handle, 0xa5, sizeof ipc_handle);
    status = gs_ipc_handle_read(bytes, &ipc_handle);
    CHECK(status == GS_OK || status == GS_NOT_OURS || status == GS_BAD_HANDLE);
    CHECK(gs_ipc_handle_is_ours(bytes) == (status != GS_NOT_OURS));
    if (status == GS_OK) {
        gs_ipc_handle_write(&ipc_handle, again);
        CHECK(memcmp(bytes, again, sizeof bytes) == 0);
    }
    /* What is written is read, and one changed byte is noticed. */
    memcpy(&ipc_handle, bytes, sizeof ipc_handle);
    gs_ipc_handle_write(&ipc_handle, again);
    CHECK(gs_ipc_handle_read(again, &ipc_handle) == GS_OK);
    memcpy(bytes, again, sizeof bytes);
    fuzz_damage(&input, again, sizeof again);
    if (memcmp(bytes, again, sizeof bytes) != 0)
        CHECK(gs_ipc_handle_read(again, &ipc_handle) != GS_OK);
    return 0;
}
