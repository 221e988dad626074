/*
 * gpushim export: the figures in the text format of Prometheus (version 0.0.4), and how they get
 * there.
 */
#ifndef GS_SHIM_COMMAND_EXPORT_H
#define GS_SHIM_COMMAND_EXPORT_H

#include <stdbool.h>
#include <stdio.h>

#include "shim/command/call.h"

/* Asks all processes and writes what they have. False, and said unless it is the file's error: they
 * cannot be asked. */
bool export_write(FILE *file);

/* Serves it at ADDRESS:PORT until SIGTERM or SIGINT. The program's exit status. */
int export_serve(const struct call *call, const char *where);

/* ---- HTTP/1.1, as much as Prometheus and a browser need: without a socket (export_http.c) ---- */

#define HTTP_REQUEST_MAX 8192
#define HTTP_HOST        256

enum http_status { HTTP_OK, HTTP_BAD, HTTP_NO_HOST, HTTP_NO_PATH, HTTP_NO_METHOD, HTTP_TOO_LONG };
enum http_page { HTTP_ROOT, HTTP_METRICS };

struct http_request {
    enum http_status status; /* to answer with */
    enum http_page page;
    bool head_only;
    char host[HTTP_HOST]; /* by which this server was asked, without its port; "": it does not say */
};

/* Whether the head of a request is there as a whole. */
bool http_is_whole(const char *text);
struct http_request http_read(const char *text);

/* What comes before a body of so many bytes; its length. */
#define HTTP_HEAD 512
size_t http_head(const struct http_request *request, size_t size, char ret_head[HTTP_HEAD]);
/* The body; NULL: it is the metrics. */
const char *http_body(const struct http_request *request);

#endif
