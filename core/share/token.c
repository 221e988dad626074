/* Tokens (core/share/token.h): writing, reading, comparing. */
#include "core/share/token.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

#define TOKEN_MAGIC 0xd5a37e19u
#define TOKEN_VERSION 1

_Static_assert(sizeof(struct gs_token) == GS_TOKEN_SIZE, "a token fills a CUipcMemHandle exactly");

/* CRC-16/CCITT: finds every change within two neighbouring bytes. */
static uint16_t check_of(const unsigned char *bytes)
{
    const size_t at = offsetof(struct gs_token, check);
    unsigned crc = 0xffff;

    for (size_t i = 0; i < GS_TOKEN_SIZE; i++) {
        if (i == at || i == at + 1)
            continue;
        crc ^= (unsigned)bytes[i] << 8;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 0x8000 ? (crc << 1 ^ 0x1021) & 0xffff : crc << 1 & 0xffff;
    }
    return (uint16_t)crc;
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

    memcpy(&token, bytes, sizeof token);
    if (token.magic != TOKEN_MAGIC || token.version != TOKEN_VERSION)
        return GS_NOT_OURS;
    if (token.check != check_of(bytes))
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

bool gs_random(void *bytes, size_t size)
{
    ssize_t got;

    do
        got = getrandom(bytes, size, 0);
    while (got < 0 && errno == EINTR);
    return got == (ssize_t)size;
}
