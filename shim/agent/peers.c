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

static struct agent *agent_of(const struct link *link)
{
    return (struct agent *)((char *)link->links - offsetof(struct agent, links));
}

const char *peer_name(const struct peer *peer)
{
    return peer->known.name[0] ? peer->known.name : "without a name";
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
    peer->wait_ns = RETRY_NS;
    peer->asked = leases_noted(&agent->leases, LEASES_ASKED, machine, NULL);
    peer->knows_boot = leases_noted(&agent->leases, LEASES_BOOT, machine, peer->boot);
    HASH_ADD(hh, agent->peers, machine, GS_MACHINE_SIZE, peer);
    return peer;
}

/* ---- The directory -------------------------------------------------------------------------- */

void peers_write_own(struct agent *agent)
{
    struct known_agent own = {.version = TALK_VERSION, .port = agent->options.port};

    snprintf(own.name, sizeof own.name, "%s", agent->options.name);
    snprintf(own.address, sizeof own.address, "%s", agent->options.address);
    memcpy(own.fingerprint, agent->links.fingerprint, sizeof own.fingerprint);
    memcpy(own.boot, agent->boot, sizeof own.boot);
    jobs_write(agent->jobs, DIRECTORY_AGENTS, agent->machine, &own, sizeof own);
}

/* Of a machine that was started anew all is over. */
static void take_boot(struct agent *agent, struct peer *peer,
                      const unsigned char boot[GS_BOOT_BYTES])
{
    const bool is_anew = peer->knows_boot && memcmp(boot, peer->boot, GS_BOOT_BYTES) != 0;

    if (is_anew)
        memcpy(peer->boot_before, peer->boot, GS_BOOT_BYTES);
    memcpy(peer->boot, boot, GS_BOOT_BYTES);
    peer->knows_boot = true;
    if (leases_side(&agent->leases, peer->machine))
        leases_note(&agent->leases, LEASES_BOOT, peer->machine, boot);
    if (!is_anew)
        return;
    PEER_LOG(agent, peer, GS_LOG_WARNING, "machine %s was started anew: what it had open is over",
             peer_name(peer));
    exporter_end_all(agent, peer->machine);
}

/* Whether it may be what an agent wrote of another machine. */
static bool is_sound(const struct agent *agent, const struct known_agent *known, size_t size,
                     const unsigned char machine[GS_MACHINE_SIZE])
{
    return size == sizeof *known && known->version == TALK_VERSION && known->port > 0 &&
           known->port < 65536 && memchr(known->name, 0, sizeof known->name) &&
           memchr(known->address, 0, sizeof known->address) &&
           memcmp(known->boot, agent_nobody, GS_BOOT_BYTES) != 0 &&
           memcmp(machine, agent->machine, GS_MACHINE_SIZE) != 0 &&
           memcmp(machine, agent_nobody, GS_MACHINE_SIZE) != 0 &&
           memcmp(machine, agent_unknown, GS_MACHINE_SIZE) != 0;
}

static void learn(struct agent *agent, const struct jobs_event *event)
{
    struct known_agent known;
    struct peer *peer = NULL;

    memcpy(&known, event->value, sizeof known);
    if (is_sound(agent, &known, event->size, event->key.id))
        peer = peers_find(agent, event->key.id, true);
    if (!peer)
        return;
    if (memcmp(peer->known.fingerprint, known.fingerprint, sizeof known.fingerprint) != 0) {
        peer->retry_ns = 0;
        peer->wait_ns = RETRY_NS;
    }
    peer->known = known;
    /* While a link says which boot it is, the directory's word may only be older. */
    if (!peer->in && peer->knows_boot &&
        memcmp(known.boot, peer->boot_before, sizeof known.boot) != 0)
        take_boot(agent, peer, known.boot);
}

/* Without a link: it waits for one. */
static bool has_open(const struct agent *agent, const struct peer *peer)
{
    struct open *open, *next;

    HASH_ITER(hh, agent->opens, open, next) {
        if (open->peer == peer)
            return true;
    }
    return false;
}

/* Nothing here is of it: machines come and go. */
static bool is_idle(const struct agent *agent, const struct peer *peer)
{
    return !peer->out && !peer->in && !peer->asked && !peer->takes &&
           !leases_side(&agent->leases, peer->machine) && !has_open(agent, peer);
}

/* ---- Proving who it is ---------------------------------------------------------------------- */

