/*
 * Starting the shim in a process: what it reads before the first hook does work.
 */
#include "state.h"

#include <stdlib.h>
#include <string.h>

bool gs_shim_start(void)
{
    const char *enable = getenv("GPUSHIM_ENABLE");
    return !enable || strcmp(enable, "0") != 0;
}
