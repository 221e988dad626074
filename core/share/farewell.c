/*
 * Last figures of processes that have ended. One that has a broker leaves its own there, over the
 * connection that it has: its exit sends them if they go at once, and waits for nobody. The broker
 * keeps those of the last processes (GS_FAREWELLS), each for an hour at most and no longer than it
 * runs itself: they are no reason to run on. It keeps those of its own user, whom it tells them
 * (report.c), and root. Where there are more, the oldest goes.
 */
#include "core/base/list.h"
#include "core/share/exporter.h"

#include <stdlib.h>
#include <string.h>

#define KEEP_NS (3600 * GS_NS_PER_S)
#define TRIES   100 /* for a lock that is held for microseconds */

struct gs_farewell {
    uint32_t number;
    uint64_t owner; /* the client that said it; 0: it has gone, and only now is it told of */
    uint64_t ended_ns;
    pid_t pid;
    bool is_seen;
    char name[16];
    unsigned devices; /* up to the last one that it had memory of */
    struct gs_figures figures[GS_FAREWELL_DEVICES];
    struct gs_farewell *older;
};

/* ---- The process that ends ------------------------------------------------------------------ */

/* Exit handlers run it, and _exit in a handler of signals does, where the lock may be its own
 * thread's. */
static bool take_soon(struct gs_lock *lock)
{
    for (int i = 0; i < TRIES; i++, gs_yield())
        if (gs_lock_try(lock))
            return true;
    return false;
}

bool gs_share_leave(struct gs_share *share, unsigned device, const struct gs_figures *figures)
{
    union gs_wire_message message;
    int saved = errno, error = -ENOTCONN;

    if (device >= GS_FAREWELL_DEVICES || share->pid != gs_alive_own_pid() ||
        !take_soon(&share->lock))
        return false;
    gs_wire_start(&message, GS_WIRE_FAREWELL, 0);
    message.farewell.device = device;
    message.farewell.figures = *figures;
    if (share->link.fd >= 0 && gs_fd_is_there(&share->link.fd_is))
        error = gs_wire_send(share->link.fd, &message, -1);
    gs_lock_release(&share->lock);
    errno = saved;
    return error == 0;
}

/* ---- The broker ----------------------------------------------------------------------------- */

static void drop(struct gs_farewell **link)
{
    struct gs_farewell *farewell = *link;

    *link = farewell->older;
    free(farewell);
}

/* What the client has said so far; at first nothing. NULL: no host memory. */
static struct gs_farewell *farewell_of(struct gs_share *share, const struct gs_client *client)
{
    struct gs_farewell *farewell, **link = &share->store.farewells;

    LL_SEARCH_SCALAR2(share->store.farewells, farewell, owner, client->id, older);
    if (farewell)
        return farewell;
    farewell = calloc(1, sizeof *farewell);
    if (!farewell)
        return NULL;
    farewell->number = ++share->store.last_farewell;
    farewell->owner = client->id;
    farewell->pid = client->pid;
    farewell->is_seen = client->is_seen;
    memcpy(farewell->name, client->said.name, sizeof farewell->name);
    LL_PREPEND2(share->store.farewells, farewell, older);
    for (unsigned i = 0; *link && i < GS_FAREWELLS; i++)
        link = &(*link)->older;
    if (*link)
        drop(link); /* the oldest */
    return farewell;
}

bool gs_farewell_came(struct gs_share *share, struct gs_client *client,
                      const struct gs_wire_farewell *message)
{
    struct gs_farewell *farewell;

    if (!share->options.is_broker || !client->publisher)
        return gs_client_fault(client, client->greeted ? "it takes this process for a broker"
                                                       : "it did not greet first");
    if (message->device >= GS_FAREWELL_DEVICES || message->zero)
        return gs_client_fault(client, "its message has fields that make no sense");
    farewell = gs_client_is_own(client) ? farewell_of(share, client) : NULL;
    if (!farewell)
        return true; /* nobody would be told of it, or it cannot be kept */
    farewell->ended_ns = gs_now_ns();
    farewell->figures[message->device] = message->figures;
    if (farewell->devices <= message->device)
        farewell->devices = message->device + 1;
    return true;
}

void gs_farewell_client_gone(struct gs_share *share, const struct gs_client *client)
{
    struct gs_farewell *farewell;

    for (farewell = share->store.farewells; farewell; farewell = farewell->older)
        if (farewell->owner == client->id) {
            farewell->owner = 0;
            farewell->ended_ns = gs_now_ns();
        }
}

void gs_farewell_tell(const struct gs_share *share, const struct gs_wire_query *query,
                      struct gs_wire_report *report)
{
    const struct gs_farewell *farewell, *found = NULL;
    uint64_t now = gs_now_ns();

    for (farewell = share->store.farewells; farewell; farewell = farewell->older)
        if (farewell->number >= query->index && !farewell->owner &&
            now - farewell->ended_ns < KEEP_NS)
            found = farewell;
    if (!found)
        return;
    report->farewell = found->number;
    report->client_pid = (uint64_t)found->pid;
    report->client_seen = found->is_seen;
    report->client_age_ns = now - found->ended_ns;
    memcpy(report->client_name, found->name, sizeof report->client_name);
    report->has_figures = query->device < found->devices;
    if (report->has_figures)
        report->figures = found->figures[query->device];
}

uint64_t gs_farewells_tick(struct gs_share *share, uint64_t now)
{
    struct gs_farewell **link = &share->store.farewells;
    uint64_t due = GS_NEVER;

    while (*link) {
        uint64_t ends = (*link)->ended_ns + KEEP_NS;

        if (ends <= now) {
            drop(link);
            continue;
        }
        due = ends < due ? ends : due;
        link = &(*link)->older;
    }
    return due;
}

void gs_farewells_free(struct gs_share *share)
{
    while (share->store.farewells)
        drop(&share->store.farewells);
}
