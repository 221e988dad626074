/* Writing JSON (json.h). */
#include "shim/command/json.h"

#include <string.h>

static void put_text(FILE *file, const char *text);

static void begin(struct json *json, const char *key)
{
    if (json->follows)
        fputs(", ", json->file);
    json->follows = true;
    if (!key)
        return;
    put_text(json->file, key);
    fputs(": ", json->file);
}

/* How many bytes the character has that begins there; 0: it is none. */
static size_t character(const unsigned char *at)
{
    size_t size = at[0] < 0x80                    ? 1
                  : at[0] >= 0xc2 && at[0] < 0xe0 ? 2
                  : (at[0] & 0xf0) == 0xe0        ? 3
                  : at[0] >= 0xf0 && at[0] < 0xf5 ? 4
                                                  : 0;

    for (size_t i = 1; i < size; i++)
        if ((at[i] & 0xc0) != 0x80)
            return 0;
    /* Written longer than needed, half of a pair, or beyond the last. */
    if ((at[0] == 0xe0 && at[1] < 0xa0) || (at[0] == 0xed && at[1] > 0x9f) ||
        (at[0] == 0xf0 && at[1] < 0x90) || (at[0] == 0xf4 && at[1] > 0x8f))
        return 0;
    return size;
}

bool json_takes(const char *text)
{
    const unsigned char *at = (const unsigned char *)text;

    for (size_t size; *at; at += size)
        if ((size = character(at)) == 0)
            return false;
    return true;
}

static void put_text(FILE *file, const char *text)
{
    const unsigned char *at = (const unsigned char *)text;

    fputc('"', file);
    while (*at) {
        size_t size = character(at);

        if (size == 0)
            fputs("\\ufffd", file);
        else if (*at < ' ' || *at == 0x7f || *at == '<')
            fprintf(file, "\\u%04x", *at);
        else if (*at == '"' || *at == '\\')
            fprintf(file, "\\%c", *at);
        else
            fwrite(at, 1, size, file);
        at += size ? size : 1;
    }
    fputc('"', file);
}

void json_open(struct json *json, const char *key, char bracket)
{
    begin(json, key);
    fputc(bracket, json->file);
    json->follows = false;
}

void json_close(struct json *json, char bracket)
{
    fputc(bracket, json->file);
    json->follows = true;
}

void json_text(struct json *json, const char *key, const char *text)
{
    begin(json, key);
    if (text)
        put_text(json->file, text);
    else
        fputs("null", json->file);
}

void json_number(struct json *json, const char *key, uint64_t number)
{
    begin(json, key);
    fprintf(json->file, "%llu", (unsigned long long)number);
}

void json_thousandths(struct json *json, const char *key, uint64_t number)
{
    begin(json, key);
    fprintf(json->file, "%llu.%03llu", (unsigned long long)number / 1000,
            (unsigned long long)number % 1000);
}

void json_minus_one(struct json *json)
{
    begin(json, NULL);
    fputs("-1", json->file);
}

void json_bool(struct json *json, const char *key, bool is)
{
    begin(json, key);
    fputs(is ? "true" : "false", json->file);
}

bool json_end(struct json *json)
{
    fputc('\n', json->file);
    return fflush(json->file) == 0 && !ferror(json->file);
}
