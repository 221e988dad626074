/* Putting text together (core/base/text.h). */
#include "core/base/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void gs_text_add(struct gs_text *text, const char *format, ...)
{
    size_t room = text->size - text->length;
    va_list arguments;
    int length;

    va_start(arguments, format);
    length = vsnprintf(text->bytes + text->length, room, format, arguments);
    va_end(arguments);
    if (length < 0)
        return;
    text->cut |= (size_t)length >= room;
    text->length += (size_t)length < room ? (size_t)length : room - 1;
}

void gs_text_hex(const unsigned char *bytes, size_t size, char *ret_digits)
{
    static const char digits[] = "0123456789abcdef";

    for (size_t i = 0; i < size; i++) {
        ret_digits[2 * i] = digits[bytes[i] >> 4];
        ret_digits[2 * i + 1] = digits[bytes[i] & 15];
    }
    ret_digits[2 * size] = 0;
}

bool gs_text_unhex(const char *digits, unsigned char *ret_bytes, size_t size)
{
    if (strlen(digits) != 2 * size || strspn(digits, "0123456789abcdef") != 2 * size)
        return false;
    for (size_t i = 0; i < size; i++) {
        const char two[3] = {digits[2 * i], digits[2 * i + 1], 0};

        ret_bytes[i] = (unsigned char)strtoull(two, NULL, 16);
    }
    return true;
}
