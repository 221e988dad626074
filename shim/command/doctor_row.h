/* A row as it goes from the child that asks the driver to its parent, and out. */
#ifndef GS_SHIM_COMMAND_DOCTOR_ROW_H
#define GS_SHIM_COMMAND_DOCTOR_ROW_H

#include <limits.h>

#include "shim/command/doctor.h"

struct doctor_row {
    enum doctor_state state;
    char subject[32];
    char found[DOCTOR_TEXT];
    char remedy[DOCTOR_TEXT];
};

_Static_assert(sizeof(struct doctor_row) <= PIPE_BUF, "a row goes through a pipe whole");

void doctor_put(struct doctor *doctor, const struct doctor_row *row);

#endif
