/*
 * External memory (gpushim_attach): somebody else made it, and it is a block of ours until it is
 * detached. It is mapped here as what another process shared is, by the same records, so that all
 * that is asked of such memory, copied, registered and opened by other devices is answered alike;
 * but there is no exporter. A handle of it, made when one is first asked for, leads others to its
 * descriptor.
 *
 *   attached ─► detached: its handle is stale, whoever has it open is asked for it
 *            ─► no GPU work from before, no registration, no lease (closing.c) ─► over: in no table
 *            ─► gs_share_external_next: unmapped, and told to whoever attached it
 *
 * Memory at an address of the program's is not mapped, nor in the map: its calls go to the driver.
 * It is known here for its end alone.
 */
#include "core/base/list.h"
#include "core/share/exporter.h"
#include "core/share/memory.h"
#include "core/share/importer.h"

#include <stdlib.h>
#include <string.h>

#define EXTERNAL_IDS (UINT64_C(1) << 62) /* chunks count up from 1, strips from 1 << 63 */

struct gs_external {
    struct gs_external *next;
    /* Under the lock. What is coming has its place here before the driver is asked of it, and has
     * it until the driver has forgotten it: else one of two would find it known, and the other
     * makes it unknown. */
    enum { COMING = 0, HERE, OVER, LEAVING } state;
    struct gs_opened opened;
    struct gs_remote nobody; /* that it would have come from */
    struct gs_share_behind behind;
    struct gs_export *export; /* NULL: no handle of it was asked for */
    CUcontext registered_in;  /* memory at an address, which was made known to the driver here */
    bool is_registered;
    bool read_only;
    CUcontext context; /* in which it was attached */
    uint64_t owner;
};

/* ---- Attaching ------------------------------------------------------------------------------- */

static gs_status refuse(struct gs_share *share, gs_status status, const char *why)
{
    gs_log_line(&share->log, GS_LOG_WARNING, "external memory is not attached: %s", why);
    return status;
}

static gs_status refused_by_driver(struct gs_share *share, const char *what, gs_status status)
{
    gs_log_line(&share->log, GS_LOG_WARNING,
                "external memory is not attached: the driver does not %s: error %d", what, status);
    return status;
}

static gs_status seal(struct gs_share *share, const struct gs_external_memory *memory)
{
    int error;

    if (!gs_memory_is_pages(memory->offset, memory->size))
        return refuse(share, GS_INVALID, "offset and size in a memfd are to be whole pages");
    error = gs_memory_seal(memory->fd, memory->offset + memory->size);
    if (error == -EPERM)
        return refuse(
            share, GS_INVALID,
            "whoever makes this memfd smaller would end all who have it mapped: have it made "
            "with MFD_ALLOW_SEALING, or add F_SEAL_SHRINK");
    if (error == -ERANGE)
        return refuse(
            share, GS_INVALID,
            "the pages of this memfd are larger than 2 MiB: have it made with smaller ones "
            "(MFD_HUGE_2MB)");
    return error ? refuse(share, GS_INVALID, "its descriptor is no memfd, or a smaller one")
                 : GS_OK;
}

/* Maps what lies behind a descriptor. */
static gs_status map(struct gs_share *share, struct gs_external *external,
                     const struct gs_external_memory *memory, CUdevice device,
                     const unsigned char uuid[16])
{
    const bool host = memory->kind == GS_EXTERNAL_MEMFD;
    struct gs_wire_grant grant = {.chunk_size = gs_page_round(memory->size),
                                  .size = memory->size,
                                  .read_only = memory->read_only,
                                  .host = host,
                                  .fd_offset = host ? memory->offset : 0,
                                  .pieces = 1,
                                  .batch = {.count = 1, .sizes = {gs_page_round(memory->size)}}};
    struct gs_request request = {.wants = GS_OPEN_WANTS};
    struct gs_wire_fds fds = {.count = 1};
    gs_status status;
    int fd;

    if (!host && memory->size % GS_PAGE_SIZE != 0)
        return refuse(share, GS_INVALID, "what CUDA exports is a multiple of 2 MiB");
    status = host ? seal(share, memory) : GS_OK;
    if (status != GS_OK)
        return status;
    fd = gs_fd_copy(memory->fd);
    external->behind = (struct gs_share_behind){gs_fd_keep(fd), host, grant.fd_offset};
    if (!external->behind.fd.any) {
        gs_fd_drop(fd);
        return refuse(share, fd < 0 ? GS_INVALID : GS_NOT_OFFERED,
                      "its descriptor is none, or no other is left (ulimit -n)");
    }
    memcpy(grant.uuid, uuid, sizeof grant.uuid);
    fds.fd[0] = fd;
    status = gs_import_map(share, NULL, &request, &grant, &fds, device, &external->opened.import);
    if (status == GS_OK)
        return GS_OK;
    gs_fd_close(&external->behind.fd);
    if (status == GS_UNREACHABLE)
        return refuse(
            share, GS_INVALID,
            "its descriptor is not CUDA's, or cannot be mapped (for writing, unless it is "
            "attached for reading)");
    if (status == GS_NOT_OFFERED)
        return refuse(share, status, "the driver has no memory of the host at its own address");
    /* Measured: a mapping takes a whole handle. */
    if (!host && status == (gs_status)CUDA_ERROR_NOT_SUPPORTED)
        return refuse(share, GS_INVALID,
                      "its size is not that of the memory that CUDA exported, or "
                      "the driver does not take it");
    return refused_by_driver(share, host ? "register it" : "take it", status);
}

