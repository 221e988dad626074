/*
 * Programs as files: which one a name means, and what the system makes of it when it is to run.
 * Nothing in a file is trusted.
 */
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/regular.h"
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

static bool is_text(const char *bytes, size_t size)
{
    const char *newline = memchr(bytes, '\n', size);

    return !memchr(bytes, 0, newline ? (size_t)(newline - bytes) : size);
}

static void read_start(int fd, struct run_file *ret)
{
    union {
        char bytes[RUN_INTERPRETER_SIZE + 1];
        Elf64_Ehdr elf;
    } start = {.bytes = {0}};
    size_t size = gs_regular_read(fd, start.bytes, RUN_INTERPRETER_SIZE, 0);
    const unsigned char *ident = start.elf.e_ident;

    ret->kind = is_text(start.bytes, size) ? RUN_TEXT : RUN_BINARY;
    if (size >= 2 && memcmp(start.bytes, "#!", 2) == 0) {
        ret->kind = RUN_SCRIPT;
        read_line(start.bytes + 2, ret);
    } else if (size >= sizeof(Elf32_Ehdr) && memcmp(ident, ELFMAG, SELFMAG) == 0) {
        ret->kind = RUN_ELF;
        ret->is_ours = ident[EI_CLASS] == ELFCLASS64 && ident[EI_DATA] == ELFDATA2LSB && start.elf.e_machine == MACHINE;
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

/* 0, -EACCES or -ENOENT. In a folder of PATH the search goes on as if nothing were there past a folder, and past what lies
 * where this user may not look. So do shells; execvp would blame such a place for every name that is not found. */
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
        length = snprintf(path, sizeof path, "%.*s%s%s", (int)(end - folders), folders, end > folders ? "/" : "", name);
        tried = length < (int)sizeof path ? try_path(path, true) : -ENOENT;
        if (tried == 0 || (tried == -EACCES && error == -ENOENT)) {
            error = tried;
            memcpy(ret_path, path, (size_t)length + 1);
        }
        if (tried == 0 || !*end)
            return error;
    }
}
