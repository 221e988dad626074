/*
 * Events of several processes (cuIpcGetEventHandle, cuIpcOpenEventHandle), between containers.
 *
 * They stay the driver's: it keeps 4,096 of them in a file of /dev/shm, cuda.shm.UID.PID.N, by
 * shm_open. A handle is the pid, N and a place, 8 bytes each, and 40 bytes that nobody looks at
 * (measured: 580, H200). Who opens one maps the file of that name, once, so natively both have to
 * see one /dev/shm and the same pids.
 *
 *   exporter                                             importer
 *   cuEventCreate: the driver calls shm_open, and
 *   shim/hooks/event.c keeps a descriptor of the file
 *   cuIpcGetEventHandle -> gs_event_export: instance
 *   and a secret go into the handle's 40 bytes ------->  cuIpcOpenEventHandle -> gs_event_open: for the first
 *   share thread <------ QUERY about events: N, secret -- of a file a connection of its own, without a lease;
 *                ------- REPORT, with the descriptor ->  a pid that no process has in place of the exporter's.
 *                                                        Then the driver calls shm_open for that pid and N,
 *                                                        and is given the descriptor
 *
 * So files of many exporters with one pid, or this process's own, are never taken for each other,
 * and when the exporter has ended its other events open on, as the driver has the file. Where it
 * cannot be had of the exporter the driver is given the handle as it came.
 *
 * A file is shared between processes of one user alone, whoever share.uids names: whoever has it
 * can make it smaller (files of /dev/shm take no seals), which ends all who have it mapped.
 * Natively it is that user's, too. Brokers and agents have nothing to do with it: an event without
 * its process is of no use.
 */
#ifndef GS_CORE_SHARE_EVENT_H
#define GS_CORE_SHARE_EVENT_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/fd.h"
#include "core/base/status.h"
#include "core/share/ipc_handle.h"

#define GS_EVENT_FILE_SIZE 81920 /* at least; what the driver maps, 20 bytes an event */

#define GS_EVENT_MAGIC UINT64_C(0x3176657368757067)

/* A CUipcEventHandle. */
struct gs_event_handle {
    uint64_t pid, number, place; /* the driver's */
    uint64_t magic;              /* what is from here on is ours; without us zero */
    unsigned char instance[GS_INSTANCE_SIZE];
    unsigned char secret[GS_SECRET_SIZE]; /* of the file */
};

struct gs_share;

/* Adds to a handle of the driver's what leads to its file. `fd` is that of the file, and stays as
 * it is for as long as the process runs. Otherwise the handle is left as it was: GS_NOT_OFFERED,
 * GS_NO_RANDOM, GS_NO_HOST_MEMORY; GS_NOT_OURS: the driver has something in the bytes that are
 * ours. */
gs_status gs_event_export(struct gs_share *share, const struct gs_fd *fd,
                          struct gs_event_handle *handle);

/*
 * Leads another process's handle to a file of this one's: the pid is exchanged. *ret_fd is the
 * file, the caller's, -1 where the driver should have it; `again`: it has not. GS_NOT_OURS: it is
 * the driver's alone, or of this process; or that and GS_UNREACHABLE, GS_NO_HOST_MEMORY with the
 * reason. Waits for the exporter, for debug.timeout at most; no lock is held.
 */
gs_status gs_event_open(struct gs_share *share, bool again, struct gs_event_handle *handle,
                        int *ret_fd, const char **ret_reason);
/* The driver has the file that the handle was led to. */
void gs_event_opened(struct gs_share *share, const struct gs_event_handle *handle);

#endif
