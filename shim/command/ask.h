/* Asking the processes in the folder: which one listens at a socket, and what it says of itself. */
#ifndef GS_SHIM_COMMAND_ASK_H
#define GS_SHIM_COMMAND_ASK_H

#include "shim/command/command.h"

#define ANSWER_NS (2 * GS_NS_PER_S) /* for one of those that are listed */

/* What one user's processes may cost who asks everybody's: so many sockets, each of them so much
 * time, and all together so much. What is beyond that is not asked, and that is said. */
#define SOCKETS_OF_USER 512
#define DEVICES_MOST    1024 /* of a process: one that means harm would tell of them without end */
struct ask_time {
    uint64_t each_ns, user_ns;
};

/* Who somebody is, as far as it can be seen from here. */
struct who {
    long pid;      /* as this process sees it; 0: it does not */
    uint64_t told; /* what it calls itself */
    bool stopped;  /* by a signal or a debugger */
    char name[16];
    char container[256]; /* the control group it runs in, if that is another; else "" */
    char place
        [80]; /* the same for people: a pod by its name, a container by the first figures of its number */
    char user[32];     /* by name, or number; "": it is not seen */
    char command[256]; /* its line, printable, without the folder of the program; or its name */
};

/* Whether a socket's name in the folder is a broker's. */
bool ask_is_broker(const char *name);
/* `fd`: a connection to it, which is closed afterwards; `name`: its socket's. */
typedef void ask_visit_fn(void *arg, int fd, const char *name, struct who *who);
/* Visits each of these in each folder that is looked at: this user's, and for root everybody's.
 * `time` NULL: as lists have it. NULL; or what is wrong with the options, or with all the folders
 * there are, which stays until the next. */
const char *ask_each(const struct ask_time *time, ask_visit_fn *visit, void *arg);
/* Whether it left anybody out. */
bool ask_left_out(void);
/* In a visit: what is done for others meanwhile is neither bounded by this user's time nor part of
 * it. */
void ask_aside(void (*what)(void *arg), void *arg);
/* In what is done aside: from now on so much is left for all that is asked. */
void ask_within(uint64_t ns);
/* Until when one that is visited may take for what takes so long at most. */
uint64_t ask_deadline(uint64_t ns);
/* `pid` as this process sees it, or 0; `told` and `name` as it says of itself; its name "": as the
 * kernel has it. */
void who_fill(struct who *who, long pid, uint64_t told, const char *name);
/* One that `teller`, which was asked, tells of: by its pidfd; without one (an old kernel, a process
 * that has ended) by the number that it has for the teller, if that `saw` it and its numbers are
 * those here. */
void who_fill_told(struct who *who, const struct who *teller, int pidfd, bool saw, uint64_t told,
                   const char *name);
/* Whether the numbers that it has for processes are those that this process has. */
bool who_counts_alike(const struct who *who);
/* Whether the library lies in the process's memory, where that may be read. */
bool who_has_library(long pid);
/* A user by name, or number. */
const char *user_text(uid_t uid, char ret[32]);
/* "pid 11 in trainer-0 (train)": the kernel's number as this process sees it, and its container; or
 * the number it gives itself, marked as that. For command_say, and there as long as the statement
 * that asks for it. */
struct who_shown {
    char text[160];
} who_shown(const struct who *who);
/* Members of an object: pid, own_pid, name, container, place, user, command, stopped. */
void who_write(struct json *json, const struct who *who);

/* Asks it, and hears its REPORT. 0; -ENOMSG: it refuses, as the answer says; -ETIMEDOUT: there is
 * none; else as gs_wire_receive. What the REPORT is about comes with its pidfd, the caller's, where
 * who answers has one, else -1 (where nothing was heard it stays as it was); NULL: it is not wanted.
 * Of what is asked the head need not be filled in. */
int ask_about(int fd, const struct gs_wire_query *what, union gs_wire_message *ret_answer,
              int *ret_pidfd);
/* As ask_about: the figures of a device, and the client with this index (UINT32_MAX: none). */
int ask(int fd, uint32_t index, uint32_t device, union gs_wire_message *ret_answer, int *ret_pidfd);
/* As ask_about, in two steps, for many at once that have a deadline together; 0 of ask_send: there
 * is something to hear. */
int ask_send(int fd, const struct gs_wire_query *what);
int ask_hear(int fd, uint64_t deadline_ns, enum gs_wire_type type,
             union gs_wire_message *ret_answer, int *ret_pidfd);
/* As ask_send, of any message. */
int ask_tell(int fd, const union gs_wire_message *message);
/* As ask_silence, of an answer to what others may not ask for. */
void ask_order_silence(char *ret_reason, size_t size, int error,
                       const union gs_wire_message *answer);
/* Says why a process that was not found in the folder cannot be asked; `json`: in a row, too. */
void ask_complain_of_absent(long pid, struct json *json);
/* Why a process is not listed, or not wholly: ask's result and what it got. */
void ask_silence(char *ret_reason, size_t size, int error, const union gs_wire_message *answer);

/* Whose processes there may be to ask, and being one of them for a while (users.c). */
#define USERS_MAX 4096

struct user {
    uid_t uid;
    gid_t gid; /* of what they have there; never root's but for root */
};

struct users {
    struct user of[USERS_MAX];
    unsigned count;
};

/* Everybody but this user who has a folder where sockets may be. */
void users_find(const struct gs_share_options *options, struct users *ret_users);
/* Whose process that is; false: there is none. */
bool user_of_process(long pid, struct user *ret_user);
/* From now on this is that user, with that group and no other; who is it already stays so. False:
 * it cannot be (this is not root, or a user namespace does not have them). In each case user_back
 * comes next. */
bool user_become(const struct user *user);
void user_back(void);

/* ---- A process with the library that has no socket in the folders that were looked at ---------- */

/* The environment that it was started with, which free ends, and its strings; NULL: it may not be
 * read. */
char **quiet_environment(long pid);
/* The configuration that it has by that, its files read as its user. False: that one cannot be. */
bool quiet_config(long pid, char *const *environment, struct gs_config *ret_config);

/* Why it is not asked. */
#define QUIET_WHY 256
void quiet_say(long pid, char ret_why[QUIET_WHY]);

#endif
