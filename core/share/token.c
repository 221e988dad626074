/* Tokens (core/share/token.h): writing, reading, comparing. */
#include "core/share/token.h"

#include <string.h>

#define TOKEN_MAGIC   0xd5a37e19u
#define TOKEN_VERSION 1

_Static_assert(sizeof(struct gs_token) == GS_TOKEN_SIZE, "a token fills a CUipcMemHandle exactly");

/*
 * A sum of all words but the check, each with its own weight, modulo a prime: a change within one
 * word always shows, unless it is by the prime itself, which no change of one byte is. Cheap, since
 * every open of a block that is open already pays for it.
 */
static uint16_t check_of(const unsigned char *bytes)
{
    uint16_t words[GS_TOKEN_SIZE / sizeof(uint16_t)];
    uint32_t sum = 0;

    memcpy(words, bytes, sizeof words);
    words[offsetof(struct gs_token, check) / sizeof *words] = 0;
    for (unsigned i = 0; i < sizeof words / sizeof *words; i++)
        sum += (i + 1) * words[i];
    return (uint16_t)(sum % 65521);
}

void gs_token_write(const struct gs_token *token, unsigned char ret_bytes[GS_TOKEN_SIZE])
{
    struct gs_token copy = *token;

    copy.magic = TOKEN_MAGIC;
    copy.version = TOKEN_VERSION;
    memcpy(ret_bytes, &copy, sizeof copy);
    copy.check = check_of(ret_bytes);
    memcpy(ret_bytes, &copy, sizeof copy);
}

gs_status gs_token_read(const unsigned char bytes[GS_TOKEN_SIZE], struct gs_token *ret_token)
{
    struct gs_token token;
    bool good;

    memcpy(&token, bytes, sizeof token);
    if (token.magic != TOKEN_MAGIC)
        return GS_NOT_OURS;
    good = token.check == check_of(bytes);
    if (token.version != TOKEN_VERSION) /* one of another version of ours, or a driver's */
        return good ? GS_BAD_TOKEN : GS_NOT_OURS;
    if (!good)
        return GS_BAD_TOKEN;
    *ret_token = token;
    return GS_OK;
}

bool gs_token_is_ours(const unsigned char token[GS_TOKEN_SIZE])
{
    struct gs_token ignored;

    return gs_token_read(token, &ignored) != GS_NOT_OURS;
}

bool gs_bytes_equal(const void *a, const void *b, size_t size)
{
    const volatile unsigned char *left = a, *right = b;
    unsigned char difference = 0;

    for (size_t i = 0; i < size; i++)
        difference |= left[i] ^ right[i];
    return difference == 0;
}
