/* With old_driver.c: a library that forgets some of the streams that it is told of, for the tests of stress with a driver
 * that has no cuCtxRecordEvent: they must find it. */
#include "core/gpu/fence.h"

bool __real_gs_told_work(struct gs_fences *fences, CUstream stream);
bool __wrap_gs_told_work(struct gs_fences *fences, CUstream stream);

bool __wrap_gs_told_work(struct gs_fences *fences, CUstream stream)
{
    /* By the address, so that a stream is forgotten for as long as it is there. */
    if (((uintptr_t)stream >> 5 ^ (uintptr_t)stream >> 9) % 2)
        return true;
    return __real_gs_told_work(fences, stream);
}
