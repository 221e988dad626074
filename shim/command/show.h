/* How commands show things to people: sizes and ages each in one way, and tables that fit where
 * they are read. */
#ifndef GS_SHIM_COMMAND_SHOW_H
#define GS_SHIM_COMMAND_SHOW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

/* Text that is there as long as the statement that asks for it. */
struct shown {
    char text[48];
};

/* "640 bytes", "1.5 GiB": of nine columns at most up to 999.9 TiB. */
struct shown show_size(uint64_t bytes);
/* "59 s", "12 min", "47 h", "5 d". */
struct shown show_age(uint64_t ns);

/* "2026-11-23T21:29:15Z". */
struct shown show_utc(time_t seconds);

/* "GPU-00112233-4455-...", as nvidia-smi and NVML have it; `kind` is GPU, or MIG for a part of
 * one. */
struct shown show_uuid(const char *kind, const unsigned char uuid[16]);

/* The lines that printable text takes behind `first`, below whose end the others begin, broken at
 * blanks where they can be; they go to standard output if `says`. */
unsigned show_wrapped(const char *first, const char *text, size_t columns, bool says);
/* The columns of a character: as terminals have it, whatever the locale of who asks; one, where libc
 * has no locale that knows. */
size_t show_width(uint32_t code);
/* What of the text fits, with "..." where some does not; the columns it takes. */
size_t show_cut(const char *text, size_t columns, char *ret, size_t size);

/* Of the terminal that standard output is, or of `otherwise` where it is none. */
void show_terminal(unsigned otherwise, unsigned *ret_columns, unsigned *ret_lines);

struct sheet_column {
    const char *head;
    bool right;
    unsigned goes; /* where there is no room those with the most go first; 0: it stays */
};

/* Rows of cells; the last column is what is cut where there is no room. */
struct sheet {
    const struct sheet_column *columns;
    unsigned count;
    char **cells; /* NULL: the row ends there, and what it has first is a line of its own */
    size_t used, room;
};

/* The next cell, row by row; it is made printable. */
void sheet_put(struct sheet *sheet, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A line between rows. */
#define sheet_line(sheet, ...) (sheet_end_row(sheet), sheet_put(sheet, __VA_ARGS__))
void sheet_end_row(struct sheet *sheet);
/* The head, unless there is nothing, and the rows, each without its newline; `width` 0: as wide as
 * they are. */
void sheet_print(const struct sheet *sheet, unsigned width,
                 void (*line)(void *arg, const char *text), void *arg);
/* On standard output, as wide as that is. */
void sheet_say(const struct sheet *sheet);
void sheet_free(struct sheet *sheet);

#endif
