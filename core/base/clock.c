/* The clock (core/base/clock.h). */
#include "core/base/clock.h"

#include <sched.h>
#include <time.h>

static uint64_t time_of(clockid_t clock)
{
    struct timespec now;

    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * GS_NS_PER_S + (uint64_t)now.tv_nsec;
}

uint64_t gs_now_ns(void)
{
    return time_of(CLOCK_MONOTONIC);
}

uint64_t gs_worked_ns(void)
{
    return time_of(CLOCK_THREAD_CPUTIME_ID);
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
