/* Memory that somebody else made, as memory of ours (core/share/external.c). */
#ifndef GS_CORE_API_EXTERNAL_H
#define GS_CORE_API_EXTERNAL_H

#include "core/api/core.h"

/*
 * As gs_share_attach, on a device: in the current context where that is of it, else in its primary
 * one. *ret_context is the one. GS_NO_CONTEXT: there is neither, or no such device.
 */
gs_status gs_core_attach(struct gs_core *core, const struct gs_external_memory *memory,
                         CUdevice device, uint64_t owner, CUdeviceptr *ret_address,
                         CUcontext *ret_context);

/* What uses it still, for the log. */
void gs_core_external_say(struct gs_core *core, CUdeviceptr address);

/* debug.settle. */
uint64_t gs_core_settle_ns(const struct gs_core *core);

#endif
