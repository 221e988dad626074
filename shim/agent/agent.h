/*
 * gpushim-agent: joins this machine's broker with those of other machines, so that GPU memory is
 * opened across machines and freed when nobody has it any more. README.md here has the picture.
 *
 *   main.c     options, the loop
 *   broker.c   the connection to the broker (core/share/wire_cluster.h has its words)
 *   told.c     which machines have what here, for people
 *   importer.c   what processes here open of other machines
 *   exporter.c what other machines open here
 *   peers.c    other machines: finding them, links to them
 *   holders.c  processes here that hold memory of others, beyond the broker's end
 *   say.c      the log, of which no other machine has more than its part
 *
 * One thread; what may wait for the directory is in the other, of jobs.c.
 */
#ifndef GS_SHIM_AGENT_AGENT_H
#define GS_SHIM_AGENT_AGENT_H

#include <uthash.h>

#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/base/text.h"
#include "core/share/share.h"
#include "core/share/wire.h"
#include "shim/agent/directory.h"
#include "shim/agent/jobs.h"
#include "shim/agent/leases.h"
#include "shim/agent/link.h"

#define AGENT_OPEN_NS \
    (20 * GS_NS_PER_S) /* for one open; its process waits for 30 s (debug.timeout) */

struct agent_options {
    struct directory_options directory;
    const char *listen, *address; /* numbers; the second one is what others connect to */
    unsigned port;
    const char *machine_id; /* in place of /etc/machine-id: tests */
    const char *boot_id;    /* likewise */
    const char *name;       /* for people */
};

/* Lines of the log about one other: some at once, then one now and then; how many were left out is
 * said with the next one. */
struct say {
    uint64_t due_ns;
    unsigned left_out;
};

struct agent_log {
    struct gs_log to;
    /* Of those that call, of what the directory answers, of this machine's broker, and its file. */
    struct say strangers, directory, here, file;
};

struct peer { /* another machine */
    unsigned char machine[GS_MACHINE_SIZE];
    struct known_agent known; /* what the directory has, or had; version 0: nothing */
    unsigned char boot[GS_BOOT_BYTES];
    struct link *out, *in;           /* out: for what we open there; in: for what it opens here */
    bool asked;                      /* it may have leases of ours */
    bool knows_boot;                 /* `boot` is that of which leases here are */
    bool has_told;                   /* since this agent began it said all that it has */
    bool has_listed;                 /* on `in`: what it has here, */
    unsigned char file[LEASES_FILE]; /* as this has it */
    unsigned takes;                  /* of its own, that our broker has not answered */
    struct say say;
    unsigned char boot_before[GS_BOOT_BYTES];
    uint64_t retry_ns, wait_ns; /* of `out` */
    uint64_t
        ask_ns; /* when the directory is asked about it again: it has leases here, and no link */
    UT_hash_handle hh;
};

struct export
{
    struct lease_block block;
    struct gs_ipc_handle handle;
    struct sealed sealed;
    unsigned char id[SEAL_ID];
    /* Else it was, or leases of it have ended: if it is held next, and no lease is of it, that is
     * nobody's. */
    bool is_there;
    UT_hash_handle hh, by_id;
};

enum open_state { OPEN_WAITS, OPEN_LOOKS_UP, OPEN_CONNECTS, OPEN_ASKED };
struct open { /* of a process here, of another machine's memory */
    uint64_t lease;
    enum open_state state;
    uint32_t request; /* of the broker's */
    uint64_t since_ns;
    uint64_t again_ns, wait_ns; /* while it waits; 0: it has not waited yet */
    uint32_t uid, gid;
    struct gs_ipc_handle handle;
    struct sealed sealed;
    unsigned char id[SEAL_ID];
    struct peer *peer; /* not while it waits or looks up */
    UT_hash_handle hh;
};

struct holder {
    int pidfd;                      /* negative: it has ended, or is not seen to */
    uint64_t number;                /* of this broker; 0: of one that has ended */
    uint64_t exited_ns;             /* 0: it was not seen to end */
    struct process process, broker; /* pid 0: it is not seen */
    struct holder *prev, *next;
};

struct unsent {
    struct unsent *prev, *next;
    union gs_wire_message message;
};

