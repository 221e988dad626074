/*
 * Peer access: which other devices may touch our memory. cuCtxEnablePeerAccess says nothing to VMM
 * memory, so what the program has enabled is noted here, device by device, and each piece gets
 * access for the devices that are to have it. It stays when it is disabled, and beyond the
 * contexts: to take it away would need to wait for the device's work, since a fill that is still
 * running faults.
 */
#ifndef GS_CORE_PROCESS_PEERS_H
#define GS_CORE_PROCESS_PEERS_H

#include "core/gpu/device.h"
#include "core/process/process.h"

struct gs_block;
struct gs_piece;

/* A new piece, or the import at the address, is in the map: the peers that there are get access.
 * The piece has been locked since it came into the map, so nobody has a block of it yet, nor may
 * have one where the driver refuses a peer: its error. */
gs_status gs_peers_admit_locked(struct gs_core *core, struct gs_piece *piece);
gs_status gs_peers_admit_import(struct gs_core *core, CUdeviceptr address);

/* Those of a device; and of imported memory, which is its importers'. Nothing is locked for
 * that. */
uint64_t gs_peers_of(const struct gs_core *core, CUdevice device);
uint64_t gs_peers_of_import(struct gs_core *core, CUdeviceptr address);
/* Gives it for all pieces of a block, which is locked. GS_OK, or the driver's error. */
gs_status gs_block_set_access(struct gs_core *core, const struct gs_block *block, CUdevice device);

/* The driver has enabled the current context's access to memory of `peer`. An error of the
 * driver's: some memory could not be opened to it. */
gs_status gs_core_peer_enabled(struct gs_core *core, CUcontext peer);
/* The device's default pool gave `peer` access to its memory. The same. */
gs_status gs_core_mempool_access(struct gs_core *core, CUdevice device, CUdevice peer);

#endif
