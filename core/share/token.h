/*
 * The token: the 64 bytes that a program passes between processes as CUipcMemHandle.
 *
 * Every byte is defined, none is a path or an address. The check is there so that a damaged token
 * is told from one whose exporter has gone; it proves nothing. The secret does: it comes from the
 * kernel's random source and is compared, with everything else, in constant time by the exporter.
 * Tokens never leave a machine, so numbers are in its own byte order.
 */
#ifndef GS_CORE_SHARE_TOKEN_H
#define GS_CORE_SHARE_TOKEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/share/share.h"

#define GS_INSTANCE_SIZE 16
#define GS_SECRET_SIZE   16

struct gs_token {
    uint32_t magic;
    uint16_t version;
    uint16_t check;                           /* of the bytes around it */
    unsigned char instance[GS_INSTANCE_SIZE]; /* of the exporting process: names its socket */
    uint64_t block_id;                        /* of this offer of it: never reused */
    uint64_t chunk_id;
    uint64_t size; /* bytes of the block that its program asked for */
    unsigned char secret[GS_SECRET_SIZE];
};

/* Fills in magic, version and check, and writes the bytes. */
void gs_token_write(const struct gs_token *token, unsigned char ret_bytes[GS_TOKEN_SIZE]);

/* GS_NOT_OURS: another magic, or a version that is none of ours. GS_BAD_TOKEN: ours and damaged, or
 * of another version of ours: magic, version and check are the same in all. */
gs_status gs_token_read(const unsigned char bytes[GS_TOKEN_SIZE], struct gs_token *ret_token);

/* Compares in a time that depends on `size` alone. */
bool gs_bytes_equal(const void *a, const void *b, size_t size);

#endif