static unsigned long long buffer_id(struct gs_share *share, CUdeviceptr address)
{
    unsigned long long id = 0;

    if (!share->driver->pointer_get_attribute ||
        share->driver->pointer_get_attribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, address) !=
            CUDA_SUCCESS)
        return 0;
    return id;
}

/* What the driver does not know is the host's, and is made known to it. */
static gs_status find(struct gs_share *share, struct gs_external *external,
                      const struct gs_external_memory *memory)
{
    unsigned long long id = buffer_id(share, memory->address);
    gs_status status;

    if (gs_map_overlaps(share->map, memory->address, memory->size))
        return refuse(share, GS_INVALID, "memory of the library's lies there");
    if (buffer_id(share, memory->address + memory->size - 1) != id)
        return refuse(share, GS_INVALID, "it is more than one allocation");
    if (id != 0)
        return GS_OK;
    if (!gs_memory_is_pages(memory->address, memory->size))
        return refuse(share, GS_INVALID,
                      "memory of the host that CUDA does not know is to be whole pages");
    share->driver->ctx_get_current(&external->registered_in);
    status = gs_host_register(share, (void *)(uintptr_t)memory->address, memory->size,
                              memory->read_only);
    if (status != GS_OK)
        return refused_by_driver(share, "register it", status);
    external->is_registered = true;
    return GS_OK;
}

static bool is_taken_locked(const struct gs_share *share, const struct gs_opened *opened)
{
    const struct gs_external *other = share->importer.externals;

    while (other && (other->opened.address >= opened->address + opened->size ||
                     opened->address >= other->opened.address + other->opened.size))
        other = other->next;
    return other != NULL;
}

/* Its place among those that there are. What is to be mapped has no address yet, nor a size. */
static gs_status begin(struct gs_share *share, struct gs_external *external,
                       const struct gs_external_memory *memory)
{
    bool taken = false;

    gs_lock_take(&share->importer.lock);
    if (memory->kind == GS_EXTERNAL_ADDRESS) {
        external->opened.address = memory->address;
        external->opened.size = memory->size;
        taken = is_taken_locked(share, &external->opened);
    }
    if (!taken) {
        external->next = share->importer.externals;
        share->importer.externals = external;
    }
    gs_lock_release(&share->importer.lock);
    return taken ? refuse(share, GS_INVALID, "it is attached already, or some of it") : GS_OK;
}

static void end(struct gs_share *share, struct gs_external *external)
{
    gs_lock_take(&share->importer.lock);
    LL_DELETE(share->importer.externals, external);
    gs_lock_release(&share->importer.lock);
    free(external->opened.uses);
    free(external);
}

static void forget(struct gs_share *share, struct gs_external *external)
{
    struct gs_import *import = external->opened.import;

    if (import)
        gs_import_unmap(share, import);
    else if (share->events.in_use)
        share->events.in_use(share->events.arg, external->opened.address, external->opened.size,
                             true);
    if (external->is_registered)
        gs_host_unregister(share, external->registered_in,
                           (void *)(uintptr_t)external->opened.address);
    if (import) {
        gs_lock_take(&share->importer.lock);
        gs_import_recycle_locked(share, import);
        gs_lock_release(&share->importer.lock);
    }
    gs_fd_close(&external->behind.fd);
    end(share, external);
}

/* In all tables, or none. */
static gs_status enter_locked(struct gs_share *share, struct gs_external *external, size_t size,
                              CUcontext context)
{
    struct gs_opened *opened = &external->opened;
    struct gs_import *import = opened->import;
    gs_status status = gs_use_add_locked(share, opened, context);

    opened->id = ++share->importer.next_import;
    opened->key.id = EXTERNAL_IDS | opened->id;
    if (import) {
        opened->address = import->span.base;
        import->chunk_id = opened->key.id;
    }
    opened->start = opened->address;
    opened->size = size;
    if (status == GS_OK)
        status = gs_opened_enter_locked(share, opened, import != NULL);
    if (status == GS_OK)
        external->state = HERE;
    return status;
}

