/* The thread that speaks to the directory (jobs.h). */
#include "shim/agent/jobs.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <uthash.h>
#include <utlist.h>

#include "core/base/clock.h"

#define RETRY_NS (GS_NS_PER_S / 2)

struct job {
    struct directory_change change;
    UT_hash_handle hh; /* by its key */
    unsigned char value[];
};

struct jobs {
    const struct directory_options *options;
    struct directory *directory; /* the thread's own */
    int wake;
    pthread_t thread;
    /* Protects all below; no operation of the directory is called with it held. */
    pthread_mutex_t lock;
    pthread_cond_t more;
    struct job *writes, *asks; /* by key */
    struct jobs_event *events;
    uint64_t good_until_ns;
    bool ending, was_good, said;
    unsigned news;
    char trouble[DIRECTORY_REASON];
    bool takes_nothing; /* the thread's own: the last write failed, though the lease is kept */
};

/* ---- What comes of it ----------------------------------------------------------------------- */

static void wake(struct jobs *jobs)
{
    const uint64_t one = 1;

    if (write(jobs->wake, &one, sizeof one) < 0)
        return; /* it is full: it wakes */
}

struct jobs_event *jobs_take(struct jobs *jobs)
{
    struct jobs_event *event;

    pthread_mutex_lock(&jobs->lock);
    event = jobs->events;
    if (event)
        DL_DELETE(jobs->events, event);
    pthread_mutex_unlock(&jobs->lock);
    return event;
}

unsigned jobs_news(struct jobs *jobs, char ret_trouble[DIRECTORY_REASON])
{
    unsigned news;

    pthread_mutex_lock(&jobs->lock);
    news = jobs->news;
    jobs->news = 0;
    if (news & JOBS_STATE)
        strcpy(ret_trouble, jobs->trouble);
    pthread_mutex_unlock(&jobs->lock);
    return news;
}

/* Told when it changes, and the first time: it answers, and takes what is written (etcd without
 * room does not). */
static void tell_state(struct jobs *jobs)
{
    const char *reason = directory_head(jobs->directory)->reason;
    const bool good = jobs_is_good(jobs) && !jobs->takes_nothing;

    if (jobs->said && jobs->was_good == good)
        return;
    jobs->said = true;
    jobs->was_good = good;
    pthread_mutex_lock(&jobs->lock);
    strcpy(jobs->trouble, good ? "" : reason[0] ? reason : "what it answers comes too late");
    jobs->news |= JOBS_STATE;
    pthread_mutex_unlock(&jobs->lock);
    wake(jobs);
}

/* ---- The thread ----------------------------------------------------------------------------- */

static void keep_lease(struct jobs *jobs)
{
    const uint64_t began = gs_now_ns();
    bool anew, good = directory_head(jobs->directory)->ops->keep(jobs->directory, &anew);

    pthread_mutex_lock(&jobs->lock);
    if (good)
        jobs->good_until_ns = began + jobs->options->lease_s * GS_NS_PER_S;
    jobs->news |= good && anew ? JOBS_WANT_ALL : 0; /* it is looked at ten times a second */
    pthread_mutex_unlock(&jobs->lock);
    tell_state(jobs);
}

static void answer(struct jobs *jobs, const struct directory_key *key)
{
    struct jobs_event *event = calloc(1, sizeof *event);

    if (!event)
        return;
    event->key = *key;
    event->found =
        directory_head(jobs->directory)->ops->get(jobs->directory, key, event->value, &event->size);
    if (event->found == DIRECTORY_FAILED)
        strcpy((char *)event->value, directory_head(jobs->directory)->reason);
    pthread_mutex_lock(&jobs->lock);
    DL_APPEND(jobs->events, event);
    pthread_mutex_unlock(&jobs->lock);
    wake(jobs);
}

/* Some of what is to be written. What could not be is to be again, unless there is a newer
 * value. */
static bool write_some(struct jobs *jobs)
{
    static struct directory_change changes[DIRECTORY_CHANGES]; /* this thread's alone */
    struct job *batch[DIRECTORY_CHANGES], *job, *next, *newer;
    unsigned count = 0;
    bool good;

    pthread_mutex_lock(&jobs->lock);
    HASH_ITER(hh, jobs->writes, job, next) {
        if (count == DIRECTORY_CHANGES)
            break;
        HASH_DEL(jobs->writes, job);
        changes[count] = job->change;
        batch[count++] = job;
    }
    pthread_mutex_unlock(&jobs->lock);
    good = directory_head(jobs->directory)->ops->write(jobs->directory, changes, count);
    pthread_mutex_lock(&jobs->lock);
    for (unsigned i = 0; i < count; i++) {
        HASH_FIND(hh, jobs->writes, &batch[i]->change.key, sizeof changes->key, newer);
        if (good || newer)
            free(batch[i]);
        else
            HASH_ADD(hh, jobs->writes, change.key, sizeof changes->key, batch[i]);
    }
    pthread_mutex_unlock(&jobs->lock);
    jobs->takes_nothing = !good;
    tell_state(jobs);
    return good;
}

