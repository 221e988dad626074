/* What is asked over HTTP/1.1, and what is answered: the text of it alone, no socket. */
#ifndef GS_SHIM_COMMAND_EXPORT_HTTP_H
#define GS_SHIM_COMMAND_EXPORT_HTTP_H

#include <stdbool.h>
#include <stddef.h>

#define HTTP_REQUEST_MAX 8192

enum http_status { HTTP_OK, HTTP_BAD, HTTP_NO_PATH, HTTP_NO_METHOD, HTTP_TOO_LONG, HTTP_BROKEN };
enum http_page { HTTP_ROOT, HTTP_METRICS };

struct http_request {
    enum http_status status; /* HTTP_OK, or why there is nothing but this to be answered */
    enum http_page page;
    bool head_only;
};

/* Whether `size` bytes of it are all of it: its head; whatever follows counts for nothing. */
bool http_is_whole(const char *text, size_t size);
/* Of a whole one. */
struct http_request http_read(const char *text, size_t size);
/* An answer, which the caller frees; NULL: there is no memory. For other than HTTP_OK with a text
 * of its own. */
char *http_answer(const struct http_request *request, const char *body, size_t size,
                  size_t *ret_size);

#endif