struct agent {
    struct agent_options options;
    const struct gs_share_options *share;
    struct agent_log log;
    int epoll;
    unsigned char machine[GS_MACHINE_SIZE], boot[GS_BOOT_BYTES];
    struct jobs *jobs;
    struct links links;
    struct leases leases;
    uint64_t file_ns; /* it lacks something, and is not tried before; 0: it lacks nothing */
    struct source wake, listener;
    char trouble[DIRECTORY_REASON]; /* what is wrong with the directory; "": nothing */
    struct peer *peers;
    /* The broker. */
    struct source broker; /* fd -1: none */
    uint64_t broker_retry_ns;
    bool is_synced; /* the broker has said what its processes have */
    struct unsent *unsent;
    unsigned unsent_count;
    struct export *exports, *exports_by_id;
    struct open *opens;
    struct lease *takes; /* of others, that the broker has not answered */
    uint32_t requests;
    uint64_t forget_ns; /* when machines of which nothing is here are forgotten */
    struct holder *holders;
};

#define AGENT_LOG(agent, level, ...)      gs_log_line(&(agent)->log.to, level, __VA_ARGS__)
#define PEER_LOG(agent, peer, level, ...) say_line(agent, &(peer)->say, level, __VA_ARGS__)
#define HEX_SIZE(bytes)                   (2 * (bytes) + 1)

/* say.c */
void say_line(struct agent *agent, struct say *say, enum gs_log_level level, const char *format,
              ...) __attribute__((format(printf, 4, 5)));

/* broker.c */
void broker_look(struct agent *agent, uint64_t now_ns);
void broker_send(struct agent *agent, const union gs_wire_message *message);
/* The process; its pid is 0 where that is not seen. */
struct process broker_process(const struct agent *agent);
static inline bool broker_is_there(const struct agent *agent)
{
    return agent->broker.fd >= 0;
}

/* peers.c */
void peers_start(struct agent *agent);
void peers_look(struct agent *agent, uint64_t now_ns);
void peers_write_own(struct agent *agent);
/* NULL: no memory. */
struct peer *peers_find(struct agent *agent, const unsigned char machine[GS_MACHINE_SIZE],
                        bool make);
/* What the directory answered about one. */
void peers_got(struct agent *agent, const struct jobs_event *event);
void peers_accept(struct source *listener, uint32_t events);
const char *peer_name(const struct peer *peer);

/* importer.c */
void importer_ask(struct agent *agent, const struct gs_wire_open *ask);
/* The broker says so; it may also still be asked for. */
void importer_ended(struct agent *agent, uint64_t lease);
void importer_found(struct agent *agent, const struct jobs_event *event);
void importer_link_up(struct agent *agent, struct peer *peer);
void importer_link_down(struct agent *agent, struct peer *peer);
void importer_message(struct agent *agent, struct peer *peer, const union talk *message);
/* The process here holds it no more. */
void importer_end(struct agent *agent, struct lease *lease);
/* Whether one waits for what may be heard of at any moment. */
bool importer_look(struct agent *agent, uint64_t now_ns);
void importer_broker_gone(struct agent *agent);

/* exporter.c */
void exporter_share(struct agent *agent, const struct gs_wire_share *shared);
void exporter_unshare(struct agent *agent, const struct gs_wire_close *unshared);
/* NULL: it is not shared here, nor was it. */
struct export *exporter_find(const struct agent *agent, const struct lease_block *block);
void exporter_write_all(struct agent *agent);
void exporter_answer(struct agent *agent, const union gs_wire_message *answer);
void exporter_recall(struct agent *agent, const struct gs_wire_close *recall);
void exporter_message(struct agent *agent, struct peer *peer, const union talk *message);
void exporter_link_down(struct agent *agent, struct peer *peer);
/* What the machine had is over; how many leases. */
unsigned exporter_end_all(struct agent *agent, const unsigned char machine[GS_MACHINE_SIZE]);
void exporter_broker_gone(struct agent *agent);

/* told.c: answers, for people; or has a machine forgotten. */
void told_ask(struct agent *agent, const struct gs_wire_query *query);

/* holders.c */
/* Where it takes the pidfd that becomes -1. */
void holders_note(struct agent *agent, const struct gs_wire_hello *told, int *pidfd);
/* Their broker has ended: what it had is held until they all have. */
void holders_orphan(struct agent *agent);
/* After a start: those of the file. */
void holders_restore(struct agent *agent);
/* Ends the leases of a broker that has ended, as the last of its holders has. */
void holders_look(struct agent *agent, uint64_t now_ns);

#endif