/* Waits until there is something to do, or until then. False: it is to end. */
static bool wait_until_locked(struct jobs *jobs, uint64_t until_ns, bool writes)
{
    const struct timespec until = {.tv_sec = (time_t)(until_ns / GS_NS_PER_S),
                                   .tv_nsec = (long)(until_ns % GS_NS_PER_S)};

    while (!jobs->ending && !jobs->asks && !(writes && jobs->writes) && gs_now_ns() < until_ns)
        pthread_cond_timedwait(&jobs->more, &jobs->lock, &until);
    return !jobs->ending;
}

static void *work(void *arg)
{
    struct jobs *jobs = arg;
    const uint64_t every = jobs->options->lease_s * GS_NS_PER_S / 3;
    uint64_t due = 0, write_due = 0;

    for (;;) {
        uint64_t now = gs_now_ns();
        struct job *ask;
        bool goes_on, writes;

        if (now >= due) {
            keep_lease(jobs);
            due = gs_now_ns() + (jobs_is_good(jobs) && jobs->was_good ? every : RETRY_NS);
            if (due > now + every)
                due = now + every;
        }
        pthread_mutex_lock(&jobs->lock);
        goes_on =
            wait_until_locked(jobs, write_due > gs_now_ns() && write_due < due ? write_due : due,
                              gs_now_ns() >= write_due);
        ask = goes_on ? jobs->asks : NULL;
        if (ask)
            HASH_DEL(jobs->asks, ask);
        writes = jobs->writes && gs_now_ns() >= write_due;
        pthread_mutex_unlock(&jobs->lock);
        if (!goes_on)
            return NULL;
        if (ask)
            answer(jobs, &ask->change.key);
        else if (writes && (!jobs_is_good(jobs) || !write_some(jobs)))
            write_due = gs_now_ns() + RETRY_NS;
        free(ask);
    }
}

/* ---- From the agent's thread ---------------------------------------------------------------- */

static void put(struct jobs *jobs, struct job **list, enum directory_kind kind,
                const unsigned char id[16], const void *value, size_t size)
{
    struct job *job = calloc(1, sizeof *job + size), *old;

    pthread_mutex_lock(&jobs->lock);
    if (!job) {
        jobs->news |= JOBS_WANT_ALL;
        pthread_mutex_unlock(&jobs->lock);
        return;
    }
    job->change = (struct directory_change){.key.kind = kind,
                                            .value = value ? memcpy(job->value, value, size) : NULL,
                                            .size = size};
    memcpy(job->change.key.id, id, sizeof job->change.key.id);
    HASH_FIND(hh, *list, &job->change.key, sizeof job->change.key, old);
    if (old) {
        HASH_DEL(*list, old);
        free(old);
    }
    HASH_ADD(hh, *list, change.key, sizeof job->change.key, job);
    pthread_cond_signal(&jobs->more);
    pthread_mutex_unlock(&jobs->lock);
}

void jobs_write(struct jobs *jobs, enum directory_kind kind, const unsigned char id[16],
                const void *value, size_t size)
{
    put(jobs, &jobs->writes, kind, id, value, size);
}

void jobs_ask(struct jobs *jobs, enum directory_kind kind, const unsigned char id[16])
{
    put(jobs, &jobs->asks, kind, id, NULL, 0);
}

uint64_t jobs_left_ns(struct jobs *jobs)
{
    const uint64_t now = gs_now_ns();
    uint64_t until;

    pthread_mutex_lock(&jobs->lock);
    until = jobs->good_until_ns;
    pthread_mutex_unlock(&jobs->lock);
    return until > now ? until - now : 0;
}

bool jobs_is_good(struct jobs *jobs)
{
    return jobs_left_ns(jobs) > 0;
}

struct jobs *jobs_start(const struct directory_options *options, int wake, char *ret_reason)
{
    struct jobs *jobs = calloc(1, sizeof *jobs);
    pthread_condattr_t steady;

    if (!jobs)
        return NULL;
    jobs->options = options;
    jobs->wake = wake;
    pthread_mutex_init(&jobs->lock, NULL);
    pthread_condattr_init(&steady);
    pthread_condattr_setclock(&steady, CLOCK_MONOTONIC);
    pthread_cond_init(&jobs->more, &steady);
    jobs->directory = directory_open(options, ret_reason);
    if (!jobs->directory || pthread_create(&jobs->thread, NULL, work, jobs) != 0)
        return NULL; /* the program ends */
    return jobs;
}

void jobs_end(struct jobs *jobs)
{
    pthread_mutex_lock(&jobs->lock);
    jobs->ending = true;
    pthread_cond_signal(&jobs->more);
    pthread_mutex_unlock(&jobs->lock);
    pthread_join(jobs->thread, NULL);
    if (jobs_is_good(jobs))
        directory_head(jobs->directory)->ops->give_up(jobs->directory);
}
