/* A libcuda.so.1 of CUDA 10.2, or of $OLD_DRIVER_VERSION, which has less than the library takes,
 * and says something where $OLD_DRIVER_TALKS: for gpushim doctor. */
#include <stdio.h>
#include <stdlib.h>

__attribute__((visibility("default"))) int cuInit(unsigned flags);
__attribute__((visibility("default"))) int cuDriverGetVersion(int *version);

int cuInit(unsigned flags)
{
    return flags ? 1 : 0;
}

int cuDriverGetVersion(int *version)
{
    *version = getenv("OLD_DRIVER_VERSION") ? atoi(getenv("OLD_DRIVER_VERSION")) : 10020;
    if (getenv("OLD_DRIVER_TALKS")) {
        puts("hello from the driver");
        fflush(stdout);
    }
    return 0;
}
