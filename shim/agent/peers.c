/*
 * Other machines (agent.h): what the directory says of them, and the links to them. A link is made
 * for what is opened there, and again for as long as there may be leases there; who calls here is
 * who the directory says, or is hung up on.
 */
#include "shim/agent/agent.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utlist.h>

#define RETRY_NS     (GS_NS_PER_S / 10)
#define RETRY_MAX_NS (4 * GS_NS_PER_S)
#define OPEN_WAITS_NS \
    (2 * RETRY_NS)     /* at most, while an open waits: strangers keep an attempt from its end */
#define CALLERS_MAX 64 /* links whose other end did not yet say who it is */
#define ACCEPT_TURN \
    (CALLERS_MAX / 4) /* in a round: each has had a turn or two before it gives way */
#define PEERS_MAX 16384
#define ASK_NS \
    (5 * GS_NS_PER_S) /* between two looks for one that has leases here, and does not call */
#define FORGET_NS (60 * GS_NS_PER_S) /* between two looks for machines of which nothing is here */

struct caller { /* owns a link here until it is known who that is */
    struct talk_hello hello;
    struct agent *agent;
    bool has_said, is_asked; /* the directory is, about it */
};

const char *peer_name(const struct peer *peer)
{
    return peer->name[0] ? peer->name : "without a name";
}

struct peer *peers_find(struct agent *agent, const unsigned char machine[GS_MACHINE_SIZE],
                        bool make)
{
    struct peer *peer;

    HASH_FIND(hh, agent->peers, machine, GS_MACHINE_SIZE, peer);
    if (peer || !make || HASH_COUNT(agent->peers) >= PEERS_MAX)
        return peer;
    peer = calloc(1, sizeof *peer);
    if (!peer)
        return NULL;
    memcpy(peer->machine, machine, GS_MACHINE_SIZE);
    peer->agent = agent;
    peer->wait_ns = RETRY_NS;
    peer->knows_boot = leases_noted(&agent->leases, LEASES_BOOT, machine, peer->boot);
    HASH_ADD(hh, agent->peers, machine, GS_MACHINE_SIZE, peer);
    return peer;
}

/* ---- The directory -------------------------------------------------------------------------- */

void peers_write_own(struct agent *agent)
{
    struct known_agent own = {.version = TALK_VERSION, .port = agent->options.port};
    char key[DIRECTORY_KEY];

    snprintf(own.name, sizeof own.name, "%s", agent->options.name);
    snprintf(own.address, sizeof own.address, "%s", agent->options.address);
    memcpy(own.fingerprint, agent->links.fingerprint, sizeof own.fingerprint);
    memcpy(own.boot, agent->boot, sizeof own.boot);
    agent_key(JOBS_AGENTS, agent->machine, key);
    jobs_write(agent->jobs, key, &own, sizeof own);
}

static void note_boot(struct agent *agent, struct peer *peer,
                      const unsigned char boot[GS_BOOT_BYTES])
{
    memcpy(peer->boot, boot, GS_BOOT_BYTES);
    peer->knows_boot = true;
    if (leases_side(&agent->leases, peer->machine))
        leases_note(&agent->leases, LEASES_BOOT, peer->machine, boot);
}

/* While a link says which boot it is, the directory's word may only be older. */
static void compare_boots(struct agent *agent, struct peer *peer,
                          const unsigned char boot[GS_BOOT_BYTES])
{
    static const unsigned char none[GS_BOOT_BYTES];

    if (peer->in || memcmp(boot, peer->boot, GS_BOOT_BYTES) == 0 ||
        memcmp(boot, peer->boot_before, GS_BOOT_BYTES) == 0 ||
        memcmp(boot, none, GS_BOOT_BYTES) == 0)
        return;
    if (peer->knows_boot) {
        PEER_LOG(agent, peer, GS_LOG_WARNING,
                 "machine %s was started anew: what it had open is over", peer_name(peer));
        memcpy(peer->boot_before, peer->boot, GS_BOOT_BYTES);
        note_boot(agent, peer, boot);
        exporter_end_all(agent, peer->machine);
    }
}

