/*
 * What an allocation that fails says, when memory that is nobody's is not to be had: freed, but held
 * by other processes or behind GPU work that goes on, or kept by a process that was asked for it and
 * does not answer. One line of log at warning level, once a second at most.
 */
#ifndef GS_CORE_PROCESS_SHORTAGE_H
#define GS_CORE_PROCESS_SHORTAGE_H

#include <stddef.h>

struct gs_core;
struct gs_device;

/* No lock is held. Waits for the share thread, for GS_SHARE_TELL_NS at most, where others hold
 * something freed. */
void gs_shortage_say(struct gs_core *core, const struct gs_device *device, size_t size);

#endif
