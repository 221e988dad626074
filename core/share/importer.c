/*
 * Importer: what cuIpcOpenMemHandle and cuIpcCloseMemHandle of memory that another process shared
 * come to (core/share/share.h). A block that is open is opened again by counting; anything else is
 * done by one thread at a time for each exporter, without the lock.
 */
#include "core/share/importer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Whether the device has opened something of its mapping: to it, the memory is its own. */
static bool is_home(const struct gs_import *import, CUdevice device)
{
    return device >= 0 && device < 64 &&
           __atomic_load_n(&import->homes, __ATOMIC_RELAXED) >> device & 1;
}

/* ---- Opening for the first time ------------------------------------------------------------- */

static void say_driver(struct gs_share *share, gs_status error)
{
    char reason[64];

    snprintf(reason, sizeof reason, "the driver does not map it here: error %d", (int)error);
    gs_say_unreachable(share, reason);
}

/* A reference at the exporter and a mapping for it. The remote is busy, by this thread. */
struct granted {
    struct gs_wire_grant grant;
    struct gs_import *import;
    bool fresh; /* the mapping was made for this and is not entered anywhere yet */
};

static bool import_fits(const struct gs_import *import, const struct gs_wire_grant *grant)
{
    return import->span.size == grant->chunk_size &&
           memcmp(import->uuid, grant->uuid, sizeof import->uuid) == 0;
}

static gs_status ask(struct gs_share *share, struct gs_remote *remote,
                     const struct gs_ipc_handle *ipc_handle, CUdevice device, struct granted *ret)
{
    struct gs_request request = {.ipc_handle = *ipc_handle};
    struct gs_wire_fds fds;
    gs_status status;

    ret->import = gs_import_find(remote, ipc_handle->chunk_id);
    request.wants = ret->import ? GS_OPEN_HAS_IT : GS_OPEN_WANTS;
    status = gs_remote_request(share, remote, &request, &ret->grant, &fds);
    if (status == GS_UNREACHABLE && ret->import && ret->import->connection != remote->connection) {
        ret->import = NULL; /* its connection was lost meanwhile */
        request.wants = GS_OPEN_WANTS;
        status = gs_remote_request(share, remote, &request, &ret->grant, &fds);
    }
    if (status != GS_OK) {
        gs_room_free(share, &request.room);
        return status;
    }
    ret->grant.read_only |= share->options.read_only;
    ret->fresh = !ret->import;
    if (ret->fresh)
        status = gs_import_map(share, remote, &request, &ret->grant, &fds, device, &ret->import);
    else if (import_fits(ret->import, &ret->grant))
        status = gs_import_allow(share, ret->import, device);
    else
        status = GS_UNREACHABLE;
    if (status == GS_UNREACHABLE && (!ret->fresh || ret->grant.host)) /* else it was said */
        gs_say_senseless(share);
    else if (status > 0)
        say_driver(share, status);
    gs_room_free(share, &request.room); /* it was of another size */
    gs_fds_done(&fds, status == GS_OK);
    if (status != GS_OK)
        gs_remote_return(share, remote, &ret->grant);
    return status;
}

static gs_status enter_locked(struct gs_share *share, struct gs_remote *remote,
                              const struct granted *granted, struct gs_opened *opened)
{
    gs_status status;

    opened->remote = remote;
    opened->import = granted->import;
    opened->connection = remote->connection;
    opened->generation = granted->grant.head.request;
    opened->start = granted->import->span.base + granted->grant.offset;
    opened->address = granted->import->strip ? granted->import->span.base : opened->start;
    opened->size = granted->grant.size;
    opened->id = ++share->importer.next_import;
    opened->count = 1;
    status = gs_opened_enter_locked(share, opened, granted->fresh);
    if (status == GS_UNREACHABLE)
        gs_say_senseless(share);
    remote->opened_count += status == GS_OK;
    return status;
}

static void opened_free(struct gs_opened *opened)
{
    if (opened)
        free(opened->uses);
    free(opened);
}

