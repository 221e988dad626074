/*
 * Descriptors. One that is kept for long is looked at before it is used. Some programs close all
 * descriptors they have, and those of others with them; its number may be another file's by then.
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

/* The file of a descriptor under another number, close-on-exec; -1 with errno. */
int gs_fd_copy(int fd);
/* Closes what is the caller's own, and not kept for long; -1: nothing. errno stays. */
void gs_fd_drop(int fd);
/* How many there may be (RLIMIT_NOFILE); UINT64_MAX where that cannot be told. */
uint64_t gs_fd_limit(void);

#endif
