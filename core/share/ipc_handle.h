/*
 * The IPC handle: the 64 bytes that a program passes between processes as CUipcMemHandle.
 *
 * Every byte is defined, none is a path or an address. The check is there so that a damaged handle
 * is told from one whose exporter has gone; it proves nothing. The secret does: it comes from the
 * kernel's random source and is compared, with everything else, in constant time by the exporter.
 * Numbers are in the machine's own byte order: little-endian wherever there are such GPUs.
 */
#ifndef GS_CORE_SHARE_IPC_HANDLE_H
#define GS_CORE_SHARE_IPC_HANDLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "core/share/share.h"

#define GS_INSTANCE_SIZE 16
#define GS_SECRET_SIZE   16

struct gs_ipc_handle {
    uint32_t magic;
    uint16_t version;
    uint16_t check;                           /* of the bytes around it */
    unsigned char instance[GS_INSTANCE_SIZE]; /* of the exporting process: names its socket */
    uint64_t block_id;                        /* of this export of it: never reused */
    uint64_t chunk_id;
    uint64_t size; /* bytes of the block that its program asked for */
    unsigned char secret[GS_SECRET_SIZE];
};

/* What a block is called by handles and messages, in every table: two threads may share one at
 * once. */
struct gs_ipc_key {
    unsigned char instance[GS_INSTANCE_SIZE]; /* of the process that shared it */
    uint64_t id;
};

static inline struct gs_ipc_key gs_ipc_key(const unsigned char instance[GS_INSTANCE_SIZE],
                                           uint64_t id)
{
    struct gs_ipc_key key = {.id = id};

    memcpy(key.instance, instance, sizeof key.instance);
    return key;
}

/* Fills in magic, version and check, and writes the bytes. */
void gs_ipc_handle_write(const struct gs_ipc_handle *ipc_handle,
                         unsigned char ret_bytes[GS_IPC_HANDLE_SIZE]);

/* GS_NOT_OURS: another magic, or a version that is none of ours. GS_BAD_HANDLE: ours and damaged,
 * or of another version of ours: magic, version and check are the same in all. */
gs_status gs_ipc_handle_read(const unsigned char bytes[GS_IPC_HANDLE_SIZE],
                             struct gs_ipc_handle *ret_ipc_handle);

/* Compares in a time that depends on `size` alone. */
bool gs_bytes_equal(const void *a, const void *b, size_t size);

#endif
