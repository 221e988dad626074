/*
 * Text of others (names of programs, labels, paths, command lines, answers of servers) as it may
 * stand in a line: of a log, on a terminal, in JSON. What would not be seen there as what it is
 * (control characters of both kinds, line and paragraph separators, what changes the direction of
 * text, what has no width) and what is not UTF-8 is written as \x1b (a byte) or \u202e, \U000e0041
 * (a character). A \ of the text stays one: what is made printable twice is as it was made once.
 * Independent of the locale.
 */
#ifndef GS_CORE_BASE_PRINTABLE_H
#define GS_CORE_BASE_PRINTABLE_H

#include <stddef.h>
#include <stdint.h>

/* `length` bytes of text in `size` bytes (at least 4) with a NUL behind them; "..." ends what does
 * not fit, where a character or what is written for it has ended. The length of what was
 * written. */
size_t gs_printable(const char *text, size_t length, char *ret, size_t size);

#define GS_JSON_PIECE 13

/* The character at *at within the quotes of a string of JSON, U+FFFD for what is not UTF-8; *at,
 * which is no NUL, moves behind it. The length of the piece. '<' is written as a number, too: the
 * string may stand in a page. */
size_t gs_printable_json(const char **at, char ret_piece[GS_JSON_PIECE]);

/* The bytes that the character at `at` takes of the `left` there are, and which it is; 0: it is not
 * UTF-8. */
size_t gs_character(const char *at, size_t left, uint32_t *ret_code);

#endif
