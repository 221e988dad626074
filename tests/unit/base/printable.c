/* Text of others, as it may stand in a line. */
#include <criterion/criterion.h>

#include "core/base/printable.h"
#include "tests/system.h"

static const char *printable(const char *text, size_t length, size_t size)
{
    static char ret[4096];

    memset(ret, 'z', sizeof ret);
    cr_assert_eq(gs_printable(text, length, ret, size), strlen(ret));
    cr_assert_lt(strlen(ret), size);
    return ret;
}

static const char *of(const char *text)
{
    return printable(text, strlen(text), 4096);
}

static size_t encode(uint32_t code, char ret[5])
{
    size_t size = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;

    memset(ret, 0, 5);
    for (size_t i = size; i-- > 1; code >>= 6)
        ret[i] = (char)(0x80 | (code & 0x3f));
    ret[0] = (char)(size == 1 ? code : (0xf00u >> size & 0xf0) | code);
    return size;
}

Test(printable, what_is_shown_stays)
{
    static const char *const texts[] = {"",
                                        "a b~",
                                        "python3 -c 'x \\x1b'",
                                        "gr\xc3\xbcn",
                                        "\xe2\x82\xac",
                                        "\xf0\x9f\x98\x80",
                                        "\xef\xbf\xbd",
                                        "\xd7\xa9\xd7\x9c",
                                        "\xc2\xa0"};

    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        cr_assert_str_eq(of(texts[i]), texts[i]);
}

/* What a terminal would see of a byte is told by those of the result, not by the code's own
 * table. */
Test(printable, every_byte_is_told_by_what_may_be_shown)
{
    for (int byte = 1; byte < 256; byte++) {
        char text[] = {'a', (char)byte, 'b', 0}, expected[16];

        snprintf(expected, sizeof expected, byte >= ' ' && byte < 0x7f ? "a%cb" : "a\\x%02xb",
                 byte);
        cr_assert_str_eq(of(text), expected);
    }
    cr_assert_str_eq(printable("a\0b", 3, 99), "a\\x00b");
}

