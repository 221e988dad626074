/* Writing unnoticed (core/base/quiet.h). */
#include "core/base/quiet.h"

#include <errno.h>
#include <stddef.h>
#include <time.h>

bool gs_quiet_begin(struct gs_quiet *quiet)
{
    sigset_t held;

    sigemptyset(&held);
    sigaddset(&held, SIGPIPE);
    sigaddset(&held, SIGXFSZ);
    sigaddset(&held, SIGTTOU);
    if (sigprocmask(SIG_BLOCK, &held, &quiet->before) != 0)
        return false;
    sigpending(&quiet->raised);
    return true;
}

void gs_quiet_end(const struct gs_quiet *quiet, int error)
{
    const struct timespec at_once = {0};
    sigset_t one;

    if (error == EPIPE || error == EFBIG) {
        int signal = error == EPIPE ? SIGPIPE : SIGXFSZ;

        sigemptyset(&one);
        sigaddset(&one, signal);
        if (!sigismember(&quiet->raised, signal))
            sigtimedwait(&one, NULL, &at_once);
    }
    sigprocmask(SIG_SETMASK, &quiet->before, NULL);
}
