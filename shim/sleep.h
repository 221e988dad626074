/*
 * Putting this process to sleep, and waking it (gpushim.h): for its own threads, and for those of the
 * library that others ask.
 */
#ifndef GPUSHIM_SHIM_SLEEP_H
#define GPUSHIM_SHIM_SLEEP_H

#include <stdint.h>

#include "core/process/sleep.h"

/* The state was entered. ret_why->error is 0, or an errno. */
void gs_shim_sleep(const char *directory, uint64_t timeout_ns, struct gs_sleep_why *ret_why);
void gs_shim_wake(uint64_t timeout_ns, struct gs_sleep_why *ret_why);

struct gs_sleep_order;
/* Others have it sleep, or wake, or ask (struct gs_core_options): one thread at a time, which is not kept. */
void gs_shim_told_to_sleep(struct gs_sleep_order *order);

#endif
