/*
 * A descriptor that is kept for long. Some programs close all descriptors they have, and those of
 * others with them; its number may be another file's by then.
 */
#ifndef GS_CORE_FD_H
#define GS_CORE_FD_H

#include <stdbool.h>
#include <stdint.h>

struct gs_fd { /* zeroed: none */
    bool any;
    int fd;
    uint64_t inode, device;
};

/* Takes note of what the descriptor is. None where there is none, or that cannot be told. */
struct gs_fd gs_fd_keep(int fd);
/* Whether it still is what it was. */
bool gs_fd_is_there(const struct gs_fd *kept);
/* Closes it, if it still is. */
void gs_fd_close(const struct gs_fd *kept);

/* Those that a forked child is not to have. Its parent's threads may be at it when it forks. */
#define GS_FDS_MAX 256
struct gs_fds { /* zeroed: none */
    struct {
        int state; /* atomic */
        struct gs_fd fd;
    } kept[GS_FDS_MAX];
};

/* As gs_fd_keep; none also where a share of the process's limit of descriptors is kept already. It
 * then stays the caller's. */
struct gs_fd gs_fds_keep(struct gs_fds *fds, int fd);
bool gs_fds_has_room(const struct gs_fds *fds);
/* As gs_fd_close, for one of them. */
void gs_fds_close(struct gs_fds *fds, const struct gs_fd *kept);
/* In a forked child: closes all. */
void gs_fds_forked(struct gs_fds *fds);

#endif
