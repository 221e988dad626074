/*
 * Peer access: which other devices may touch our memory. cuCtxEnablePeerAccess says nothing to VMM
 * memory, so what the program has enabled is noted here, and each piece gets access for the devices
 * that are to have it. Calls are judged by what is noted. A mapping stays when it is disabled: to
 * take it away would need to wait for the device's work, since a fill that is still running faults.
 */
#ifndef GS_CORE_PROCESS_PEERS_H
#define GS_CORE_PROCESS_PEERS_H

#include "core/base/lock.h"
#include "core/gpu/device.h"
#include "core/process/process.h"

struct gs_block;
struct gs_piece;

/* Peer access that the driver has enabled: `from`, a context of `device`, may touch all memory of
 * the context `to`. */
struct gs_peer_pair {
    CUcontext from, to;
    CUdevice device;
};

struct gs_peers {
    struct gs_lock lock; /* rank PEERS; protects all below */
    bool used;           /* atomic: false until anybody was given access */
    struct gs_peer_pair *pair;
    unsigned count, room;
    uint64_t pool_access[GS_DEVICES_MAX]; /* by device: the peers that its default pool let in */
};

void gs_peers_init(struct gs_core *core);
void gs_peers_destroy(struct gs_core *core);

/* A new piece, or the import at the address, is in the map: the peers that there are get access.
 * The piece has been locked since it came into the map, so nobody has a block of it yet, nor may
 * have one where the driver refuses a peer: its error. */
gs_status gs_peers_admit_locked(struct gs_core *core, struct gs_piece *piece);
gs_status gs_peers_admit_import(struct gs_core *core, CUdeviceptr address);

/* Whether `from` may touch a block of another device's without its being made to. A context enables
 * the access to memory of another one for itself alone (measured on two H200s); a pool lets devices
 * in. The piece is locked. */
bool gs_peers_let_in(struct gs_core *core, const struct gs_piece *piece,
                     const struct gs_block *block, CUcontext from, CUdevice device);
/* The devices that were let in to imported memory, which is its importers', one bit each; by `from`
 * (NULL: any context of theirs). Nothing is locked. */
uint64_t gs_peers_of_import(struct gs_core *core, CUdeviceptr address, CUcontext from);
/* Gives it for all pieces of a block, which is locked. GS_OK, or the driver's error. */
gs_status gs_block_set_access(struct gs_core *core, const struct gs_block *block, CUdevice device);

/* The driver has enabled, or disabled, the current context's access to memory of `peer`. An error
 * of the driver's, or GS_NO_HOST_MEMORY: some memory could not be opened to it. */
gs_status gs_core_peer_enabled(struct gs_core *core, CUcontext peer);
void gs_core_peer_disabled(struct gs_core *core, CUcontext peer);
/* The context is gone, and what was enabled for it or to it. */
void gs_core_peers_gone(struct gs_core *core, CUcontext context);

/* The device's default pool gave `peer` access to its memory, or took it away. An error as above:
 * the one that it gave is to be taken away. */
gs_status gs_core_mempool_access(struct gs_core *core, CUdevice device, CUdevice peer, bool access);

#endif
