/*
 * Locks with ranks (core/base/lock.h). The check keeps the ranks a thread holds in a small stack of
 * its own; it is compiled in with GS_CHECK_LOCKS, as builds with sanitizers are, and never in what
 * is installed: a program is not ended by this library.
 */
#include "core/base/lock.h"

#include <errno.h>
#include <time.h>

#include "core/base/clock.h"

#ifdef GS_CHECK_LOCKS
#include <stdlib.h>
#include <unistd.h>

#define GS_HELD_MAX 8

static _Thread_local struct {
    enum gs_rank rank[GS_HELD_MAX];
    unsigned count;
} held;

static void fail(const char *text, size_t length)
{
    ssize_t ignored = write(STDERR_FILENO, text, length);
    (void)ignored;
    abort();
}

void gs_rank_taken(enum gs_rank rank)
{
    static const char text[] = "gpushim: a lock was taken against its rank (core/base/lock.h)\n";

    if (held.count == GS_HELD_MAX || (held.count > 0 && held.rank[held.count - 1] >= rank))
        fail(text, sizeof text - 1);
    held.rank[held.count++] = rank;
}

void gs_rank_assert_held(enum gs_rank rank)
{
    static const char text[] = "gpushim: what is called with a lock held was called without\n";

    for (unsigned i = 0; i < held.count; i++)
        if (held.rank[i] == rank)
            return;
    fail(text, sizeof text - 1);
}

void gs_rank_released(enum gs_rank rank)
{
    static const char text[] = "gpushim: a lock was released that was not the last one taken\n";

    if (held.count == 0 || held.rank[held.count - 1] != rank)
        fail(text, sizeof text - 1);
    held.count--;
}
#endif

void gs_lock_init(struct gs_lock *lock, enum gs_rank rank)
{
    pthread_mutex_init(&lock->mutex, NULL);
    lock->rank = rank;
}

void gs_lock_destroy(struct gs_lock *lock)
{
    pthread_mutex_destroy(&lock->mutex);
}

void gs_lock_take(struct gs_lock *lock)
{
    gs_rank_taken(lock->rank);
    pthread_mutex_lock(&lock->mutex);
}

int gs_lock_try(struct gs_lock *lock)
{
    if (pthread_mutex_trylock(&lock->mutex) != 0)
        return 0;
    gs_rank_taken(lock->rank);
    return 1;
}

void gs_lock_release(struct gs_lock *lock)
{
    pthread_mutex_unlock(&lock->mutex);
    gs_rank_released(lock->rank);
}

void gs_cond_init(struct gs_cond *cond)
{
    pthread_condattr_t monotonic;

    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&cond->cond, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

void gs_cond_destroy(struct gs_cond *cond)
{
    pthread_cond_destroy(&cond->cond);
}

bool gs_cond_wait_until(struct gs_cond *cond, struct gs_lock *lock, uint64_t until_ns)
{
    const struct timespec end = {.tv_sec = (time_t)(until_ns / GS_NS_PER_S),
                                 .tv_nsec = (long)(until_ns % GS_NS_PER_S)};

    return pthread_cond_timedwait(&cond->cond, &lock->mutex, &end) != ETIMEDOUT;
}

void gs_cond_wake_all(struct gs_cond *cond)
{
    pthread_cond_broadcast(&cond->cond);
}
