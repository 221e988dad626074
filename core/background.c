/* Threads of the library's own (core/background.h). */
#include "core/background.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STACK_SIZE (256 * 1024) /* the driver's unmap, release and export run on it */
#define LOOK_FIRST UINT64_C(1000000000)
#define LOOK_MOST  (8 * LOOK_FIRST)
#define STAT_SIZE  1024
#define THREADS_AT 17 /* fields after the state in /proc/self/stat */

/* How many there are in the process; one that begins or ends may be missing. */
static long running;
static bool leaving; /* somebody has started the thread that exits */

static void *count_and_run(void *arg)
{
    struct gs_background *background = arg;
    void *result;

    __atomic_fetch_add(&running, 1, __ATOMIC_SEQ_CST);
    result = background->run(background->arg);
    __atomic_fetch_sub(&running, 1, __ATOMIC_SEQ_CST);
    return result;
}

int gs_background_start(struct gs_background *background, void *(*run)(void *arg), void *arg)
{
    sigset_t all;
    pthread_attr_t attributes;
    int error;

    background->run = run;
    background->arg = arg;
    background->due_ns = 0;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &background->mask);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_SIZE);
    error = pthread_create(&background->thread, &attributes, count_and_run, background);
    if (error == EINVAL) /* the program's thread-local data alone is larger than that */
        error = pthread_create(&background->thread, NULL, count_and_run, background);
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &background->mask, NULL);
    return error;
}

/* Whether main has ended, and how many threads there are, that one included as long as others run.
 * False also where /proc does not say. */
static bool main_has_gone(long *ret_threads)
{
    char text[STAT_SIZE];
    int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    ssize_t length = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
    char *field;

    if (fd >= 0)
        close(fd);
    text[length < 0 ? 0 : length] = '\0';
    field = strrchr(text, ')'); /* the end of the name, which may have anything in it */
    if (!field || (strncmp(field, ") Z", 3) != 0 && strncmp(field, ") X", 3) != 0))
        return false;
    field += 2;
    for (int i = 0; field && i < THREADS_AT; i++)
        field = strchr(field + 1, ' ');
    *ret_threads = field ? strtol(field, NULL, 10) : 0;
    return *ret_threads > 0;
}

/* On a thread like any of the program's: its exit handlers run here. */
static void *leave(void *arg)
{
    pthread_sigmask(SIG_SETMASK, arg, NULL);
    exit(EXIT_SUCCESS);
    return NULL;
}

uint64_t gs_background_tick(struct gs_background *background, uint64_t now)
{
    pthread_t thread;
    long threads;

    if (!background->due_ns) {
        background->pause_ns = LOOK_FIRST;
    } else if (now < background->due_ns) {
        return background->due_ns;
    } else if (!main_has_gone(&threads)) {
        background->pause_ns *= background->pause_ns < LOOK_MOST ? 2 : 1;
    } else {
        background->pause_ns = LOOK_FIRST;
        if (threads == 1 + __atomic_load_n(&running, __ATOMIC_SEQ_CST) &&
            !__atomic_exchange_n(&leaving, true, __ATOMIC_SEQ_CST) &&
            pthread_create(&thread, NULL, leave, &background->mask) != 0)
            __atomic_store_n(&leaving, false, __ATOMIC_SEQ_CST); /* the next look tries again */
    }
    background->due_ns = now + background->pause_ns;
    return background->due_ns;
}
