/* The agent's connection to its machine's broker (agent.h; core/share/wire_cluster.h has the
 * words). One is looked for as long as there is none. Leases outlive it. */
#include "shim/agent/agent.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include <utlist.h>

#include "core/share/conn.h"
#include "core/share/directory.h"

#define RETRY_NS   (GS_NS_PER_S / 4)
#define CONNECT_NS (GS_NS_PER_S / 10)
#define UNSENT_MAX 200000 /* messages; who reads so little is hung up on */
#define BUFFER     (1 << 20)

static void hang_up(struct agent *agent, const char *why)
{
    struct unsent *unsent, *next;

    if (!broker_is_there(agent))
        return;
    close(agent->broker.fd);
    agent->broker.fd = -1;
    DL_FOREACH_SAFE(agent->unsent, unsent, next) {
        DL_DELETE(agent->unsent, unsent);
        free(unsent);
    }
    agent->unsent_count = 0;
    say_line(agent, &agent->log.here, GS_LOG_WARNING,
             "the broker of this machine: %s; what is open stays, and another one is looked for",
             why);
    holders_orphan(agent);
    importer_broker_gone(agent);
    if (agent->is_synced) /* else it has not said what there is */
        exporter_broker_gone(agent);
    agent->is_synced = false;
}

/* ---- Sending -------------------------------------------------------------------------------- */

static void flush(struct agent *agent)
{
    struct unsent *unsent;

    while (broker_is_there(agent) && (unsent = agent->unsent)) {
        int error = gs_wire_send(agent->broker.fd, &unsent->message, -1);

        if (error && gs_wire_goes_later(error))
            break;
        if (error) {
            hang_up(agent, "it has hung up");
            return;
        }
        DL_DELETE(agent->unsent, unsent);
        agent->unsent_count--;
        free(unsent);
    }
    if (broker_is_there(agent))
        loop_want(agent->epoll, &agent->broker, EPOLLIN | (agent->unsent ? EPOLLOUT : 0));
}

/* What does not go at once waits: the call that it comes from goes on, whatever becomes of it. */
void broker_send(struct agent *agent, const union gs_wire_message *message)
{
    struct unsent *unsent;

    if (!broker_is_there(agent))
        return;
    unsent = agent->unsent_count < UNSENT_MAX ? malloc(sizeof *unsent) : NULL;
    if (!unsent) {
        gs_conn_shut(agent->broker.fd); /* which is heard in the loop */
        return;
    }
    unsent->message = *message;
    DL_APPEND(agent->unsent, unsent);
    agent->unsent_count++;
    loop_want(agent->epoll, &agent->broker, EPOLLIN | EPOLLOUT);
}

/* ---- Receiving ------------------------------------------------------------------------------ */

struct process broker_process(const struct agent *agent)
{
    return process_of(gs_conn_who(agent->broker.fd).pid);
}

/* What this broker had and has not named has ended while this agent was not there. Of an earlier
 * broker this one knows nothing. */
static void on_listed(struct agent *agent)
{
    const struct process broker = broker_process(agent);
    struct lease *lease, *next;

    HASH_ITER(hh, agent->leases.all, lease, next) {
        if (!lease->named && broker.pid && memcmp(&lease->broker, &broker, sizeof broker) == 0 &&
            lease_is_ours(lease))
            importer_end(agent, lease);
    }
    agent->is_synced = true;
    say_line(agent, &agent->log.here, GS_LOG_INFO, "joined the broker of this machine (pid %d)",
             broker.pid);
}

static void on_message(struct agent *agent, const union gs_wire_message *message, int *pidfd)
{
    struct lease *lease;

    switch (message->head.type) {
    case GS_WIRE_HELLO:
        if (message->hello.agent)
            on_listed(agent);
        else
            holders_note(agent, &message->hello, pidfd);
        break;
    case GS_WIRE_RESUME: /* of what is in no file nobody can be told */
        lease = leases_find(&agent->leases, agent_nobody, message->resume.lease);
        if (lease)
            lease->named = true;
        break;
    case GS_WIRE_SHARE:
        exporter_share(agent, &message->share);
        break;
    case GS_WIRE_CLOSE: /* of another machine's block, or of one of here */
        if (message->close.lease)
            importer_ended(agent, message->close.lease);
        else
            exporter_unshare(agent, &message->close);
        break;
    case GS_WIRE_RECALL:
        exporter_recall(agent, &message->recall);
        break;
    case GS_WIRE_GRANT:
    case GS_WIRE_REFUSE:
        if (message->head.request || message->head.type == GS_WIRE_GRANT)
            exporter_answer(agent, message);
        else
            hang_up(agent, gs_wire_reason_text(message->refuse.reason));
        break;
    case GS_WIRE_OPEN:
        importer_ask(agent, &message->open);
        break;
    case GS_WIRE_QUERY:
        told_ask(agent, &message->query);
        break;
    default: /* it is for others, or of no use here */
        break;
    }
}

static void on_ready(struct source *source, uint32_t events)
{
    struct agent *agent = (struct agent *)((char *)source - offsetof(struct agent, broker));
    union gs_wire_message message;

    for (int i = 0; i < 256 && broker_is_there(agent); i++) {
        int pidfd, error = gs_wire_receive(agent->broker.fd, &message, &pidfd);

        if (error == -EAGAIN)
            break;
        if (error == -EPROTONOSUPPORT)
            hang_up(agent, "it is of another version; start broker and agent of one");
        else if (error)
            hang_up(agent, error == -ENOTCONN ? "it has hung up" : strerror(-error));
        else
            on_message(agent, &message, &pidfd);
        if (pidfd >= 0)
            close(pidfd);
    }
    flush(agent);
}

/* ---- Connecting ----------------------------------------------------------------------------- */

static int find_broker(struct agent *agent)
{
    char name[GS_BROKER_NAME_SIZE], reason[GS_REASON_SIZE];
    unsigned place = 0;
    int directory, fd = -1;

    gs_broker_name(name);
    while (fd < 0 && (directory = gs_directory_next(agent->share, &place, reason)) >= 0) {
        fd = gs_directory_connect(directory, agent->share, name, CONNECT_NS);
        close(directory);
    }
    return fd;
}

void broker_look(struct agent *agent, uint64_t now_ns)
{
    union gs_wire_message hello;
    int fd;

    if (broker_is_there(agent) || now_ns < agent->broker_retry_ns)
        return;
    agent->broker_retry_ns = now_ns + RETRY_NS;
    fd = find_broker(agent);
    if (fd < 0)
        return;
    agent->broker = (struct source){.fd = fd, .ready = on_ready};
    gs_conn_limit(fd, BUFFER);
    if (!loop_add(agent->epoll, &agent->broker, EPOLLIN | EPOLLOUT)) {
        close(fd);
        agent->broker.fd = -1;
        return;
    }
    gs_wire_start(&hello, GS_WIRE_HELLO, 0);
    hello.hello.pid = (uint64_t)getpid();
    strcpy(hello.hello.name, "gpushim-agent");
    hello.hello.agent = 1;
    broker_send(agent, &hello);
}
