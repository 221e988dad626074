/*
 * What lies in the directory gives nobody memory: all of it that leads there is sealed with a key
 * that only a handle gives, and stands under a name from which nobody learns the handle. By
 * libsodium.
 */
#ifndef GS_SHIM_AGENT_SEAL_H
#define GS_SHIM_AGENT_SEAL_H

#include <stdbool.h>
#include <stddef.h>

#include "core/share/ipc_handle.h"
#include "core/share/wire.h"

#define SEAL_ID    16 /* bytes of an export's name */
#define SEAL_PROOF 32

/* What an importer has to know. Of one shape in all machines: little-endian, no padding. */
struct sealed {
    uint64_t size; /* of the block; as its handle says */
    uint64_t offset, chunk_size;
    unsigned char uuid[16];
    unsigned char fabric[GS_FABRIC_SIZE];
    uint32_t read_only;
    uint32_t zero;
};
#define SEALED_SIZE (sizeof(struct sealed) + 24 + 16) /* with its nonce and its check */

/* Once, before all others. */
bool seal_start(void);

/* A name that the secret leads to, and that does not lead to the secret. */
void seal_id(const struct gs_ipc_handle *handle, unsigned char ret_id[SEAL_ID]);
void seal(const struct gs_ipc_handle *handle, const struct sealed *sealed,
          unsigned char ret_bytes[SEALED_SIZE]);
/* False: it was sealed for another handle, or changed since. */
bool unseal(const struct gs_ipc_handle *handle, const unsigned char bytes[SEALED_SIZE],
            struct sealed *ret_sealed);

/* That one of two machines has the handle, for this lease of the importer's, to be shown to the
 * other one alone: that who asks for memory was given it, and that who gives it was not only put
 * into the directory in the place of the exporter. */
enum seal_prover { SEAL_IMPORTER, SEAL_EXPORTER };
void seal_proof(const struct gs_ipc_handle *handle, enum seal_prover by,
                const unsigned char importer[GS_MACHINE_SIZE],
                const unsigned char exporter[GS_MACHINE_SIZE], uint64_t lease,
                unsigned char ret_proof[SEAL_PROOF]);

/* A hash under a key of any length. */
void seal_hash(const void *key, size_t key_size, const char *purpose, const void *bytes,
               size_t size, unsigned char ret_hash[32]);

#endif
