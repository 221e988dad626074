/*
 * The commands of the program `gpushim`, one file each, and what they share. commands.c has their
 * table.
 *
 * A command gets its line as its row of the table has it read (commands.h, call.h), and returns the program's exit
 * status. What it finds goes to standard output, as text for people or with --json for programs: the same rows behind
 * both; whether that could be written main looks at the end. What is wrong goes to standard error: the cause, then the
 * way out.
 */
#ifndef GS_SHIM_COMMAND_H
#define GS_SHIM_COMMAND_H

#include <stdbool.h>
#include <stdio.h>

#include "config/config.h"
#include "core/share/internal.h"
#include "shim/command/call.h"

enum { COMMAND_WELL = 0, COMMAND_WRONG = 1, COMMAND_USAGE = 2 };

int command_broker(const struct call *call);
int command_cdi(const struct call *call);
int command_cluster(const struct call *call);
int command_collect(const struct call *call);
int command_config_list(const struct call *call);
int command_doctor(const struct call *call);
int command_export(const struct call *call);
int command_report(const struct call *call);
int command_record(const struct call *call);
int command_help(const struct call *call);
int command_ls(const struct call *call);
int command_run(const struct call *call);
int command_set(const struct call *call);
int command_sleep(const struct call *call);
int command_swap(const struct call *call);
int command_who(const struct call *call);
int command_stats(const struct call *call);
int command_top(const struct call *call);
int command_trim(const struct call *call);
int command_version(const struct call *call);
int command_wake(const struct call *call);

/* The names under which GPU memory is published that this user may ask for, and who published it, for completion. */
void ls_names(void (*each)(void *arg, const char *name, const char *process), void *arg);
/* The options that can change while a program runs, a line each on standard output, with what they may be. */
void set_list(void);
/* gpushim, or gpushim-broker where it was called by that name. */
extern const char *command_program;

/*
 * All text goes out by these, a line each, without its newline: what others call themselves, and their paths
 * and command lines, may be in it as they came, for the whole line is made printable
 * (core/base/printable.h). JSON (json.h) and Prometheus' text (export_text.c) do that for themselves.
 */
/* A line on standard error, after the program's name. */
void command_complain(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* A line on standard output. COMMAND_WRONG where it cannot be written. */
int command_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* What -h says of it; the same. */
int command_tell(const struct command *command);

/* What there is of a file, without its last newline; "" where it cannot be read. How many bytes: zeros may be among them. */
size_t command_read(const char *path, char *ret_text, size_t size);
/* The same of /proc/PID/NAME. */
size_t command_read_of(long pid, const char *name, char *ret_text, size_t size);
/* What an allocation gave; where it gave nothing that is said, and the program ends. */
void *command_need(void *memory);
/* An array with room for one more than `count`, each of `size` bytes. */
void *command_room(void *items, size_t count, size_t *room, size_t size);
/* Whether both paths are one file that is there. */
bool command_is_same_file(const char *one, const char *other);

/* The configuration of the user who runs this, read once; complaints go to standard error. Never
 * NULL. */
const struct gs_config *command_config(void);
/* What core/share needs of it, as a broker's. False, and said: it cannot be. */
bool command_share_options(struct gs_share_options *options);

#endif
