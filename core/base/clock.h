/* The one clock: that of all times which core compares, keeps and sends. */
#ifndef GS_CORE_BASE_CLOCK_H
#define GS_CORE_BASE_CLOCK_H

#include <stdint.h>

#define GS_NS_PER_S  UINT64_C(1000000000)
#define GS_NS_PER_MS UINT64_C(1000000)

/* Nanoseconds of CLOCK_MONOTONIC, which a machine's processes have in common. */
uint64_t gs_now_ns(void);

#endif