/* Called with the lock held and the remote busy; lets go of the lock meanwhile. */
static gs_status open_new_locked(struct gs_share *share, struct gs_remote *remote,
                                 const struct gs_ipc_handle *ipc_handle, CUcontext context,
                                 CUdevice device, CUdeviceptr *ret_address)
{
    struct gs_opened *opened = calloc(1, sizeof *opened);
    struct granted granted = {.fresh = false};
    gs_status status;

    if (!opened)
        return GS_NO_HOST_MEMORY;
    opened->key = gs_ipc_key(ipc_handle->instance, ipc_handle->block_id);
    opened->ipc_handle = *ipc_handle;
    status = gs_use_add_locked(share, opened, context);
    gs_lock_release(&share->importer.lock);
    if (status == GS_OK) {
        status = ask(share, remote, ipc_handle, device, &granted);
        gs_lock_take(&share->importer.lock);
        if (status != GS_OK) {
            opened_free(opened);
            return status;
        }
        status = enter_locked(share, remote, &granted, opened);
        if (status == GS_OK) {
            *ret_address = opened->start;
            return GS_OK;
        }
        gs_lock_release(&share->importer.lock);
        /* Of the host's memory it waits for the context's GPU work, as natively unregistering
         * does. */
        if (granted.fresh)
            gs_import_unmap(share, granted.import);
        gs_remote_return(share, remote, &granted.grant);
        gs_lock_take(&share->importer.lock);
        if (granted.fresh)
            gs_import_recycle_locked(share, granted.import);
    } else {
        gs_lock_take(&share->importer.lock);
    }
    opened_free(opened);
    return status;
}

/* ---- Opening -------------------------------------------------------------------------------- */

/* Counts one open more of a block whose mapping the device may use. */
static gs_status count_locked(struct gs_share *share, struct gs_opened *opened, CUcontext context,
                              CUdeviceptr *ret_address)
{
    gs_status status = gs_use_add_locked(share, opened, context);

    if (status != GS_OK)
        return status;
    if (opened->kept)
        gs_cache_take_locked(share, opened);
    else if (opened->count == 0)
        gs_closing_stop_locked(share, opened);
    opened->count++;
    *ret_address = opened->start;
    return GS_OK;
}

/* Another device opens what is open: it gets access too. As open_new_locked. */
static gs_status allow_locked(struct gs_share *share, struct gs_opened *opened, CUdevice device)
{
    struct gs_import *import = opened->import;
    gs_status status;

    gs_lock_release(&share->importer.lock);
    status = gs_import_allow(share, import, device);
    gs_lock_take(&share->importer.lock);
    return status;
}

/* It cannot be opened before it is back: the thread gives it back shortly, and what was closed and
 * whose exporter was given up since as soon as its GPU work has ended; or it sleeps. */
static bool is_going(const struct gs_opened *opened)
{
    return opened->leaving || opened->import->away || (opened->count == 0 && opened->orphan);
}

static gs_status open_locked(struct gs_share *share, const struct gs_ipc_handle *ipc_handle,
                             CUcontext context, CUdevice device, CUdeviceptr *ret_address)
{
    const uint64_t deadline = gs_now_ns() + share->options.timeout_ns;
    gs_status status = GS_OK;
    bool done = false;

    while (status == GS_OK && !done) {
        struct gs_opened *opened =
            gs_opened_find_locked(share, ipc_handle->instance, ipc_handle->block_id);
        struct gs_remote *remote;

        if (opened && !gs_bytes_equal(&opened->ipc_handle, ipc_handle, GS_IPC_HANDLE_SIZE)) {
            gs_log_line(&share->log, GS_LOG_DEBUG,
                        "an IPC handle differs from the one of its block");
            return GS_BAD_HANDLE;
        }
        if (opened && opened->import->lost) {
            gs_log_line(&share->log, GS_LOG_DEBUG,
                        "an IPC handle is of memory that was lost with its process, asleep");
            return GS_STALE;
        }
        if (opened && (opened->count > 0 || opened->kept) && !opened->import->away &&
            is_home(opened->import, device))
            return count_locked(share, opened, context, ret_address);
        remote = gs_remote_of_locked(share, ipc_handle->instance);
        if (!remote)
            return GS_NO_HOST_MEMORY;
        if (remote->busy || (opened && is_going(opened))) {
            if (gs_remote_await_locked(share, deadline))
                continue;
            return gs_say_unreachable(
                share, "other threads wait for the process that shared it, or GPU work uses what "
                       "was open of it before");
        }
        remote->busy = true;
        remote->deadline_ns = deadline;
        done = !opened || is_home(opened->import, device);
        status = !opened ? open_new_locked(share, remote, ipc_handle, context, device, ret_address)
                 : done  ? count_locked(share, opened, context, ret_address)
                         : allow_locked(share, opened, device); /* and then it looks again */
        gs_remote_release_locked(share, remote);
    }
    return status;
}

/* Why 64 bytes that claim to be ours are no handle. */
static void say_bad(struct gs_share *share, const unsigned char *bytes)
{
    struct gs_ipc_handle ours = {0};
    unsigned char written[GS_IPC_HANDLE_SIZE];

    gs_ipc_handle_write(&ours, written);
    if (memcmp(bytes, written, offsetof(struct gs_ipc_handle, check)) != 0)
        gs_say_unreachable(share, "its IPC handle is of another version of this library; use the "
                                  "same for both");
    else
        gs_log_line(&share->log, GS_LOG_DEBUG, "an IPC handle was changed on its way");
}

