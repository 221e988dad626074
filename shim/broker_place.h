/* Where the broker's program is that was installed with the library (share.broker = installed): the
 * library looks there to start it, gpushim doctor to say where it is. */
#ifndef GPUSHIM_SHIM_BROKER_PLACE_H
#define GPUSHIM_SHIM_BROKER_PLACE_H

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* As it lies from the library wherever that tree was put, beside the library, and where it was to
 * be installed. `library` is its path; "" or none that begins at the root: the last alone. False:
 * in none of them, and *ret_path is the last. */
static inline bool gs_broker_find(const char *library, char *ret_path, size_t size)
{
    static const char *const places[] = {"/" GS_BROKER_FROM_LIBRARY, "/gpushim-broker"};
    const char *slash = strrchr(library, '/');

    for (size_t i = 0; library[0] == '/' && i < sizeof places / sizeof *places; i++) {
        int length = snprintf(ret_path, size, "%.*s%s", (int)(slash - library), library, places[i]);

        if (length > 0 && (size_t)length < size && faccessat(AT_FDCWD, ret_path, X_OK, 0) == 0)
            return true;
    }
    snprintf(ret_path, size, "%s", GS_BROKER_PROGRAM);
    return faccessat(AT_FDCWD, ret_path, X_OK, 0) == 0;
}

#endif
