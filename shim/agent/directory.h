/*
 * The directory: where the agents of a cluster find machines and what these share. It is a store
 * that others keep (etcd.c), or a folder on a shared file system (folder.c). One small table of
 * operations; nothing else of the agent knows which it is.
 *
 *   agents/MACHINE   where the agent of a machine listens, and the fingerprint of its certificate
 *   exports/ID       which machine shared what a handle is of, and sealed what its importer needs
 *                    (seal.h)
 *
 * All that an agent writes is under its one lease, and goes when nobody keeps that alive. That
 * alone ends nothing between agents: they speak to each other (link.h), and the directory only
 * finds them.
 *
 * Operations wait, each until nothing has come for DIRECTORY_WAIT_S (eight times that at most,
 * while something does): they belong into a thread that nobody waits for (jobs.c).
 */
#ifndef GS_SHIM_AGENT_DIRECTORY_H
#define GS_SHIM_AGENT_DIRECTORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DIRECTORY_WAIT_S      4
#define DIRECTORY_LEASE_MAX_S 3600
#define DIRECTORY_NAME        128  /* of a key; with a zero behind it */
#define DIRECTORY_VALUE       2048 /* bytes at most; longer ones were written by nobody of ours */
#define DIRECTORY_CHANGES     100  /* written at once at most */
#define DIRECTORY_REASON      384

/* They, and what they point to, stay until the end. */
struct directory_options {
    const char *place;                /* folder:PATH, or URLs of etcd with commas between them */
    const char *prefix;               /* before all keys */
    const char *owner;                /* whose lease it is: this machine's id in hex */
    unsigned lease_s;                 /* up to DIRECTORY_LEASE_MAX_S */
    const char *user, *password_file; /* of etcd; NULL: none */
    const char *ca, *cert, *key;      /* files for TLS to etcd; NULL: none */
};

enum directory_kind { DIRECTORY_AGENTS, DIRECTORY_EXPORTS };
struct directory_key {
    uint32_t kind;
    unsigned char id[16];
};

struct directory_change {
    struct directory_key key;
    const void *value; /* NULL: the key is to go */
    size_t size;
};

enum directory_found { DIRECTORY_FAILED, DIRECTORY_NONE, DIRECTORY_FOUND };

struct directory; /* each implementation's own; begins with struct directory_head */

struct directory_ops {
    /* NULL, and the reason: it is no such place. Does not ask anybody yet. */
    struct directory *(*open)(const struct directory_options *options, char *ret_reason);
    /* The lease lives on; or, with *ret_anew, there is a new one, and nothing is written yet. */
    bool (*keep)(struct directory *directory, bool *ret_anew);
    /* All of them, under the lease; each key once. False: none, or some of those that take a key
     * away: all are to be written again. */
    bool (*write)(struct directory *directory, const struct directory_change *changes,
                  unsigned count);
    /* *ret_size: DIRECTORY_VALUE at most. */
    enum directory_found (*get)(struct directory *directory, const struct directory_key *key,
                                void *ret_value, size_t *ret_size);
    /* Gives the lease back, with all that was written under it. */
    void (*give_up)(struct directory *directory);
};

struct directory_head {
    const struct directory_ops *ops;
    char reason[DIRECTORY_REASON]; /* why the last operation failed: the cause, then the way out */
};

extern const struct directory_ops directory_etcd, directory_folder;

/* By what its place begins with. It is there until the process's end. */
struct directory *directory_open(const struct directory_options *options, char *ret_reason);
/* What a key is called: the prefix, "agents" or "exports", what is between, and the id in hex. */
void directory_name(const struct directory_key *key, const char *prefix, char between,
                    char ret_name[DIRECTORY_NAME]);

static inline struct directory_head *directory_head(struct directory *directory)
{
    return (struct directory_head *)directory;
}

#endif
