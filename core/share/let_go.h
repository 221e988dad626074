/*
 * What sharing has to do with sleep (core/process/sleep.h): memory of this process's that others
 * may open leaves the GPU with its handles and leases; and what others share is let go, so that
 * theirs can.
 */
#ifndef GS_CORE_SHARE_LET_GO_H
#define GS_CORE_SHARE_LET_GO_H

#include "core/share/share.h"

/* ---- Exporter (exports.c) -------------------------------------------------------------------- */

/*
 * A piece of the block is to leave the GPU for as long as the process sleeps, with all that is
 * known of it. False: others may have it mapped, or it is left with a broker, or is being given out
 * just now. From then on nobody is given any of it, until as many wakes: with the piece's handle.
 * May be called with rank ARENA held.
 */
bool gs_share_export_sleeps(struct gs_share *share, struct gs_export *export);
void gs_share_export_wakes(struct gs_share *share, struct gs_export *export,
                           CUmemGenericAllocationHandle handle);
/* Before that: what others have closed and keep for their next open is to come back. False: nobody
 * has anything. */
bool gs_share_recall_all(struct gs_share *share);
/* Until it is back, or they do not say so in time (flush.c). */
void gs_share_await_recalled(struct gs_share *share);
/* And: until the share thread is at none, which a moment ago it may have been told to give
 * out. */
void gs_share_await_unpinned(struct gs_share *share, uint64_t until_ns);

/* ---- Importer (let_go.c) --------------------------------------------------------------------- */

/*
 * A process that sleeps together with those whose memory it has open: that is mapped no more, but
 * the addresses and the leases stay, and its exporters know. All calls are stopped, and the GPU is
 * done. What devices have registered stays mapped, as does the program's own memory of others, the
 * host's, and what a broker or another machine has given. Returns bytes.
 */
size_t gs_share_let_go(struct gs_share *share);
/* Those exporters have not given it back, at the end of a try. */
struct gs_untaken {
    pid_t pid; /* of one; 0: not seen from here */
    gs_status
        status;  /* GS_UNREACHABLE: it sleeps, or does not answer; or the driver's error here */
    size_t left; /* bytes */
};
/* All that is mapped again, where it was. False: not before `until_ns`, and the next try goes on
 * from there. What has ended with its exporter stays away, which the log says: whatever touches it
 * fails. */
bool gs_share_take_back(struct gs_share *share, uint64_t until_ns, struct gs_untaken *ret);
/* The process ends: who waits there does so no more. From any thread. */
void gs_share_take_back_ends(struct gs_share *share);

#endif