gs_status gs_share_attach(struct gs_share *share, const struct gs_external_memory *memory,
                          CUcontext context, CUdevice device, const unsigned char uuid[16],
                          uint64_t owner, CUdeviceptr *ret_address)
{
    struct gs_external *external;
    struct gs_opened *opened;
    gs_status status;

    if (gs_thread_start(share) != GS_OK)
        return GS_NOT_OFFERED;
    external = calloc(1, sizeof *external);
    if (!external)
        return GS_NO_HOST_MEMORY;
    external->owner = owner;
    external->context = context;
    external->read_only = memory->read_only;
    external->nobody.conn.fd = -1;
    opened = &external->opened;
    memcpy(opened->key.instance, share->instance, sizeof opened->key.instance);
    opened->external = external;
    opened->remote = &external->nobody;
    opened->count = 1;
    status = begin(share, external, memory);
    if (status != GS_OK) {
        free(external);
        return status;
    }
    status = memory->kind == GS_EXTERNAL_ADDRESS ? find(share, external, memory)
                                                 : map(share, external, memory, device, uuid);
    if (status != GS_OK) {
        end(share, external);
        return status;
    }
    gs_lock_take(&share->importer.lock);
    status = enter_locked(share, external, memory->size, context);
    *ret_address = status == GS_OK ? opened->address : *ret_address;
    gs_lock_release(&share->importer.lock);
    if (status != GS_OK)
        forget(share, external);
    return status;
}

/* ---- Sharing --------------------------------------------------------------------------------- */

/* The one that is attached at the address, and mapped here. */
static struct gs_external *at_locked(struct gs_share *share, CUdeviceptr address)
{
    struct gs_external *external = share->importer.externals;

    while (external &&
           (external->state != HERE || !external->opened.import || external->opened.count == 0 ||
            address - external->opened.address >= external->opened.size))
        external = external->next;
    return external;
}

static struct gs_share_source source_of(const struct gs_external *external)
{
    const struct gs_import *import = external->opened.import;
    struct gs_share_source source = {.chunk_id = import->chunk_id,
                                     .chunk_size = import->span.size,
                                     .block_id = external->opened.id,
                                     .size = external->opened.size,
                                     .address = external->opened.address,
                                     .alone = true,
                                     .behind = &external->behind,
                                     .read_only = external->read_only};

    memcpy(source.uuid, import->uuid, sizeof source.uuid);
    return source;
}

/* The handle of what is attached at the address, if that is what `source` was told of before (NULL:
 * whatever it is). *export becomes its, where it has none. False: it has none still, and
 * *ret_source is for one. */
static bool handle_locked(struct gs_share *share, CUdeviceptr address, struct gs_export **export,
                          struct gs_share_source *source, gs_status *ret_status,
                          unsigned char *ret_ipc_handle)
{
    struct gs_external *external = at_locked(share, address);

    *ret_status = GS_OK;
    if (!external || (*export && external->opened.id != source->block_id)) {
        *ret_status = GS_NOT_OURS; /* it was detached meanwhile */
        return true;
    }
    if (!external->export && *export) {
        external->export = *export;
        *export = NULL;
    }
    *source = source_of(external);
    if (external->export)
        gs_export_handle(external->export, ret_ipc_handle);
    return external->export != NULL;
}

gs_status gs_external_handle(struct gs_share *share, CUdeviceptr address,
                             unsigned char ret_ipc_handle[GS_IPC_HANDLE_SIZE])
{
    struct gs_share_source source;
    struct gs_export *export = NULL;
    gs_status status = GS_OK;
    bool done = false;

    while (!done && status == GS_OK) {
        gs_lock_take(&share->importer.lock);
        done = handle_locked(share, address, &export, &source, &status, ret_ipc_handle);
        gs_lock_release(&share->importer.lock);
        if (!done) /* a process's first starts a thread and a socket: not under the lock */
            status = gs_share_export(share, &source, &export);
    }
    if (export) /* another thread was first, or has detached it */
        gs_share_withdraw(share, export);
    return status;
}

gs_status gs_share_name_external(struct gs_share *share, CUdeviceptr address,
                                 const struct gs_naming *naming, uint64_t *ret_since_ns)
{
    const struct gs_external *external;
    GS_HOLDING(&share->importer.lock);

    external = at_locked(share, address);
    if (!external || !external->export)
        return GS_NOT_LIVE;
    return gs_share_name(share, external->export, naming, address - external->opened.address,
                         ret_since_ns);
}

/* ---- Its end --------------------------------------------------------------------------------- */

