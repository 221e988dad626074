/* Time that somebody who looks again and again was there for (core/base/clock.h). */
#include "core/base/clock.h"

#define LOOK_MOST_NS (20 * GS_NS_PER_MS)

uint64_t gs_look_counts(uint64_t *looked)
{
    uint64_t now = gs_now_ns(), took = now - *looked;

    *looked = now;
    return took < LOOK_MOST_NS ? took : LOOK_MOST_NS;
}
