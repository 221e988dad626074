/* Text that is put together piece by piece in memory of a fixed size. */
#ifndef GS_CORE_BASE_TEXT_H
#define GS_CORE_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>

struct gs_text {
    char *bytes;
    size_t size, length;
    bool cut; /* something did not fit: of that piece there is what did */
};

/* `size` bytes as hex digits, of which there are twice as many, and a zero. */
void gs_text_hex(const unsigned char *bytes, size_t size, char *ret_digits);

/* The reverse. False: it is not that. */
bool gs_text_unhex(const char *digits, unsigned char *ret_bytes, size_t size);

/* As printf, behind what is there. */
void gs_text_add(struct gs_text *text, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
