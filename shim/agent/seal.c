/* Sealing what lies in the directory (seal.h). Each key and each name is a keyed hash (BLAKE2b) of
 * the handle's secret with a word for what it is for, so that none of them tells of another. */
#include "shim/agent/seal.h"

#include <sodium.h>
#include <string.h>

_Static_assert(sizeof(struct sealed) == 24 + 16 + GS_FABRIC_SIZE + 8, "no padding");
_Static_assert(SEALED_SIZE ==
                   sizeof(struct sealed) + crypto_secretbox_NONCEBYTES + crypto_secretbox_MACBYTES,
               "libsodium's sizes");

bool seal_start(void)
{
    return sodium_init() >= 0;
}

void seal_hash(const void *key, size_t key_size, const char *purpose, const void *bytes,
               size_t size, unsigned char ret_hash[32])
{
    unsigned char short_key[32];
    crypto_generichash_state state;

    crypto_generichash(short_key, sizeof short_key, key, key_size, NULL, 0);
    crypto_generichash_init(&state, short_key, sizeof short_key, 32);
    crypto_generichash_update(&state, (const unsigned char *)purpose, strlen(purpose) + 1);
    crypto_generichash_update(&state, bytes, size);
    crypto_generichash_final(&state, ret_hash, 32);
    sodium_memzero(short_key, sizeof short_key);
}

/* Of a handle: its secret is the key, and what it is of is hashed along. */
static void hash_of(const struct gs_ipc_handle *handle, const char *purpose, const void *bytes,
                    size_t size, unsigned char ret_hash[32])
{
    unsigned char all[GS_INSTANCE_SIZE + sizeof handle->block_id + 64];

    memcpy(all, handle->instance, GS_INSTANCE_SIZE);
    memcpy(all + GS_INSTANCE_SIZE, &handle->block_id, sizeof handle->block_id);
    memcpy(all + GS_INSTANCE_SIZE + sizeof handle->block_id, bytes, size);
    seal_hash(handle->secret, GS_SECRET_SIZE, purpose, all,
              GS_INSTANCE_SIZE + sizeof handle->block_id + size, ret_hash);
}

void seal_id(const struct gs_ipc_handle *handle, unsigned char ret_id[SEAL_ID])
{
    unsigned char hash[32];

    hash_of(handle, "gpushim export's name", "", 0, hash);
    memcpy(ret_id, hash, SEAL_ID);
}

void seal(const struct gs_ipc_handle *handle, const struct sealed *sealed,
          unsigned char ret_bytes[SEALED_SIZE])
{
    unsigned char key[crypto_secretbox_KEYBYTES];

    hash_of(handle, "gpushim export's seal", "", 0, key);
    randombytes_buf(ret_bytes, crypto_secretbox_NONCEBYTES);
    crypto_secretbox_easy(ret_bytes + crypto_secretbox_NONCEBYTES, (const unsigned char *)sealed,
                          sizeof *sealed, ret_bytes, key);
    sodium_memzero(key, sizeof key);
}

bool unseal(const struct gs_ipc_handle *handle, const unsigned char bytes[SEALED_SIZE],
            struct sealed *ret_sealed)
{
    unsigned char key[crypto_secretbox_KEYBYTES];
    bool good;

    hash_of(handle, "gpushim export's seal", "", 0, key);
    good =
        crypto_secretbox_open_easy((unsigned char *)ret_sealed, bytes + crypto_secretbox_NONCEBYTES,
                                   SEALED_SIZE - crypto_secretbox_NONCEBYTES, bytes, key) == 0;
    sodium_memzero(key, sizeof key);
    return good;
}

void seal_proof(const struct gs_ipc_handle *handle, enum seal_prover by,
                const unsigned char importer[GS_MACHINE_SIZE],
                const unsigned char exporter[GS_MACHINE_SIZE], uint64_t lease,
                unsigned char ret_proof[SEAL_PROOF])
{
    unsigned char all[2 * GS_MACHINE_SIZE + sizeof lease];

    memcpy(all, importer, GS_MACHINE_SIZE);
    memcpy(all + GS_MACHINE_SIZE, exporter, GS_MACHINE_SIZE);
    memcpy(all + 2 * GS_MACHINE_SIZE, &lease, sizeof lease);
    hash_of(handle, by == SEAL_IMPORTER ? "gpushim importer's proof" : "gpushim exporter's proof",
            all, sizeof all, ret_proof);
}
