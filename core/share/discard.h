/*
 * Closing what other processes sent.
 *
 * A close takes as long as who sent the descriptor likes: of a socket with SO_LINGER and data that
 * nobody takes, of a file whose file system does not answer. And the kernel closes as well: what
 * lies unread in a socket when that is closed. So neither is done by a thread that anybody waits
 * for, but by the closer, one thread that does nothing else. Where a quarter of the descriptors
 * that there may be wait for it, whoever has more to close does so itself, and may be held up: a
 * listed user can do that where the kernel does not keep them from sending any (Linux 6.16
 * does), and always to a broker.
 *
 * The closer is the process's, not one share's: it may be stuck for longer than that is. A child
 * that is forked when there is one closes by itself.
 */
#ifndef GS_CORE_SHARE_DISCARD_H
#define GS_CORE_SHARE_DISCARD_H

#include <stdbool.h>

/* Closes a descriptor that came from another process. Does not wait, but as above, and where host
 * memory or threads are out. errno stays. */
void gs_discard(int fd);
/* Shuts a connection down and closes it, with what lies unread in it. As gs_discard; the thread
 * itself closes one in which no descriptors lie: it would wait behind others', and be open. */
void gs_hang_up(int socket);
/* From now on nobody can send descriptors to the socket, or to those that it accepts. Where the
 * kernel has that (Linux 6.16); else nothing happens. */
void gs_socket_take_no_rights(int socket);

#endif
