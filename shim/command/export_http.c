/* HTTP/1.1, as much as Prometheus and a browser need (export_http.h). A connection serves one
 * request. */
#include "shim/command/export_http.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROOT_PAGE                                                                                  \
    "<!DOCTYPE html><html><head><title>gpushim export</title></head><body>"                        \
    "<a href=\"/metrics\">GPU memory of the processes with libgpushim, for Prometheus</a>"         \
    "</body></html>\n"

static const struct {
    const char *line, *body, *more;
} statuses[] = {
    [HTTP_OK] = {"200 OK", "", ""},
    [HTTP_BAD] = {"400 Bad Request", "this is no request of HTTP/1.1\n", ""},
    [HTTP_NO_PATH] = {"404 Not Found", "there is nothing but /metrics\n", ""},
    [HTTP_NO_METHOD] = {"405 Method Not Allowed", "only GET and HEAD\n", "Allow: GET, HEAD\r\n"},
    [HTTP_TOO_LONG] = {"431 Request Header Fields Too Large", "at most 8 KiB\n", ""},
    [HTTP_BROKEN] =
        {"500 Internal Server Error",
         "the processes could not be asked; standard error of gpushim export says why\n", ""},
};

bool http_is_whole(const char *text, size_t size)
{
    return memmem(text, size, "\n\r\n", 3) || memmem(text, size, "\n\n", 2);
}

/* The path of what is asked for, which may be a whole URL and have a query; its length. */
static const char *path_of(const char *target, size_t *ret_length)
{
    const char *host = strncmp(target, "http://", 7) == 0 ? target + 7 : NULL;

    if (host)
        target = host[strcspn(host, "/")] ? host + strcspn(host, "/") : "/";
    *ret_length = strcspn(target, "?");
    return target;
}

struct http_request http_read(const char *text, size_t size)
{
    struct http_request request = {.status = HTTP_BAD};
    char line[HTTP_REQUEST_MAX + 1];
    char *target, *after;
    const char *path;
    size_t length = 0;

    while (length < size && text[length] != '\n' && text[length] != 0)
        length++;
    memcpy(line, text, length);
    line[length] = 0;
    if (length && line[length - 1] == '\r')
        line[length - 1] = 0;
    target = strchr(line, ' ');
    after = target ? strchr(target + 1, ' ') : NULL;
    if (!after || target == line || strncmp(after, " HTTP/1.", 8) != 0 ||
        strspn(after + 8, "0123456789") != 1 || after[9])
        return request;
    *target++ = *after = 0;
    path = path_of(target, &length);
    request.head_only = strcmp(line, "HEAD") == 0;
    request.page = length == 8 && strncmp(path, "/metrics", 8) == 0 ? HTTP_METRICS : HTTP_ROOT;
    if (request.page == HTTP_ROOT && (length != 1 || *path != '/'))
        request.status = HTTP_NO_PATH;
    else if (!request.head_only && strcmp(line, "GET") != 0)
        request.status = HTTP_NO_METHOD;
    else
        request.status = HTTP_OK;
    return request;
}

char *http_answer(const struct http_request *request, const char *body, size_t size,
                  size_t *ret_size)
{
    bool is_metrics = request->status == HTTP_OK && request->page == HTTP_METRICS;
    const char *type = is_metrics                   ? "text/plain; version=0.0.4; charset=utf-8"
                       : request->status == HTTP_OK ? "text/html; charset=utf-8"
                                                    : "text/plain; charset=utf-8";
    char head[512], *answer;
    int length;

    if (!is_metrics) {
        body = request->status == HTTP_OK ? ROOT_PAGE : statuses[request->status].body;
        size = strlen(body);
    }
    length = snprintf(
        head, sizeof head,
        "HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n%sConnection: close\r\n\r\n",
        statuses[request->status].line, type, size, statuses[request->status].more);
    if (request->head_only)
        size = 0;
    answer = malloc((size_t)length + size);
    if (!answer)
        return NULL;
    memcpy(answer, head, (size_t)length);
    if (size)
        memcpy(answer + length, body, size);
    *ret_size = (size_t)length + size;
    return answer;
}
