/* Threads of the library's own (core/base/background.h). */
#include "core/base/background.h"

#include <errno.h>
#include <signal.h>

#define STACK_SIZE (256 * 1024) /* the driver's unmap, release and export run on it */

int gs_background_start(struct gs_background *background, void *(*run)(void *arg), void *arg)
{
    sigset_t all, mask;
    pthread_attr_t attributes;
    int error;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &mask);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_SIZE);
    error = pthread_create(&background->thread, &attributes, run, arg);
    if (error == EINVAL) /* the program's thread-local data alone is larger than that */
        error = pthread_create(&background->thread, NULL, run, arg);
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &mask, NULL);
    return error;
}

void gs_background_join(struct gs_background *background)
{
    pthread_join(background->thread, NULL);
}

bool gs_background_is_this(const struct gs_background *background)
{
    return pthread_equal(background->thread, pthread_self());
}
