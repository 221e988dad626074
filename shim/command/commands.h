/*
 * The table of gpushim's commands, their arguments and options. How a line is read (call.c), what
 * -h and `help` say, what a shell completes and the sections of gpushim(1) (pages.c) are made from
 * it alone: a new command is a row here and a function, a new option a row and a question to the
 * call.
 */
#ifndef GS_SHIM_COMMAND_COMMANDS_H
#define GS_SHIM_COMMAND_COMMANDS_H

#include <stdbool.h>
#include <stddef.h>

#define OPTIONS_MOST  10 /* of a command */
#define EXAMPLES_MOST 3

/* What shells offer in the place of an argument. */
enum command_takes {
    TAKES_TEXT, /* nothing */
    TAKES_PID,
    TAKES_PID_OR_ALL,
    TAKES_PID_OR_GROUP, /* a control group's path */
    TAKES_NAME,         /* published */
    TAKES_FILE,
    TAKES_OPTION,  /* section.key=VALUE */
    TAKES_SETTING, /* that of an option that can change while a program runs */
    TAKES_COMMAND,
    TAKES_PROGRAM, /* from there on it is that program's line, options too */
    TAKES_GENERATE,
    TAKES_FORGET,
};

struct command_option {
    const char *name;     /* without its -- */
    char letter;          /* of its short form; 0: it has none */
    const char *argument; /* NULL: it takes none */
    enum command_takes takes;
    const char *help; /* NULL: people are not told of it */
};

struct call;
typedef int command_fn(const struct call *call);

struct command {
    const char *name;
    command_fn *run;
    const char *line;      /* help, in one */
    const char *arguments; /* as usage has them; "" */
    unsigned least, most;  /* so many of them */
    enum command_takes takes[2];
    const char *text; /* help, in paragraphs */
    struct command_option options[OPTIONS_MOST];
    struct {
        const char *line, *why;
    } examples[EXAMPLES_MOST];
};

extern const struct command commands[];
extern const size_t command_count;

#endif
