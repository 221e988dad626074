/*
 * The commands of the program `gpushim`, one file each, and what they share. A command is called
 * with its line as read by its row of the table (commands.c). What it finds goes to standard output,
 * as text for people or with --json for programs: the same rows behind both; whether that could be
 * written main looks at the end. What is wrong goes to standard error: the cause, then the way out.
 */
#ifndef GS_SHIM_COMMAND_H
#define GS_SHIM_COMMAND_H

/* What nearly all of them need, they have from here. */
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/config.h"
#include "core/share/internal.h"
#include "shim/command/commands.h"
#include "shim/command/json.h"
#include "shim/command/show.h"

enum { COMMAND_WELL = 0, COMMAND_WRONG = 1, COMMAND_USAGE = 2 };

command_fn command_broker, command_cdi, command_cluster, command_config_list, command_doctor,
    command_export, command_help, command_ls, command_record, command_report, command_run,
    command_set, command_sleep, command_stats, command_swap, command_top, command_trim,
    command_version, command_wake, command_who;

/* In sorting: below 0, 0, or above it, as a comes before b; behind ?: the next of several. */
#define COMMAND_ORDER(a, b) (((a) > (b)) - ((a) < (b)))

/* The names under which GPU memory is published that this user may ask for, and who published it,
 * for completion. */
void ls_names(void (*each)(void *arg, const char *name, const char *process), void *arg);
/* The options that can change while a program runs, a line each on standard output, with what they
 * may be. */
void set_list(void);
/* gpushim, or gpushim-broker where it was called by that name. */
extern const char *command_program;

/* All text goes out by these, a line each, without its newline, made printable: what others call
 * themselves may be in it as it came. JSON and Prometheus' text do that for themselves. */
/* A line on standard error, after the program's name. */
void command_complain(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* A line on standard output. COMMAND_WRONG where it cannot be written. */
int command_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* What -h says of it; the same. */
int command_tell(const struct command *command);

/* What there is of a file, without its last newline; "" where it cannot be read. How many bytes:
 * zeros may be among them. */
size_t command_read(const char *path, char *ret_text, size_t size);
/* As command_read, of /proc/PID/NAME. */
size_t command_read_of(long pid, const char *name, char *ret_text, size_t size);
/* What an allocation gave; where it gave nothing that is said, and the program ends. */
void *command_need(void *memory);
/* One more of an array that has room for `room`. */
#define COMMAND_NEXT(array, count, room) \
    ((array) = command_room(array, count, &(room), sizeof *(array)), &(array)[(count)++])
void *command_room(void *items, size_t count, size_t *room, size_t size);
/* Whether both paths are one file that is there. */
bool command_is_same_file(const char *one, const char *other);

/* The configuration of the user who runs this, read once; complaints go to standard error. Never
 * NULL. */
const struct gs_config *command_config(void);
/* What core/share needs of it, as a broker's. NULL; or what is wrong with it: then it has no
 * folder. */
const char *command_share_options(struct gs_share_options **ret);

/* Files that a command writes for its user. One that the user has is never written over, unless the
 * same command made it: its head says so. What is written appears as a whole. */
#define OUTPUT_HEAD 128

struct output {
    const char *head; /* begins all that is written, and nothing of others */
    size_t head_size; /* at most OUTPUT_HEAD */
    mode_t mode;      /* of the file, whatever the umask says */
    bool (*write)(FILE *file, const void *arg); /* false, maybe with errno: it failed */
};

/* Writes it to a file of this name. False, and said: it could not be, and nothing has changed. */
bool output_write(const struct output *output, const char *path, const void *arg);

/* gpushim export: asks all processes and writes what they have in Prometheus' text format (0.0.4).
 * False: it could not be written. */
bool export_write(FILE *file, const void *unused);
/* Serves it at ADDRESS:PORT until SIGTERM or SIGINT. The program's exit status. */
int export_serve(const struct call *call, const char *where);

/* What a request is to be answered with (HTTP's number; 200: the figures), and the host by which
 * this server was asked, without its port, "" where it does not say; 0: its head is not there as a
 * whole. */
#define HTTP_HOST 256
int http_read(const char *text, char ret_host[HTTP_HOST]);

/* How a command is called: its line, read by its row of the table (commands.h). */
struct call {
    const struct command *command;
    int argc; /* what is no option of its, in order; NULL behind it */
    char **argv;
    struct given {
        const struct command_option *option;
        const char *value; /* "": it takes none */
    } *given;              /* in order */
    unsigned count;
};

/* The pid that the n-th argument is; 0: there is none, or it is another word that may stand there.
 */
long call_pid(const struct call *call, int n);

/* Reads argv, argv[0] being the name. CALL_GOES_ON: the command is to be run; else what to exit
 * with: help was asked for, or what is wrong was said. It ends with call_end in any case. */
#define CALL_GOES_ON (-1)
int call_read(const struct command *command, int argc, char **argv, struct call *ret);
void call_end(struct call *call);

/* What the option was given last; NULL: it was not. */
const char *call_value(const struct call *call, const char *option);
bool call_has(const struct call *call, const char *option);

/* The object of --json, begun, with a list of rows or without; NULL: text is wanted. */
struct json *call_json(const struct call *call, bool rows);

/* The option's "30s", "0.5 s" or "2", seconds from `least` to a day, in ns; what is there stays
 * where it was not given. False, and said as call_wrong does: it is none. */
bool call_seconds(const struct call *call, const char *option, double least, uint64_t *ret_ns);

/* COMMAND_USAGE; one line says what is wrong, and where help is. */
int call_wrong(const struct call *call, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* NULL, and said: there is none of that name. */
const struct command *command_find(const char *name);

/* `gpushim --complete WORD...`: what may stand in the place of the last word, a line each with a
 * tab and what it is; ":file", and ":program N" where the N-th word is that of a program whose line
 * it is from there on. */
int call_complete(int argc, char **argv);

#endif
