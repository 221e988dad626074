/*
 * What would keep the library out of a program that `gpushim run` starts, found before it is started: the dynamic linker
 * says nothing of most of it, and the program runs as if all were well. These are warnings. Who can run without the
 * library runs.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "shim/command/command.h"
#include "shim/command/run.h"

const char *run_file_wrong(const struct run_file *file)
{
    if (file->kind == RUN_UNREADABLE)
        return file->error == EACCES ? "may not be read by this user" : "cannot be read";
    if (file->kind != RUN_ELF)
        return "is no ELF file";
    return file->is_ours ? NULL : "is built for another architecture than the library here";
}

static bool is_glibc_linker(const char *path)
{
    static const char *const begins[] = {"ld-linux", "ld-2.", "ld-lsb", "ld.so"};
    bool is = false;

    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++)
        is |= strncmp(basename(path), begins[i], strlen(begins[i])) == 0;
    return is;
}

const char *run_program_wrong(const char *path, const struct run_file *file)
{
    const char *wrong = run_file_wrong(file);

    if (wrong || is_glibc_linker(file->interpreter))
        return wrong;
    if (strncmp(basename(file->interpreter), "ld-musl", 7) == 0)
        return "is built for musl's libc";
    if (file->interpreter[0])
        return "is started by another dynamic linker than glibc's";
    /* That can be called as a program itself, and does what it always does. */
    return is_glibc_linker(path) ? NULL : "is statically linked";
}

static void warn(const char *path, const char *script, const char *why, const char *way_out)
{
    command_complain("warning: %s%s%s%s %s: %s", path, script ? ", which runs " : "", script ? script : "", script ? "," : "",
                     why, way_out);
}

/* By what mode the program gives its caller other rights than he has, as the kernel decides it: none where it is his own.
 * NULL: it does not. */
static const char *other_rights(const struct stat *file)
{
    if ((file->st_mode & S_ISUID) && file->st_uid != getuid())
        return "is set-user-id";
    if ((file->st_mode & S_ISGID) && (file->st_mode & S_IXGRP) && file->st_gid != getgid())
        return "is set-group-id";
    return NULL;
}

/* In what runs with other rights than its caller's the dynamic linker passes over LD_PRELOAD. */
static void check_rights(const char *path, const char *script)
{
    struct statvfs system;
    struct stat file;
    const char *why;

    if (fstatat(AT_FDCWD, path, &file, 0) != 0 || (statvfs(path, &system) == 0 && (system.f_flag & ST_NOSUID)))
        return;
    why = prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1 ? NULL : other_rights(&file);
    if (!why && getuid() != 0 && getxattr(path, "security.capability", NULL, 0) > 0)
        why = "has file capabilities";
    if (why)
        warn(path, script, why, "the dynamic linker ignores LD_PRELOAD in it and in what it starts; run it as who it belongs to, "
                                "or a copy without these");
}

/* Who runs this script. False: not to be told, as where env has options. */
static bool runs(const struct run_file *script, char ret_path[PATH_MAX])
{
    if (strcmp(basename(script->interpreter), "env") == 0)
        return run_file_find(script->argument, ret_path) == 0;
    snprintf(ret_path, PATH_MAX, "%s", script->kind == RUN_TEXT ? "/bin/sh" : script->interpreter);
    return *ret_path;
}

void run_check(const char *path)
{
    const char *script = NULL, *wrong;
    char interpreter[PATH_MAX];
    struct run_file file;

    run_file_read(path, &file);
    if (file.kind == RUN_SCRIPT || file.kind == RUN_TEXT) {
        if (!runs(&file, interpreter))
            return;
        script = path;
        path = interpreter;
        run_file_read(path, &file);
    }
    wrong = file.kind == RUN_ELF ? run_program_wrong(path, &file) : NULL;
    if (wrong)
        warn(path, script, wrong, "the library cannot be loaded into it, only into programs that it starts; use a build of it for "
                                  "this machine and glibc that is dynamically linked");
    check_rights(path, script);
}
