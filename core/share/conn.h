/*
 * The only way in which the protocol meets sockets. Everything above it (exporter, importer,
 * broker) is messages, time and events: it holds a socket as a number, and asks here; messages go
 * and come by gs_wire_send and gs_wire_receive (core/share/wire.h), which are in conn.c, too.
 * Another implementation of this header and of the other system files (core/share/README.md) has
 * any number of processes in one.
 *
 * Who is at the other end, which user, which process, and which descriptors came along, is asked in
 * conn.c for every socket of the library's.
 */
#ifndef GS_CORE_SHARE_CONN_H
#define GS_CORE_SHARE_CONN_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct gs_conn_who { /* as the kernel tells it; where it does not, nobody's ids (-1) */
    pid_t pid;       /* 0 or less: of another PID namespace */
    uid_t uid;
    gid_t gid;
};

/* Who is at the other end. */
struct gs_conn_who gs_conn_who(int socket);
/* Its pidfd, the caller's; -1 with a negative errno in *ret_error, which is 0 with success. -ESRCH:
 * it has ended; -EMFILE: no descriptor is left; -ENOTSUP: this kernel has none. Newer ones give one
 * for a process that has ended, too. */
int gs_conn_pidfd(int socket, int *ret_error);
/* The next caller of a listening socket, close-on-exec and not blocking; or a negative errno. */
int gs_conn_accept(int listener);
/* How much may lie there unread before a send says -EAGAIN. */
void gs_conn_limit(int socket, int bytes);
/* Whether something can be sent now; or received, the hang-up included. Never wait. */
bool gs_conn_has_room(int socket);
bool gs_conn_has_more(int socket);
/* Whether the other side has hung up: what it said before may still lie there. Never waits. */
bool gs_conn_hung_up(int socket);
/* Whether the other side has read all that was sent, or there is no other side any more. */
bool gs_conn_is_read(int socket);
/* Ends the connection and keeps the descriptor. */
void gs_conn_shut(int socket);

enum gs_conn_event { GS_CONN_OVER /* the time is */, GS_CONN_READY, GS_CONN_EXITED };
/* Waits until something is to be read (or, with `to_send`, can be sent), the process of `pidfd` (or
 * -1) has exited without a word, or the time has come. Ended by these alone. */
enum gs_conn_event gs_conn_wait(int socket, int pidfd, bool to_send, uint64_t deadline_ns);

/* Waits until something is to be read at one of them, GS_CONN_ANY at most, or for so long; a signal
 * of the program's may end it earlier. */
#define GS_CONN_ANY 128
void gs_conn_wait_any(const int *sockets, unsigned count, uint64_t ns);

#endif