static void say_hello(struct agent *agent, struct link *link)
{
    union talk hello;

    talk_start(&hello, TALK_HELLO);
    memcpy(hello.hello.machine, agent->machine, GS_MACHINE_SIZE);
    memcpy(hello.hello.boot, agent->boot, GS_BOOT_BYTES);
    memcpy(hello.hello.file, agent->leases.id, sizeof agent->leases.id);
    link_send(link, &hello);
}

/* Why the hello is not believed; NULL: it is. */
static const char *hello_error(const struct link *link, const struct peer *peer,
                               const struct talk_hello *hello)
{
    if (!peer || !peer->known.version)
        return "the directory does not know its machine; see that both use one directory";
    if (memcmp(hello->machine, peer->machine, GS_MACHINE_SIZE) != 0)
        return "it is another machine than the directory says";
    if (memcmp(link->fingerprint, peer->known.fingerprint, LINK_FINGERPRINT) != 0)
        return "its certificate is not the one that the directory has for its machine";
    return NULL;
}

/* ---- Links to others ------------------------------------------------------------------------ */

static void out_up(struct link *link)
{
    struct peer *peer = link->owner;
    struct agent *agent = agent_of(link);

    if (memcmp(link->fingerprint, peer->known.fingerprint, LINK_FINGERPRINT) == 0) {
        say_hello(agent, link);
        return;
    }
    link_fail(link, "its certificate is not the one that the directory has");
}

static void out_message(struct link *link, const union talk *message)
{
    struct peer *peer = link->owner;
    struct agent *agent = agent_of(link);
    const char *why;

    if (link->is_ready) {
        importer_message(agent, peer, message);
        return;
    }
    why = message->head.type == TALK_HELLO ? hello_error(link, peer, &message->hello)
                                           : "it did not say who it is";
    if (why) {
        link_fail(link, why);
        return;
    }
    link->is_ready = true;
    peer->wait_ns = RETRY_NS;
    importer_link_up(agent, peer);
}

static void defer(const struct agent *agent, struct peer *peer)
{
    const uint64_t most = has_open(agent, peer) ? OPEN_WAITS_NS : RETRY_MAX_NS;

    peer->retry_ns = gs_now_ns() + peer->wait_ns;
    peer->wait_ns = peer->wait_ns * 2 < most ? peer->wait_ns * 2 : most;
}

/* There is no link to it now. Where there was none before either, it may have been started anew. */
static void lose(struct agent *agent, struct peer *peer, bool was_ready, const char *why)
{
    peer->out = NULL;
    PEER_LOG(agent, peer, peer->wait_ns == RETRY_NS ? GS_LOG_WARNING : GS_LOG_DEBUG,
             "machine %s (%s port %u): %s; what is open there stays", peer_name(peer),
             peer->known.address, peer->known.port, why);
    if (!was_ready)
        jobs_ask(agent->jobs, DIRECTORY_AGENTS, peer->machine);
    defer(agent, peer);
    importer_link_down(agent, peer);
}

static void out_down(struct link *link, const char *why)
{
    lose(agent_of(link), link->owner, link->is_ready, why);
}

static void connect_to(struct agent *agent, struct peer *peer)
{
    static const struct link_events events = {.up = out_up,
                                              .message = out_message,
                                              .down = out_down};
    char reason[LINK_REASON];

    if (!peer->known.version) {
        jobs_ask(agent->jobs, DIRECTORY_AGENTS, peer->machine);
        defer(agent, peer);
        return;
    }
    peer->out =
        link_connect(&agent->links, peer->known.address, peer->known.port, &events, peer, reason);
    if (!peer->out)
        lose(agent, peer, false, reason);
}

void peers_start(struct agent *agent)
{
    struct leases_note *note, *next;

    HASH_ITER(hh, agent->leases.notes, note, next) {
        if (note->key.mark == LEASES_ASKED || note->key.mark == LEASES_BOOT)
            peers_find(agent, note->key.machine, true);
    }
}

/* ---- Links from others ---------------------------------------------------------------------- */

static void accept_peer(struct agent *agent, struct link *link, struct peer *peer)
{
    const union talk hello = {.hello = link->hello};

    if (peer->in) {
        link_close(peer->in);
        exporter_link_down(agent, peer);
    }
    take_boot(agent, peer, link->hello.boot);
    memcpy(peer->file, link->hello.file, sizeof peer->file);
    link->owner = peer;
    link->is_ready = true;
    peer->in = link;
    say_hello(agent, link);
    exporter_message(agent, peer, &hello);
}

