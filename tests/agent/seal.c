/* What lies in the directory: only who has the handle reads it, and nobody learns the handle from
 * it. */
#include "shim/agent/seal.h"

#include <criterion/criterion.h>
#include <string.h>

TestSuite(agent_seal, .timeout = 60);

static struct gs_ipc_handle handle_of(unsigned char secret)
{
    struct gs_ipc_handle handle = {.block_id = 7, .size = 4096};

    memset(handle.secret, secret, sizeof handle.secret);
    memset(handle.instance, 3, sizeof handle.instance);
    return handle;
}

static const struct sealed sealed = {.size = 4096,
                                     .offset = 512,
                                     .chunk_size = 2 << 20,
                                     .fabric = "the way to the memory"};

Test(agent_seal, who_has_the_handle_reads_it)
{
    const struct gs_ipc_handle handle = handle_of(1);
    unsigned char bytes[SEALED_SIZE], again[SEALED_SIZE];
    struct sealed read;

    cr_assert(seal_start());
    seal(&handle, &sealed, bytes);
    cr_assert(unseal(&handle, bytes, &read));
    cr_assert_eq(memcmp(&read, &sealed, sizeof read), 0);
    seal(&handle, &sealed, again);
    cr_assert_neq(memcmp(bytes, again, sizeof bytes), 0, "the same twice looks different");
}

Test(agent_seal, nobody_else_does_and_what_was_changed_is_refused)
{
    const struct gs_ipc_handle handle = handle_of(1), other = handle_of(2);
    struct gs_ipc_handle moved = handle;
    unsigned char bytes[SEALED_SIZE];
    struct sealed read;

    cr_assert(seal_start());
    seal(&handle, &sealed, bytes);
    cr_assert_null(memmem(bytes, sizeof bytes, "the way", 7));
    cr_assert_null(memmem(bytes, sizeof bytes, handle.secret, 8));
    cr_assert_not(unseal(&other, bytes, &read), "another secret");
    moved.block_id++;
    cr_assert_not(unseal(&moved, bytes, &read), "another block");
    for (size_t i = 0; i < sizeof bytes; i++) {
        bytes[i] ^= 1;
        cr_assert_not(unseal(&handle, bytes, &read), "byte %zu", i);
        bytes[i] ^= 1;
    }
}

Test(agent_seal, names_and_proofs_are_of_one_handle_one_pair_and_one_lease)
{
    const struct gs_ipc_handle handle = handle_of(1), other = handle_of(2);
    const unsigned char a[GS_MACHINE_SIZE] = {1}, b[GS_MACHINE_SIZE] = {2};
    unsigned char id[SEAL_ID], id_of_other[SEAL_ID], proof[SEAL_PROOF], second[SEAL_PROOF];

    cr_assert(seal_start());
    seal_id(&handle, id);
    seal_id(&other, id_of_other);
    cr_assert_neq(memcmp(id, id_of_other, sizeof id), 0);
    seal_proof(&handle, SEAL_IMPORTER, a, b, 5, proof);
    cr_assert_neq(memcmp(proof, id, sizeof id), 0);
    seal_proof(&handle, SEAL_IMPORTER, a, b, 6, second);
    cr_assert_neq(memcmp(proof, second, sizeof proof), 0, "another lease");
    seal_proof(&handle, SEAL_IMPORTER, b, a, 5, second);
    cr_assert_neq(memcmp(proof, second, sizeof proof), 0, "the other way round");
    seal_proof(&other, SEAL_IMPORTER, a, b, 5, second);
    cr_assert_neq(memcmp(proof, second, sizeof proof), 0, "another handle");
    seal_proof(&handle, SEAL_EXPORTER, a, b, 5, second);
    cr_assert_neq(memcmp(proof, second, sizeof proof), 0,
                  "an importer cannot give it back as an exporter's");
    seal_proof(&handle, SEAL_IMPORTER, a, b, 5, second);
    cr_assert_eq(memcmp(proof, second, sizeof proof), 0);
}
