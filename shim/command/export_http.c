/* HTTP/1.1, as much as Prometheus and a browser need (export.h). A connection serves one
 * request. */
#include "shim/command/export.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#define ROOT_PAGE                                                                                  \
    "<!DOCTYPE html><html><head><title>gpushim export</title></head><body>"                        \
    "<a href=\"/metrics\">GPU memory of the processes with libgpushim, for Prometheus</a>"         \
    "</body></html>\n"

static const struct {
    const char *line, *body, *more;
} statuses[] = {
    [HTTP_OK] = {"200 OK", ROOT_PAGE, ""},
    [HTTP_BAD] = {"400 Bad Request", "this is no request of HTTP/1.1\n", ""},
    [HTTP_NO_HOST] = {"403 Forbidden",
                      "this machine has another name; ask by its address, or add the name: gpushim export --host\n", ""},
    [HTTP_NO_PATH] = {"404 Not Found", "there is nothing but /metrics\n", ""},
    [HTTP_NO_METHOD] = {"405 Method Not Allowed", "only GET and HEAD\n", "Allow: GET, HEAD\r\n"},
    [HTTP_TOO_LONG] = {"431 Request Header Fields Too Large", "at most 8 KiB\n", ""},
};

bool http_is_whole(const char *text)
{
    return strstr(text, "\n\r\n") || strstr(text, "\n\n");
}

/* NAME, NAME:PORT, [ADDRESS]:PORT, up to a blank, a line's end or a path. */
static void put_host(const char *text, char ret_host[HTTP_HOST])
{
    const size_t length = *text == '[' ? strcspn(text, "]\r\n") + 1 : strcspn(text, ":/ \t\r\n");

    snprintf(ret_host, HTTP_HOST, "%.*s", (int)length, text);
}

static void find_host(const char *text, char ret_host[HTTP_HOST])
{
    ret_host[0] = 0;
    while ((text = strchr(text, '\n')) && !ret_host[0] && *++text != '\n' && *text != '\r') /* to the head's end */
        if (strncasecmp(text, "host:", 5) == 0)
            put_host(text + 5 + strspn(text + 5, " \t"), ret_host);
}

struct http_request http_read(const char *text)
{
    struct http_request request = {.status = HTTP_BAD};
    char line[HTTP_REQUEST_MAX + 1];
    char *target, *after;
    size_t length = strcspn(text, "\n");

    snprintf(line, sizeof line, "%.*s", (int)length, text);
    if (length && line[length - 1] == '\r')
        line[length - 1] = 0;
    target = strchr(line, ' ');
    after = target ? strchr(target + 1, ' ') : NULL;
    if (!after || target == line || strncmp(after, " HTTP/1.", 8) != 0 ||
        strspn(after + 8, "0123456789") != 1 || after[9])
        return request;
    *target++ = *after = 0;
    find_host(text, request.host);
    length = strcspn(target, "?");
    request.head_only = strcmp(line, "HEAD") == 0;
    request.page = length == 8 && strncmp(target, "/metrics", 8) == 0 ? HTTP_METRICS : HTTP_ROOT;
    if (request.page == HTTP_ROOT && (length != 1 || *target != '/'))
        request.status = HTTP_NO_PATH;
    else if (!request.head_only && strcmp(line, "GET") != 0)
        request.status = HTTP_NO_METHOD;
    else
        request.status = HTTP_OK;
    return request;
}

const char *http_body(const struct http_request *request)
{
    return request->status == HTTP_OK && request->page == HTTP_METRICS ? NULL : statuses[request->status].body;
}

size_t http_head(const struct http_request *request, size_t size, char ret_head[HTTP_HEAD])
{
    const char *type = !http_body(request)          ? "text/plain; version=0.0.4; charset=utf-8"
                       : request->status == HTTP_OK ? "text/html; charset=utf-8"
                                                    : "text/plain; charset=utf-8";

    return (size_t)snprintf(
        ret_head, HTTP_HEAD,
        "HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n%sConnection: close\r\n\r\n",
        statuses[request->status].line, type, size, statuses[request->status].more);
}