static void in_message(struct link *link, const union talk *message)
{
    struct agent *agent = agent_of(link);
    struct peer *peer = link->owner;

    if (peer) {
        if (message->head.type == TALK_HELLO)
            link_fail(link, "it says twice who it is");
        else
            exporter_message(agent, peer, message);
        return;
    }
    if (message->head.type != TALK_HELLO) {
        link_fail(link, "it did not say who it is");
        return;
    }
    link->hello = message->hello;
    peer = peers_find(agent, message->hello.machine, false);
    if (!hello_error(link, peer, &message->hello))
        accept_peer(agent, link, peer);
    else
        link->is_held = true; /* until the directory has said, or LINK_BEGIN_S are over */
}

static void in_down(struct link *link, const char *why)
{
    struct agent *agent = agent_of(link);
    struct peer *peer = link->owner;

    if (!peer) {
        say_line(agent, &agent->log.strangers, GS_LOG_WARNING,
                 "who called from %s is not let in: %s", link->peer, why);
        return;
    }
    PEER_LOG(agent, peer, GS_LOG_WARNING, "machine %s (%s): %s; what it has open stays",
             peer_name(peer), link->peer, why);
    peer->in = NULL;
    exporter_link_down(agent, peer);
}

/* One whose messages wait for what the directory says of the machine; NULL: of any. */
static struct link *held_for(const struct agent *agent, const unsigned char *machine)
{
    struct link *link;

    DL_FOREACH(agent->links.all, link) {
        if (link_is_caller(link) && link->is_held &&
            (!machine || memcmp(link->hello.machine, machine, GS_MACHINE_SIZE) == 0))
            return link;
    }
    return NULL;
}

void peers_got(struct agent *agent, const struct jobs_event *event)
{
    struct link *link;

    if (event->found == DIRECTORY_FOUND)
        learn(agent, event);
    while ((link = held_for(agent, event->key.id))) { /* which is held no more then */
        struct peer *peer = peers_find(agent, link->hello.machine, false);
        const char *why = event->found == DIRECTORY_FAILED ? "the directory does not say who it is"
                                                           : hello_error(link, peer, &link->hello);

        if (why) {
            link_fail(link, why);
            continue;
        }
        accept_peer(agent, link, peer);
        link_release(link);
    }
}

void peers_look(struct agent *agent, uint64_t now_ns)
{
    const bool forgets = now_ns >= agent->forget_ns, asks = jobs_is_good(agent->jobs);
    struct link *caller = held_for(agent, NULL);
    struct peer *peer, *next;

    /* The directory is asked about one of those that call at a time: opens here wait for no more
     * than that. */
    if (caller && !caller->is_asked) {
        caller->is_asked = true;
        jobs_ask(agent->jobs, DIRECTORY_AGENTS, caller->hello.machine);
    }
    if (forgets)
        agent->forget_ns = now_ns + FORGET_NS;
    HASH_ITER(hh, agent->peers, peer, next) {
        if (!peer->out && now_ns >= peer->retry_ns && (peer->asked || has_open(agent, peer)))
            connect_to(agent, peer);
        /* Only the directory says that a machine was started anew and has nothing here to say. */
        if (asks && now_ns >= peer->ask_ns && !peer->in &&
            leases_side(&agent->leases, peer->machine)) {
            peer->ask_ns = now_ns + ASK_NS;
            jobs_ask(agent->jobs, DIRECTORY_AGENTS, peer->machine);
        }
        if (forgets && is_idle(agent, peer)) {
            HASH_DEL(agent->peers, peer);
            free(peer);
        }
    }
}

/* Some of those that call; others wait in the kernel until all have had their turn. */
void peers_accept(struct source *listener, uint32_t ready)
{
    struct agent *agent = (struct agent *)((char *)listener - offsetof(struct agent, listener));
    static const struct link_events events = {.message = in_message, .down = in_down};

    for (int i = 0; i < ACCEPT_TURN; i++) {
        int fd = accept4(listener->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        struct link *oldest;
        unsigned callers;

        if (fd < 0)
            return;
        oldest = link_to_give_way(&agent->links, &callers);
        if (callers >= CALLERS_MAX)
            link_fail(oldest, "too many others call");
        link_accept(&agent->links, fd, &events);
    }
}
