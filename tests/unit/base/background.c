/* A thread of the library's own takes no signal of the program's, leaves the program's mask as it
 * was, and starts however much thread-local data the program has. */
#include "core/base/background.h"
#include "tests/check.h"
#include "tests/system.h"

static _Thread_local char large[1 << 20]; /* more than a thread of the library's has by itself */
static sigset_t its;

static void *run(void *arg)
{
    memset(large, 1, sizeof large);
    pthread_sigmask(SIG_SETMASK, NULL, &its);
    return NULL;
}

/* Every signal that libc lets a program hold back. */
static void check_all_held(void)
{
    sigset_t all;

    sigfillset(&all);
    for (int signal = 1; signal < NSIG; signal++)
        if (sigismember(&all, signal) && signal != SIGKILL && signal != SIGSTOP)
            CHECK(sigismember(&its, signal));
}

static void check_start(void)
{
    struct gs_background background;
    sigset_t before, after;

    pthread_sigmask(SIG_SETMASK, NULL, &before);
    CHECK(gs_background_start(&background, run, NULL) == 0);
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    gs_background_join(&background);
    for (int signal = 1; signal < NSIG; signal++)
        CHECK(sigismember(&before, signal) == sigismember(&after, signal));
    check_all_held();
}

int main(void)
{
    sigset_t some;

    memset(large, 1, sizeof large);
    check_start();
    sigemptyset(&some);
    sigaddset(&some, SIGUSR1);
    sigaddset(&some, SIGTERM);
    pthread_sigmask(SIG_SETMASK, &some, NULL);
    check_start();
    return 0;
}
