/*
 * Memory that the program makes and maps by itself: cuMemCreate, cuMemMap and their kin. The calls
 * are the driver's, which judges them; what has succeeded is noted here, so that it can be said
 * which addresses are mapped, in how many pieces, inside which reservation, and whether others may
 * have it.
 *
 *   handle ──< mapping (a piece) ──> reservation    strip: pieces side by side in one reservation,
 *                                                   with access, which can be shared; an export
 *                                                   is of one strip as it was then
 *
 * What goes away leaves these tables before the driver is asked: a moment later its handle or
 * address may be another's. What it refuses to unmap is neither shared nor put to sleep any more.
 * An export ends with the first of its pieces that goes, or that nobody here may reach any more.
 *
 * A process that has slept has other memory than it made: the program's number of a handle is not
 * the driver's any more. A number that the driver then gives anew, though the program has one like
 * it, gets another.
 */
#ifndef GS_CORE_PROCESS_OWN_H
#define GS_CORE_PROCESS_OWN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/gpu/driver.h"
#include "core/gpu/map.h"
#include "core/share/share.h"

#define HASH_NONFATAL_OOM 1
#include <uthash.h>

struct gs_away;
struct gs_core;

/* A handle's memory. */
struct gs_own_memory {
    size_t size;
    CUdevice device;
    bool added; /* the program did not ask for descriptors of it */
    bool imported;
    unsigned tag;                   /* core/process/context.h */
    const char *why;                /* it cannot be shared; NULL: it can */
    CUmemAllocationProp properties; /* that the driver was asked for; not of what was imported */
};

/* Who else has a handle's memory, from then on. */
enum gs_own_use {
    GS_OWN_ALONE,
    GS_OWN_LENT,  /* others: a descriptor of it was given out, or a handle of CUDA IPC */
    GS_OWN_BOUND, /* an object of the driver's: a multicast one, an endpoint */
};

struct gs_own_handle {
    CUmemGenericAllocationHandle handle, real; /* the program's number, and the driver's */
    struct gs_own_memory memory;
    unsigned references, mappings; /* of the program's */
    unsigned held;                 /* of the references, those that the driver knows of */
    bool known;                    /* in the table: its number is not another's */
    bool moved;                    /* the driver's number may be another one */
    enum gs_own_use use;
    struct gs_away *away; /* of a process that falls asleep: it goes; NULL: it stays */
    UT_hash_handle hh;
};

struct gs_own_mapping {
    struct gs_span span;          /* first: what the map points at */
    struct gs_own_handle *handle; /* NULL: not known */
    const char *why;              /* it cannot be shared; NULL: it can */
    size_t offset;                /* in the handle's memory */
    uint64_t reservation;         /* where that begins */
    uint64_t reads, writes;       /* bit d: device d may */
    struct gs_own_mapping *next;
};

struct gs_own_range {
    uint64_t base, size;
};

/* What the program has reserved. */
struct gs_own_reservation {
    struct gs_own_range range;
    struct gs_own_reservation *next;
};

/* Of what an export is: a strip, and of that the piece at an offset. */
struct gs_own_place {
    struct gs_own_range range;
    uint64_t offset;
};

struct gs_own_export {
    struct gs_own_place place;
    struct gs_share_strip *strip; /* has a reference of it */
    struct gs_export *export;
    UT_hash_handle hh;
};

struct gs_own {
    struct gs_lock lock; /* rank OWN; protects all of it */
    struct gs_map map;   /* of mappings */
    struct gs_own_reservation *reservations;
    struct gs_own_handle *handles;
    struct gs_own_export *exports;
    uint64_t changes; /* counts what may have changed a strip */
    uint64_t strips;  /* made so far */
    bool adds;        /* atomic: some memory has, or had, descriptors that were not asked for */
    bool translates;  /* atomic: some handle has moved */
    uint64_t numbers; /* made so far */
    size_t bytes;     /* atomic: of GPUs, what the handles have */
    bool isolates;    /* each piece is a strip by itself: a handle gives nobody its neighbours */
    struct gs_share *share;
};

/* NULL: no host memory. `share` outlives it, and has ended when it is freed. NULL may be freed. */
struct gs_own *gs_own_new(struct gs_share *share, bool isolates);
void gs_own_free(struct gs_own *own);

/* What it has on GPUs, but for what was imported; without a lock. */
static inline size_t gs_own_bytes(const struct gs_own *own)
{
    return own ? __atomic_load_n(&own->bytes, __ATOMIC_RELAXED) : 0;
}

/* Of them what it has on one. */
size_t gs_own_bytes_of(struct gs_own *own, CUdevice device);

