/*
 * What most tests of sharing begin with: a directory of their own, this process's side, memory that
 * it exports, and a process beside it. A suite sets up what it needs; scene_end ends all that there
 * is.
 */
#ifndef GS_TESTS_SCENE_H
#define GS_TESTS_SCENE_H

#include "other.h"
#include "side.h"
#include "tests/rest.h"

#define MS UINT64_C(1000000)

extern char dir[64];
extern struct gs_share_options options;
extern struct side side;
extern struct side_chunk chunk;
extern struct other other;

/* The directory, and options that may be changed before the next: */
void scene_new(void);
/* this process's side, or one anew in its place; that and a chunk of 2 MiB; and of that a block of
 * 512 bytes at its start. */
void scene_side(void);
void scene_side_anew(void);
void scene_chunk(void);
void scene_block(struct gs_export **ret_export, unsigned char ret_ipc_handle[GS_IPC_HANDLE_SIZE]);
/* Another block of the chunk. */
struct gs_export *scene_export(size_t offset, size_t size, unsigned char *ret_ipc_handle);
/* The address in this process of another's block, which it opens. */
CUdeviceptr scene_open(const unsigned char *ipc_handle);
/* The side and its chunk go. */
void scene_stop(void);
/* The other process too, in order; nothing is left in the driver, and no broker. */
void scene_end(void);

#endif
