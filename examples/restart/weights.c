/*
 * A model's weights in GPU memory that outlive the process that loaded them. Two programs in one,
 * neither of which knows of libgpushim:
 *
 *   weights load FILE   takes over the weights whose handle FILE has, if they can still be opened;
 *                       otherwise loads them, shares them and writes their handle to FILE
 *   weights read FILE   opens the weights and reads them again and again
 *
 * Each says one line when it is ready and runs until its standard input ends. The reader then reads
 * once more and says how it went: its exit status is 0 if it read the right bytes each time.
 */
#include "../share/gpu.h"

#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BYTES ((size_t)4 << 20)
#define BYTE  42

static void must(const char *failed, const char *what)
{
    if (!failed)
        return;
    fprintf(stderr, "weights: %s: %s\n", what, failed);
    exit(1);
}

static bool read_handle(const char *path, struct gpu_handle *ret)
{
    FILE *file = fopen(path, "rb");
    bool whole = file && fread(ret, sizeof *ret, 1, file) == 1;

    if (file)
        fclose(file);
    return whole;
}

/* Written aside and renamed: a reader never sees half a handle. */
static void write_handle(const char *path, const struct gpu_handle *handle)
{
    char aside[4096];
    FILE *file;

    snprintf(aside, sizeof aside, "%s.new", path);
    file = fopen(aside, "wb");
    if (!file || fwrite(handle, sizeof *handle, 1, file) != 1 || fclose(file) != 0 ||
        rename(aside, path) != 0) {
        perror(aside);
        exit(1);
    }
}

/* Waits up to `milliseconds`; whether standard input has ended. */
static bool input_ended(int milliseconds)
{
    struct pollfd input = {.fd = 0, .events = POLLIN};
    char byte;

    return poll(&input, 1, milliseconds) > 0 && read(0, &byte, 1) <= 0;
}

static void say(const char *line)
{
    puts(line);
    fflush(stdout);
}

static int load(const char *path)
{
    struct gpu_handle handle;
    gpu_address weights;

    if (read_handle(path, &handle) && !gpu_open(&handle, &weights)) {
        say("took the weights over");
    } else {
        must(gpu_alloc(BYTES, &weights), "allocate");
        must(gpu_fill(weights, BYTE, BYTES), "load");
        must(gpu_share(weights, &handle), gpu_share_name);
        write_handle(path, &handle);
        say("loaded the weights");
    }
    while (!input_ended(1000))
        continue;
    return 0; /* with everything open, as a process that is restarted leaves it */
}

static int read_on(const char *path)
{
    unsigned char *bytes = malloc(BYTES);
    unsigned long rounds = 0, wrong = 0;
    struct gpu_handle handle;
    gpu_address weights;

    if (!bytes || !read_handle(path, &handle)) {
        fprintf(stderr, "weights: no handle in %s; start a loader first\n", path);
        return 1;
    }
    must(gpu_open(&handle, &weights), "open");
    say("reading");
    for (bool ended = false, last = false; !last; ended = ended || input_ended(10)) {
        last = ended;
        must(gpu_read(weights, bytes, BYTES), "read");
        rounds++;
        wrong += bytes[0] != BYTE || memcmp(bytes, bytes + 1, BYTES - 1) != 0;
    }
    must(gpu_close(weights), "close");
    printf("read on: %lu of %lu rounds were wrong\n", wrong, rounds);
    free(bytes);
    return wrong ? 1 : 0;
}

int main(int argc, char **argv)
{
    char name[64];
    bool loads = argc == 3 && strcmp(argv[1], "load") == 0;

    if (!loads && !(argc == 3 && strcmp(argv[1], "read") == 0)) {
        fprintf(stderr, "usage: weights load|read FILE\n");
        return 2;
    }
    must(gpu_start(name, sizeof name), "start");
    return loads ? load(argv[2]) : read_on(argv[2]);
}
