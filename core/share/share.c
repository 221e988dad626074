/* Sharing as a whole (core/share/share.h): made with nothing open, started by the first use. */
#include "core/share/discard.h"
#include "core/share/exporter.h"
#include "core/share/opener.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LOOK_MOST_NS (20 * GS_NS_PER_MS)

uint64_t gs_look_counts(uint64_t *looked)
{
    uint64_t now = gs_now_ns(), took = now - *looked;

    *looked = now;
    return took < LOOK_MOST_NS ? took : LOOK_MOST_NS;
}

/* Whether whom one waits for can run meanwhile. */
static bool has_cpus(void)
{
    cpu_set_t cpus;

    /* It fails where there are more than the set has room for. */
    return sched_getaffinity(0, sizeof cpus, &cpus) != 0 || CPU_COUNT(&cpus) > 1;
}

gs_status gs_share_create(const struct gs_driver *driver, struct gs_map *map,
                          struct gs_fences *fences, const struct gs_log *log,
                          const struct gs_share_options *options,
                          const struct gs_share_events *events, struct gs_share **ret_share)
{
    struct gs_share *share = calloc(1, sizeof *share);
    pthread_condattr_t monotonic;

    if (!share)
        return GS_NO_HOST_MEMORY;
    if (!gs_instance_new(getpid(), share->instance)) {
        gs_log_line(log, GS_LOG_ERROR,
                    "the kernel gives no random bytes (getrandom: %s), and handles of memory need "
                    "them: allow that call (seccomp)",
                    strerror(errno));
        free(share);
        return GS_NO_RANDOM;
    }
    for (unsigned i = 0; i < GS_INSTANCE_SIZE; i++)
        snprintf(share->name + 2 * i, 3, "%02x", share->instance[i]);
    if (options->is_broker)
        gs_broker_name(share->name);
    share->driver = driver;
    share->map = map;
    share->fences = fences;
    share->log = *log;
    share->options = *options;
    share->events = *events;
    share->pid = getpid();
    share->spins = has_cpus();
    share->grace_due_ns = share->limbo_due_ns = share->sweep_ns = share->look_ns = GS_NEVER;
    share->broker_fd = -1;
    share->epoll = share->wake = share->woken = share->directory = share->listener = share->spare_fd = -1;
    gs_lock_init(&share->lock, GS_RANK_SHARE);
    gs_lock_init(&share->opener_lock, GS_RANK_OPENER);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&share->started, &monotonic);
    pthread_cond_init(&share->opener_changed, &monotonic);
    pthread_cond_init(&share->given_back, &monotonic);
    pthread_condattr_destroy(&monotonic);
    *ret_share = share;
    return GS_OK;
}

/* Closes what the share thread used; it is not running. What the program has closed is not ours. */
static void close_descriptors(struct gs_share *share)
{
    struct gs_fd spare = share->wake_kept; /* the same pipe, */

    spare.fd = share->spare_fd; /* by another number */
    if (share->spare_fd >= 0)
        gs_fd_close(&spare);
    gs_fd_close(&share->listener_is);
    gs_fd_close(&share->directory_is);
    share->listener_is = share->directory_is = (struct gs_fd){0};
    share->listener = share->directory = share->spare_fd = -1;
    if (share->epoll >= 0 && gs_epoll_is_there(share))
        close(share->epoll);
    gs_fd_close(&share->wake_kept);
    gs_fd_close(&share->woken_kept);
    share->wake_kept = share->woken_kept = (struct gs_fd){0};
    share->epoll = share->wake = share->woken = -1;
}

void gs_share_destroy(struct gs_share *share)
{
    if (!share)
        return;
    if (share->thread_start == GS_STARTED) {
        __atomic_store_n(&share->stop, true, __ATOMIC_RELEASE);
        gs_thread_wake(share);
        pthread_join(share->background.thread, NULL);
    }
    if (share->directory >= 0 && !gs_socket_is_given(share)) {
        unlinkat(share->directory, share->name, 0);
        gs_sweep(share);
    }
    gs_closing_finish(share);
    gs_clients_free(share);
    gs_broker_free(share);
    gs_offers_free(share);
    gs_exports_free(share);
    gs_relay_free(share);
    gs_keeps_free(share);
    close_descriptors(share);
    pthread_cond_destroy(&share->started);
    pthread_cond_destroy(&share->opener_changed);
    pthread_cond_destroy(&share->given_back);
    gs_lock_destroy(&share->lock);
    gs_lock_destroy(&share->opener_lock);
    free(share);
}

