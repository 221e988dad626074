/*
 * Programs as files: which one a name means, and what the system makes of it when it is to run.
 * Nothing in a file is trusted.
 */
#include <elf.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>

#include "core/base/regular.h"
#include "shim/command/command.h"
#include "shim/command/run.h"

#ifdef __x86_64__
#define MACHINE EM_X86_64
#else
#define MACHINE EM_AARCH64
#endif

/* Program headers that are looked at; linkers write some ten. */
#define HEADERS_MAX 256

/* The name of the dynamic linker; nothing where there is none, or the headers lie. */
static void read_linker(int fd, const Elf64_Ehdr *elf, struct run_file *ret)
{
    Elf64_Phdr header;

    if (elf->e_phentsize != sizeof header)
        return;
    for (unsigned i = 0; i < elf->e_phnum && i < HEADERS_MAX; i++) {
        if (gs_regular_read(fd, &header, sizeof header, elf->e_phoff + i * sizeof header) !=
            sizeof header)
            return;
        if (header.p_type != PT_INTERP)
            continue;
        gs_regular_read(fd, ret->interpreter, sizeof ret->interpreter - 1, header.p_offset);
        return;
    }
}

/* The first words of a script's line, as the kernel splits it: the interpreter, and all the rest.
 */
static void read_line(char *line, struct run_file *ret)
{
    static const char blanks[] = " \t";
    char *end;

    line[strcspn(line, "\n")] = 0;
    line += strspn(line, blanks);
    for (end = line + strlen(line); end > line && strchr(blanks, end[-1]); end--)
        end[-1] = 0;
    end = line + strcspn(line, blanks);
    snprintf(ret->interpreter, sizeof ret->interpreter, "%.*s", (int)(end - line), line);
    snprintf(ret->argument, sizeof ret->argument, "%s", end + strspn(end, blanks));
}

static void read_start(int fd, struct run_file *ret)
{
    union {
        char bytes[RUN_INTERPRETER_SIZE + 1];
        Elf64_Ehdr elf;
    } start = {.bytes = {0}};
    size_t size = gs_regular_read(fd, start.bytes, RUN_INTERPRETER_SIZE, 0);
    const unsigned char *ident = start.elf.e_ident;

    ret->kind = RUN_OTHER;
    if (size >= 2 && memcmp(start.bytes, "#!", 2) == 0) {
        ret->kind = RUN_SCRIPT;
        read_line(start.bytes + 2, ret);
    } else if (size >= sizeof(Elf32_Ehdr) && memcmp(ident, ELFMAG, SELFMAG) == 0) {
        ret->kind = RUN_ELF;
        ret->is_ours = ident[EI_CLASS] == ELFCLASS64 && ident[EI_DATA] == ELFDATA2LSB &&
                       start.elf.e_machine == MACHINE;
        if (ret->is_ours)
            read_linker(fd, &start.elf, ret);
    }
}

void run_file_read(const char *path, struct run_file *ret)
{
    struct stat info;
    int fd = gs_regular_open(AT_FDCWD, path, 0, &info);

    *ret = (struct run_file){.kind = RUN_UNREADABLE};
    if (fd < 0) {
        ret->error = errno;
        return;
    }
    read_start(fd, ret);
    close(fd);
}

/* 0, -EACCES or -ENOENT. In a folder of PATH the search goes on as if nothing were there past a
 * folder, and past what lies where this user may not look. So do shells; execvp would blame such a
 * place for every name that is not found. */
static int try_path(const char *path, bool in_folder)
{
    struct stat status;

    if (fstatat(AT_FDCWD, path, &status, 0) != 0)
        return errno == EACCES && !in_folder ? -EACCES : -ENOENT;
    if (!S_ISREG(status.st_mode))
        return in_folder ? -ENOENT : -EACCES;
    return access(path, X_OK) == 0 ? 0 : -EACCES;
}

int run_file_find(const char *name, char ret_path[PATH_MAX])
{
    const char *folders = getenv("PATH");
    int error = -ENOENT;

    snprintf(ret_path, PATH_MAX, "%s", name);
    if (!*name || strlen(name) >= PATH_MAX)
        return -ENOENT;
    if (strchr(name, '/'))
        return try_path(name, false);
    if (!folders)
        folders = "/bin:/usr/bin"; /* execvp's own */
    for (const char *end;; folders = end + 1) {
        char path[PATH_MAX];
        int length, tried;

        end = strchrnul(folders, ':');
        length = snprintf(path, sizeof path, "%.*s%s%s", (int)(end - folders), folders,
                          end > folders ? "/" : "", name);
        tried = length < (int)sizeof path ? try_path(path, true) : -ENOENT;
        if (tried == 0 || (tried == -EACCES && error == -ENOENT)) {
            error = tried;
            memcpy(ret_path, path, (size_t)length + 1);
        }
        if (tried == 0 || !*end)
            return error;
    }
}

/* ---- What keeps the library out -------------------------------------------------------------- */

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
    command_complain("warning: %s%s%s%s %s: %s", path, script ? ", which runs " : "",
                     script ? script : "", script ? "," : "", why, way_out);
}

/* By what mode the program gives its caller other rights than they have, as the kernel decides it:
 * none where it is their own. NULL: it does not. */
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

    if (fstatat(AT_FDCWD, path, &file, 0) != 0 ||
        (statvfs(path, &system) == 0 && (system.f_flag & ST_NOSUID)))
        return;
    why = prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1 ? NULL : other_rights(&file);
    if (!why && getuid() != 0 && getxattr(path, "security.capability", NULL, 0) > 0)
        why = "has file capabilities";
    if (why)
        warn(
            path, script, why,
            "the dynamic linker ignores LD_PRELOAD in it and in what it starts; run it as who it belongs to, "
            "or a copy without these");
}

/* Who runs this script. False: not to be told, as where env has options. */
static bool runs(const struct run_file *script, char ret_path[PATH_MAX])
{
    if (strcmp(basename(script->interpreter), "env") == 0)
        return run_file_find(script->argument, ret_path) == 0;
    snprintf(ret_path, PATH_MAX, "%s", script->kind == RUN_OTHER ? "/bin/sh" : script->interpreter);
    return *ret_path;
}

void run_check(const char *path)
{
    const char *script = NULL, *wrong;
    char interpreter[PATH_MAX];
    struct run_file file;

    run_file_read(path, &file);
    if (file.kind == RUN_SCRIPT || file.kind == RUN_OTHER) {
        if (!runs(&file, interpreter))
            return;
        script = path;
        path = interpreter;
        run_file_read(path, &file);
    }
    wrong = file.kind == RUN_ELF ? run_program_wrong(path, &file) : NULL;
    if (wrong)
        warn(
            path, script, wrong,
            "the library cannot be loaded into it, only into programs that it starts; use a build of it for "
            "this machine and glibc that is dynamically linked");
    check_rights(path, script);
}
