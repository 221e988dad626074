/* Memory that the program makes and maps by itself (core/process/own.h): its mappings, and what of
 * them lies side by side. */
#include "core/process/own.h"

#include <stdlib.h>
#include <string.h>

#include "core/base/clock.h"
#include "core/base/list.h"
#include "core/process/context.h"

#define DEVICES_MAX 64
#define TRIES_MAX   16 /* while other threads map and unmap */

struct gs_own *gs_own_new(struct gs_share *share, bool isolates)
{
    struct gs_own *own = calloc(1, sizeof *own);

    if (!own)
        return NULL;
    gs_lock_init(&own->lock, GS_RANK_OWN);
    gs_map_init(&own->map);
    own->share = share;
    own->isolates = isolates;
    return own;
}

/* ---- Mappings -------------------------------------------------------------------------------- */

struct gs_own_mapping *gs_own_mapping_locked(const struct gs_own *own, uint64_t address)
{
    gs_lock_assert_held(&own->lock);
    return (struct gs_own_mapping *)gs_map_find(&own->map, address);
}

/* The first mapping in [address, end), or NULL. */
static struct gs_own_mapping *next_mapping_locked(const struct gs_own *own, uint64_t address,
                                                  uint64_t end)
{
    uint64_t at = address < end ? gs_map_next(&own->map, address, end - address) : GS_MAP_NONE;

    return at == GS_MAP_NONE ? NULL : gs_own_mapping_locked(own, at);
}

bool gs_own_is_added_at(struct gs_own *own, CUdeviceptr address, bool *ret_shared)
{
    const struct gs_own_mapping *mapping;
    bool added;
    GS_HOLDING(&own->lock);

    mapping = gs_own_mapping_locked(own, address);
    added = mapping && mapping->handle && mapping->handle->memory.added;
    *ret_shared = added && !mapping->why && mapping->reads;
    return added;
}

static void use_locked(struct gs_own *own, uint64_t base, uint64_t size, enum gs_own_use use)
{
    const struct gs_own_mapping *mapping;
    uint64_t at = base;

    while ((mapping = next_mapping_locked(own, at, base + size))) {
        if (mapping->handle)
            mapping->handle->use = use;
        at = mapping->span.base + mapping->span.size;
    }
}

void gs_own_used_at(struct gs_own *own, CUdeviceptr base, size_t size, enum gs_own_use use)
{
    GS_HOLDING(&own->lock);

    use_locked(own, base, size, use);
}

/* Those of any part of the range. */
static void end_exports_locked(struct gs_own *own, uint64_t base, uint64_t size)
{
    struct gs_own_export *export, *next;

    gs_lock_assert_held(&own->lock);
    HASH_ITER(hh, own->exports, export, next) {
        if (export->place.range.base >= base + size ||
            base >= export->place.range.base + export->place.range.size)
            continue;
        HASH_DEL(own->exports, export);
        gs_share_freed(own->share, export->export, gs_now_ns());
        gs_share_strip_unref(export->strip);
        free(export);
    }
}

/* They leave the map: the driver may have others there in a moment. Their handles count them
 * still. */
struct gs_own_mapping *gs_own_unmapping(struct gs_own *own, CUdeviceptr base, size_t size)
{
    struct gs_own_mapping *mapping, *taken = NULL;
    uint64_t end;
    GS_HOLDING(&own->lock);

    if (__builtin_add_overflow((uint64_t)base, size, &end))
        return NULL; /* the driver refuses it */
    own->changes++;
    end_exports_locked(own, base, size);
    while ((mapping = next_mapping_locked(own, base, end))) {
        gs_map_remove(&own->map, &mapping->span);
        LL_PREPEND(taken, mapping);
    }
    return taken;
}

