/* What gpushim export is asked over HTTP (shim/command/export_http.h): any bytes at all. */
#include "fuzz.h"

#include "shim/command/export_http.h"

/* The answer is one of HTTP, of the length that it says. */
static void look_at(const struct http_request *request)
{
    static const char body[] = "figures\n", end[] = "\r\n\r\n", length[] = "Content-Length: ";
    size_t size = 0, said;
    char *answer = http_answer(request, body, sizeof body - 1, &size);
    const char *at;

    CHECK(answer && size > 12 && memcmp(answer, "HTTP/1.1 ", 9) == 0);
    at = memmem(answer, size, length, sizeof length - 1);
    CHECK(at && sscanf(at + sizeof length - 1, "%zu", &said) == 1);
    at = memmem(answer, size, end, sizeof end - 1);
    CHECK(at);
    CHECK((size_t)(answer + size - (at + sizeof end - 1)) == (request->head_only ? 0 : said));
    free(answer);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct http_request first = {0}, all;
    size_t whole = 0;
    char *text;

    if (size > HTTP_REQUEST_MAX)
        size = HTTP_REQUEST_MAX;
    text = malloc(size ? size : 1); /* of its exact size: a byte too far is noticed */
    CHECK(text);
    memcpy(text, data, size);
    for (size_t i = 0; i < size && !whole; i++) /* as it comes in, byte by byte */
        if (text[i] == '\n' && http_is_whole(text, i + 1))
            whole = i + 1;
    CHECK(http_is_whole(text, size) == (whole > 0));
    if (whole) {
        first = http_read(text, whole);
        all = http_read(text, size);
        CHECK(first.status == all.status && first.page == all.page &&
              first.head_only == all.head_only);
        CHECK(first.status != HTTP_TOO_LONG && first.status != HTTP_BROKEN);
        CHECK(first.status != HTTP_OK || memcmp(text, first.head_only ? "HEAD " : "GET ", 4) == 0);
        look_at(&first);
    }
    free(text);
    return 0;
}
