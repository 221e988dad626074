/* Names of files that each process has one of. */
#ifndef GS_CORE_BASE_PATH_H
#define GS_CORE_BASE_PATH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* `pattern` with %p in it replaced by the process id, where there is one. False: it does not
 * fit. */
static inline bool gs_path_of_process(const char *pattern, char *ret_path, size_t size)
{
    const char *mark = strstr(pattern, "%p");
    int length = mark ? snprintf(ret_path, size, "%.*s%d%s", (int)(mark - pattern), pattern,
                                 (int)getpid(), mark + 2)
                      : snprintf(ret_path, size, "%s", pattern);

    return length >= 0 && (size_t)length < size;
}

#endif
