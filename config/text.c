/* Slices of text that came from outside: comparing, trimming, quoting, and how far two names are
 * from each other. Independent of the locale, which belongs to the program. */
#include "config/internal.h"

#include "core/base/printable.h"

#include <stdio.h>
#include <string.h>

struct gs_text gs_text_of(const char *string)
{
    return (struct gs_text){string, strlen(string)};
}

bool gs_text_equal(struct gs_text text, const char *string)
{
    return strlen(string) == text.size && memcmp(text.at, string, text.size) == 0;
}

static char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

bool gs_text_equal_caseless(struct gs_text text, const char *string)
{
    if (strlen(string) != text.size)
        return false;
    for (size_t i = 0; i < text.size; i++) {
        if (lower(text.at[i]) != lower(string[i]))
            return false;
    }
    return true;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

struct gs_text gs_text_trim(struct gs_text text)
{
    while (text.size && is_blank(text.at[0])) {
        text.at++;
        text.size--;
    }
    while (text.size && is_blank(text.at[text.size - 1]))
        text.size--;
    return text;
}

const char *gs_quote(struct gs_text text, char ret[GS_QUOTE_SIZE])
{
    size_t end = 1 + gs_printable(text.at, text.size, ret + 1, GS_QUOTE_SIZE - 2);
    ret[0] = '"';
    ret[end] = '"';
    ret[end + 1] = '\0';
    return ret;
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* In a name: without its case, and what stands between words is one. */
static char letter(char c)
{
    return c == '_' || c == '-' ? '.' : lower(c);
}

size_t gs_text_distance(struct gs_text a, const char *b)
{
    /* Rows of the usual table: [i % 3][j] is the distance of a's first i and b's first j letters.
     * Three rows, for a swap looks two back. */
    size_t rows[3][GS_OPTION_NAME_SIZE];
    size_t length = strlen(b);
    if (a.size >= GS_OPTION_NAME_SIZE || length >= GS_OPTION_NAME_SIZE)
        return SIZE_MAX;
    for (size_t i = 0; i <= a.size; i++) {
        size_t *row = rows[i % 3];
        const size_t *above = rows[(i + 2) % 3];
        row[0] = i;
        for (size_t j = 1; j <= length; j++) {
            if (i == 0) {
                row[j] = j;
                continue;
            }
            char x = letter(a.at[i - 1]);
            char y = letter(b[j - 1]);
            row[j] = smaller(above[j - 1] + (x != y), smaller(above[j], row[j - 1]) + 1);
            if (i > 1 && j > 1 && x == letter(b[j - 2]) && letter(a.at[i - 2]) == y)
                row[j] = smaller(row[j], rows[(i + 1) % 3][j - 2] + 1);
        }
    }
    size_t distance = rows[a.size % 3][length];
    return distance * 3 <= length ? distance : SIZE_MAX;
}
