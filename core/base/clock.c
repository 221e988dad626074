/* The clock (core/base/clock.h). */
#include "core/base/clock.h"

#include <sched.h>
#include <time.h>

uint64_t gs_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * GS_NS_PER_S + (uint64_t)now.tv_nsec;
}

void gs_rest_ns(uint64_t ns)
{
    const struct timespec rest = {.tv_sec = (time_t)(ns / GS_NS_PER_S),
                                  .tv_nsec = (long)(ns % GS_NS_PER_S)};

    nanosleep(&rest, NULL);
}

void gs_yield(void)
{
    sched_yield();
}
