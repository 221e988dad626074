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

/* Who somebody is, as far as it can be seen from here. */
struct who {
    long pid;      /* as this process sees it; 0: it does not */
    uint64_t told; /* what it calls itself */
    char name[16];
    char container[256]; /* the control group it runs in, if that is another; else "" */
};

/* Whether a name in the folder is a socket of the library's, and whether a broker's. */
bool ask_is_socket(const char *name);
bool ask_is_broker(const char *name);
/* Visits each of these in each folder that is looked at: this user's, and for root everybody's. How
 * many folders there are; 0: *ret_reason says why there is none. */
unsigned ask_each(const struct gs_share_options *options,
                  void (*visit)(void *arg, int directory, const char *name), void *arg,
                  char ret_reason[GS_REASON_SIZE]);
/* The same where each visit writes an object to `json`, which becomes a list of them and ends; NULL: text is
 * written. False, and said: it could not be written. */
bool ask_each_listed(const struct gs_share_options *options,
                     void (*visit)(void *arg, int directory, const char *name), void *arg,
                     struct json *json, unsigned *ret_folders, char ret_reason[GS_REASON_SIZE]);
/* The pid of who listens there as this process sees it; 0: it does not. */
long ask_pid_of_listener(int fd);
/* The same of a process that there is a pidfd of. */
long ask_pid_of_pidfd(int pidfd);
/* `pid` as this process sees it, or 0; `told` and `name` as it says of itself. */
void who_fill(struct who *who, long pid, uint64_t told, const char *name);
/* The kernel's number as this process sees it, and its container; or the number it gives itself, marked as
 * that. For command_say, as its name. */
#define WHO_TEXT 320
const char *who_text(const struct who *who, char ret[WHO_TEXT]);
/* Members of an object: pid, own_pid, name, container. */
void who_write(struct json *json, const struct who *who);

/*
 * Asks for the figures of a device and of the client with this index (UINT32_MAX: of none). 0 with
 * an answer: a REPORT or a REFUSE. -ETIMEDOUT: there is none; else as gs_wire_receive. What the
 * REPORT is about comes with its pidfd, the caller's, where who answers has one, else -1.
 */
int ask(int fd, uint32_t index, uint32_t device, union gs_wire_message *ret_answer, int *ret_pidfd);
/* The same in two, for many at once that have a deadline together; 0 of ask_send: there is something to
 * hear. */
int ask_send(int fd, uint32_t index, uint32_t device);
int ask_hear(int fd, uint64_t deadline_ns, union gs_wire_message *ret_answer, int *ret_pidfd);
/* Until when one of them is waited for: a short while where the deadline of all has passed, in which
 * those answer that only come late. */
uint64_t ask_until(uint64_t deadline_ns);
/* The same of a device of the process that ended with this number, or the next one, which a broker
 * knows. */
int ask_of_ended(int fd, uint64_t deadline_ns, uint32_t number, uint32_t device,
                 union gs_wire_message *ret_answer);
/* Asks for a block and the first client from this index on that has it; as ask, but a FOUND or a REFUSE. */
int ask_find(int fd, const struct gs_wire_find *find, union gs_wire_message *ret_answer,
             int *ret_pidfd);
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
