/*
 * Asking the processes in the folder: who listens at a socket, and what he says of himself. Used by
 * the commands that list them.
 */
#ifndef GS_SHIM_COMMAND_ASK_H
#define GS_SHIM_COMMAND_ASK_H

#include "core/share/alive.h"
#include "core/share/internal.h"
#include "shim/command/json.h"

#define ANSWER_NS (2 * GS_NS_PER_S) /* for one of those that are listed */

/*
 * What one user's processes may cost whoever asks everybody's: so many sockets, each of them so
 * much time for all that it is asked, and all together so much. What is beyond that is not asked,
 * and that is said.
 */
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
 * `time` NULL: as lists have it. NULL; or what is wrong with all the folders there are, which stays
 * until the next. */
const char *ask_each(const struct gs_share_options *options, const struct ask_time *time,
                     ask_visit_fn *visit, void *arg);
/* Whether it left anybody out. */
bool ask_left_out(void);
/* In a visit: what is done for others meanwhile is neither bounded by this user's time nor part of
 * it. */
void ask_aside(void (*what)(void *arg), void *arg);
/* Until when one that is visited may take for what takes so long at most. */
uint64_t ask_deadline(uint64_t ns);
/* Whether something came before the deadline. */
bool ask_await(int fd, uint64_t deadline_ns);
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
/* A user by name, or number. */
const char *user_text(uid_t uid, char ret[32]);
/* The kernel's number as this process sees it, and its container; or the number it gives itself,
 * marked as that. For command_say, as its name. */
#define WHO_TEXT 320
const char *who_text(const struct who *who, char ret[WHO_TEXT]);
/* Members of an object: pid, own_pid, name, container, place, user, command. */
void who_write(struct json *json, const struct who *who);

/*
 * Asks for the figures of a device and of the client with this index (UINT32_MAX: of none). 0 with
 * an answer: a REPORT or a REFUSE. -ETIMEDOUT: there is none; else as gs_wire_receive. What the
 * REPORT is about comes with its pidfd, the caller's, where who answers has one, else -1 (without
 * an answer it stays as it was); NULL: it is not wanted.
 */
int ask(int fd, uint32_t index, uint32_t device, union gs_wire_message *ret_answer, int *ret_pidfd);
/* The same in two, for many at once that have a deadline together; 0 of ask_send: there is
 * something to hear. */
int ask_send(int fd, uint32_t index, uint32_t device);
int ask_hear(int fd, uint64_t deadline_ns, union gs_wire_message *ret_answer, int *ret_pidfd);
/* The same of whatever is asked about, whose head need not be filled in. */
int ask_about(int fd, const struct gs_wire_query *what, uint64_t deadline_ns,
              union gs_wire_message *ret_answer, int *ret_pidfd);
/* The same for any message with `type` of answer; a REFUSE is one, too. */
int ask_for(int fd, const union gs_wire_message *message, enum gs_wire_type type,
            union gs_wire_message *ret_answer);
/* As ask_silence, of an answer to what others may not ask for. */
void ask_order_silence(char *ret_reason, size_t size, int error,
                       const union gs_wire_message *answer);
/* Says why a process that was not found in the folder cannot be asked. */
void ask_complain_of_absent(long pid);
/* Why he is not listed, or not wholly: ask's result and what it got. */
void ask_silence(char *ret_reason, size_t size, int error, const union gs_wire_message *answer);

#endif
