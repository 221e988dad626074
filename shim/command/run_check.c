/*
 * What would keep the library out of a program that `gpushim run` starts, found before it is
 * started: the dynamic linker says nothing of most of it, and the program runs as if all were well.
 * These are warnings. Who can run without the library runs.
 */
#include <elf.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "config/internal.h"
#include "shim/command/command.h"
#include "shim/command/run.h"

/* What is looked at. */
struct program {
    const char *path;
    const char *script; /* that it runs; NULL: none, it is what was asked for */
};

static void warn(const struct program *program, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static void warn(const struct program *program, const char *format, ...)
{
    char text[512];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (program->script)
        command_complain("warning: %s, which runs %s, %s", program->path, program->script, text);
    else
        command_complain("warning: %s %s", program->path, text);
}

/* ---- Another machine ------------------------------------------------------------------------ */

static const char *machine_name(const struct run_machine *machine, char ret[48])
{
    const char *name = machine->machine == EM_X86_64 ? "x86-64" : machine->machine == EM_AARCH64 ? "aarch64" : NULL;
    int length = name ? snprintf(ret, 48, "%s", name) : snprintf(ret, 48, "machine %u of ELF's list", machine->machine);

    if (machine->elf_class != ELFCLASS64)
        snprintf(ret + length, 48 - (size_t)length, ", of 32 bits");
    return ret;
}

static bool is_other_machine(const struct program *program, const struct run_machine *its,
                             const struct run_machine *library)
{
    char buffer[48], library_buffer[48];
    const char *ours = machine_name(library, library_buffer);

    if (its->elf_class == library->elf_class && its->order == library->order &&
        its->machine == library->machine)
        return false;
    warn(program,
         "is built for %s, and the library here for %s: it runs without the library, if at all; "
         "use a build of it for %s",
         machine_name(its, buffer), ours, ours);
    return true;
}

/* ---- Raised rights -------------------------------------------------------------------------- */

/* By what mode the program gives its caller other rights than he has, as the kernel decides it:
 * none where it is his own. NULL: it does not. */
static const char *other_rights(const struct stat *file)
{
    if ((file->st_mode & S_ISUID) && file->st_uid != getuid())
        return "set-user-id";
    if ((file->st_mode & S_ISGID) && (file->st_mode & S_IXGRP) && file->st_gid != getgid())
        return "set-group-id";
    return NULL;
}

/* In what runs with other rights than its caller's the dynamic linker passes over LD_PRELOAD. */
static void check_rights(const struct program *program)
{
    static const char end[] = "the dynamic linker ignores LD_PRELOAD in it and in what it starts";
    struct statvfs system;
    struct stat file;
    const char *way;

    if (fstatat(AT_FDCWD, program->path, &file, 0) != 0 ||
        (statvfs(program->path, &system) == 0 && (system.f_flag & ST_NOSUID)))
        return;
    way = prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1 ? NULL : other_rights(&file);
    if (way)
        warn(program, "is %s: %s; run it as who it belongs to (%u:%u), or a copy without that bit",
             way, end, (unsigned)file.st_uid, (unsigned)file.st_gid);
    else if (getuid() != 0 && getxattr(program->path, "security.capability", NULL, 0) > 0)
        warn(program, "has file capabilities: %s; run it as root, or a copy without them", end);
}

/* ---- Who loads it --------------------------------------------------------------------------- */

static bool begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

static bool is_glibc_linker(const char *path)
{
    const char *name = basename(path);

    return begins(name, "ld-linux") || begins(name, "ld-2.") || begins(name, "ld-lsb") ||
           begins(name, "ld.so");
}

static void check_linker(const struct program *program, const char *linker)
{
    char quoted[GS_QUOTE_SIZE];

    gs_quote(gs_text_of(linker), quoted);
    if (!*linker) {
        /* The dynamic linker can be called as a program itself, and does what it always does. */
        if (!is_glibc_linker(program->path))
            warn(program, "is statically linked: the library cannot be loaded into it, only into "
                          "programs that it starts; use a dynamically linked build of it");
    } else if (begins(basename(linker), "ld-musl")) {
        warn(program,
             "is built for musl's libc (%s starts it), where the library does nothing; use a build "
             "for glibc, as most distributions have",
             quoted);
    } else if (!is_glibc_linker(linker)) {
        warn(
            program,
            "is started by %s, not by glibc's dynamic linker, and may run without the library; use "
            "a build for glibc, as most distributions have",
            quoted);
    }
}

/* ---- Scripts -------------------------------------------------------------------------------- */

/* Who runs this script. False: not to be told, as where env has options. */
static bool runs(const struct run_file *script, char ret_path[PATH_MAX])
{
    if (strcmp(basename(script->interpreter), "env") == 0)
        return run_file_find(script->argument, ret_path) == 0;
    snprintf(ret_path, PATH_MAX, "%s", script->kind == RUN_TEXT ? "/bin/sh" : script->interpreter);
    return *ret_path;
}

void run_check(const char *path, const char *library)
{
    struct program program = {.path = path};
    char interpreter[PATH_MAX];
    struct run_file file, own;

    run_file_read(library, &own);
    run_file_read(path, &file);
    if (file.kind == RUN_SCRIPT || file.kind == RUN_TEXT) {
        if (!runs(&file, interpreter))
            return;
        program = (struct program){.path = interpreter, .script = path};
        run_file_read(interpreter, &file);
    }
    if (file.kind == RUN_ELF && !is_other_machine(&program, &file.machine, &own.machine))
        check_linker(&program, file.interpreter);
    check_rights(&program);
}
