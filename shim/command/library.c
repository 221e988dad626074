/* Where the library lies (library.h). */
#include "shim/command/library.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#if defined __x86_64__
#define MULTIARCH "x86_64-linux-gnu"
#elif defined __aarch64__
#define MULTIARCH "aarch64-linux-gnu"
#endif

/* From this program's folder (false) or the one above it. */
static const struct {
    bool above;
    const char *rest;
} places[] = {{true, "/" LIBRARY},
              {true, "/lib/" MULTIARCH "/" LIBRARY},
              {true, "/lib64/" LIBRARY},
              {true, "/lib/" LIBRARY},
              {false, "/" LIBRARY}};

static void cut_last_part(char *path)
{
    char *slash = strrchr(path, '/');

    if (slash)
        *slash = 0;
}

void library_own_folder(char ret_folder[PATH_MAX])
{
    ssize_t length = readlink("/proc/self/exe", ret_folder, PATH_MAX - 1);

    if (length > 0)
        ret_folder[length] = 0;
    else if (!realpath((const char *)getauxval(AT_EXECFN), ret_folder))
        snprintf(ret_folder, PATH_MAX, "%s", (const char *)getauxval(AT_EXECFN));
    cut_last_part(ret_folder);
}

bool library_place(unsigned n, char ret_path[PATH_MAX])
{
    size_t length;

    if (n >= sizeof places / sizeof *places)
        return false;
    library_own_folder(ret_path);
    if (places[n].above)
        cut_last_part(ret_path);
    length = strlen(ret_path);
    snprintf(ret_path + length, PATH_MAX - length, "%s", places[n].rest);
    return true;
}

void library_find(char ret_path[PATH_MAX])
{
    char path[PATH_MAX];

    for (unsigned n = 0; library_place(n, path); n++)
        if (access(path, R_OK) == 0 && realpath(path, ret_path))
            return;
    ret_path[0] = 0;
}
