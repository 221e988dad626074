/* Where the library lies (run.h). */

#include <sys/auxv.h>

#include "shim/command/command.h"
#include "shim/command/run.h"

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

/* That of this program, without a slash at its end; without /proc, of the name that it was called
 * by. */
static void own_folder(char ret_folder[PATH_MAX])
{
    ssize_t length = readlink("/proc/self/exe", ret_folder, PATH_MAX - 1);

    if (length > 0)
        ret_folder[length] = 0;
    else if (!realpath((const char *)getauxval(AT_EXECFN), ret_folder))
        snprintf(ret_folder, PATH_MAX, "%s", (const char *)getauxval(AT_EXECFN));
    cut_last_part(ret_folder);
}

static bool library_place(unsigned n, char ret_path[PATH_MAX])
{
    size_t length;

    if (n >= sizeof places / sizeof *places)
        return false;
    own_folder(ret_path);
    if (places[n].above)
        cut_last_part(ret_path);
    length = strlen(ret_path);
    snprintf(ret_path + length, PATH_MAX - length, "%s", places[n].rest);
    return true;
}

void library_find(char ret_path[PATH_MAX])
{
    char path[PATH_MAX];
    struct run_file file;

    for (unsigned n = 0; library_place(n, path); n++) {
        run_file_read(path, &file);
        if (file.kind == RUN_ELF && realpath(path, ret_path))
            return;
    }
    ret_path[0] = 0;
}

void library_complain(void)
{
    char path[PATH_MAX];

    command_complain("there is no " LIBRARY
                     " that belongs to this program; install it in one of the "
                     "places where it was looked for:");
    for (unsigned n = 0; library_place(n, path); n++)
        command_complain("  %s: %s", path, strerror(access(path, R_OK) == 0 ? ENOEXEC : errno));
}