void gs_own_unmapped(struct gs_own *own, struct gs_own_mapping *taken, bool done)
{
    struct gs_own_mapping *mapping;
    GS_HOLDING(&own->lock);

    while ((mapping = taken)) {
        taken = mapping->next;
        if (mapping->handle && done) {
            mapping->handle->mappings--;
            gs_own_drop_unused_locked(own, mapping->handle);
        } else if (mapping->handle) {
            mapping->handle->use = GS_OWN_BOUND; /* to a place that nobody knows any more */
        }
        free(mapping);
    }
}

static const char *why_not(const struct gs_own *own, const struct gs_own_mapping *mapping,
                           size_t offset)
{
    if (!mapping->handle)
        return "its handle was made where the library could not see it";
    if (mapping->handle->memory.why)
        return mapping->handle->memory.why;
    if (offset > 0 || mapping->span.size != mapping->handle->memory.size)
        return "a part of a handle is mapped";
    return gs_own_reservation_locked(own, mapping->span.base)
               ? NULL
               : "its address was reserved where the library could not see it";
}

void gs_own_mapped(struct gs_own *own, CUdeviceptr base, size_t size, size_t offset,
                   CUmemGenericAllocationHandle handle)
{
    struct gs_own_mapping *mapping = calloc(1, sizeof *mapping), *stale;
    const struct gs_own_reservation *reservation;
    struct gs_own_handle *known;
    bool noted = false;

    stale = gs_own_unmapping(own, base, size); /* what ended where nobody saw it */
    gs_lock_take(&own->lock);
    known = gs_own_handle_locked(own, handle);
    if (mapping) {
        mapping->span = (struct gs_span){.base = base, .size = size, .kind = GS_SPAN_OWN};
        mapping->handle = known;
        mapping->offset = offset;
        mapping->why = why_not(own, mapping, offset);
        reservation = gs_own_reservation_locked(own, base);
        mapping->reservation = reservation ? reservation->range.base : 0;
        noted = gs_map_insert(&own->map, &mapping->span) == GS_OK;
    }
    if (!noted)
        free(mapping);
    if (known && noted)
        known->mappings++;
    else if (known)
        known->use = GS_OWN_BOUND; /* to a place that nobody knows: it does not move */
    gs_lock_release(&own->lock);
    gs_own_unmapped(own, stale, true);
}

