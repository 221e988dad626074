/*
 * Messages by which a process is put to sleep, and woken (core/share/wire.h has the others, and what holds of
 * all; core/share/order.c).
 */
#ifndef GS_CORE_SHARE_WIRE_SLEEP_H
#define GS_CORE_SHARE_WIRE_SLEEP_H

struct gs_wire_sleep {
    struct gs_wire_head head;
    uint64_t timeout_ns;
    uint32_t verb; /* enum gs_sleep_verb */
    uint32_t order; /* GS_SLEEP_STATE: the one that is asked about */
    char directory[GS_SLEEP_DIRECTORY], discard[GS_SLEEP_TAG]; /* end in zeros */
};

/* As struct gs_sleep_order. */
struct gs_wire_asleep {
    struct gs_wire_head head;
    uint32_t busy, error;
    uint64_t asleep_ns, away, copied, stays[GS_SLEEP_STAYS];
    char text[320];
};

#endif