/* Nobody may have it yet, nor come for it: there is no grace. */
void gs_external_ends_locked(struct gs_share *share, struct gs_external *external)
{
    if (!external->export)
        return;
    gs_lock_take(&share->lock);
    external->export->opened = true;
    gs_lock_release(&share->lock);
    gs_share_freed(share, external->export, gs_now_ns());
}

bool gs_external_is_held_locked(struct gs_share *share, struct gs_external *external)
{
    if (external->export && !gs_share_withdraw(share, external->export))
        return true;
    external->export = NULL;
    return false;
}

void gs_external_over_locked(struct gs_share *share, struct gs_external *external)
{
    struct gs_opened *opened = &external->opened;

    if (opened->import) {
        gs_import_remove_locked(opened->import, opened);
        gs_import_leave_locked(share, opened->import);
    }
    HASH_DEL(share->importer.opened, opened);
    external->state = OVER;
    gs_cond_wake_all(&share->importer.changed);
}

static void registration_gone(struct gs_external *external, CUcontext context)
{
    if (external->registered_in == context)
        external->registered_in = NULL;
    if (external->opened.import)
        gs_import_leave_context_locked(external->opened.import, context);
}

/* Nothing where it has begun. GS_NO_HOST_MEMORY: it has not. */
static gs_status begin_end_locked(struct gs_share *share, struct gs_external *external)
{
    struct gs_opened *opened = &external->opened;
    gs_status status;

    if (opened->count == 0)
        return GS_OK;
    status = gs_uses_add_locked(share, opened);
    if (status != GS_OK)
        return status;
    opened->count = 0;
    gs_closing_start_locked(share, opened);
    return GS_OK;
}

/* What has no host memory for other contexts' fences ends with the work that is known. */
void gs_externals_end_locked(struct gs_share *share, CUcontext gone)
{
    struct gs_external *external;

    LL_FOREACH(share->importer.externals, external) {
        if (external->state == HERE || external->state == OVER)
            registration_gone(external, gone);
        if (external->state == HERE && external->context == gone &&
            begin_end_locked(share, external) != GS_OK) {
            external->opened.count = 0;
            gs_closing_start_locked(share, &external->opened);
        }
    }
}

static struct gs_external *started_locked(struct gs_share *share, CUdeviceptr address)
{
    struct gs_external *external = share->importer.externals;

    while (external && (external->state != HERE || external->opened.address != address))
        external = external->next;
    return external;
}

void gs_share_attach_undo(struct gs_share *share, CUdeviceptr address)
{
    struct gs_external *external;

    gs_lock_take(&share->importer.lock);
    external = started_locked(share, address);
    if (external) {
        gs_external_over_locked(share, external);
        external->state = LEAVING; /* nobody is told */
        external->opened.size = 0;
    }
    gs_lock_release(&share->importer.lock);
    if (external)
        forget(share, external);
}

gs_status gs_share_detach(struct gs_share *share, CUdeviceptr address)
{
    struct gs_external *external;
    GS_HOLDING(&share->importer.lock);

    external = started_locked(share, address);
    return external ? begin_end_locked(share, external) : GS_NOT_OURS;
}

size_t gs_share_external_held(struct gs_share *share, CUdeviceptr address,
                              struct gs_share_held *ret_held)
{
    struct gs_external *external;
    uint64_t chunk_id = 0;
    size_t size = 0;

    memset(ret_held, 0, sizeof *ret_held);
    gs_lock_take(&share->importer.lock);
    external = started_locked(share, address);
    if (external)
        size = external->opened.size;
    if (external && external->export)
        chunk_id = external->opened.import->chunk_id;
    gs_lock_release(&share->importer.lock);
    if (chunk_id)
        gs_share_held(share, NULL, chunk_id, ret_held);
    return size;
}

/* At the end of the process nothing is unmapped any more: the driver may be gone. */
static struct gs_external *over_locked(struct gs_share *share)
{
    struct gs_external *external = share->importer.externals;

    while (external && external->state != OVER)
        external = external->next;
    return __atomic_load_n(&share->ending, __ATOMIC_ACQUIRE) ? NULL : external;
}

uint64_t gs_share_external_next(struct gs_share *share, uint64_t until_ns)
{
    struct gs_external *external;
    bool more = true;
    uint64_t owner = 0;

    gs_lock_take(&share->importer.lock);
    while (!(external = over_locked(share)) && more)
        more = gs_cond_wait_until(&share->importer.changed, &share->importer.lock, until_ns);
    if (external)
        external->state = LEAVING;
    if (external && external->opened.import)
        external->opened.size = 0; /* its addresses are others' as soon as it is unmapped */
    gs_lock_release(&share->importer.lock);
    if (external) {
        owner = external->owner;
        forget(share, external);
    }
    return owner;
}
