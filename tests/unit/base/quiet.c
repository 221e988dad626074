/* What a program has of a write that failed, or of a wait for a latch: its own errno, mask and
 * signals. */
#include <criterion/criterion.h>

#include "core/base/latch.h"
#include "core/base/quiet.h"
#include "tests/check.h"
#include "tests/system.h"

static bool is_pending(int signal)
{
    sigset_t pending;

    sigpending(&pending);
    return sigismember(&pending, signal);
}

static void hold_back(int signal)
{
    sigset_t held;

    sigemptyset(&held);
    sigaddset(&held, signal);
    cr_assert_eq(sigprocmask(SIG_BLOCK, &held, NULL), 0);
}

/* A write that raises the signal. */
static int fails(int signal)
{
    int ends[2], error;

    if (signal == SIGPIPE) {
        cr_assert_eq(pipe(ends), 0);
        close(ends[0]);
    } else {
        const struct rlimit none = {0, RLIM_INFINITY};

        ends[1] = open("/tmp", O_TMPFILE | O_RDWR, 0600);
        cr_assert_eq(setrlimit(RLIMIT_FSIZE, &none), 0);
    }
    cr_assert_eq(write(ends[1], "", 1), -1);
    error = errno;
    close(ends[1]);
    return error;
}

static const int signals[] = {SIGPIPE, SIGXFSZ};

Test(quiet, the_programs_own_signal_stays, .timeout = 60)
{
    for (int i = 0; i < 2; i++) {
        struct gs_quiet quiet;

        hold_back(signals[i]);
        raise(signals[i]);
        cr_assert(gs_quiet_begin(&quiet));
        gs_quiet_end(&quiet, fails(signals[i]));
        cr_assert(is_pending(signals[i]), "signal %d", signals[i]);
    }
}

Test(quiet, the_writes_is_taken_away, .timeout = 60)
{
    for (int i = 0; i < 2; i++) {
        sigset_t before, after;
        struct gs_quiet quiet;

        sigprocmask(SIG_BLOCK, NULL, &before);
        cr_assert(gs_quiet_begin(&quiet));
        gs_quiet_end(&quiet, fails(signals[i])); /* it would end this process */
        sigprocmask(SIG_BLOCK, NULL, &after);
        for (int signal = 1; signal < NSIG; signal++)
            cr_assert_eq(sigismember(&before, signal), sigismember(&after, signal));
        hold_back(signals[i]);
        cr_assert_not(is_pending(signals[i]));
    }
}

/* ---- Waiting for a latch --------------------------------------------------------------------- */

static struct gs_latch latch;
static pthread_t waiter;

static void *waits(void *arg)
{
    errno = 77;
    gs_latch_take(&latch);
    gs_latch_release(&latch);
    return (void *)(intptr_t)errno;
}

static void nothing(int signal)
{
}

/* Signals end its sleep, and its state changes under it before it sleeps. */
Test(quiet, a_wait_for_a_latch_keeps_errno, .timeout = 60)
{
    const struct sigaction action = {.sa_handler = nothing}; /* without SA_RESTART */

    sigaction(SIGUSR1, &action, NULL);
    for (int round = 0; round < 50; round++) {
        void *error;

        gs_latch_init(&latch, GS_RANK_ARENA);
        gs_latch_take(&latch);
        cr_assert_eq(pthread_create(&waiter, NULL, waits, NULL), 0);
        while (__atomic_load_n(&latch.state, __ATOMIC_RELAXED) != 2)
            sched_yield(); /* it is about to sleep */
        for (int i = 0; i < round; i++) {
            pthread_kill(waiter, SIGUSR1);
            usleep(100);
        }
        errno = 78;
        gs_latch_release(&latch);
        cr_assert_eq(errno, 78);
        pthread_join(waiter, &error);
        cr_assert_eq((intptr_t)error, 77, "round %d", round);
    }
}