Test(printable, characters_that_act_or_are_not_seen_are_told_by_number)
{
    static const struct {
        const char *text, *shown;
    } cases[] = {
        {"\xc2\x80", "\\u0080"},
        {"\xc2\x9b"
         "31m",
         "\\u009b31m"},
        {"\xc2\x9f", "\\u009f"},
        {"\xc2\x85", "\\u0085"},
        {"\xe2\x80\xae", "\\u202e"},
        {"\xe2\x80\xaa", "\\u202a"},
        {"\xe2\x81\xa6", "\\u2066"},
        {"\xe2\x81\xa9", "\\u2069"},
        {"\xd8\x9c", "\\u061c"},
        {"\xe2\x80\x8e", "\\u200e"},
        {"\xe2\x80\x8f", "\\u200f"},
        {"\xe2\x80\xa8", "\\u2028"},
        {"\xe2\x80\xa9", "\\u2029"},
        {"\xe2\x80\x8b", "\\u200b"},
        {"\xe2\x80\x8d", "\\u200d"},
        {"\xe2\x81\xa0", "\\u2060"},
        {"\xef\xbb\xbf", "\\ufeff"},
        {"\xc2\xad", "\\u00ad"},
        {"\xf3\xa0\x81\x81", "\\U000e0041"},
        {"\x1b[2J\r\n\t", "\\x1b[2J\\x0d\\x0a\\x09"},
        {"\x7f", "\\x7f"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        cr_assert_str_eq(of(cases[i].text), cases[i].shown);
}

Test(printable, what_is_no_utf_8_is_told_byte_by_byte)
{
    cr_assert_str_eq(of("\x9b\xff\xc3"), "\\x9b\\xff\\xc3");
    cr_assert_str_eq(of("\xc0\x9b"), "\\xc0\\x9b"); /* longer than needed */
    cr_assert_str_eq(of("\xc1\xbf\xe0\x82\x9b"), "\\xc1\\xbf\\xe0\\x82\\x9b");
    cr_assert_str_eq(of("\xf0\x82\x82\x9b"), "\\xf0\\x82\\x82\\x9b");
    cr_assert_str_eq(of("\xed\xa0\x80"), "\\xed\\xa0\\x80");          /* half of a pair */
    cr_assert_str_eq(of("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80"); /* beyond the last */
    cr_assert_str_eq(of("\xf8\x88\x80\x80\x80"), "\\xf8\\x88\\x80\\x80\\x80");
    cr_assert_str_eq(of("\xe2\x82"
                        "a"),
                     "\\xe2\\x82a");
    cr_assert_str_eq(printable("\xe2\x82\xac", 2, 99),
                     "\\xe2\\x82"); /* what is behind is not read */
}

/* All that there are: what the result has is UTF-8, and the same again. */
Test(printable, every_character_is_shown_or_told_and_twice_is_as_once)
{
    for (uint32_t code = 1; code <= 0x10ffff; code++) {
        char text[5], once[32], twice[32];
        uint32_t found;
        size_t size = encode(code, text);

        if (code >= 0xd800 && code <= 0xdfff)
            continue;
        cr_assert_eq(gs_character(text, size, &found), size, "U+%04x", code);
        cr_assert_eq(found, code);
        cr_assert_eq(gs_character(text, size - 1, &found), 0);
        gs_printable(text, size, once, sizeof once);
        gs_printable(once, strlen(once), twice, sizeof twice);
        cr_assert_str_eq(once, twice);
        if (strcmp(once, text) != 0) {
            unsigned told;

            cr_assert_eq(sscanf(once,
                                code < 0x80     ? "\\x%2x"
                                : code > 0xffff ? "\\U%8x"
                                                : "\\u%4x",
                                &told),
                         1);
            cr_assert_eq(told, code);
        }
    }
}

Test(printable, what_does_not_fit_is_cut_where_a_character_ends)
{
    cr_assert_str_eq(printable("abcdefgh", 8, 9), "abcdefgh");
    cr_assert_str_eq(printable("abcdefgh", 8, 8), "abcd...");
    cr_assert_str_eq(printable("ab\x1b", 3, 7), "ab\\x1b");
    cr_assert_str_eq(printable("ab\x1b", 3, 6), "ab...");
    cr_assert_str_eq(printable("abc\x1b"
                               "d",
                               5, 8),
                     "abc...");
    cr_assert_str_eq(printable("a\xe2\x82\xac\xe2\x82\xac", 7, 7), "a...");
    cr_assert_str_eq(printable("a\xe2\x82\xac\xe2\x82\xac", 7, 8), "a\xe2\x82\xac\xe2\x82\xac");
    cr_assert_str_eq(printable("abcd", 4, 4), "...");
    for (size_t size = 4; size < 200; size++)
        for (size_t length = 0; length < 60; length++) {
            char text[64];

            for (size_t i = 0; i < length; i++)
                text[i] = "a\x1b\xe2\x80\xae\xf0\x9f\x98\x80"[(i * 7 + size) % 9];
            printable(text, length, size);
        }
}

Test(printable, a_string_of_json_has_what_is_not_shown_as_numbers)
{
    const char *at =
        "a\"\\<\x01\x1b\x7f\xc2\x9b\xe2\x80\xae\xf3\xa0\x81\x81\xf0\x9f\x98\x80\xff\xc3";
    char all[256] = "", piece[GS_JSON_PIECE];

    while (*at) {
        cr_assert_eq(gs_printable_json(&at, piece), strlen(piece));
        strcat(all, piece);
    }
    cr_assert_str_eq(all, "a\\\"\\\\\\u003c\\u0001\\u001b\\u007f\\u009b\\u202e\\udb40\\udc41"
                          "\xf0\x9f\x98\x80\\ufffd\\ufffd");
}
