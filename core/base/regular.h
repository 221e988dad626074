/*
 * Files that anybody may have put there: a pipe or a device in the place of a file, one that says
 * it has a terabyte, one that is made smaller while it is read. What reads such opens it by this
 * function alone, reads no more than it has room for, and never maps it: who touches a page of a
 * file that was cut is ended by SIGBUS.
 *
 * A file system that its user serves (FUSE) may still not answer; the kernel asks it as root only
 * where allow_other is set.
 */
#ifndef GS_CORE_BASE_REGULAR_H
#define GS_CORE_BASE_REGULAR_H

#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

/* Opens a file to be read, and waits for nothing: its descriptor, close-on-exec; -1 with errno,
 * which is EISDIR for a folder and ESPIPE for what else is no regular file. `flags` is O_NOFOLLOW
 * or 0. */
int gs_regular_open(int folder, const char *path, int flags, struct stat *ret_info);
/* What there is at this place, up to `size` bytes: how many. */
size_t gs_regular_read(int fd, void *ret_bytes, size_t size, uint64_t place);

#endif