/* Whether it may be what an agent wrote of another machine. */
static bool is_sound(const struct agent *agent, const struct known_agent *known, size_t size,
                     const unsigned char machine[GS_MACHINE_SIZE])
{
    return size == sizeof *known && known->version == TALK_VERSION && known->port > 0 &&
           known->port < 65536 && memchr(known->name, 0, sizeof known->name) &&
           memchr(known->address, 0, sizeof known->address) &&
           memcmp(machine, agent->machine, GS_MACHINE_SIZE) != 0 &&
           memcmp(machine, agent_nobody, GS_MACHINE_SIZE) != 0 &&
           memcmp(machine, agent_unknown, GS_MACHINE_SIZE) != 0;
}

static void learn(struct agent *agent, const struct jobs_event *event)
{
    unsigned char machine[GS_MACHINE_SIZE];
    struct known_agent known;
    struct peer *peer = NULL;
    bool is_new;

    memcpy(&known, event->value, sizeof known);
    if (gs_text_unhex(event->key + strlen(JOBS_AGENTS), machine, sizeof machine) &&
        is_sound(agent, &known, event->size, machine))
        peer = peers_find(agent, machine, true);
    if (!peer)
        return;
    is_new = !peer->is_listed ||
             memcmp(peer->fingerprint, known.fingerprint, sizeof known.fingerprint) != 0;
    peer->is_listed = true;
    memcpy(peer->name, known.name, sizeof known.name);
    memcpy(peer->address, known.address, sizeof known.address);
    peer->port = known.port;
    memcpy(peer->fingerprint, known.fingerprint, sizeof known.fingerprint);
    if (is_new) {
        peer->retry_ns = 0;
        peer->wait_ns = RETRY_NS;
    }
    compare_boots(agent, peer, known.boot);
}

/* Nothing here is of it: machines come and go. */
static bool is_idle(const struct agent *agent, const struct peer *peer)
{
    struct open *open, *next;

    if (peer->out || peer->in || peer->asked || peer->takes ||
        leases_side(&agent->leases, peer->machine))
        return false;
    HASH_ITER(hh, agent->opens, open, next) {
        if (open->peer == peer)
            return false;
    }
    return true;
}

/* ---- Proving who it is ---------------------------------------------------------------------- */

static void say_hello(struct agent *agent, struct link *link)
{
    union talk hello;

    talk_start(&hello, TALK_HELLO);
    memcpy(hello.hello.machine, agent->machine, GS_MACHINE_SIZE);
    memcpy(hello.hello.boot, agent->boot, GS_BOOT_BYTES);
    memcpy(hello.hello.file, agent->leases.id, sizeof agent->leases.id);
    link_send(&agent->links, link, &hello);
}

/* Why the hello is not believed; NULL: it is. */
static const char *hello_error(const struct link *link, const struct peer *peer,
                               const struct talk_hello *hello)
{
    if (!peer || !peer->is_listed)
        return "the directory does not know its machine; see that both use one directory";
    if (memcmp(hello->machine, peer->machine, GS_MACHINE_SIZE) != 0)
        return "it is another machine than the directory says";
    if (memcmp(link->fingerprint, peer->fingerprint, LINK_FINGERPRINT) != 0)
        return "its certificate is not the one that the directory has for its machine";
    return NULL;
}

static void ask_about(struct agent *agent, const unsigned char machine[GS_MACHINE_SIZE])
{
    char key[DIRECTORY_KEY];

    agent_key(JOBS_AGENTS, machine, key);
    jobs_ask(agent->jobs, key);
}

/* ---- Links to others ------------------------------------------------------------------------ */

static void out_up(struct link *link)
{
    struct peer *peer = link->owner;
    struct agent *agent = peer->agent;

    if (memcmp(link->fingerprint, peer->fingerprint, LINK_FINGERPRINT) == 0) {
        say_hello(agent, link);
        return;
    }
    link_fail(&agent->links, link, "its certificate is not the one that the directory has");
}

static void be_up(struct agent *agent, struct peer *peer)
{
    peer->out->is_ready = true;
    peer->wait_ns = RETRY_NS;
    importer_link_up(agent, peer);
}

static void out_message(struct link *link, const union talk *message)
{
    struct peer *peer = link->owner;
    struct agent *agent = peer->agent;
    const char *why;

    if (link->is_ready) {
        importer_message(agent, peer, message);
        return;
    }
    why = message->head.type == TALK_HELLO ? hello_error(link, peer, &message->hello)
                                           : "it did not say who it is";
    if (why)
        link_fail(&agent->links, link, why);
    else
        be_up(agent, peer);
}

