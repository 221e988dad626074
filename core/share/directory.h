/*
 * The folder of the sockets (GPUSHIM_SHARE_DIR; in messages, the runtime directory): each exporter
 * puts its own there, named by its instance in hex.
 *
 * Whoever can write to it could put a socket of their own there, so it must belong to this user (or
 * to root, or to a user that the options name), be writable by its owner alone, and not be a
 * symbolic link. It is opened once and sockets are put up through its descriptor: it cannot be
 * exchanged after the check.
 *
 * Where it may be, and what a user makes in one that others may write to, says README.md. folder.c
 * finds, makes and checks them, directory.c has the sockets in one.
 */
#ifndef GS_CORE_SHARE_DIRECTORY_H
#define GS_CORE_SHARE_DIRECTORY_H

#include "core/share/instance.h"
#include "core/share/share.h"

#define GS_REASON_SIZE      384
#define GS_FOLDER_SIZE      112 /* a folder's path: the longest of options, and a user's own in it */
#define GS_BROKER_NAME      "broker" /* then a dot and the boot's id: each kernel has its own */
#define GS_BROKER_NAME_SIZE (sizeof GS_BROKER_NAME + GS_BOOT_SIZE)
#define GS_OWN_PREFIX \
    "gpushim-"               /* a user's directory in one that is open to all; then their number */
#define GS_NEW_SUFFIX ".new" /* a socket that does not listen yet */
/* Whether the number is one user's: by 65534 the kernel tells of each for whom this user namespace
 * has none. Whether this user is our own; or that, or one that the options name. */
bool gs_user_is_one(uid_t uid);
uid_t gs_user_own(void);
bool gs_user_is_own(uid_t uid);
bool gs_user_is_listed(const struct gs_share_options *options, uid_t uid);
/* Whether a process is of such a user; or of a group that the options name. */
bool gs_process_is_listed(const struct gs_share_options *options, uid_t uid, gid_t gid);

void gs_broker_name(char ret_name[GS_BROKER_NAME_SIZE]);

/* ---- folder.c ------------------------------------------------------------------------------- */

/* All that there are, of others too, one after the other: opens the next one. *place is 0 at first.
 * -1: there is none any more, with a reason where there was none at all (NULL: nobody wants it);
 * -EMFILE, -ENFILE or -ENOMEM, with the reason: there may be, and it cannot be opened now. */
int gs_directory_next(const struct gs_share_options *options, unsigned *place,
                      char ret_reason[GS_REASON_SIZE]);

/* The path of the n-th place where this user's own may be; false: there are no more. */
bool gs_directory_place(const struct gs_share_options *options, unsigned n,
                        char ret_path[GS_FOLDER_SIZE]);
/* Opens and checks it; `make` makes it where only its last part is missing. -1 with the cause and
 * the way out in words, and errno. -ENOENT: there is no such place. */
int gs_directory_open_place(const struct gs_share_options *options, unsigned n, bool make,
                            char ret_reason[GS_REASON_SIZE]);

/* The path of one that is open; "" where it is none of this user's. */
void gs_directory_path(const struct gs_share_options *options, int directory,
                       char ret_path[GS_FOLDER_SIZE]);
/* The n-th path that a socket may be under, without a look at it; false: there are no more. */
bool gs_directory_likely(const struct gs_share_options *options, unsigned n,
                         char ret_path[GS_FOLDER_SIZE]);
/* Whether what is there may be used as it is. */
bool gs_directory_is_good(const struct gs_share_options *options, const char *path);
/* Adds to what was said before. */
void gs_reason_add(char reason[GS_REASON_SIZE], const char *more);
/* Where they may be, in words. */
const char *gs_directory_words(const struct gs_share_options *options);

/* ---- directory.c ---------------------------------------------------------------------------- */

/* Opens, and makes, the first directory of this user's that can be had; -1 with the reasons. */
int gs_directory_open(const struct gs_share_options *options, char ret_reason[GS_REASON_SIZE]);

/*
 * As gs_directory_open, and puts the socket `name` up in it, in the first place where both can be
 * done. The socket, with *ret_directory; or -1 with the reasons in words. Where `broker`, the
 * broker's, of which there is one in a directory, or the socket that it was started with.
 */
int gs_directory_put_up(const struct gs_share_options *options, const char *name, bool broker,
                        int *ret_directory, char ret_reason[GS_REASON_SIZE]);

/* Whether that can be done, and where: leaves no more than the folder. */
bool gs_directory_try(const struct gs_share_options *options, const char *name,
                      char ret_path[GS_FOLDER_SIZE], char ret_reason[GS_REASON_SIZE]);

/*
 * A listening, non-blocking socket under `name`. It appears there only once it listens, so a
 * socket that refuses to connect is always a dead one. -1 with the reason in words.
 */
int gs_directory_listen(int directory, const struct gs_share_options *options, const char *name,
                        char ret_reason[GS_REASON_SIZE]);

/* A connection to the exporter under `name`, which does not block, made within `limit_ns`; or a
 * negative errno (-ENOENT, -ECONNREFUSED: there is none any more; -EAGAIN: it does not take it in
 * that time; -EMFILE: no descriptor is left here). */
int gs_directory_connect(int directory, const struct gs_share_options *options, const char *name,
                         uint64_t limit_ns);

/* Connects without waiting, and with the fewest calls into the kernel, some 20 us less in a new
 * process: by the directory's path, which is checked while the exporter wakes up, and before
 * anything is said to it (whose socket it is its user says, and who could exchange the directory
 * could have done it before the check). -EAGAIN: it does not go, for whatever reason;
 * gs_directory_next and the above do it, or say why not. */
int gs_directory_connect_at_once(const struct gs_share_options *options, const char *name);

/* Whether this user may connect to the socket, as far as its modes say. */
bool gs_directory_may_connect(int directory, const char *name);

/* Whether the socket is that user's, and listens in that process where `pid` is not 0 and the
 * kernel tells its own. Does not wait. */
bool gs_directory_is_of(int directory, const struct gs_share_options *options, const char *name,
                        uid_t uid, pid_t pid);

/* The names of exporters but `own`, and none whose process is seen to have ended: how many, or
 * -ENOMEM. What *ret_names points to is the caller's to free, in any case. */
int gs_directory_exporters(int directory, const char *own, char (**ret_names)[GS_SOCKET_NAME_SIZE]);

/* Takes the name down. */
void gs_directory_unlink(int directory, const char *name);
/* Lets all users come to the socket: 0, or a negative errno. */
int gs_directory_let_all(int directory, const char *name);

/* Removes sockets that killed processes left: at once those of this PID namespace, those of others
 * when they were not touched for an hour, of other kernels for a day (gs_directory_touch). A
 * bounded number of entries is looked at, and the living are not connected to. */
void gs_directory_sweep(int directory, const struct gs_share_options *options);
#define GS_TOUCH_S 1200 /* how often who lives says so there, and clears it */
void gs_directory_touch(int directory, const char *name);

#endif
