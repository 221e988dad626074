/*
 * The runtime directory: where exporters put their sockets, each named by its instance in hex.
 *
 * Whoever can write to it could put a socket of his own there, so it must belong to this user (or
 * to root, or to a user that the options name), be writable by its owner alone, and not be a
 * symbolic link. It is opened once and sockets are put up through its descriptor: it cannot be
 * exchanged after the check. Others' sockets are connected to by its path, which saves the kernel's
 * look at /proc, some 20 us in a new process: whose they are their user says, and who could
 * exchange the directory could have done it before the check.
 */
#ifndef GS_CORE_SHARE_DIRECTORY_H
#define GS_CORE_SHARE_DIRECTORY_H

#include "core/share/share.h"

#define GS_REASON_SIZE      256
#define GS_BROKER_NAME      "broker"
#define GS_SOCKET_NAME_SIZE 33 /* an instance in hex, and a zero */
/* Of one who passes another's memory on: that instance, a dot, its own (core/share/relay.c). */
#define GS_RELAY_NAME_SIZE  66
/* Whether this user is our own, or one that the options name. */
bool gs_user_is_listed(const struct gs_share_options *options, uid_t uid);
/* The same for a process: its group may be named instead. */
bool gs_process_is_listed(const struct gs_share_options *options, uid_t uid, gid_t gid);

/* The directory of processes that name none, the same for all of a user. */
void gs_directory_default(char *ret_dir, size_t size);

/* Opens and checks the directory; `make` makes it first where only its last part is missing.
 * The descriptor, or -1 with the cause and the way out in words. */
int gs_directory_open(const struct gs_share_options *options, bool make,
                      char ret_reason[GS_REASON_SIZE]);

/*
 * A listening, non-blocking socket under `name`. It appears there only once it listens, so a
 * socket that refuses to connect is always a dead one. -1 with the reason in words.
 */
int gs_directory_listen(int directory, const struct gs_share_options *options, const char *name,
                        char ret_reason[GS_REASON_SIZE]);

/* The same for the broker, of which there is one in a directory; or the socket that it was started
 * with. */
int gs_directory_listen_broker(int directory, const struct gs_share_options *options,
                               char ret_reason[GS_REASON_SIZE]);

/* A connection to the exporter under `name`, made within `limit_ns`; or a negative errno
 * (-ENOENT, -ECONNREFUSED: there is none any more; -EAGAIN: it does not take it in that time;
 * -EMFILE: no descriptor is left here). */
int gs_directory_connect(int directory, const struct gs_share_options *options, const char *name,
                         uint64_t limit_ns);

/* The same without waiting, and with the fewest calls into the kernel: by the directory's path,
 * which is checked while the exporter wakes up, and before anything is said to it. -EAGAIN: it does
 * not go, for whatever reason; gs_directory_open and the above do it, or say why not. */
int gs_directory_connect_at_once(const struct gs_share_options *options, const char *name);

/* Whether whoever put the socket there has ended. Does not wait; in doubt it has not. */
bool gs_directory_is_gone(int directory, const struct gs_share_options *options, const char *name);

/* Writes the names of those who pass on what `instance` (in hex) had shared, `max` at most; how
 * many. */
int gs_directory_relays(int directory, const char *instance,
                        char ret_names[][GS_RELAY_NAME_SIZE], int max);

/* Removes sockets that killed processes left. A bounded number of entries is looked at. */
void gs_directory_sweep(int directory, const struct gs_share_options *options);

#endif