/* A handle was made, or imported; or another reference of one was got, of what is mapped at the
 * address. Returns the program's number of it; 0: no host memory to note what was added. */
CUmemGenericAllocationHandle gs_own_made(struct gs_own *own, CUmemGenericAllocationHandle real,
                                         const struct gs_own_memory *memory);
CUmemGenericAllocationHandle gs_own_retained(struct gs_own *own, CUmemGenericAllocationHandle real,
                                             CUdeviceptr address);
/* A reference is given back. Returns the driver's number; 0: the driver has nothing to give
 * back. */
CUmemGenericAllocationHandle gs_own_releasing(struct gs_own *own,
                                              CUmemGenericAllocationHandle handle);
/* The driver's number of one. */
CUmemGenericAllocationHandle gs_own_look_up(struct gs_own *own,
                                            CUmemGenericAllocationHandle handle);
static inline CUmemGenericAllocationHandle gs_own_real(struct gs_own *own,
                                                       CUmemGenericAllocationHandle handle)
{
    return own && __builtin_expect(__atomic_load_n(&own->translates, __ATOMIC_ACQUIRE), 0)
               ? gs_own_look_up(own, handle)
               : handle;
}
/* Of memory that the driver does not know by that number: it is away, or has been. False:
 * neither. */
bool gs_own_properties(struct gs_own *own, CUmemGenericAllocationHandle handle,
                       CUmemAllocationProp *ret);
/* Others have it from now on: the handle's memory, or what is mapped there. */
void gs_own_used(struct gs_own *own, CUmemGenericAllocationHandle handle, enum gs_own_use use);
void gs_own_used_at(struct gs_own *own, CUdeviceptr base, size_t size, enum gs_own_use use);
/* Whether the program did not ask for the descriptors that the handle, or what is mapped there,
 * has; and then whether that is shared by this library alone: the driver has no other way. */
bool gs_own_is_added(struct gs_own *own, CUmemGenericAllocationHandle handle);
bool gs_own_is_added_at(struct gs_own *own, CUdeviceptr address, bool *ret_shared);
/* False: of no memory; without a lock. */
static inline bool gs_own_adds(const struct gs_own *own)
{
    return own && __atomic_load_n(&own->adds, __ATOMIC_RELAXED);
}

/* Between its files, and sleep_own.c. The handle of that number, or NULL; what is mapped at an
 * address, or NULL; nothing of a handle is left, perhaps, and then it is freed. The reservation
 * that covers an address, or NULL. */
struct gs_own_handle *gs_own_handle_locked(struct gs_own *own, CUmemGenericAllocationHandle handle);
struct gs_own_mapping *gs_own_mapping_locked(const struct gs_own *own, uint64_t address);
void gs_own_drop_unused_locked(struct gs_own *own, struct gs_own_handle *handle);
struct gs_own_reservation *gs_own_reservation_locked(const struct gs_own *own, uint64_t address);

/* Whether anything is known to be mapped there; without a lock. */
static inline bool gs_own_has(const struct gs_own *own, CUdeviceptr address)
{
    return own && gs_map_find(&own->map, address);
}

void gs_own_reserved(struct gs_own *own, CUdeviceptr base, size_t size);
/* It is about to be given back; false: it is not known. Where it stays: gs_own_reserved. */
bool gs_own_unreserving(struct gs_own *own, CUdeviceptr base, struct gs_own_range *ret);

void gs_own_mapped(struct gs_own *own, CUdeviceptr base, size_t size, size_t offset,
                   CUmemGenericAllocationHandle handle);
/* Around the driver's call: the list of what leaves is for the second. */
struct gs_own_mapping *gs_own_unmapping(struct gs_own *own, CUdeviceptr base, size_t size);
void gs_own_unmapped(struct gs_own *own, struct gs_own_mapping *taken, bool done);
void gs_own_access_set(struct gs_own *own, CUdeviceptr base, size_t size,
                       const CUmemAccessDesc *desc, size_t count);

/* Around the driver's calls, which are made in any case; nothing is done where core does not follow
 * such memory (gs_core_options.user_vmm). NULL: it does not. */
struct gs_own *gs_core_own(struct gs_core *core);
/* Whether memory with such properties is to be asked for with descriptors, which the program did
 * not ask for: then with *ret_properties. */
bool gs_core_own_adds(struct gs_core *core, const CUmemAllocationProp *properties,
                      CUmemAllocationProp *ret_properties);
/* The memory was made, as the program asked for it, or with what was `added`; or imported
 * (`properties` NULL). Returns the program's number of it; 0: it is not to be had with what was
 * added, which nobody would know of (no host memory). */
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
