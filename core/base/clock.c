/* The clock (core/base/clock.h). */
#include "core/base/clock.h"

#include <time.h>

uint64_t gs_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * GS_NS_PER_S + (uint64_t)now.tv_nsec;
}
