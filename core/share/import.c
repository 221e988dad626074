/*
 * Importer: chunks of other processes mapped here. All blocks opened in one chunk share its
 * mapping, since a chunk can only be mapped whole (measured: an offset is NOT_SUPPORTED).
 */
#include "core/base/list.h"
#include "core/share/memory.h"
#include "core/share/importer.h"

#include <stdlib.h>
#include <string.h>

#define DEVICES_MAX 64

struct gs_import *gs_import_find(struct gs_remote *remote, uint64_t chunk_id)
{
    struct gs_import *import = remote->imports;

    /* One of an earlier connection is not it: its lease is gone. Nor is what is away. */
    while (import && (import->chunk_id != chunk_id || import->connection != remote->connection ||
                      import->away))
        import = import->next;
    return import;
}

gs_status gs_import_give(struct gs_share *share, struct gs_import *import, CUdevice device)
{
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
                              .flags = import->read_only ? CU_MEM_ACCESS_FLAGS_PROT_READ
                                                         : CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    uint64_t bit;
    gs_status status;

    if (device < 0 || device >= DEVICES_MAX)
        return GS_INVALID;
    bit = UINT64_C(1) << device;
    if (__atomic_load_n(&import->devices, __ATOMIC_RELAXED) & bit)
        return GS_OK;
    status = share->driver->mem_set_access(import->span.base, import->span.size, &access, 1);
    if (status == GS_OK)
        __atomic_fetch_or(&import->devices, bit, __ATOMIC_RELAXED);
    return status;
}

/* The context in which it was registered may have gone since it was opened last. */
static gs_status register_again(struct gs_share *share, struct gs_import *import)
{
    CUcontext context = NULL;
    gs_status status;

    if (__atomic_load_n(&import->homes, __ATOMIC_RELAXED))
        return GS_OK;
    share->driver->ctx_get_current(&context);
    status = gs_host_register(share, (void *)(uintptr_t)import->span.base, import->host_size,
                              import->read_only);
    if (status != GS_OK)
        return status;
    GS_HOLDING(&share->importer.lock);
    import->context = context;
    __atomic_store_n(&import->homes, UINT64_MAX, __ATOMIC_RELAXED);
    return GS_OK;
}

void gs_import_leave_context_locked(struct gs_import *import, CUcontext context)
{
    if (!import->host || import->context != context)
        return;
    import->context = NULL;
    __atomic_store_n(&import->homes, 0, __ATOMIC_RELAXED);
}

gs_status gs_import_allow(struct gs_share *share, struct gs_import *import, CUdevice device)
{
    gs_status status = gs_import_give(share, import, device);

    if (status == GS_OK && import->host)
        return register_again(share, import);
    if (status == GS_OK)
        __atomic_fetch_or(&import->homes, UINT64_C(1) << device, __ATOMIC_RELAXED);
    return status;
}

static struct gs_import *record_new(struct gs_share *share)
{
    struct gs_import *import;

    gs_lock_take(&share->importer.lock);
    import = share->importer.spare_imports;
    if (import)
        LL_DELETE(share->importer.spare_imports, import);
    gs_lock_release(&share->importer.lock);
    if (import)
        return import;
    import = calloc(1, sizeof *import);
    if (import) /* once: readers of the map look at it without a lock */
        import->span.kind = GS_SPAN_IMPORT;
    return import;
}

void gs_import_recycle_locked(struct gs_share *share, struct gs_import *import)
{
    free(import->sorted);
    import->sorted = NULL;
    import->count = import->room = 0;
    LL_PREPEND(share->importer.spare_imports, import);
}

#define ROOM_MOST (UINT64_C(1) << 40) /* a handle may have been changed */

void gs_room_make(struct gs_share *share, uint64_t size, struct gs_room *room)
{
    size_t whole = gs_page_round(size);

    if (room->size || size == 0 || size > ROOM_MOST)
        return;
    if (share->driver->mem_address_reserve(&room->base, whole, GS_PAGE_SIZE, 0, 0) == CUDA_SUCCESS)
        room->size = whole;
}

void gs_room_free(struct gs_share *share, struct gs_room *room)
{
    if (room->size)
        share->driver->mem_address_free(room->base, room->size);
    room->size = 0;
}

gs_status gs_room_take(struct gs_share *share, struct gs_room *room, struct gs_span *span)
{
    CUdeviceptr base = room->base;
    gs_status status = GS_OK;

    if (room->size != span->size)
        status = share->driver->mem_address_reserve(&base, span->size, GS_PAGE_SIZE, 0, 0);
    else
        room->size = 0;
    span->base = base;
    return status;
}

