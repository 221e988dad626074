/* Preloaded: the time of day of this process is SKEW_S seconds later. The library's, curl's and
 * TLS's too. */
#include "tests/system.h"

static int64_t away_s(void)
{
    const char *skew = getenv("SKEW_S");

    return skew ? strtol(skew, NULL, 10) : 0;
}

#include "tests/time_of_day.h"
