/*
 * What actor.c, kinds.c and ending.c have in common: one actor's state. An actor has one thread.
 */
#ifndef CHAOS_ACTOR_H
#define CHAOS_ACTOR_H

#include "chaos.h"

#define ACTOR_BLOCKS    20
#define ACTOR_MAX_WORDS ((uint64_t)6 << 18) /* 6 MiB */

enum actor_kind {
    BY_ALLOC,
    BY_PITCH,
    BY_ASYNC,
    BY_MAP /* and those behind it: kinds.c */,
    BY_EXPORTED,
    BY_MEMFD,
    KINDS
};

struct actor_block {
    CUdeviceptr ptr;
    uint64_t words;
    uint32_t stamp;
    enum actor_kind kind;
    uint64_t keep_until_ns; /* promised to importers */
    bool given_out;
};

struct actor_held {
    CUdeviceptr ptr;
    struct chaos_record record;
};

struct actor {
    struct chaos_world *world;
    struct chaos_slot *slot;
    struct gpu gpu;
    int world_fd;
    unsigned number, flags, life, next_stamp;
    uint64_t random;
    uint64_t end_ns; /* of its own accord; 0: never */
    bool end_by_exec;
    struct actor_block own[ACTOR_BLOCKS];
    struct actor_held held[ACTOR_BLOCKS];
    unsigned own_count, held_count;
    CUdeviceptr counter; /* one word, for gpu_count_other */
    size_t free_at_start;
    unsigned fds_at_start;
    uint32_t *host; /* ACTOR_MAX_WORDS */
};

/* actor.c */
void actor_step(struct actor *actor, enum chaos_step step);
/* Records what is wrong, once, and ends the process: the supervisor judges. */
_Noreturn void actor_wrong(struct actor *actor, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Ends the process unless the call did what it must. */
void actor_must(struct actor *actor, const char *call, CUresult result);
/* Compares one block, own or held; returns only if it is intact. */
void actor_verify_own(struct actor *actor, const struct actor_block *block);
void actor_verify_held(struct actor *actor, const struct actor_held *held);
void actor_free(struct actor *actor, unsigned index);
void actor_close(struct actor *actor, unsigned index);

/* kinds.c: makes a block of what is not allocated; OUT_OF_MEMORY where there is none. And ends
 * it. */
CUresult actor_make(struct actor *actor, struct actor_block *block);
void actor_unmake(struct actor *actor, const struct actor_block *block);

/* ending.c */
/* Descriptors of this process other than plain memory. */
unsigned actor_descriptors(void);
/* Gives everything back and looks whether it came back. */
void actor_account(struct actor *actor);

#endif
