/*
 * The threads of the library's own: the arenas' trimmer, the share thread, and what these
 * start. Every signal is blocked in them, so the program's handlers never run there.
 *
 * A process whose main was left by pthread_exit ends when its last thread does, by libc's count,
 * which has ours in it. That it does not end for ours alone is no change: each of ours begins after
 * the driver has made a context, and from then on the driver has threads that never end, by which
 * such a process goes on without the library too (measured on an H200, driver 580).
 */
#ifndef GS_CORE_BASE_BACKGROUND_H
#define GS_CORE_BASE_BACKGROUND_H

#include <pthread.h>
#include <stdbool.h>

struct gs_background {
    pthread_t thread;
};

/* Starts `run` in a thread, to be joined, or detached. 0, or an errno. */
int gs_background_start(struct gs_background *background, void *(*run)(void *arg), void *arg);
/* Waits for its end, which is for whoever joins to bring about. */
void gs_background_join(struct gs_background *background);
/* Whether the caller is that thread, which has been started. */
bool gs_background_is_this(const struct gs_background *background);

#endif
