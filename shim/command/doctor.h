/*
 * gpushim doctor: what stands in the way of the library, here or in one process.
 *
 * Each subject is a function in a file of its own, which says what it finds by doctor_say, row
 * after row; doctor.c has their table and puts the rows out. A row that is not ok says the way out.
 */
#ifndef GS_SHIM_COMMAND_DOCTOR_H
#define GS_SHIM_COMMAND_DOCTOR_H

#include <limits.h>

#include "shim/command/command.h"
#include "shim/command/run.h"

/* FAIL: the library does nothing here, or cannot share. WARN: it does less, or somebody may wonder.
 */
enum doctor_state { DOCTOR_OK, DOCTOR_WARN, DOCTOR_FAIL };

#define DOCTOR_TEXT 640 /* what was found, and the way out */

/* As it goes from the child that asks the driver to its parent, and out. */
struct doctor_row {
    enum doctor_state state;
    char subject[32];
    char found[DOCTOR_TEXT];
    char remedy[DOCTOR_TEXT];
};

_Static_assert(sizeof(struct doctor_row) <= PIPE_BUF, "a row goes through a pipe whole");

struct doctor {
    const struct gs_config *config;
    const struct gs_share_options *options;
    int to_parent; /* rows go through this pipe; -1: they are kept */
    struct doctor_row *rows;
    size_t count, room;
    bool failed;
    char library[PATH_MAX]; /* that is beside this program; "": none is */
};

void doctor_put(struct doctor *doctor, const struct doctor_row *row);
/* A row. `remedy` is for one that is not ok. */
void doctor_say(struct doctor *doctor, enum doctor_state state, const char *subject,
                const char *remedy, const char *format, ...) __attribute__((format(printf, 5, 6)));

/* ---- Subjects ------------------------------------------------------------------------------- */

/* The driver is asked in a child: it may wait for ever, or end its process. */
void doctor_driver(struct doctor *doctor); /* doctor_driver.c */
void doctor_folder(struct doctor *doctor); /* doctor_folder.c */
void doctor_sockets(struct doctor *doctor);
void doctor_library(struct doctor *doctor); /* doctor_process.c */
void doctor_preload(struct doctor *doctor);
void doctor_processes(struct doctor *doctor);
void doctor_process(struct doctor *doctor, long pid);

/* ---- Shared by them ------------------------------------------------------------------------- */

/* Whether the process has put up a socket in the folder, and whether it answers. */
void doctor_look_for_socket(struct doctor *doctor, long pid);

struct nvml_memory { /* nvmlMemory_t */
    unsigned long long total, left, used;
};

/* What NVIDIA's library of management says of a GPU, past whatever is preloaded here. False: it is
 * not here, or knows none. *ret_mig: it is a part of a GPU, by MIG. */
bool nvml_memory(const unsigned char uuid[16], struct nvml_memory *ret, bool *ret_mig);

#endif
