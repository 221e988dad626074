/* What the parts of `gpushim run` share: run.c finds the library and starts the program, run_file.c
 * says what kind of file a program is, and what would keep the library out of it. */
#ifndef GS_SHIM_COMMAND_RUN_H
#define GS_SHIM_COMMAND_RUN_H

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>

/* What a file is to the system that is to run it. */
enum run_kind {
    RUN_UNREADABLE, /* it may run all the same */
    RUN_ELF,
    RUN_SCRIPT, /* begins with #! */
    RUN_OTHER,  /* neither: /bin/sh runs it */
};

/* The kernel reads no more than this of a script's first line. */
#define RUN_INTERPRETER_SIZE 256

struct run_file {
    enum run_kind kind;
    int error;    /* RUN_UNREADABLE: errno */
    bool is_ours; /* RUN_ELF: it is of the machine that this program is of */
    char interpreter[RUN_INTERPRETER_SIZE]; /* who starts it; "": nobody, or not to be seen */
    char argument[RUN_INTERPRETER_SIZE];    /* what a script gives it before its own name */
};

/* Here and in the other files fstatat, not stat, which would bind the program to glibc 2.33 and
 * later. */
void run_file_read(const char *path, struct run_file *ret);
/* The file that a name means, as execvp has it. 0; or -ENOENT or -EACCES, and then ret_path is what
 * may not be executed. */
int run_file_find(const char *name, char ret_path[PATH_MAX]);

/* Why the library cannot be loaded with it: in words, after its name ("is no ELF file"); NULL:
 * nothing is wrong with it. Of a program also by who starts it. */
const char *run_file_wrong(const struct run_file *file);
const char *run_program_wrong(const char *path, const struct run_file *file);
/* Warns on standard error of what will keep the library out of the program at `path`. */
void run_check(const char *path);

struct gs_config;
struct gs_option;

/* The option of "pool.decay=5 s", whose value goes to *ret, and as text to *ret_value until the
 * next is read; or NULL, and said, after `before`: it is no option, or no value for it. */
const struct gs_option *run_option_read(const char *before, const char *text, struct gs_config *ret,
                                        const char **ret_value);
/* Where the library lies that belongs to this program. */

#define LIBRARY "libgpushim.so"

/* The real path of the first place where one lies (as built, as installed, as unpacked); "": there
 * is none. */
void library_find(char ret_path[PATH_MAX]);

/* Says on standard error that there is none, and where it was looked for. */
void library_complain(void);

#endif
