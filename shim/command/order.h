/* Commands that tell processes to do something (trim, set, sleep): each that is meant is asked who it
 * is, and then it is told. */
#ifndef GS_SHIM_COMMAND_ORDER_H
#define GS_SHIM_COMMAND_ORDER_H

#include "shim/command/ask.h"

struct order {
    long only;                /* 0: all */
    bool if_there;            /* that one may be absent */
    bool found, failed, told; /* the last: something came of it, or did not, and was said */
    struct json *json;        /* NULL: text */
    const struct ask_time
        *time; /* that what they are told may take; NULL: as giving memory back does */
    /* `silent` says why the process cannot be told; "": it can, over the connection. */
    void (*tell)(struct order *order, const struct who *who, int fd, const char *silent);
};

/* Tells those that are meant; an absent one is complained of. */
void order_each(struct order *order);
/* All of it, of a command that tells the process that it was given, or all. */
int order_run(struct order *order, const struct call *call);
/* Tells the process (message->order), and hears one answer. False, and why in ret_reason: there is
 * none. */
bool order_ask(int fd, union gs_wire_message *message, struct gs_wire_done *ret_done,
               char *ret_reason, size_t size);
/* What came of it. False, and said: nothing did, as `silent` says; "": members of JSON may follow,
 * and then order_ends, which has the same as text. */
bool order_begins(struct order *order, const struct who *who, const char *silent);
void order_ends(struct order *order, const struct who *who, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
