/*
 * The spare descriptor of the share thread: given up for a moment where no other is left. The
 * program may have closed it, and its number may be another file's.
 */
#include "core/share/internal.h"

/* A copy of the end that is read: one of the other would keep the thread from being told that the
 * program has closed that, and who writes into a pipe that nobody reads is sent a signal. */
void gs_spare_take(struct gs_share *share)
{
    if (share->place.spare_fd < 0 && gs_fd_is_there(&share->loop.woken_kept))
        share->place.spare_fd = gs_fd_copy(share->loop.woken);
}

void gs_spare_give(struct gs_share *share)
{
    struct gs_fd spare = share->loop.woken_kept; /* the same pipe, */

    spare.fd = share->place.spare_fd; /* by another number */
    gs_fd_close(&spare);
    share->place.spare_fd = -1;
}
