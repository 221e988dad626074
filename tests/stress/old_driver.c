/* The library as it is on a driver without cuCtxRecordEvent, on any driver:
 * tests/with.sh shim --old-driver. */
#include "core/gpu/fence.h"

bool __wrap_gs_fences_probe(struct gs_fences *fences, CUcontext context);

bool __wrap_gs_fences_probe(struct gs_fences *fences, CUcontext context)
{
    return false;
}
