/* The program's own virtual memory (core/api/own.h): which of it gets descriptors, and sharing
 * it. */
#include "core/api/own.h"

#include "core/process/context.h"

#define TRIES_MAX 16 /* while other threads map and unmap */

#define DESCRIPTORS ((unsigned)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)

struct gs_own *gs_core_own(struct gs_core *core)
{
    return core->programs.own;
}

/* Why such memory cannot be shared, whoever asks; NULL: it may be. */
static const char *why_not(const CUmemAllocationProp *properties)
{
    if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return "it is memory of the host";
    if (properties->type != CU_MEM_ALLOCATION_TYPE_PINNED)
        return "it is not pinned memory";
    if (properties->allocFlags.compressionType != CU_MEM_ALLOCATION_COMP_NONE)
        return "it was asked to be compressible";
    if (properties->allocFlags.usage & CU_MEM_CREATE_USAGE_TILE_POOL)
        return "it is a pool of tiles";
    return NULL;
}

/* A device that has shown it can: it may say so and not keep it (core/gpu/device.h). */
bool gs_core_own_adds(struct gs_core *core, const CUmemAllocationProp *properties,
                      CUmemAllocationProp *ret_properties)
{
    enum gs_device_mode mode;

    if (!core->programs.own || !properties || (unsigned)properties->requestedHandleTypes != 0 ||
        why_not(properties))
        return false;
    mode = gs_context_device_mode(core, properties->location.id);
    if (mode != GS_MODE_FD && mode != GS_MODE_FD_RDMA)
        return false;
    *ret_properties = *properties;
    ret_properties->requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    return true;
}

CUmemGenericAllocationHandle gs_core_own_made(struct gs_core *core,
                                              CUmemGenericAllocationHandle handle, size_t size,
                                              const CUmemAllocationProp *properties, bool added)
{
    CUmemGenericAllocationHandle number;
    struct gs_own_memory memory = {.size = size,
                                   .added = added,
                                   .device = -1,
                                   .tag = gs_tag_here()};

    if (!core->programs.own)
        return handle;
    if (!properties) {
        memory.imported = true;
        memory.why = "it was imported, and the driver exports such memory no more";
    } else {
        memory.device = properties->location.id;
        memory.properties = *properties;
        if (added)
            memory.properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        memory.why = why_not(properties);
        if (!memory.why && !added && !((unsigned)properties->requestedHandleTypes & DESCRIPTORS))
            memory.why = "it has no descriptors: the device, or this driver, makes none of it";
    }
    number = gs_own_made(core->programs.own, handle, &memory);
    gs_trimmer_grown(core);
    return number;
}

/* A new export. GS_NOT_LIVE: another thread has changed something meanwhile. */
static gs_status export_piece(struct gs_core *core, const struct gs_own_found *found,
                              unsigned char ret_ipc_handle[GS_IPC_HANDLE_SIZE])
{
    struct gs_share_source source = {
        .chunk_id = found->strip->id,
        .chunk_size = found->place.range.size,
        .offset = found->place.offset,
        .size = found->place.range.size,
        .address = found->place.range.base,
        .alone = true,
        .strip = found->strip,
        .read_only = found->read_only,
    };
    struct gs_export *export;
    gs_status status;

    gs_device_uuid(&core->driver, found->device, source.uuid);
    status = gs_share_export(core->share, &source, &export);
    if (status != GS_OK)
        return status;
    gs_export_handle(export, ret_ipc_handle);
    if (gs_own_enter(core->programs.own, found, export))
        return GS_OK;
    gs_share_withdraw(core->share, export);
    return GS_NOT_LIVE;
}

/* As gs_own_find, and what is not exported yet is from now on, under that name (NULL: none). */
static gs_status get_handle(struct gs_core *core, CUdeviceptr address,
                            const struct gs_naming *naming,
                            unsigned char ret_ipc_handle[GS_IPC_HANDLE_SIZE], const char **ret_why)
{
    struct gs_own_found found;
    gs_status status = GS_NOT_LIVE;
    uint64_t since_ns;

    *ret_why = NULL;
    if (!core->programs.own)
        return GS_NOT_OURS;
    for (int i = 0; i < TRIES_MAX && status == GS_NOT_LIVE; i++) {
        status = gs_own_find(core->programs.own, address, &found, ret_ipc_handle, ret_why);
        if (status == GS_OK && found.strip) {
            status = export_piece(core, &found, ret_ipc_handle);
            gs_share_strip_unref(found.strip);
        }
        if (status == GS_OK && naming)
            status = gs_own_name(core->programs.own, address, naming, &since_ns);
    }
    if (status == GS_OK && naming)
        gs_share_named(core->share, naming->name, since_ns);
    if (status != GS_NOT_LIVE)
        return status;
    *ret_why = "other threads map and unmap all the while";
    return GS_NOT_OFFERED;
}

gs_status gs_core_own_ipc_handle(struct gs_core *core, CUdeviceptr address,
                                 unsigned char ret_ipc_handle[GS_IPC_HANDLE_SIZE])
{
    const char *why;
    gs_status status = get_handle(core, address, NULL, ret_ipc_handle, &why);

    if (why)
        gs_log_line(&core->options.log, GS_LOG_DEBUG,
                    "no IPC handle of the program's own mapping at %llx: %s",
                    (unsigned long long)address, why);
    return status == GS_OK ? GS_OK : GS_NOT_OURS;
}

gs_status gs_core_own_publish(struct gs_core *core, CUdeviceptr address,
                              const struct gs_naming *naming)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    const char *why;
    gs_status status = get_handle(core, address, naming, ipc_handle, &why);

    if (why)
        gs_log_line(&core->options.log, GS_LOG_WARNING,
                    "the program's own mapping at %llx gets no name: %s",
                    (unsigned long long)address, why);
    return status;
}
