/* How a command is called: its line, read by its row of the table (commands.h). */
#ifndef GS_SHIM_COMMAND_CALL_H
#define GS_SHIM_COMMAND_CALL_H

#include <stdint.h>

#include "shim/command/commands.h"

struct call {
    const struct command *command;
    int argc; /* what is no option of its, in order; NULL behind it */
    char **argv;
    struct given {
        const struct command_option *option;
        const char *value; /* "": it takes none */
    } *given; /* in order */
    unsigned count;
};

/* Reads argv, argv[0] being the name. Whether the command is to be run; else *ret_status is what to exit with, and
 * help was asked for, or what is wrong was said. It ends with call_end in any case. */
bool call_read(const struct command *command, int argc, char **argv, struct call *ret, int *ret_status);
void call_end(struct call *call);

/* What the option was given last; NULL: it was not. */
const char *call_value(const struct call *call, const char *option);
bool call_has(const struct call *call, const char *option);

/* The object of --json, begun, with a list of rows or without; NULL: text is wanted. */
struct json *call_json(const struct call *call, bool rows);

/* The option's "30s", "0.5 s" or "2", seconds from `least` to a day, in ns; what is there stays where it was not given. False, and
 * said as call_wrong does: it is none. */
bool call_seconds(const struct call *call, const char *option, double least, uint64_t *ret_ns);

/* COMMAND_USAGE; one line says what is wrong, and where help is. */
int call_wrong(const struct call *call, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The pid that the text is; -1, and said as call_wrong does: it is none. */
long call_pid(const struct call *call, const char *text);

/* NULL, and said: there is none of that name. */
const struct command *command_find(const char *name);

/* `gpushim --complete WORD...`: what may stand in the place of the last word, a line each with a tab and what it is;
 * ":file", and ":program N" where the N-th word is that of a program whose line it is from there on. */
int call_complete(int argc, char **argv);

#endif
