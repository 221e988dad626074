/*
 * Writing of which the program notices nothing, whatever the target and however it fails: a pipe
 * that nobody reads would end it by SIGPIPE, a limit on the size of files by SIGXFSZ, and a
 * terminal that it is in the background of may stop it by SIGTTOU. Such a signal goes to the thread
 * that writes: held back meanwhile and taken away, unless one was there before.
 */
#ifndef GS_CORE_BASE_QUIET_H
#define GS_CORE_BASE_QUIET_H

#include <signal.h>
#include <stdbool.h>

struct gs_quiet {
    sigset_t before, raised;
};

/* False: it cannot be had, and nothing is to be written. */
bool gs_quiet_begin(struct gs_quiet *quiet);
/* `error` is the errno of the write, 0: it did not fail. */
void gs_quiet_end(const struct gs_quiet *quiet, int error);

#endif
