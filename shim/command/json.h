/*
 * Writes JSON, one value after the other, on one line. Written here rather than taken from a
 * library: the program is bound into containers and built for other machines, and so needs libc
 * alone.
 */
#ifndef GS_SHIM_COMMAND_JSON_H
#define GS_SHIM_COMMAND_JSON_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct json {
    FILE *file;
    bool follows; /* a comma comes before the next */
    bool in_rows; /* json_end ends a list, too */
};

/* What a command says is an object: the version of this program, the time, and what follows; with
 * `rows` a list of that name is begun, in which that is. */
void json_begin(struct json *json, bool rows);
/* To `json` NULL nothing is written: it is told as text. `key` is the name within an object, NULL
 * within a list and at the top. */
void json_open(struct json *json, const char *key, char bracket); /* '{' or '[' */
void json_close(struct json *json, char bracket);                 /* '}' or ']' */
/* Bytes that are no UTF-8 become U+FFFD; a < is written as its number, so that JSON within a page
 * cannot end its element. NULL: null. */
void json_text(struct json *json, const char *key, const char *text);
void json_number(struct json *json, const char *key, uint64_t number);
/* 0, which stands for one that is not known: null. */
void json_known(struct json *json, const char *key, uint64_t number);
/* number / 1000, exactly. */
void json_thousandths(struct json *json, const char *key, uint64_t number);
void json_index(struct json *json, bool is, uint64_t number); /* of a list; -1: there is none */
void json_bool(struct json *json, const char *key, bool is);
/* Whether all of it can be written as it is: it is UTF-8. */
bool json_takes(const char *text);
/* The end of what json_begin began, and of the line. */
void json_end(struct json *json);

#endif