static bool has_open_waiting(const struct peer *peer)
{
    struct open *open, *next;

    HASH_ITER(hh, peer->agent->opens, open, next) {
        if (open->state == OPEN_CONNECTS && open->peer == peer)
            return true;
    }
    return false;
}

static void defer(struct peer *peer)
{
    const uint64_t most = has_open_waiting(peer) ? OPEN_WAITS_NS : RETRY_MAX_NS;

    peer->retry_ns = gs_now_ns() + peer->wait_ns;
    peer->wait_ns = peer->wait_ns * 2 < most ? peer->wait_ns * 2 : most;
}

static void out_down(struct link *link, const char *why)
{
    struct peer *peer = link->owner;
    struct agent *agent = peer->agent;

    if (peer->out == link)
        peer->out = NULL;
    PEER_LOG(agent, peer, peer->wait_ns == RETRY_NS ? GS_LOG_WARNING : GS_LOG_DEBUG,
             "machine %s (%s): %s; what is open there stays", peer_name(peer), link->peer, why);
    if (!link->is_ready)
        ask_about(agent, peer->machine); /* it may have been started anew */
    defer(peer);
    importer_link_down(agent, peer, why);
}

static void connect_to(struct agent *agent, struct peer *peer)
{
    static const struct link_events events = {.up = out_up,
                                              .message = out_message,
                                              .down = out_down};
    char reason[LINK_REASON];

    if (!peer->is_listed) {
        ask_about(agent, peer->machine);
        defer(peer);
        return;
    }
    peer->out = link_connect(&agent->links, peer->address, peer->port, &events, peer, reason);
    if (peer->out)
        return;
    PEER_LOG(agent, peer, GS_LOG_WARNING, "machine %s: %s", peer_name(peer), reason);
    ask_about(agent, peer->machine);
    defer(peer);
    importer_link_down(agent, peer, reason);
}

static void want_asked(void *arg, const unsigned char machine[GS_MACHINE_SIZE])
{
    struct peer *peer = peers_find(arg, machine, true);

    if (peer)
        peer->asked = true;
}

static void know_machine(void *arg, const unsigned char machine[GS_MACHINE_SIZE])
{
    peers_find(arg, machine, true);
}

void peers_start(struct agent *agent)
{
    leases_each_note(&agent->leases, LEASES_ASKED, want_asked, agent);
    leases_each_note(&agent->leases, LEASES_BOOT, know_machine, agent);
}

/* ---- Links from others ---------------------------------------------------------------------- */

static void accept_peer(struct agent *agent, struct link *link, struct peer *peer)
{
    struct caller *caller = link->owner;
    union talk hello = {.hello = caller->hello};
    struct link *old = peer->in;

    if (old) {
        link_close(&agent->links, old);
        peer->in = NULL;
        exporter_link_down(agent, peer);
    }
    if (peer->knows_boot && memcmp(peer->boot, caller->hello.boot, GS_BOOT_BYTES) != 0) {
        memcpy(peer->boot_before, peer->boot, GS_BOOT_BYTES);
        note_boot(agent, peer, caller->hello.boot);
        exporter_end_all(agent, peer->machine);
    }
    note_boot(agent, peer, caller->hello.boot);
    memcpy(peer->file, caller->hello.file, sizeof peer->file);
    free(caller);
    link->owner = peer;
    link->is_ready = true;
    peer->in = link;
    say_hello(agent, link);
    exporter_message(agent, peer, &hello);
}

static void in_message(struct link *link, const union talk *message)
{
    struct caller *caller = link->owner;
    struct agent *agent;
    struct peer *peer;

    if (link->is_ready) {
        peer = link->owner;
        if (message->head.type == TALK_HELLO)
            link_fail(&peer->agent->links, link, "it says twice who it is");
        else
            exporter_message(peer->agent, peer, message);
        return;
    }
    agent = caller->agent;
    if (message->head.type != TALK_HELLO || caller->has_said) {
        link_fail(&agent->links, link, "it did not say who it is");
        return;
    }
    caller->hello = message->hello;
    caller->has_said = true;
    peer = peers_find(agent, message->hello.machine, false);
    if (!hello_error(link, peer, &message->hello)) {
        accept_peer(agent, link, peer);
        return;
    }
    link->is_held = true; /* until the directory has said, or LINK_BEGIN_S are over */
}

