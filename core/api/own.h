/*
 * The program's own virtual memory (core/process/own.h), for the hooks. All but
 * gs_core_own_ipc_handle and gs_core_own_publish is said around the driver's call, which is made in
 * any case. Nothing is done, and nothing asked, where core does not follow it
 * (gs_core_options.user_vmm).
 */
#ifndef GS_CORE_API_OWN_H
#define GS_CORE_API_OWN_H

#include "core/process/own.h"
#include "core/process/process.h"

/* NULL: it is not followed. For the functions of core/process/own.h. */
struct gs_own *gs_core_own(struct gs_core *core);

/* Whether memory with such properties is to be asked for with descriptors, which the program did
 * not ask for: then with *ret_properties. */
bool gs_core_own_adds(struct gs_core *core, const CUmemAllocationProp *properties,
                      CUmemAllocationProp *ret_properties);
/* The memory was made, as the program asked for it, or with what was `added`; or imported
 * (`properties` NULL). Returns the program's number of it. */
CUmemGenericAllocationHandle gs_core_own_made(struct gs_core *core,
                                              CUmemGenericAllocationHandle handle, size_t size,
                                              const CUmemAllocationProp *properties, bool added);

/* The handle of the piece at the address, with the strip around it. GS_NOT_OURS: the driver is to
 * answer; why this memory has none is in the log. */
gs_status gs_core_own_ipc_handle(struct gs_core *core, CUdeviceptr address,
                                 unsigned char ret_ipc_handle[GS_IPC_HANDLE_SIZE]);
/* Publishes that under a name, as gs_core_publish. GS_NOT_OURS: nothing is known to be mapped
 * there. */
gs_status gs_core_own_publish(struct gs_core *core, CUdeviceptr address,
                              const struct gs_naming *naming);

#endif
