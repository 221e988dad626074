/* The names in the runtime directory by which what is passed on is found (core/share/relay.c). */
#include "core/share/opener.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct gs_relay_name {
    char name[GS_RELAY_NAME_SIZE];
    struct gs_relay_name *next;
};

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
    gs_lock_take(&share->lock);
    for (known = share->opener.relay_names; known && strcmp(known->name, entry->name) != 0;)
        known = known->next;
    if (!known) {
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

    relay_name(share, peer->instance, name);
    gs_directory_unlink(share->place.directory, name);
}

void gs_relay_put_up_again(struct gs_share *share)
{
    const struct gs_relay_name *entry =
        __atomic_load_n(&share->opener.relay_names, __ATOMIC_ACQUIRE);

    for (; entry; entry = entry->next) {
        int error = gs_directory_link(share->place.directory, share->name, entry->name);

        if (error)
            gs_log_line(&share->log, GS_LOG_INFO, "no name for what is passed on: %s",
                        strerror(-error));
    }
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
