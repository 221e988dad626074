/* IPC handles (core/share/ipc_handle.h): writing, reading, comparing. */
#include "core/share/ipc_handle.h"

#include <string.h>

#define IPC_HANDLE_MAGIC   0xd5a37e19u
#define IPC_HANDLE_VERSION 1

_Static_assert(sizeof(struct gs_ipc_handle) == GS_IPC_HANDLE_SIZE,
               "an IPC handle of ours fills a CUipcMemHandle exactly");

/*
 * A sum of all words but the check, each with its own weight, modulo a prime: a change within one
 * word always shows, unless it is by the prime itself, which no change of one byte is. Cheap, since
 * every open of a block that is open already pays for it.
 */
static uint16_t check_of(const unsigned char *bytes)
{
    uint16_t words[GS_IPC_HANDLE_SIZE / sizeof(uint16_t)];
    uint32_t sum = 0;

    memcpy(words, bytes, sizeof words);
    words[offsetof(struct gs_ipc_handle, check) / sizeof *words] = 0;
    for (unsigned i = 0; i < sizeof words / sizeof *words; i++)
        sum += (i + 1) * words[i];
    return (uint16_t)(sum % 65521);
}

void gs_ipc_handle_write(const struct gs_ipc_handle *ipc_handle,
                         unsigned char ret_bytes[GS_IPC_HANDLE_SIZE])
{
    struct gs_ipc_handle copy = *ipc_handle;

    copy.magic = IPC_HANDLE_MAGIC;
    copy.version = IPC_HANDLE_VERSION;
    memcpy(ret_bytes, &copy, sizeof copy);
    copy.check = check_of(ret_bytes);
    memcpy(ret_bytes, &copy, sizeof copy);
}

gs_status gs_ipc_handle_read(const unsigned char bytes[GS_IPC_HANDLE_SIZE],
                             struct gs_ipc_handle *ret_ipc_handle)
{
    struct gs_ipc_handle ipc_handle;
    bool good;

    memcpy(&ipc_handle, bytes, sizeof ipc_handle);
    if (ipc_handle.magic != IPC_HANDLE_MAGIC)
        return GS_NOT_OURS;
    good = ipc_handle.check == check_of(bytes);
    if (ipc_handle.version !=
        IPC_HANDLE_VERSION) /* one of another version of ours, or a driver's */
        return good ? GS_BAD_HANDLE : GS_NOT_OURS;
    if (!good)
        return GS_BAD_HANDLE;
    *ret_ipc_handle = ipc_handle;
    return GS_OK;
}

bool gs_ipc_handle_is_ours(const unsigned char ipc_handle[GS_IPC_HANDLE_SIZE])
{
    struct gs_ipc_handle ignored;

    return gs_ipc_handle_read(ipc_handle, &ignored) != GS_NOT_OURS;
}

bool gs_bytes_equal(const void *a, const void *b, size_t size)
{
    const volatile unsigned char *left = a, *right = b;
    unsigned char difference = 0;

    for (size_t i = 0; i < size; i++)
        difference |= left[i] ^ right[i];
    return difference == 0;
}
