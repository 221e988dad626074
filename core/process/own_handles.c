/* Memory that the program makes by itself: its handles, and the addresses that it reserves
 * (core/process/own.h). */
#include "core/process/own.h"

#include "core/base/list.h"
#include "core/process/context.h"

#include <stdlib.h>
#include <string.h>

#define DESCRIPTORS ((unsigned)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)

/* Of numbers that are made here; the driver's are small, or addresses. */
#define NUMBERS (UINT64_C(0x6753) << 48)

/* ---- Handles --------------------------------------------------------------------------------- */

struct gs_own_handle *gs_own_handle_locked(struct gs_own *own, CUmemGenericAllocationHandle handle)
{
    struct gs_own_handle *found;

    gs_lock_assert_held(&own->lock);
    HASH_FIND(hh, own->handles, &handle, sizeof handle, found);
    return found;
}

static void forget_locked(struct gs_own *own, struct gs_own_handle *handle)
{
    gs_lock_assert_held(&own->lock);
    if (handle->known)
        HASH_DEL(own->handles, handle);
    handle->known = false;
}

static void know_locked(struct gs_own *own, struct gs_own_handle *handle)
{
    gs_lock_assert_held(&own->lock);
    HASH_ADD(hh, own->handles, handle, sizeof handle->handle, handle);
    handle->known = handle->hh.tbl != NULL;
}

static size_t on_gpu(const struct gs_own_handle *handle)
{
    return handle->memory.properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE
               ? handle->memory.size
               : 0;
}

size_t gs_own_bytes_of(struct gs_own *own, CUdevice device)
{
    size_t bytes = 0;

    if (!own)
        return 0;
    GS_HOLDING(&own->lock);
    for (const struct gs_own_handle *handle = own->handles; handle; handle = handle->hh.next)
        bytes += handle->memory.device == device ? on_gpu(handle) : 0;
    return bytes;
}

/* The driver has nothing of it any more when the last of both has gone. */
void gs_own_drop_unused_locked(struct gs_own *own, struct gs_own_handle *handle)
{
    if (handle->references > 0 || handle->mappings > 0)
        return;
    forget_locked(own, handle);
    __atomic_sub_fetch(&own->bytes, on_gpu(handle), __ATOMIC_RELAXED);
    free(handle);
}

/* The program's number for memory that is new to it; what has it and did not move is no more: it
 * ended where nobody saw it, or this is one more reference of it, of an import. */
static CUmemGenericAllocationHandle number_locked(struct gs_own *own,
                                                  CUmemGenericAllocationHandle real)
{
    struct gs_own_handle *old = gs_own_handle_locked(own, real);

    if (old && old->moved)
        return NUMBERS | ++own->numbers;
    if (old) {
        forget_locked(own, old);
        old->references = 0;
        gs_own_drop_unused_locked(own, old);
    }
    return real;
}

CUmemGenericAllocationHandle gs_own_made(struct gs_own *own, CUmemGenericAllocationHandle real,
                                         const struct gs_own_memory *memory)
{
    struct gs_own_handle *made = calloc(1, sizeof *made);
    CUmemGenericAllocationHandle number;
    GS_HOLDING(&own->lock);

    number = number_locked(own, real);
    if (made) {
        made->handle = number;
        made->real = real;
        made->moved = number != real;
        made->memory = *memory;
        made->references = made->held = 1;
        if (memory->added)
            __atomic_store_n(&own->adds, true, __ATOMIC_RELAXED);
        know_locked(own, made);
        if (made->known)
            __atomic_add_fetch(&own->bytes, on_gpu(made), __ATOMIC_RELAXED);
        else
            free(made);
    }
    return memory->added && !gs_own_handle_locked(own, number) ? 0 : number;
}

CUmemGenericAllocationHandle gs_own_retained(struct gs_own *own, CUmemGenericAllocationHandle real,
                                             CUdeviceptr address)
{
    const struct gs_own_mapping *mapping;
    struct gs_own_handle *found;
    GS_HOLDING(&own->lock);

    mapping = gs_own_mapping_locked(own, address);
    found = mapping && mapping->handle && mapping->handle->moved ? mapping->handle
                                                                 : gs_own_handle_locked(own, real);
    if (found) {
        found->references++;
        found->held++;
        found->real = real;
        real = found->handle;
    }
    return real;
}

CUmemGenericAllocationHandle gs_own_releasing(struct gs_own *own,
                                              CUmemGenericAllocationHandle handle)
{
    struct gs_own_handle *found;
    GS_HOLDING(&own->lock);

    found = gs_own_handle_locked(own, handle);
    if (found)
        handle = found->real;
    if (found && found->references > 0) {
        found->references--;
        if (found->held > found->references)
            found->held--;
        else
            handle = 0;
        gs_own_drop_unused_locked(own, found);
    }
    return handle;
}

CUmemGenericAllocationHandle gs_own_look_up(struct gs_own *own, CUmemGenericAllocationHandle handle)
{
    const struct gs_own_handle *found;
    GS_HOLDING(&own->lock);

    found = gs_own_handle_locked(own, handle);
    return found ? found->real : handle;
}

bool gs_own_properties(struct gs_own *own, CUmemGenericAllocationHandle handle,
                       CUmemAllocationProp *ret)
{
    const struct gs_own_handle *found;
    GS_HOLDING(&own->lock);

    found = gs_own_handle_locked(own, handle);
    if (!found || found->references == 0 || found->memory.imported)
        return false;
    *ret = found->memory.properties;
    return true;
}

void gs_own_used(struct gs_own *own, CUmemGenericAllocationHandle handle, enum gs_own_use use)
{
    struct gs_own_handle *found;
    GS_HOLDING(&own->lock);

    found = gs_own_handle_locked(own, handle);
    if (found)
        found->use = use;
}

bool gs_own_is_added(struct gs_own *own, CUmemGenericAllocationHandle handle)
{
    const struct gs_own_handle *found;
    GS_HOLDING(&own->lock);

    found = gs_own_handle_locked(own, handle);
    return found && found->memory.added;
}

/* ---- What the program makes ---------------------------------------------------------------- */

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

/* ---- Reservations ---------------------------------------------------------------------------- */

struct gs_own_reservation *gs_own_reservation_locked(const struct gs_own *own, uint64_t address)
{
    struct gs_own_reservation *found;

    gs_lock_assert_held(&own->lock);
    LL_FOREACH(own->reservations, found)
        if (address - found->range.base < found->range.size)
            break;
    return found;
}

/* Without host memory what is mapped there is not shared. */
void gs_own_reserved(struct gs_own *own, CUdeviceptr base, size_t size)
{
    struct gs_own_reservation *made = calloc(1, sizeof *made);
    GS_HOLDING(&own->lock);

    if (!made)
        return;
    made->range = (struct gs_own_range){base, size};
    LL_PREPEND(own->reservations, made);
}

bool gs_own_unreserving(struct gs_own *own, CUdeviceptr base, struct gs_own_range *ret)
{
    struct gs_own_reservation *found;
    GS_HOLDING(&own->lock);

    found = gs_own_reservation_locked(own, base);
    if (!found || found->range.base != base)
        return false;
    *ret = found->range;
    LL_DELETE(own->reservations, found);
    free(found);
    return true;
}
