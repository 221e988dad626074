/*
 * A second process with CUDA: the program conformance_peer, which does what the test asks it to
 * over a socket and answers with the driver's result. It has the test's environment (so it runs
 * under the shim where the test does) and dies with the test.
 *
 * A call fails the test where the peer does not answer within half a minute; what the driver
 * answered is the call's result.
 */
#ifndef CONFORMANCE_PEER_H
#define CONFORMANCE_PEER_H

#include "conform.h"

#include <sys/types.h>

struct peer;

/* Starts a peer on device 0. Its stdout becomes stdout_fd where that is not -1. */
struct peer *peer_start(int stdout_fd);

/* Ends the peer: quit leaves in order (through exit), kill by SIGKILL. Both wait for its end and
 * free peer. */
void peer_quit(struct peer *peer);
void peer_kill(struct peer *peer);

CUresult peer_alloc(struct peer *peer, enum memory_kind kind, CUdeviceptr *ret_ptr, size_t size);
CUresult peer_free(struct peer *peer, enum memory_kind kind, CUdeviceptr ptr);
CUresult peer_share(struct peer *peer, CUdeviceptr ptr, CUipcMemHandle *ret_handle);
CUresult peer_open(struct peer *peer, const CUipcMemHandle *handle, CUdeviceptr *ret_ptr);
CUresult peer_close(struct peer *peer, CUdeviceptr ptr);
CUresult peer_fill(struct peer *peer, CUdeviceptr ptr, uint32_t value, size_t words);

/* Starts a kernel that fills after ns, and does not wait for it. */
CUresult peer_spin_fill(struct peer *peer, CUdeviceptr ptr, uint32_t value, size_t words,
                        uint64_t ns);

/* How many of the words are not value, counted by a kernel of the peer. */
CUresult peer_count_other(struct peer *peer, CUdeviceptr ptr, uint32_t value, size_t words,
                          uint32_t *ret_count);

/* That count where no call may fail; and memory of the one that the other opens, where none may
 * fail either. */
uint32_t peer_other(struct peer *peer, CUdeviceptr ptr, uint32_t value, size_t words);
CUdeviceptr peer_opens(struct peer *peer, CUdeviceptr ours);
CUdeviceptr opened_from(struct peer *peer, CUdeviceptr theirs);

/* Imports size bytes of VMM memory from a descriptor and maps them, read-only where so asked. */
CUresult peer_import(struct peer *peer, int fd, size_t size, bool read_only, CUdeviceptr *ret_ptr);

/* Copies one word from the host to ptr. */
CUresult peer_store(struct peer *peer, CUdeviceptr ptr, uint32_t value);

/* Imports a pool from a descriptor, and memory of it; the pool goes with the peer. */
CUresult peer_import_pool(struct peer *peer, int fd, const CUmemPoolPtrExportData *pointer,
                          CUdeviceptr *ret_ptr);

/* A batch of two copies of which the second goes past the end of its block, or to freed memory.
 * False: the process ended over it (the only call a peer may die of). */
enum bad_batch { BATCH_PAST_THE_END, BATCH_OF_FREED_MEMORY };
bool peer_bad_batch(struct peer *peer, int form, enum bad_batch what, CUresult *ret_result,
                    size_t *ret_failed);

/* The peer's side, from main: serves requests until the socket hangs up. */
int peer_main(void);

#endif
