/*
 * What the race programs have in common: exporting threads stamp a block, publish its handle, and
 * as soon as a withdrawal says that nobody holds it stamp it anew; an opening thread that gets in
 * must see the stamp that was published with the handle for as long as it has the block open.
 */
#ifndef GS_TESTS_STAMPS_H
#define GS_TESTS_STAMPS_H

#include "side.h"

#define STAMPS_BLOCK 512 /* bytes, of which the first four are the stamp */

/* A handle that is around, and what its block holds. */
struct stamps_slot {
    struct gs_lock lock; /* protects both against each other */
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    uint32_t stamp;
    bool may_be_gone; /* its process is killed at times */
};

extern unsigned stamps_failures; /* atomic */

/* Counts a failure; the first ten are said. */
void stamps_fail(const char *what, unsigned a, unsigned b);
/* One life of a block: stamped, exported, published in the slot for so long, freed and withdrawn.
 * False: others had not given it back after `back_ns`. */
bool stamps_live(struct side *side, const struct side_chunk *chunk, size_t offset, uint32_t stamp,
                 struct stamps_slot *slot, unsigned published_us, uint64_t back_ns);
void stamps_publish(struct stamps_slot *slot, const unsigned char ipc_handle[GS_IPC_HANDLE_SIZE],
                    uint32_t stamp);
/* Opens what is published there, after so long at most: some come too late. True: it went, and the
 * block is to hold the stamp. `refused`, atomic, counts those that it is not there for any more. */
bool stamps_open(struct side *side, struct stamps_slot *slot, CUcontext context, unsigned late_us,
                 unsigned *refused, CUdeviceptr *ret_address, uint32_t *ret_stamp);
/* Looks a few times whether the stamp is still the published one. */
void stamps_look(CUdeviceptr address, uint32_t expected);

#endif
