/*
 * Putting this process to sleep, and waking it (gpushim.h): for its own threads, and for those of
 * the library that others ask.
 */
#ifndef GPUSHIM_SHIM_SLEEP_H
#define GPUSHIM_SHIM_SLEEP_H

#include <stdint.h>

#include "core/process/sleep.h"

/* By itself: before the gate first opens. `after_ns`: without a call for so long, 0: never; and by
 * use, which wakes. */
void gs_shim_sleeps_by_itself(uint64_t after_ns, bool wakes_by_use);

struct gs_sleep_order;
/* Others have it sleep, or wake, or ask (struct gs_core_options): one thread at a time, which is
 * not kept. Where it is idle core has it sleep, in a thread of core's own. */
void gs_shim_told_to_sleep(struct gs_sleep_order *order);

#endif
