/* The names in the runtime directory by which what is passed on is found (core/share/relay.c). */
#include "core/share/opener.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct gs_relay_name {
    char name[GS_RELAY_NAME_SIZE];
    bool stands; /* under `share->lock`: it is in the directory, or is to be again */
    struct gs_relay_name *next;
};

static struct gs_relay_name *find_locked(struct gs_share *share, const char *name)
{
    struct gs_relay_name *entry = share->opener.relay_names;

    while (entry && strcmp(entry->name, name) != 0)
        entry = entry->next;
    return entry;
}

static void relay_name(const struct gs_share *share, const unsigned char *instance,
                       char ret_name[GS_RELAY_NAME_SIZE])
{
    gs_instance_name(instance, ret_name);
    ret_name[GS_SOCKET_NAME_SIZE - 1] = '.';
    memcpy(ret_name + GS_SOCKET_NAME_SIZE, share->name, GS_SOCKET_NAME_SIZE);
}

bool gs_relay_put_up(struct gs_share *share, const struct gs_peer *peer)
{
    struct gs_relay_name *entry = calloc(1, sizeof *entry), *known;
    int error;

    if (!entry)
        return false;
    relay_name(share, peer->instance, entry->name);
    error = gs_directory_link(share->place.directory, share->name, entry->name);
    if (error && error != -EEXIST) {
        gs_log_line(&share->log, GS_LOG_INFO,
                    "what is passed on can be opened while the process that shared it runs: no "
                    "name for it in %s: %s",
                    gs_directory_words(&share->options), strerror(-error));
        free(entry);
        return false;
    }
    entry->stands = true;
    gs_lock_take(&share->lock);
    known = find_locked(share, entry->name);
    if (known) {
        known->stands = true;
    } else {
        entry->next = share->opener.relay_names;
        __atomic_store_n(&share->opener.relay_names, entry, __ATOMIC_RELEASE);
    }
    gs_lock_release(&share->lock);
    if (known)
        free(entry);
    return true;
}

void gs_relay_leave(struct gs_share *share, const struct gs_peer *peer)
{
    char name[GS_RELAY_NAME_SIZE];
    struct gs_relay_name *entry;

    relay_name(share, peer->instance, name);
    gs_lock_take(&share->lock);
    entry = find_locked(share, name);
    if (entry)
        entry->stands = false;
    gs_directory_unlink(share->place.directory, name);
    gs_lock_release(&share->lock);
}

/* Under the lock, so that none is put up that was just taken down. */
void gs_relay_put_up_again(struct gs_share *share)
{
    const struct gs_relay_name *entry;
    int error = 0;

    gs_lock_take(&share->lock);
    for (entry = share->opener.relay_names; entry; entry = entry->next) {
        int failed = entry->stands ? gs_directory_link(share->place.directory, share->name,
                                                       entry->name)
                                   : 0;

        error = failed ? failed : error;
    }
    gs_lock_release(&share->lock);
    if (error)
        gs_log_line(&share->log, GS_LOG_INFO, "no name for what is passed on: %s",
                    strerror(-error));
}

void gs_relay_at_exit(struct gs_share *share, int directory)
{
    const struct gs_relay_name *entry =
        __atomic_load_n(&share->opener.relay_names, __ATOMIC_ACQUIRE);

    for (; entry; entry = entry->next)
        gs_directory_unlink(directory, entry->name);
}

void gs_relay_free(struct gs_share *share)
{
    while (share->opener.relay_names) {
        struct gs_relay_name *entry = share->opener.relay_names;

        share->opener.relay_names = entry->next;
        free(entry);
    }
}
