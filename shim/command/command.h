/*
 * The commands of the program `gpushim`, one file each, and what they share. main.c has their
 * table.
 *
 * A command gets its own arguments, argv[0] being its name, and returns the program's exit status.
 * What it finds goes to standard output, as text for people or with --json for programs: the same
 * rows behind both. What is wrong goes to standard error: the cause, then the way out.
 */
#ifndef GS_SHIM_COMMAND_H
#define GS_SHIM_COMMAND_H

#include <stdbool.h>
#include <stdio.h>

#include "config/config.h"
#include "core/share/internal.h"

enum { COMMAND_WELL = 0, COMMAND_WRONG = 1, COMMAND_USAGE = 2 };

int command_broker(int argc, char **argv);
int command_cdi(int argc, char **argv);
int command_cluster(int argc, char **argv);
int command_collect(int argc, char **argv);
int command_config_list(int argc, char **argv);
int command_doctor(int argc, char **argv);
int command_export(int argc, char **argv);
int command_report(int argc, char **argv);
int command_record(int argc, char **argv);
int command_ls(int argc, char **argv);
int command_run(int argc, char **argv);
int command_set(int argc, char **argv);
int command_who(int argc, char **argv);
int command_stats(int argc, char **argv);
int command_top(int argc, char **argv);
int command_trim(int argc, char **argv);
int command_version(int argc, char **argv);

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
/* The program's own text, of several lines, on standard output; the same. */
int command_help(const char *usage);
/* COMMAND_USAGE; the usage goes to standard error. */
int command_usage(const char *usage);

/*
 * Whether the arguments are nothing but --json, if that, and at most `most` others, which come
 * first in argv[1] and on from then on. False: *ret_status is what to exit with; --help was
 * answered with the usage, or something is wrong, and said.
 */
bool command_arguments(int *argc, char **argv, int most, const char *usage, bool *ret_json,
                       int *ret_status);

/* Takes this word out of the arguments; whether it was there. */
bool command_takes(int *argc, char **argv, const char *word);

/* What there is of a file, without its last newline; "" where it cannot be read. */
void command_read(const char *path, char *ret_text, size_t size);

/* The pid that the text is; -1, and said: it is none. */
long command_pid(const char *text);

/* The configuration of the user who runs this, read once; complaints go to standard error. Never
 * NULL. */
const struct gs_config *command_config(void);
/* What core/share needs of it, as a broker's. False, and said: it cannot be. */
bool command_share_options(struct gs_share_options *options);

#endif