static void in_down(struct link *link, const char *why)
{
    struct caller *caller = link->owner;
    struct peer *peer = link->owner;

    if (!link->is_ready) {
        say_line(caller->agent, &caller->agent->log.strangers, GS_LOG_WARNING,
                 "who called from %s is not let in: %s", link->peer, why);
        free(caller);
        return;
    }
    PEER_LOG(peer->agent, peer, GS_LOG_WARNING, "machine %s (%s): %s; what it has open stays",
             peer_name(peer), link->peer, why);
    if (peer->in != link)
        return;
    peer->in = NULL;
    exporter_link_down(peer->agent, peer);
}

/* One whose messages wait for what the directory says under the key; NULL: under any. */
static struct link *held_for(const struct agent *agent, const char *key)
{
    struct link *link;

    DL_FOREACH(agent->links.all, link) {
        const struct caller *caller = link->owner;
        char own[DIRECTORY_KEY];

        if (!link_is_caller(link) || !link->is_held)
            continue;
        agent_key(JOBS_AGENTS, caller->hello.machine, own);
        if (!key || strcmp(key, own) == 0)
            return link;
    }
    return NULL;
}

/* The directory is asked about one of those that call at a time: opens here wait for no more than
 * that. */
static void ask_for_callers(struct agent *agent)
{
    const struct link *link = held_for(agent, NULL);
    struct caller *caller = link ? link->owner : NULL;

    if (!caller || caller->is_asked)
        return;
    caller->is_asked = true;
    ask_about(agent, caller->hello.machine);
}

void peers_got(struct agent *agent, const struct jobs_event *event)
{
    struct link *link;

    if (event->found == DIRECTORY_FOUND)
        learn(agent, event);
    while ((link = held_for(agent, event->key))) { /* which is held no more then */
        const struct caller *caller = link->owner;
        struct peer *peer = peers_find(agent, caller->hello.machine, false);
        const char *why = event->found == DIRECTORY_FAILED
                              ? "the directory does not say who it is"
                              : hello_error(link, peer, &caller->hello);

        if (why) {
            link_fail(&agent->links, link, why);
            continue;
        }
        accept_peer(agent, link, peer);
        link_release(&agent->links, link);
    }
}

/* Only the directory says that a machine was started anew and has nothing here to say. */
static bool is_missed(const struct agent *agent, const struct peer *peer)
{
    const struct lease_side *side = leases_side(&agent->leases, peer->machine);

    return !peer->in && side && side->theirs;
}

void peers_look(struct agent *agent, uint64_t now_ns)
{
    const bool forgets = now_ns >= agent->forget_ns, asks = jobs_is_good(agent->jobs);
    struct peer *peer, *next;

    ask_for_callers(agent);
    if (forgets)
        agent->forget_ns = now_ns + FORGET_NS;
    HASH_ITER(hh, agent->peers, peer, next) {
        if (!peer->out && now_ns >= peer->retry_ns && (peer->asked || has_open_waiting(peer)))
            connect_to(agent, peer);
        if (asks && now_ns >= peer->ask_ns && is_missed(agent, peer)) {
            peer->ask_ns = now_ns + ASK_NS;
            ask_about(agent, peer->machine);
        }
        if (forgets && is_idle(agent, peer)) {
            HASH_DEL(agent->peers, peer);
            free(peer);
        }
    }
}

/* Some of those that call; others wait in the kernel until all have had their turn. */
void peers_accept(struct agent *agent)
{
    static const struct link_events events = {.message = in_message, .down = in_down};

    for (int i = 0; i < ACCEPT_TURN; i++) {
        int fd = accept4(agent->listener.fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        struct caller *caller = fd < 0 ? NULL : calloc(1, sizeof *caller);
        struct link *link, *oldest;
        unsigned callers;

        if (fd < 0)
            return;
        if (!caller) { /* it comes again */
            close(fd);
            continue;
        }
        oldest = link_to_give_way(&agent->links, &callers);
        if (callers >= CALLERS_MAX)
            link_fail(&agent->links, oldest, "too many others call");
        link = link_accept(&agent->links, fd, &events);
        if (!link) {
            free(caller);
            continue;
        }
        caller->agent = agent;
        link->owner = caller;
    }
}
