/*
 * What a sharing process is called: 16 bytes, random but for the last eight, which say where it
 * lives. Its socket is named so, in hex.
 *
 *   8 random | 3 of the kernel's boot | 2 of the PID namespace | 3 of the pid there
 *
 * A folder may be seen by several kernels (NFS, virtiofs), and a socket of another one refuses
 * every connection, alive or not. So who clears a folder looks at the name first: of processes
 * beside it the process table tells, without a connection to each.
 */
#ifndef GS_CORE_SHARE_INSTANCE_H
#define GS_CORE_SHARE_INSTANCE_H

#include <stdbool.h>
#include <sys/types.h>

#include "core/share/ipc_handle.h"

#define GS_BOOT_SIZE 33 /* the boot's id as 32 hex digits, and a zero */

/* The id of the kernel's boot; "" where it cannot be read. */
void gs_boot_id(char ret_id[GS_BOOT_SIZE]);

/* Fills `bytes` from the kernel's random source; false if it has none. */
bool gs_random(void *bytes, size_t size);

/* One for the process `pid` of this PID namespace; false: the kernel has no random bytes. */
bool gs_instance_new(pid_t pid, unsigned char ret_instance[GS_INSTANCE_SIZE]);

/* What this process's monotonic clock is ahead of the one that the kernel began with: not 0 in a
 * time namespace of its own. Of two processes' clocks only what is reckoned to that one can be
 * compared. */
int64_t gs_clock_ahead_ns(void);

enum gs_whereabouts {
    GS_ELSEWHERE,  /* under another kernel, or before its last start */
    GS_UNSEEN,     /* under this one, in another PID namespace */
    GS_BESIDE,     /* in ours: there is a process of that pid */
    GS_BESIDE_GONE /* in ours: there is none */
};

/* What this process's own eight bytes say, for many comparisons. */
struct gs_home {
    unsigned char own[GS_INSTANCE_SIZE]; /* the first eight are zero */
    bool known;                          /* the boot's id could be read */
};

void gs_home_find(struct gs_home *ret_home);
/* Where the instance of this name (32 hex digits) lives. */
enum gs_whereabouts gs_home_whereabouts(const struct gs_home *home, const char *name);

/* The name of its socket. */
#define GS_SOCKET_NAME_SIZE 33 /* an instance in hex, and a zero */
void gs_instance_name(const unsigned char *instance, char ret_name[GS_SOCKET_NAME_SIZE]);

#endif