/* False: nobody can reach, or write, any more what somebody could. */
static bool set_access(struct gs_own_mapping *mapping, const CUmemAccessDesc *desc, size_t count)
{
    const uint64_t reads = mapping->reads, writes = mapping->writes;

    for (size_t i = 0; i < count; i++) {
        uint64_t bit;

        if (desc[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE || desc[i].location.id < 0 ||
            desc[i].location.id >= DEVICES_MAX) {
            if (mapping->handle) /* that is given nobody else */
                mapping->handle->use = GS_OWN_BOUND;
            continue;
        }
        bit = UINT64_C(1) << desc[i].location.id;
        mapping->reads &= ~bit;
        mapping->writes &= ~bit;
        if (desc[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE)
            mapping->reads |= bit;
        if (desc[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
            mapping->writes |= bit;
    }
    return (mapping->reads || !reads) && (mapping->writes || !writes);
}

void gs_own_access_set(struct gs_own *own, CUdeviceptr base, size_t size,
                       const CUmemAccessDesc *desc, size_t count)
{
    struct gs_own_mapping *mapping;
    uint64_t at = base, end = base + size;
    GS_HOLDING(&own->lock);

    own->changes++;
    while ((mapping = next_mapping_locked(own, at, end))) {
        if (!set_access(mapping, desc, count))
            end_exports_locked(own, mapping->span.base, mapping->span.size);
        at = mapping->span.base + mapping->span.size;
    }
}

/* ---- Strips ---------------------------------------------------------------------------------- */

/* A piece, and the strip around it. */
struct gs_own_found {
    struct gs_own_place place;
    struct gs_share_strip *strip; /* a reference, the caller's; NULL: it is exported */
    CUdevice device;              /* of the first piece */
    bool read_only;
    uint64_t changes;
    uint64_t since_ns; /* where it is exported: since when it bears the name */
};

static bool is_part(const struct gs_own_mapping *mapping, uint64_t reservation)
{
    return mapping && !mapping->why && mapping->reads && mapping->reservation == reservation;
}

/* What is mapped at an address beside it, and of the same strip; or NULL. */
static const struct gs_own_mapping *
beside_locked(const struct gs_own *own, const struct gs_own_mapping *mapping, uint64_t address)
{
    const struct gs_own_mapping *beside = gs_own_mapping_locked(own, address);

    return is_part(beside, mapping->reservation) && !own->isolates ? beside : NULL;
}

static const struct gs_own_mapping *behind_locked(const struct gs_own *own,
                                                  const struct gs_own_mapping *mapping)
{
    return beside_locked(own, mapping, mapping->span.base + mapping->span.size);
}

/* How far it goes, from its first piece on; returns how many there are. */
static uint32_t measure_locked(const struct gs_own *own, const struct gs_own_mapping *first,
                               struct gs_own_found *ret)
{
    uint32_t pieces = 0;

    ret->place.range = (struct gs_own_range){.base = first->span.base};
    ret->device = first->handle->memory.device;
    ret->read_only = false;
    ret->changes = own->changes;
    for (const struct gs_own_mapping *piece = first; piece; piece = behind_locked(own, piece)) {
        ret->place.range.size += piece->span.size;
        ret->read_only |= !piece->writes;
        pieces++;
    }
    return pieces;
}

/* That of another export of the same, or one more. NULL: no host memory. */
static struct gs_share_strip *strip_locked(struct gs_own *own, const struct gs_own_range *range,
                                           const struct gs_own_mapping *first, uint32_t pieces)
{
    struct gs_share_strip *strip;
    uint32_t at = 0;

    for (struct gs_own_export *export = own->exports; export; export = export->hh.next) {
        if (memcmp(&export->place.range, range, sizeof *range) != 0)
            continue;
        gs_share_strip_ref(export->strip);
        return export->strip;
    }
    strip = calloc(1, sizeof *strip + pieces * sizeof *strip->sizes);
    if (!strip)
        return NULL;
    strip->references = 1;
    strip->pieces = pieces;
    strip->id = GS_STRIP_IDS | ++own->strips;
    for (const struct gs_own_mapping *piece = first; piece; piece = behind_locked(own, piece))
        strip->sizes[at++] = piece->span.size;
    return strip;
}

static gs_status find_piece_locked(struct gs_own *own, CUdeviceptr address,
                                   struct gs_own_found *ret_found, struct gs_export **ret_export,
                                   const char **ret_why)
{
    const struct gs_own_mapping *piece = gs_own_mapping_locked(own, address), *first = piece,
                                *before;
    struct gs_own_export *export;
    uint32_t pieces;

    if (!piece)
        return GS_NOT_OURS;
    *ret_why = piece->why ? piece->why : piece->reads ? NULL : "no device has access to it";
    if (*ret_why)
        return GS_NOT_OFFERED;
    while ((before = beside_locked(own, first, first->span.base - 1)))
        first = before;
    pieces = measure_locked(own, first, ret_found);
    ret_found->place.offset = piece->span.base - first->span.base;
    ret_found->strip = NULL;
    HASH_FIND(hh, own->exports, &ret_found->place, sizeof ret_found->place, export);
    if (export) {
        *ret_export = export->export;
        return GS_OK;
    }
    ret_found->strip = strip_locked(own, &ret_found->place.range, first, pieces);
    return ret_found->strip ? GS_OK : GS_NO_HOST_MEMORY;
}

/* What is mapped at an address. GS_NOT_OURS: nothing is known to be. GS_NOT_OFFERED: it cannot be
 * shared, for *ret_why. GS_NO_HOST_MEMORY. Where it is exported (no strip is returned) that is its
 * handle, and it bears that name (NULL: none). */
static gs_status find_exported(struct gs_own *own, CUdeviceptr address,
                               const struct gs_naming *naming, struct gs_own_found *ret_found,
                               unsigned char ret_ipc_handle[GS_IPC_HANDLE_SIZE],
                               const char **ret_why)
{
    struct gs_export *export = NULL;
    gs_status status;
    GS_HOLDING(&own->lock);

    status = find_piece_locked(own, address, ret_found, &export, ret_why);
    if (export)
        gs_export_handle(export, ret_ipc_handle);
    if (export && naming) /* in the table: it stays while the lock is held */
        status = gs_share_name(own->share, export, naming,
                               address - ret_found->place.range.base - ret_found->place.offset,
                               &ret_found->since_ns);
    return status;
}

/* From now on the export is that of what was found. False: something has changed meanwhile, or
 * there is no host memory; the export stays the caller's. */
static bool enter(struct gs_own *own, const struct gs_own_found *found, struct gs_export *export)
{
    struct gs_own_export *entered = calloc(1, sizeof *entered);

    if (!entered)
        return false;
    entered->place = found->place;
    entered->export = export;
    entered->strip = found->strip;
    GS_HOLDING(&own->lock);
    if (own->changes == found->changes)
        HASH_ADD(hh, own->exports, place, sizeof entered->place, entered);
    if (!entered->hh.tbl) {
        free(entered);
        return false;
    }
    own->changes++; /* another thread may be at the same */
    gs_share_strip_ref(entered->strip);
    use_locked(own, found->place.range.base, found->place.range.size, GS_OWN_LENT);
    return true;
}

/* A new export. GS_NOT_LIVE: it is to be looked for again, as others may have changed something. */
static gs_status export_piece(struct gs_core *core, const struct gs_own_found *found)
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
    if (!enter(core->programs.own, found, export))
        gs_share_withdraw(core->share, export);
    return GS_NOT_LIVE;
}

/* As find_exported, and what is not exported yet is from now on. */
static gs_status get_handle(struct gs_core *core, CUdeviceptr address,
                            const struct gs_naming *naming,
                            unsigned char ret_ipc_handle[GS_IPC_HANDLE_SIZE], const char **ret_why)
{
    struct gs_own_found found;
    gs_status status = GS_NOT_LIVE;

    *ret_why = NULL;
    if (!core->programs.own)
        return GS_NOT_OURS;
    for (int i = 0; i < TRIES_MAX && status == GS_NOT_LIVE; i++) {
        status =
            find_exported(core->programs.own, address, naming, &found, ret_ipc_handle, ret_why);
        if (status == GS_OK && found.strip) {
            status = export_piece(core, &found);
            gs_share_strip_unref(found.strip);
        }
    }
    if (status == GS_OK && naming)
        gs_share_named(core->share, naming->name, found.since_ns);
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

/* ---- The end --------------------------------------------------------------------------------- */

void gs_own_free(struct gs_own *own)
{
    struct gs_own_reservation *reservation, *next_reservation;
    struct gs_own_export *export, *next_export;
    struct gs_own_handle *handle, *next;

    if (!own)
        return;
    HASH_ITER(hh, own->exports, export, next_export) {
        HASH_DEL(own->exports, export); /* the share has ended, with all its exports */
        gs_share_strip_unref(export->strip);
        free(export);
    }
    gs_own_unmapped(own, gs_own_unmapping(own, 0, SIZE_MAX), true);
    HASH_ITER(hh, own->handles, handle, next) {
        HASH_DEL(own->handles, handle);
        free(handle);
    }
    LL_FOREACH_SAFE(own->reservations, reservation, next_reservation)
        free(reservation);
    gs_map_destroy(&own->map);
    gs_lock_destroy(&own->lock);
    free(own);
}