struct gs_import *gs_import_new(struct gs_share *share, const struct gs_wire_grant *grant)
{
    struct gs_import *import = record_new(share);

    if (!import)
        return NULL;
    import->span.size = grant->chunk_size;
    import->chunk_id = grant->chunk_id;
    import->strip = grant->own != 0;
    import->ends = grant->ends != 0;
    import->read_only = grant->read_only;
    import->host = grant->host != 0;
    import->away = import->lost = false;
    import->context = NULL;
    import->host_size = grant->size;
    /* What the host has registered every device reaches. */
    __atomic_store_n(&import->devices, grant->host ? UINT64_MAX : 0, __ATOMIC_RELAXED);
    __atomic_store_n(&import->homes, grant->host ? UINT64_MAX : 0, __ATOMIC_RELAXED);
    memcpy(import->uuid, grant->uuid, sizeof import->uuid);
    return import;
}

/* ---- Memory of the host ---------------------------------------------------------------------- */

/* The address that devices know it by is the host's, as everywhere where the library runs; where it
 * is another one nothing is registered. */
static gs_status host_register(struct gs_share *share, void *memory, size_t size, bool read_only)
{
    const struct gs_driver *driver = share->driver;
    CUdeviceptr address = 0;
    gs_status status;

    if (!driver->mem_host_register || !driver->mem_host_unregister ||
        !driver->mem_host_get_device_pointer)
        return GS_NOT_OFFERED;
    status = driver->mem_host_register(memory, size,
                                       CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP |
                                           (read_only ? CU_MEMHOSTREGISTER_READ_ONLY : 0u));
    if (status != GS_OK)
        return status;
    status = driver->mem_host_get_device_pointer(&address, memory, 0);
    if (status == GS_OK && address == (CUdeviceptr)(uintptr_t)memory)
        return GS_OK;
    driver->mem_host_unregister(memory);
    return status == GS_OK ? GS_NOT_OFFERED : status;
}

gs_status gs_host_register(struct gs_share *share, void *memory, size_t size, bool read_only)
{
    CUstreamCaptureMode mode;
    bool relaxed = gs_fences_relax(share->fences, &mode);
    gs_status status = host_register(share, memory, size, read_only);

    if (relaxed)
        gs_fences_restore(share->fences, mode);
    return status;
}

/* The context's end ends a registration (NULL: it has). False: the driver knows it still. */
bool gs_host_unregister(struct gs_share *share, CUcontext context, void *memory)
{
    CUstreamCaptureMode mode;
    CUcontext popped;
    CUresult result;
    bool relaxed;

    if (!context || share->driver->ctx_push_current(context) != CUDA_SUCCESS)
        return true;
    relaxed = gs_fences_relax(share->fences, &mode);
    result = share->driver->mem_host_unregister(memory);
    if (relaxed)
        gs_fences_restore(share->fences, mode);
    share->driver->ctx_pop_current(&popped);
    if (result == CUDA_SUCCESS)
        return true;
    gs_log_line(
        &share->log, GS_LOG_WARNING,
        "memory of the host stays registered with the driver, which does not end that: error %d",
        (int)result);
    return false;
}

gs_status gs_import_map_host(struct gs_share *share, const struct gs_wire_grant *grant, int fd,
                             struct gs_import *import)
{
    void *memory = NULL;
    int error = gs_memory_map(fd, grant->fd_offset, grant->size, grant->chunk_size,
                              import->read_only, &memory);
    gs_status status;

    if (error) /* no sound exporter's, or none is left here */
        return error == -ENOMEM ? GS_NO_HOST_MEMORY : GS_UNREACHABLE;
    share->driver->ctx_get_current(&import->context);
    import->span.base = (uintptr_t)memory;
    status = gs_host_register(share, memory, grant->size, import->read_only);
    if (status != GS_OK)
        gs_memory_unmap(memory, grant->chunk_size);
    return status;
}

static void unmap_host(struct gs_share *share, struct gs_import *import)
{
    void *memory = (void *)(uintptr_t)import->span.base;

    if (gs_host_unregister(share, import->context, memory))
        gs_memory_unmap(memory, import->span.size); /* else its addresses are not for others */
}

