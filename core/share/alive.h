/*
 * Whether a process runs, and what: by its pidfd, else by the process table. The protocol asks here
 * and nowhere else.
 */
#ifndef GS_CORE_SHARE_ALIVE_H
#define GS_CORE_SHARE_ALIVE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Whether the process of a pidfd has exited; whether a descriptor is a pidfd. Never wait. */
bool gs_alive_exited(int pidfd);
bool gs_alive_is_pidfd(int fd);
/* Whether both pidfds are of one process. False where the kernel does not tell (before Linux
 * 6.9). */
bool gs_alive_is_same(int pidfd, int other);
/* By the process table, of a pid as this process sees it. Whether it is there and more than an
 * entry that its parent has not read yet: one that cannot be looked at is. */
bool gs_alive_runs(pid_t pid);
/* Whether it is stopped, by a signal or a debugger: one that cannot be looked at is not. */
bool gs_alive_is_stopped(pid_t pid);
/* Of a pidfd, as this process sees it; 0: it does not. */
pid_t gs_alive_pid_of(int pidfd);
/* When it began, as the kernel counts: with its pid that is one process. 0: it cannot be seen. */
uint64_t gs_alive_started(pid_t pid);
/* Of this process: its pid, and a pidfd (the caller's, or -1). */
pid_t gs_alive_own_pid(void);
int gs_alive_own_pidfd(void);
/* Its thread that calls; and whether it has such a thread. */
pid_t gs_alive_own_thread(void);
bool gs_alive_has_thread(pid_t thread);

#endif
