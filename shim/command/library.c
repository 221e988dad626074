/* Where the library lies (run.h). */

#include <sys/auxv.h>

#include "shim/command/command.h"
#include "shim/command/run.h"

#if defined __x86_64__
#define MULTIARCH "x86_64-linux-gnu"
#elif defined __aarch64__
#define MULTIARCH "aarch64-linux-gnu"
#endif

/* From this program's folder, or the one above it. */
static const char *const places[] = {"../" LIBRARY, "../lib/" MULTIARCH "/" LIBRARY,
                                     "../lib64/" LIBRARY, "../lib/" LIBRARY, "/" LIBRARY};

static void cut_last_part(char *path)
{
    char *slash = strrchr(path, '/');

    if (slash)
        *slash = 0;
}

/* Without /proc this program lies by the name that it was called by. False: there are no more. */
static bool library_place(unsigned n, char ret_path[PATH_MAX])
{
    const char *rest = n < sizeof places / sizeof *places ? places[n] : NULL;
    size_t length = (size_t)readlink("/proc/self/exe", ret_path, PATH_MAX - 1);

    if (!rest)
        return false;
    if (length < PATH_MAX)
        ret_path[length] = 0;
    else if (!realpath((const char *)getauxval(AT_EXECFN), ret_path))
        snprintf(ret_path, PATH_MAX, "%s", (const char *)getauxval(AT_EXECFN));
    cut_last_part(ret_path);
    if (rest[0] == '.')
        cut_last_part(ret_path), rest += 2;
    length = strlen(ret_path);
    snprintf(ret_path + length, PATH_MAX - length, "%s", rest);
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
