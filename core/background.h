/*
 * The threads of the library's own: the pool's decay thread, the share thread, and what these
 * start. Every signal is blocked in them, so the program's handlers never run there.
 *
 * They do not keep a process alive. A process whose main was left by pthread_exit ends when its
 * last thread does, by libc's count, which has ours in it; and where ours were the only ones left,
 * no signal but SIGKILL could end it. So each of them looks now and then whether main has gone,
 * and, once it has, whether any thread but ours is left; if not, the process exits as libc would
 * have made it. Nothing tells a thread that main has ended, hence the looks, each one read of
 * /proc/self/stat: after 1, 2 and 4 s, then every 8 s; once main has gone, every second.
 *
 * A driver's threads are not ours: what they keep alive stays so. Those of a real driver do keep
 * such a process alive, with the library and without (measured on an H200, driver 580).
 */
#ifndef GS_CORE_BACKGROUND_H
#define GS_CORE_BACKGROUND_H

#include <pthread.h>
#include <signal.h>
#include <stdint.h>

struct gs_background {
    pthread_t thread;
    void *(*run)(void *arg);
    void *arg;
    sigset_t mask; /* of the thread that started it */
    /* The thread's own. */
    uint64_t due_ns, pause_ns; /* when it looks next, and how long after the last look */
};

/* Starts `run` in a thread, to be joined by its `thread`; *background lives until then. 0, or an
 * errno. */
int gs_background_start(struct gs_background *background, void *(*run)(void *arg), void *arg);

/* The thread itself, without a lock: looks if it is time. When to come again; `now` and that are
 * times of CLOCK_MONOTONIC. */
uint64_t gs_background_tick(struct gs_background *background, uint64_t now);

#endif