void gs_share_at_exit(struct gs_share *share)
{
    int saved = errno;
    int directory;

    if (!share || share->pid != getpid())
        return;
    gs_say_unopened(share);
    __atomic_store_n(&share->ending, true, __ATOMIC_RELEASE);
    directory = __atomic_load_n(&share->directory, __ATOMIC_ACQUIRE);
    if (directory >= 0) {
        unlinkat(directory, share->name, 0);
        gs_relay_at_exit(share, directory);
        gs_sweep(share);
    }
    errno = saved;
}

/* Until another thread has started it. One that a filter of system calls has killed meanwhile
 * (SECCOMP_RET_KILL_THREAD) never will; whatever it had made stays as it is, and is not built on. */
static void await_start_locked(struct gs_share *share, enum gs_start *state)
{
    while (*state == GS_STARTING) {
        struct timespec end;

        clock_gettime(CLOCK_MONOTONIC, &end);
        end.tv_sec++;
        if (pthread_cond_timedwait(&share->started, &share->lock.mutex, &end) != ETIMEDOUT ||
            *state != GS_STARTING || syscall(SYS_tgkill, share->pid, share->starter, 0) == 0 ||
            errno != ESRCH)
            continue;
        *state = GS_GIVEN_UP;
        pthread_cond_broadcast(&share->started);
        gs_log_line(&share->log, GS_LOG_WARNING,
                    "memory cannot be shared any more: the thread that began with it was killed");
    }
}

/*
 * Runs `start` once, for all callers: the first does it, without the lock since it opens files,
 * the others wait for it: as long as that takes with a folder, a socket and a thread, each of which is
 * made or not, or a second longer than that thread lives. After a failure the next caller tries again.
 */
gs_status gs_start_once(struct gs_share *share, enum gs_start *state,
                        gs_status (*start)(struct gs_share *))
{
    gs_status status = GS_OK;

    gs_lock_take(&share->lock);
    await_start_locked(share, state);
    if (*state == GS_GIVEN_UP)
        status = GS_NOT_OFFERED;
    if (*state == GS_NOT_STARTED) {
        *state = GS_STARTING;
        share->starter = (pid_t)syscall(SYS_gettid);
        gs_lock_release(&share->lock);
        status = start(share);
        gs_lock_take(&share->lock);
        *state = status == GS_OK ? GS_STARTED : GS_NOT_STARTED;
        pthread_cond_broadcast(&share->started);
    }
    gs_lock_release(&share->lock);
    return status;
}

/* The opener wakes the thread also where there may be none, with its lock held: without that it
 * would write into whatever file gets the number of one that is closed here. */
static int thread_descriptors(struct gs_share *share)
{
    int error = 0, ends[2] = {-1, -1}, epoll = epoll_create1(EPOLL_CLOEXEC);

    if (epoll < 0 || pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0)
        error = errno;
    gs_lock_take(&share->opener_lock);
    share->epoll = epoll;
    share->woken = ends[0];
    share->wake = ends[1];
    share->woken_kept = gs_fd_keep(share->woken);
    share->wake_kept = gs_fd_keep(share->wake);
    gs_lock_release(&share->opener_lock);
    return error;
}

static gs_status thread_start(struct gs_share *share)
{
    char reason[GS_REASON_SIZE];
    int error = thread_descriptors(share);

    if (!error)
        error = -gs_watch(share, EPOLL_CTL_ADD, share->woken, EPOLLIN, GS_WATCH_WAKE, 0);
    share->thread_asked_ns = gs_now_ns();
    if (!error)
        error = gs_background_start(&share->background, gs_thread_run, share);
    if (!error)
        return GS_OK;
    gs_lock_take(&share->opener_lock);
    close_descriptors(share);
    gs_lock_release(&share->opener_lock);
    snprintf(reason, sizeof reason, "no thread for it: %s; raise the limit of %s", strerror(error),
             error == EMFILE ? "descriptors (ulimit -n)" : "threads (ulimit -u), or of memory");
    gs_say_not_offered(share, reason);
    return GS_UNREACHABLE;
}

gs_status gs_thread_start(struct gs_share *share)
{
    return gs_start_once(share, &share->thread_start, thread_start);
}
