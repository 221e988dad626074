/* What gpushim export is asked over HTTP (shim/command/export.h): any bytes at all. */
#include "fuzz.h"

#include "shim/command/export.h"

/* What comes before the answer says how long that is. */
static void look_at(const struct http_request *request)
{
    static const char length[] = "Content-Length: ";
    char head[HTTP_HEAD];
    size_t size = http_head(request, 8, head), said;
    const char *at;

    CHECK(size > 12 && size < sizeof head && memcmp(head, "HTTP/1.1 ", 9) == 0);
    at = memmem(head, size, length, sizeof length - 1);
    CHECK(at && sscanf(at + sizeof length - 1, "%zu", &said) == 1 && said == 8);
    CHECK(memcmp(head + size - 4, "\r\n\r\n", 4) == 0);
    CHECK((http_body(request) == NULL) == (request->status == HTTP_OK && request->page == HTTP_METRICS));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct http_request first, all;
    char *text, *until;
    size_t whole = 0;

    if (size > HTTP_REQUEST_MAX)
        size = HTTP_REQUEST_MAX;
    text = malloc(size + 1); /* of its exact size: a byte too far is noticed */
    CHECK(text);
    memcpy(text, data, size);
    text[size] = 0;
    for (size_t i = 1; i <= size && !whole; i++) { /* as it comes in, byte by byte */
        until = strndup(text, i);
        CHECK(until);
        if (http_is_whole(until))
            whole = i;
        free(until);
    }
    CHECK(http_is_whole(text) == (whole > 0));
    if (whole) {
        until = strndup(text, whole);
        CHECK(until);
        first = http_read(until);
        all = http_read(text);
        CHECK(first.status == all.status && first.page == all.page &&
              first.head_only == all.head_only && strcmp(first.host, all.host) == 0);
        CHECK(first.status != HTTP_TOO_LONG);
        CHECK(first.status != HTTP_OK || memcmp(text, first.head_only ? "HEAD " : "GET ", 4) == 0);
        look_at(&first);
        free(until);
    }
    free(text);
    return 0;
}
