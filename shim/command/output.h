/*
 * Files that a command writes for its user. One that the user has is never written over, unless the
 * same command made it: its head says so. What is written appears as a whole, and who reads the old one
 * meanwhile goes on with that.
 */
#ifndef GS_SHIM_COMMAND_OUTPUT_H
#define GS_SHIM_COMMAND_OUTPUT_H

#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>

#define OUTPUT_HEAD 128

struct output {
    const char *head; /* begins all that is written, and nothing of others */
    size_t head_size; /* at most OUTPUT_HEAD */
    mode_t mode;      /* of the file, whatever the umask says */
    bool (*write)(FILE *file, const void *arg); /* false, maybe with errno: it failed */
};

/* Writes it to a file of this name. False, and said: it could not be, and nothing has changed. */
bool output_write(const struct output *output, const char *path, const void *arg);

#endif