gs_status gs_share_open(struct gs_share *share, const unsigned char ipc_handle[GS_IPC_HANDLE_SIZE],
                        CUcontext context, CUdevice device, CUdeviceptr *ret_address)
{
    int saved = errno;
    struct gs_ipc_handle read;
    gs_status status = gs_ipc_handle_read(ipc_handle, &read);

    if (status == GS_BAD_HANDLE)
        say_bad(share, ipc_handle);
    if (status != GS_OK)
        return status;
    if (!share->options.enable) {
        gs_say_unreachable(share, "sharing is off here (share.enable)");
        return GS_NOT_OFFERED;
    }
    if (memcmp(read.instance, share->instance, GS_INSTANCE_SIZE) == 0) {
        gs_log_line(&share->log, GS_LOG_DEBUG,
                    "an IPC handle was opened in the process that made it");
        return GS_SAME_PROCESS;
    }
    gs_say_used(share);
    gs_lock_take(&share->importer.lock);
    status = open_locked(share, &read, context, device, ret_address);
    gs_lock_release(&share->importer.lock);
    if (status == GS_NO_HOST_MEMORY)
        gs_say_unreachable(share, "no host memory is left");
    errno = saved;
    return status;
}

/* ---- Closing and finding -------------------------------------------------------------------- */

/* What is mapped at `address`. A span found without the lock is looked up again: its record may
 * have been recycled. */
static struct gs_import *import_at(struct gs_share *share, CUdeviceptr address)
{
    struct gs_span *span = gs_map_find(share->map, address);

    return span && span->kind == GS_SPAN_IMPORT ? (struct gs_import *)span : NULL;
}

/* The open block that covers `address`. */
static struct gs_opened *opened_at_locked(struct gs_share *share, CUdeviceptr address)
{
    struct gs_import *import = import_at(share, address);
    struct gs_opened *opened = import ? gs_import_at_locked(import, address) : NULL;

    return opened && opened->count > 0 ? opened : NULL;
}

gs_status gs_share_close(struct gs_share *share, CUdeviceptr address)
{
    int saved = errno;
    gs_status status = GS_NOT_OURS;
    const struct gs_import *import;
    struct gs_opened *opened;

    if (!import_at(share, address))
        return GS_NOT_OURS;
    gs_lock_take(&share->importer.lock);
    import = import_at(share, address);
    opened = import ? gs_import_started_locked(import, address) : NULL;
    if (opened && !opened->external) {
        status = opened->count == 1 ? gs_uses_add_locked(share, opened) : GS_OK;
        if (status == GS_OK && --opened->count == 0)
            gs_cache_closed_locked(share, opened);
    }
    gs_lock_release(&share->importer.lock);
    errno = saved;
    return status;
}

gs_status gs_share_pass_on(struct gs_share *share, CUdeviceptr address,
                           unsigned char ret_ipc_handle[GS_IPC_HANDLE_SIZE])
{
    const struct gs_opened *opened;
    bool external;

    if (!import_at(share, address))
        return GS_NOT_OURS;
    gs_lock_take(&share->importer.lock);
    opened = opened_at_locked(share, address);
    external = opened && opened->external;
    if (opened && !external)
        memcpy(ret_ipc_handle, &opened->ipc_handle, GS_IPC_HANDLE_SIZE);
    gs_lock_release(&share->importer.lock);
    if (external)
        return gs_external_handle(share, address, ret_ipc_handle);
    return opened ? GS_OK : GS_NOT_OURS;
}

gs_status gs_share_find(struct gs_share *share, CUdeviceptr address,
                        struct gs_import_info *ret_info)
{
    struct gs_opened *opened;

    if (!import_at(share, address))
        return GS_NOT_OURS;
    GS_HOLDING(&share->importer.lock);
    opened = opened_at_locked(share, address);
    if (!opened)
        return GS_NOT_OURS;
    *ret_info = (struct gs_import_info){.base = opened->address,
                                        .size = opened->size,
                                        .id = opened->id,
                                        .context = gs_opener(opened)};
    return GS_OK;
}

bool gs_share_is_home(struct gs_share *share, CUdeviceptr address, CUdevice device)
{
    struct gs_import *import;
    GS_HOLDING(&share->importer.lock);

    import = import_at(share, address);
    return import && is_home(import, device);
}

gs_status gs_share_give(struct gs_share *share, CUdeviceptr address, CUdevice device)
{
    struct gs_import *import;
    GS_HOLDING(&share->importer.lock);

    import = import_at(share, address);
    /* Under the lock it stays mapped: it leaves the map first. */
    return import ? gs_import_give(share, import, device) : GS_NOT_OURS;
}
