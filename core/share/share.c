/* Sharing as a whole (core/share/share.h): made with nothing open, started by the first use. */
#include "core/share/exporter.h"
#include "core/share/importer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

gs_status gs_share_create(const struct gs_driver *driver, struct gs_map *map,
                          struct gs_fences *fences, const struct gs_log *log,
                          const struct gs_share_options *options,
                          const struct gs_share_events *events, struct gs_share **ret_share)
{
    struct gs_share *share = calloc(1, sizeof *share);

    if (!share)
        return GS_NO_HOST_MEMORY;
    if (!gs_instance_new(gs_alive_own_pid(), share->instance)) {
        gs_log_line(log, GS_LOG_ERROR,
                    "the kernel gives no random bytes (getrandom: %s), and handles of memory need "
                    "them: allow that call (seccomp)",
                    strerror(errno));
        free(share);
        return GS_NO_RANDOM;
    }
    if (options->is_broker)
        gs_broker_name(share->name);
    else
        gs_instance_name(share->instance, share->name);
    share->driver = driver;
    share->map = map;
    share->fences = fences;
    share->log = *log;
    share->options = *options;
    if (share->options.grace_least_ns > options->grace_ns)
        share->options.grace_least_ns = options->grace_ns;
    share->events = *events;
    share->exporter.used = options->is_broker;
    share->store.unneeded_since = gs_now_ns();
    share->pid = gs_alive_own_pid();
    share->loop.run = gs_loop_run;
    share->spins = gs_loop_may_spin();
    share->exporter.grace_due_ns = share->limbo.due_ns = share->place.sweep_ns =
        share->place.serve_ns = share->importer.look_ns = GS_NEVER;
    share->link.fd = -1;
    share->loop.epoll = share->loop.wake = share->loop.woken = share->place.directory =
        share->place.listener = share->place.spare_fd = -1;
    gs_lock_init(&share->lock, GS_RANK_SHARE);
    gs_lock_init(&share->importer.lock, GS_RANK_IMPORTER);
    gs_cond_init(&share->started);
    gs_cond_init(&share->importer.changed);
    gs_cond_init(&share->asked.given_back);
    gs_cond_init(&share->exporter.names_told);
    *ret_share = share;
    return GS_OK;
}

void gs_share_destroy(struct gs_share *share)
{
    if (!share)
        return;
    if (share->thread_start == GS_STARTED) {
        __atomic_store_n(&share->loop.stop, true, __ATOMIC_RELEASE);
        gs_thread_wake(share);
        gs_background_join(&share->loop.background);
    }
    if (share->place.directory >= 0 && !gs_socket_is_given(share)) {
        gs_directory_unlink(share->place.directory, share->name);
        gs_sweep(share);
    }
    gs_closing_finish(share);
    gs_clients_free(share);
    gs_names_free(share);
    gs_events_free(share);
    gs_broker_free(share);
    gs_exports_free(share);
    gs_chunk_fds_free(share);
    gs_others_free(share);
    gs_loop_close(share);
    gs_cond_destroy(&share->started);
    gs_cond_destroy(&share->importer.changed);
    gs_cond_destroy(&share->asked.given_back);
    gs_cond_destroy(&share->exporter.names_told);
    gs_lock_destroy(&share->lock);
    gs_lock_destroy(&share->importer.lock);
    free(share);
}

void gs_share_at_exit(struct gs_share *share)
{
    int saved = errno;
    int directory;

    if (!share || share->pid != gs_alive_own_pid())
        return;
    gs_say_unopened(share);
    __atomic_store_n(&share->ending, true, __ATOMIC_SEQ_CST); /* none is put up from now on */
    gs_socket_await(share);
    directory = __atomic_load_n(&share->place.directory, __ATOMIC_ACQUIRE);
    if (directory >= 0) {
        gs_directory_unlink(directory, share->name);
        gs_sweep(share);
    }
    errno = saved;
}
