/* Text of others in a line (core/base/printable.h). */
#include "core/base/printable.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define CUT "..."

/* By Unicode: controls (Cc), line and paragraph separators, and what nothing is shown for
 * (Default_Ignorable_Code_Point, the controls of direction among them; U+FFF9 to U+FFFB). */
static const struct {
    uint32_t first, last;
} hidden[] = {
    {0x0, 0x1f},      {0x7f, 0x9f},       {0xad, 0xad},       {0x34f, 0x34f},     {0x61c, 0x61c},
    {0x115f, 0x1160}, {0x17b4, 0x17b5},   {0x180b, 0x180f},   {0x200b, 0x200f},   {0x2028, 0x202e},
    {0x2060, 0x206f}, {0x3164, 0x3164},   {0xfe00, 0xfe0f},   {0xfeff, 0xfeff},   {0xffa0, 0xffa0},
    {0xfff0, 0xfffb}, {0x1bca0, 0x1bca3}, {0x1d173, 0x1d17a}, {0xe0000, 0xe0fff},
};

static bool is_hidden(uint32_t code)
{
    for (size_t i = 0; i < sizeof hidden / sizeof *hidden; i++)
        if (code >= hidden[i].first && code <= hidden[i].last)
            return true;
    return false;
}

size_t gs_character(const char *at, size_t left, uint32_t *ret_code)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    const unsigned char first = left ? (unsigned char)at[0] : 0xff;
    const size_t size = first < 0x80             ? 1
                        : (first & 0xe0) == 0xc0 ? 2
                        : (first & 0xf0) == 0xe0 ? 3
                        : (first & 0xf8) == 0xf0 ? 4
                                                 : 0;
    uint32_t code = size > 1 ? first & (0xffu >> (size + 1)) : first;

    if (!size || size > left)
        return 0;
    for (size_t i = 1; i < size; i++) {
        if (((unsigned char)at[i] & 0xc0) != 0x80)
            return 0;
        code = code << 6 | ((unsigned char)at[i] & 0x3f);
    }
    /* Longer than needed, half of a pair, or beyond the last. */
    if (code < least[size] || (code >= 0xd800 && code <= 0xdfff) || code > 0x10ffff)
        return 0;
    *ret_code = code;
    return size;
}

/* What is written for the character there, and its length; *ret_size is how many bytes it has. */
static size_t shown(const char *at, size_t left, char ret[11], size_t *ret_size)
{
    uint32_t code;

    *ret_size = gs_character(at, left, &code);
    if (*ret_size && !is_hidden(code)) {
        memcpy(ret, at, *ret_size);
        return *ret_size;
    }
    if (*ret_size <= 1) {
        *ret_size = 1;
        return (size_t)snprintf(ret, 11, "\\x%02x", (unsigned)(unsigned char)*at);
    }
    return (size_t)snprintf(ret, 11, code > 0xffff ? "\\U%08x" : "\\u%04x", (unsigned)code);
}

size_t gs_printable(const char *text, size_t length, char *ret, size_t size)
{
    size_t used = 0, fits = 0; /* with CUT behind it */

    for (size_t i = 0, bytes; i < length; i += bytes) {
        char piece[11];
        size_t more = shown(text + i, length - i, piece, &bytes);

        if (used + more >= size) {
            memcpy(ret + fits, CUT, sizeof CUT);
            return fits + sizeof CUT - 1;
        }
        memcpy(ret + used, piece, more);
        used += more;
        if (used + sizeof CUT <= size)
            fits = used;
    }
    ret[used] = 0;
    return used;
}

size_t gs_printable_json(const char **at, char ret_piece[GS_JSON_PIECE])
{
    uint32_t code;
    size_t size = gs_character(*at, strnlen(*at, 4), &code);
    const char *from = *at;

    *at += size ? size : 1;
    if (!size)
        code = 0xfffd;
    if (code == '"' || code == '\\')
        return (size_t)snprintf(ret_piece, GS_JSON_PIECE, "\\%c", (char)code);
    if (code > 0xffff && is_hidden(code))
        return (size_t)snprintf(ret_piece, GS_JSON_PIECE, "\\u%04x\\u%04x",
                                0xd7c0 + (unsigned)(code >> 10), 0xdc00 + (unsigned)(code & 0x3ff));
    if (!size || code == '<' || is_hidden(code))
        return (size_t)snprintf(ret_piece, GS_JSON_PIECE, "\\u%04x", (unsigned)code);
    memcpy(ret_piece, from, size);
    ret_piece[size] = 0;
    return size;
}
