/* Tokens (core/share/token.h): whatever 64 bytes a program passes. */
#include "fuzz.h"

#include "core/share/token.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    unsigned char bytes[GS_TOKEN_SIZE], again[GS_TOKEN_SIZE];
    struct fuzz_input input = {data, size};
    struct gs_token token;
    gs_status status;

    fuzz_bytes(&input, bytes, sizeof bytes);
    memset(&token, 0xa5, sizeof token);
    status = gs_token_read(bytes, &token);
    CHECK(status == GS_OK || status == GS_NOT_OURS || status == GS_BAD_TOKEN);
    CHECK(gs_token_is_ours(bytes) == (status != GS_NOT_OURS));
    if (status == GS_OK) {
        gs_token_write(&token, again);
        CHECK(memcmp(bytes, again, sizeof bytes) == 0);
    }
    /* What is written is read, and one changed byte is noticed. */
    memcpy(&token, bytes, sizeof token);
    gs_token_write(&token, again);
    CHECK(gs_token_read(again, &token) == GS_OK);
    memcpy(bytes, again, sizeof bytes);
    fuzz_damage(&input, again, sizeof again);
    if (memcmp(bytes, again, sizeof bytes) != 0)
        CHECK(gs_token_read(again, &token) != GS_OK);
    return 0;
}
