/* Part of a puppet (tests/puppet.c): whenever its process asks for the time of day it is years
 * earlier or later than before, as if somebody set it all the time. */
#include <stdatomic.h>
#include <stdint.h>

#define FAR_S (INT64_C(10) * 365 * 24 * 3600)

static atomic_uint asked;

static int64_t away_s(void)
{
    static const int64_t by[] = {0, FAR_S, -FAR_S, FAR_S / 2, -3700, 3700, -90, 90};

    return by[atomic_fetch_add(&asked, 1) % (sizeof by / sizeof *by)];
}

#include "tests/time_of_day.h"

#pragma GCC visibility push(default)

unsigned times_asked(void);
unsigned times_asked(void)
{
    return atomic_load(&asked);
}

#pragma GCC visibility pop
