/* The time, by the clock that a test's bounds and figures are in. */
#ifndef GPUSHIM_TESTS_CLOCK_H
#define GPUSHIM_TESTS_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

#endif
