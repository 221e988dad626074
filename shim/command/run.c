/*
 * gpushim run: starts a program with the library. It finds the library beside itself, puts it first
 * in LD_PRELOAD, sets the options that it is given, says what would keep the library out, and
 * becomes the program: signals and exit status are the program's.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config/internal.h"
#include "shim/command/command.h"
#include "shim/command/library.h"
#include "shim/command/run.h"

/* As shells and env(1) say it. */
enum { CANNOT_START = 126, NOT_FOUND = 127 };

/* ---- The library ---------------------------------------------------------------------------- */

static bool find_library(char ret_path[PATH_MAX])
{
    library_find(ret_path);
    if (ret_path[0] && !strpbrk(ret_path, " :"))
        return true;
    if (!ret_path[0])
        library_complain();
    else
        command_complain("the library's path is '%s', and LD_PRELOAD cannot name one with a space or a colon in it; install "
                         "this program and the library in a folder without", ret_path);
    return false;
}

/* ---- LD_PRELOAD ----------------------------------------------------------------------------- */

/* Whether an entry of LD_PRELOAD stays behind the library: not itself, nor another copy of it, as
 * two in one process would both serve the program's calls. */
static bool stays(const char *entry, const char *library)
{
    if (!*entry || command_is_same_file(entry, library))
        return false;
    if (strcmp(basename(entry), LIBRARY) != 0)
        return true;
    command_complain("warning: LD_PRELOAD names '%s'; this program's own '%s' goes there instead",
                     entry, library);
    return false;
}

static void preload(const char *library)
{
    const char *others = getenv("LD_PRELOAD");
    char *list = command_need(strdup(others ? others : "")), *rest = list, *entry;
    char *all = command_need(malloc(strlen(library) + strlen(list) + 2)), *end = stpcpy(all, library);

    while ((entry = strsep(&rest, " :")))
        if (stays(entry, library))
            end = stpcpy(stpcpy(end, ":"), entry);
    command_need(setenv("LD_PRELOAD", all, 1) == 0 ? all : NULL);
    free(list);
    free(all);
}

/* ---- The program ---------------------------------------------------------------------------- */

/* 0, or the exit status, and said why. */
static int find_program(const char *name, char ret_path[PATH_MAX])
{
    int error = run_file_find(name, ret_path);

    if (error == -ENOENT)
        command_complain("'%s' is not found%s; give its path, or install it", name, strchr(name, '/') ? "" : " in PATH");
    else if (error)
        command_complain("'%s' may not be executed, or is a folder; look at its mode (chmod +x), its folders', and whether its "
                         "file system is mounted noexec", ret_path);
    return !error ? 0 : error == -ENOENT ? NOT_FOUND : CANNOT_START;
}

/* Returns only where it cannot. A text that does not say who runs it is the shell's, as execvp has
 * it. */
static int start(const char *path, int argc, char **argv)
{
    char *shell[argc + 2], quoted[GS_QUOTE_SIZE];
    struct run_file file;
    int error;

    execv(path, argv);
    error = errno;
    run_file_read(path, &file);
    if (error == ENOEXEC && file.kind == RUN_TEXT) {
        shell[0] = (char *)"/bin/sh";
        shell[1] = (char *)path;
        memcpy(shell + 2, argv + 1, (size_t)argc * sizeof *argv);
        execv(shell[0], shell);
        error = errno;
    }
    if (error == ENOENT && file.interpreter[0])
        command_complain("'%s' cannot be started: it is to be started by %s, which is not there or "
                         "lacks what it needs itself; install that",
                         path, gs_quote(gs_text_of(file.interpreter), quoted));
    else
        command_complain("'%s' cannot be started: %s%s", path, strerror(error),
                         error == ENOEXEC ? "; it is no program for this machine" : "");
    return CANNOT_START;
}

/* ---- The command ---------------------------------------------------------------------------- */

/* FILE of --record, as the library takes it: wherever the program runs. */
static bool record_to(const char *file)
{
    char folder[PATH_MAX], option[2 * PATH_MAX + 16];

    if (file[0] == '/')
        snprintf(option, sizeof option, "record=%s", file);
    else if (*file && getcwd(folder, sizeof folder))
        snprintf(option, sizeof option, "record=%s/%s", folder, file);
    else
        return command_complain("--record: the file's name is missing"), false;
    return run_option_set(option);
}

static bool record_stacks(const char *frames)
{
    char option[64];

    snprintf(option, sizeof option, "record_stacks=%.40s", frames);
    return run_option_set(option);
}

/* False, and said: it cannot be. */
static bool take_option(const struct given *given)
{
    const char *option = given->option->name;

    if (strcmp(option, "set") == 0)
        return run_option_set(given->value);
    if (strncmp(option, "no-", 3) == 0)
        return run_option_set(given->option->help + strlen("-o "));
    if (strcmp(option, "record-stacks") == 0)
        return record_stacks(given->value);
    return strcmp(option, "print") == 0 || record_to(given->value);
}

/* Where nobody says: beside what runs, by its name and process. */
static bool record_by_default(const char *program)
{
    char file[NAME_MAX + 1];

    snprintf(file, sizeof file, "%.200s-%%p.trace", basename(program));
    return record_to(file);
}

/* It is this process that becomes the program. */
static void say_what_comes_next(void)
{
    const char *file = getenv("GPUSHIM_RECORD"), *percent = file ? strstr(file, "%p") : NULL;

    if (percent)
        command_complain("afterwards: gpushim report %.*s%d%s", (int)(percent - file), file, getpid(), percent + 2);
    else if (file)
        command_complain("afterwards: gpushim report %s", file);
}

static int run(const struct call *call, bool records)
{
    char library[PATH_MAX], path[PATH_MAX];
    int status;

    for (unsigned i = 0; i < call->count; i++)
        if (!take_option(&call->given[i]))
            return COMMAND_USAGE;
    if (!find_library(library))
        return COMMAND_WRONG;
    if (call->argc && (status = find_program(call->argv[0], path)))
        return status;
    if (records && call->argc && !call_has(call, "output") && !record_by_default(path))
        return COMMAND_USAGE;
    preload(library);
    if (call->argc)
        run_check(path);
    if (call_has(call, "print")) {
        command_say("LD_PRELOAD=%s", getenv("LD_PRELOAD"));
        run_option_print();
        return COMMAND_WELL;
    }
    if (records)
        say_what_comes_next();
    return start(path, call->argc, call->argv);
}

int command_run(const struct call *call)
{
    return run(call, false);
}

int command_record(const struct call *call)
{
    return run(call, true);
}
