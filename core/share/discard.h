/*
 * Closing what other processes sent.
 *
 * A close takes as long as who sent the descriptor likes: of a socket with SO_LINGER and data that
 * nobody takes, of a file whose file system does not answer. And the kernel closes as well: what
 * lies unread in a socket when that is closed. So neither is done by a thread that anybody waits
 * for, but by closers, threads that do nothing else. Of those there are a few, of which one user's
 * descriptors occupy two at most; what else is of him waits. Where too much waits nothing that he
 * sends is taken for the moment (gs_discards_full), and where those two are stuck none any more
 * (gs_discards_crowded), until they are not.
 *
 * The closers are the process's, not one share's: who is stuck may be so for longer than that is.
 */
#ifndef GS_CORE_SHARE_DISCARD_H
#define GS_CORE_SHARE_DISCARD_H

#include <stdbool.h>
#include <sys/types.h>

#define GS_DISCARDS_USER 2 /* closers that are at one user's descriptors */

/* Closes a descriptor that came from a process of this user. Never waits, but where host memory or
 * threads are out. errno stays. */
void gs_discard(int fd, uid_t from);
/* Shuts a connection down and closes it, with what lies unread in it. As gs_discard; the thread
 * itself closes one in which no descriptors lie: it would wait behind others', and be open. */
void gs_hang_up(int socket);
/* Whether this user's descriptors have stuck all closers that are for him, and many more wait. */
bool gs_discards_crowded(uid_t from);
/* Whether hundreds wait that are about to be closed: he is read on when they are, or crowded. */
bool gs_discards_full(uid_t from);
/* Whether some that were handed over are about to be closed, which makes room for others. */
bool gs_discards_go_on(void);
/* From now on nobody can send descriptors to the socket, or to those that it accepts; or he can
 * again. Where the kernel has that (Linux 6.16); else nothing happens. */
void gs_socket_take_rights(int socket, bool takes);
/* Whether he can, and this could be changed. */
bool gs_socket_takes_rights(int socket);

#endif
