/* Writing JSON (json.h). */
#include "shim/command/json.h"

#include "core/base/printable.h"

#include <string.h>

#include "shim/command/show.h"

static void put_text(FILE *file, const char *text)
{
    char piece[GS_JSON_PIECE];

    fputc('"', file);
    while (*text)
        fwrite(piece, 1, gs_printable_json(&text, piece), file);
    fputc('"', file);
}

/* False: nothing is to be written. */
static bool begin(struct json *json, const char *key)
{
    if (!json)
        return false;
    if (json->follows)
        fputs(", ", json->file);
    json->follows = true;
    if (key) {
        put_text(json->file, key);
        fputs(": ", json->file);
    }
    return true;
}

bool json_takes(const char *text)
{
    const char *end = text + strlen(text);
    uint32_t code;

    for (size_t size; text < end; text += size)
        if ((size = gs_character(text, (size_t)(end - text), &code)) == 0)
            return false;
    return true;
}

void json_open(struct json *json, const char *key, char bracket)
{
    if (!begin(json, key))
        return;
    fputc(bracket, json->file);
    json->follows = false;
}

void json_close(struct json *json, char bracket)
{
    if (!json)
        return;
    fputc(bracket, json->file);
    json->follows = true;
}

void json_text(struct json *json, const char *key, const char *text)
{
    if (!begin(json, key))
        return;
    if (text)
        put_text(json->file, text);
    else
        fputs("null", json->file);
}

void json_number(struct json *json, const char *key, uint64_t number)
{
    if (begin(json, key))
        fprintf(json->file, "%llu", (unsigned long long)number);
}

void json_known(struct json *json, const char *key, uint64_t number)
{
    if (number)
        json_number(json, key, number);
    else
        json_text(json, key, NULL);
}

void json_thousandths(struct json *json, const char *key, uint64_t number)
{
    if (begin(json, key))
        fprintf(json->file, "%llu.%03llu", (unsigned long long)number / 1000,
                (unsigned long long)number % 1000);
}

void json_index(struct json *json, bool is, uint64_t number)
{
    if (begin(json, NULL))
        fprintf(json->file, "%lld", is ? (long long)number : -1);
}

void json_bool(struct json *json, const char *key, bool is)
{
    if (begin(json, key))
        fputs(is ? "true" : "false", json->file);
}

void json_begin(struct json *json, bool rows)
{
    if (!json)
        return;
    json_open(json, NULL, '{');
    json_text(json, "version", GS_VERSION);
    json_text(json, "time", show_utc(time(NULL)).text);
    json->in_rows = rows;
    if (rows)
        json_open(json, "rows", '[');
}

void json_end(struct json *json)
{
    if (!json)
        return;
    if (json->in_rows)
        json_close(json, ']');
    json_close(json, '}');
    fputc('\n', json->file);
}
