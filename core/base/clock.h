/* The one clock: that of all times which core compares, keeps and sends. And rests by it. */
#ifndef GS_CORE_BASE_CLOCK_H
#define GS_CORE_BASE_CLOCK_H

#include <stdint.h>

#define GS_NS_PER_S  UINT64_C(1000000000)
#define GS_NS_PER_MS UINT64_C(1000000)

/* Nanoseconds of CLOCK_MONOTONIC, which a machine's processes have in common. */
uint64_t gs_now_ns(void);

/* Sleeps so long; a signal of the program's may end it earlier. */
void gs_rest_ns(uint64_t ns);
/* Lets others have the CPU. */
void gs_yield(void);

/* How much of a wait is over since the look before this one. Who looks every few milliseconds and
 * finds that it took much longer has stood still, and so may have those that are waited for. */
uint64_t gs_look_counts(uint64_t *looked);

#endif
