/*
 * Leases across machines, as the agent knows them: what its machine has of others, and what others
 * have of it. Each is one block that one machine has open. They are also in a file beside the
 * broker's socket, so that neither the agent's end nor the broker's loses one while processes that
 * they are of still run; the kernel's start ends them all.
 *
 * What another machine makes us hold is counted here: leases_has_room is the one bound.
 */
#ifndef GS_SHIM_AGENT_LEASES_H
#define GS_SHIM_AGENT_LEASES_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <uthash.h>

#include "core/share/wire.h"
#include "shim/agent/talk.h"

#define LEASES_REASON   384
#define LEASES_MAX      131072 /* that others make us hold, in all; the broker may keep fewer */
#define LEASES_OF_BLOCK 16     /* of one machine: one, and those of brokers that ended there */

extern const unsigned char agent_nobody[GS_MACHINE_SIZE];  /* zeros: this machine, in leases */
extern const unsigned char agent_unknown[GS_MACHINE_SIZE]; /* whose leases nobody knows */

struct lease_key {
    unsigned char machine[GS_MACHINE_SIZE]; /* that holds it; zero: this one */
    uint64_t lease;
};

struct lease_block {
    unsigned char instance[GS_INSTANCE_SIZE];
    uint64_t block_id;
};

struct process {
    int32_t pid; /* 0: not known */
    uint32_t zero;
    uint64_t started; /* with the pid it names the process: /proc/PID/stat */
};

struct lease {
    struct lease_key key;
    struct lease_block block;
    unsigned char
        exporter[GS_MACHINE_SIZE]; /* of ours: whose block it is; of others: their file of leases */
    struct process broker;         /* of ours: that had it when it came; 0: nobody knows */
    uint64_t since_ns;
    bool named; /* of others: since the list that is under way began; of ours: this broker has it */
    bool recalled;     /* of ours: since its exporter's link began */
    uint32_t request;  /* of others: asked of the broker, which has not answered; 0: it has */
    bool is_over;      /* then it ends */
    UT_hash_handle hh; /* by key */
    UT_hash_handle by_request;             /* while that is not 0 */
    struct lease *prev, *next;             /* of the same block */
    struct lease *prev_there, *next_there; /* of the same side; ours are of none */
};

/* Another machine, as far as it has something here. */
struct lease_side {
    unsigned char machine[GS_MACHINE_SIZE];
    struct lease *theirs;
    unsigned owed; /* how many */
    UT_hash_handle hh;
};

struct lease_group {
    struct lease_block block;
    struct lease *leases;
    UT_hash_handle hh;
};

/* What the file has besides. */
enum leases_mark {
    LEASES_ASKED = 1, /* a machine was asked for memory: it may have leases of ours */
    LEASES_BOOT = 3,  /* of a machine that has leases here */
    LEASES_ID,        /* of this file */
    /* In a machine's place, holders.c: a process that has leases by a broker, the value. */
    LEASES_HOLDER,
};

struct leases_note {
    struct {
        unsigned char machine[GS_MACHINE_SIZE];
        uint64_t mark;
    } key;
    unsigned char value[16];
    UT_hash_handle hh;
};

struct leases {
    struct lease *all;
    struct lease_group *groups;
    struct lease_side *sides;
    unsigned owed, most; /* of all sides; and what that may come to */
    int folder, file, lock;
    unsigned char boot[GS_BOOT_BYTES];
    uint64_t records; /* in the file */
    bool lacks;       /* it is not written yet, or could not be, and there is none */
    unsigned char
        id[LEASES_FILE]; /* of the file: that of another is another, also where it was lost */
    struct leases_note *notes;
};

/* Reads the file in this folder, and writes it anew. One that cannot be read whole is as one that
 * was lost: this is another. False, and the reason: another agent has it, or it cannot be
 * written. */
bool leases_open(struct leases *leases, int folder, const unsigned char boot[GS_BOOT_BYTES],
                 char ret_reason[LEASES_REASON]);
/* Now and then: writes it anew where that is due, or it was taken away. False, and errno: there is
 * none, and none can be written. */
bool leases_look(struct leases *leases);
/* NULL: no memory. One of that key is not there yet. */
struct lease *leases_add(struct leases *leases, const struct lease *lease);
void leases_end(struct leases *leases, struct lease *lease);
struct lease *leases_find(const struct leases *leases, const unsigned char machine[GS_MACHINE_SIZE],
                          uint64_t lease);
/* Whether it is this machine that holds it. */
bool lease_is_ours(const struct lease *lease);
struct lease_block lease_block_of(const unsigned char instance[GS_INSTANCE_SIZE],
                                  uint64_t block_id);
/* The first one, whoever has it; NULL: nobody does. */
struct lease *leases_of_block(const struct leases *leases, const struct lease_block *block);

/* NULL: there are none. */
struct lease_side *leases_side(const struct leases *leases,
                               const unsigned char machine[GS_MACHINE_SIZE]);
/* Whether the machine may have one more: it has at most what is left over for others, so that
 * something always is. */
bool leases_has_room(const struct leases *leases, const unsigned char machine[GS_MACHINE_SIZE]);

/* A value of 16 bytes for each mark and machine (of the file: zeros). False: no memory. */
bool leases_note(struct leases *leases, enum leases_mark mark,
                 const unsigned char machine[GS_MACHINE_SIZE], const void *value);
void leases_unnote(struct leases *leases, enum leases_mark mark,
                   const unsigned char machine[GS_MACHINE_SIZE]);
/* False: there is none. Else *ret_value, which may be NULL. */
bool leases_noted(const struct leases *leases, enum leases_mark mark,
                  const unsigned char machine[GS_MACHINE_SIZE], void *ret_value);

/* The process of this pid; its pid is 0 where there is none. */
struct process process_of(pid_t pid);
/* Its pidfd; -ESRCH: it has ended; another negative errno: that cannot be said. */
int process_open(const struct process *process);

#endif
