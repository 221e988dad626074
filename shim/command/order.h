/*
 * Commands by which processes are told to do something (trim, set, sleep): each that is
 * meant is connected to and asked who it is, and then it is told.
 */
#ifndef GS_SHIM_COMMAND_ORDER_H
#define GS_SHIM_COMMAND_ORDER_H

#include "shim/command/ask.h"
#include "shim/command/command.h"

struct order {
    const struct gs_share_options *options;
    long only;     /* 0: all */
    bool if_there; /* that one may be absent */
    bool found, failed;
    struct json *json; /* NULL: text */
    const struct ask_time
        *time; /* that what they are told may take; NULL: as giving memory back does */
    /* `silent` says why the process cannot be told; "": it can, over the connection. */
    void (*tell)(struct order *order, const struct who *who, int fd, const char *silent);
};

/* Tells those that are meant; an absent one is complained of. */
void order_each(struct order *order);
/* Tells the process (message->order), and hears one answer. False, and why in ret_reason: there is
 * none. */
bool order_ask(int fd, union gs_wire_message *message, struct gs_wire_done *ret_done,
               char *ret_reason, size_t size);
/* What came of it, as `format` has it, or in JSON as `write` has it of the answer; or that nothing
 * did, if `silent` says why. */
typedef void order_write_fn(struct json *json, const void *answer);
void order_say(struct order *order, const struct who *who, const char *silent,
               order_write_fn *write, const void *answer, const char *format, ...)
    __attribute__((format(printf, 6, 7)));

#endif
