/* What gpushim export is asked over HTTP (shim/command/command.h): any bytes at all. */
#include "fuzz.h"

#include "shim/command/command.h"

#define MOST 8192

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char first_host[HTTP_HOST], host[HTTP_HOST], *text, *until;
    int first = 0, all;

    if (size > MOST)
        size = MOST;
    text = strndup((const char *)data, size); /* of its exact size: a byte too far is noticed */
    CHECK(text);
    for (size_t i = 1; i <= strlen(text) && !first; i++) { /* as it comes in, byte by byte */
        until = strndup(text, i);
        CHECK(until);
        first = http_read(until, first_host);
        free(until);
    }
    all = http_read(text, host);
    CHECK(all == first && (!all || strcmp(host, first_host) == 0));
    CHECK(all == 0 || all == 200 || all == 400 || all == 404 || all == 405);
    CHECK(all != 200 || strncmp(text, "GET /metrics", 12) == 0);
    free(text);
    return 0;
}
