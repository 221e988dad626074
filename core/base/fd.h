/*
 * A descriptor that is kept for long. Some programs close all descriptors they have, and those of
 * others with them; its number may be another file's by then.
 */
#ifndef GS_CORE_BASE_FD_H
#define GS_CORE_BASE_FD_H

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

#endif
