/*
 * The thread that speaks to the directory, which may take seconds: it writes, asks and keeps the
 * lease alive. The agent's own thread gives it work and takes what comes of it, and never waits for
 * it.
 *
 * What is to be written is kept until it is: the newest value of each key. The lease comes first,
 * then what is asked for, then that.
 */
#ifndef GS_SHIM_AGENT_JOBS_H
#define GS_SHIM_AGENT_JOBS_H

#include "shim/agent/directory.h"

struct jobs;

struct jobs_event { /* an answer: what `key` has */
    struct jobs_event *prev, *next;
    enum directory_found found; /* FAILED: why is the value, as text */
    size_t size;
    struct directory_key key;
    unsigned char value[DIRECTORY_VALUE];
};

/* `wake`: an eventfd that is written to when something has come. NULL, and the reason. */
struct jobs *jobs_start(const struct directory_options *options, int wake, char *ret_reason);
/* Gives the lease back, waiting for what is under way: some DIRECTORY_WAIT_S for each endpoint.
 * What is here stays until the process's end. */
void jobs_end(struct jobs *jobs);

/* The key is to have this value; NULL: to go. */
void jobs_write(struct jobs *jobs, enum directory_kind kind, const unsigned char id[16],
                const void *value, size_t size);
/* Answered by one event for all that ask before that. */
void jobs_ask(struct jobs *jobs, enum directory_kind kind, const unsigned char id[16]);
/* What is new, as bits, once. All is to be written again: there is a new lease, or no memory was
 * left for some of it. It answers, and takes what is written: there is no trouble, ""; or does no
 * more: why. */
enum { JOBS_WANT_ALL = 1, JOBS_STATE = 2 };
unsigned jobs_news(struct jobs *jobs, char ret_trouble[DIRECTORY_REASON]);
/* What has come, for the caller to free; NULL: nothing more. */
struct jobs_event *jobs_take(struct jobs *jobs);
/* For how long the lease lives still, by this machine's steady clock: it was kept alive so lately
 * that nobody can have seen it die. */
uint64_t jobs_left_ns(struct jobs *jobs);
bool jobs_is_good(struct jobs *jobs);

#endif