void gs_import_unmap(struct gs_share *share, struct gs_import *import)
{
    const struct gs_driver *driver = share->driver;
    CUresult result;

    if (share->events.in_use)
        share->events.in_use(share->events.arg, import->span.base, import->span.size, true);
    if (import->host) {
        unmap_host(share, import);
        return;
    }
    result = import->away ? CUDA_SUCCESS : driver->mem_unmap(import->span.base, import->span.size);
    if (result == CUDA_SUCCESS)
        result = driver->mem_address_free(import->span.base, import->span.size);
    if (result == CUDA_ERROR_DEINITIALIZED) /* the process ends: the driver gave it back itself */
        return;
    if (result != CUDA_SUCCESS) /* what is left stays mapped; nothing may be given back twice */
        gs_log_line(&share->log, GS_LOG_WARNING,
                    "another process's memory could not be unmapped: driver error %d", (int)result);
}

static gs_status enter_locked(struct gs_share *share, struct gs_remote *remote,
                              struct gs_import *import)
{
    gs_status status;

    import->remote = remote;
    import->connection = remote->connection;
    status = gs_map_insert(share->map, &import->span);
    if (status != GS_OK)
        return status;
    LL_PREPEND(remote->imports, import);
    return GS_OK;
}

void gs_import_leave_locked(struct gs_share *share, struct gs_import *import)
{
    gs_map_remove(share->map, &import->span);
    LL_DELETE(import->remote->imports, import);
}

/* The index of the first block that ends above `address`. */
static unsigned first_above(const struct gs_import *import, CUdeviceptr address)
{
    unsigned low = 0, high = import->count;

    while (low < high) {
        unsigned middle = low + (high - low) / 2;
        const struct gs_opened *opened = import->sorted[middle];

        if (opened->address + opened->size <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Where it is, or is to be. */
static unsigned place_of(const struct gs_import *import, const struct gs_opened *opened)
{
    unsigned at = 0;

    if (!import->strip)
        return first_above(import, opened->address);
    while (at < import->count && import->sorted[at] != opened)
        at++;
    return at;
}

static gs_status add_locked(struct gs_import *import, struct gs_opened *opened)
{
    unsigned at = place_of(import, opened);

    if (at < import->count && import->sorted[at]->address < opened->address + opened->size)
        return GS_UNREACHABLE;
    if (import->count == import->room) {
        unsigned room = import->room ? 2 * import->room : 4;
        struct gs_opened **grown = realloc(import->sorted, room * sizeof(struct gs_opened *));

        if (!grown)
            return GS_NO_HOST_MEMORY;
        import->sorted = grown;
        import->room = room;
    }
    memmove(&import->sorted[at + 1], &import->sorted[at],
            (import->count - at) * sizeof(struct gs_opened *));
    import->sorted[at] = opened;
    import->count++;
    return GS_OK;
}

void gs_import_remove_locked(struct gs_import *import, struct gs_opened *opened)
{
    unsigned at = place_of(import, opened);

    import->count--;
    memmove(&import->sorted[at], &import->sorted[at + 1],
            (import->count - at) * sizeof(struct gs_opened *));
}

struct gs_opened *gs_import_at_locked(const struct gs_import *import, CUdeviceptr address)
{
    unsigned at = 0;

    if (import->strip) {
        while (at + 1 < import->count && import->sorted[at]->count == 0)
            at++;
        return at < import->count ? import->sorted[at] : NULL;
    }
    at = first_above(import, address);
    if (at == import->count || import->sorted[at]->address > address)
        return NULL;
    return import->sorted[at];
}

struct gs_opened *gs_import_started_locked(const struct gs_import *import, CUdeviceptr start)
{
    struct gs_opened *opened = import->strip ? NULL : gs_import_at_locked(import, start);

    for (unsigned at = 0; import->strip && at < import->count && !opened; at++)
        if (import->sorted[at]->start == start && import->sorted[at]->count > 0)
            opened = import->sorted[at];
    return opened && opened->start == start && opened->count > 0 ? opened : NULL;
}

gs_status gs_opened_enter_locked(struct gs_share *share, struct gs_opened *opened, bool fresh)
{
    struct gs_import *import = opened->import;
    gs_status status = fresh ? enter_locked(share, opened->remote, import) : GS_OK;

    if (status != GS_OK)
        return status;
    status = import ? add_locked(import, opened) : GS_OK;
    if (status == GS_OK) {
        HASH_ADD(hh, share->importer.opened, key, sizeof opened->key, opened);
        if (opened->hh.tbl)
            return GS_OK;
        if (import)
            gs_import_remove_locked(import, opened);
        status = GS_NO_HOST_MEMORY;
    }
    if (fresh)
        gs_import_leave_locked(share, import);
    return status;
}
