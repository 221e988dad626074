/*
 * What is said when an allocation is refused for want of memory: what was asked for, where all
 * memory of the device is, and what would help. One report a second at most, as a line of log at
 * warning level and, where somebody takes it (struct gs_core_options), as a line of JSON.
 */
#ifndef GS_CORE_PROCESS_SHORTAGE_H
#define GS_CORE_PROCESS_SHORTAGE_H

#include <stdbool.h>
#include <stddef.h>

#include "core/process/stats.h"
#include "core/share/share.h"

struct gs_core;
struct gs_device;

#define GS_SHORTAGE_HELPS 4

struct gs_shortage {
    CUdevice device;
    unsigned char uuid[16];
    size_t wanted; /* bytes; 0: not known */
    size_t limit;  /* of pool.limit; SIZE_MAX: none */
    bool by_limit; /* that is why it was refused */
    bool by_other; /* the driver refused it though there is memory: something else is short */
    /* This process. */
    struct gs_stats stats;
    size_t going;   /* on its way to the driver */
    size_t largest; /* the largest free piece of its arenas */
    struct gs_share_held held;
    /* The driver's figures, where it could be asked. */
    bool has_info;
    size_t free, total;
    /* The user's other processes. */
    bool asked; /* for their figures; false: debug.reclaim_from_peers is off */
    struct gs_share_others others;
    unsigned unheard; /* who did not answer when asked for what they keep idle, */
    int unheard_pid;  /* and one of them; 0: not seen from here */
    size_t outside;   /* of all that; where has_info */
    const char *help[GS_SHORTAGE_HELPS]; /* what would; ends with NULL or at the last */
};

/* No lock is held. `context` is one of the device, or NULL. Waits for the user's other processes,
 * GS_SHARE_TELL_NS at most in all. */
void gs_shortage_say(struct gs_core *core, const struct gs_device *device, CUcontext context,
                     size_t size);

/* The report in `size` bytes with its NUL; what does not fit is left out. */
void gs_shortage_text(const struct gs_shortage *shortage, char *ret_text, size_t size);
/* One object and a newline. Returns its length; 0: it does not fit. */
size_t gs_shortage_json(const struct gs_shortage *shortage, char *ret_line, size_t size);

#endif
