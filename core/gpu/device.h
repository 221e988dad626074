/*
 * What one GPU can do, found by doing it: devices lie about support (measured: FABRIC handles are
 * reported and refused; others report descriptors and fail).
 */
#ifndef GS_CORE_GPU_DEVICE_H
#define GS_CORE_GPU_DEVICE_H

#include <stdbool.h>

#include "core/gpu/driver.h"
#include "core/base/fd.h"
#include "core/base/log.h"
#include "core/base/status.h"

#define GS_DEVICES_MAX 64 /* of others nothing is ours */

static inline bool gs_is_device(CUdevice ordinal)
{
    return ordinal >= 0 && ordinal < GS_DEVICES_MAX;
}

enum gs_device_mode {
    GS_MODE_UNKNOWN = 0,
    GS_MODE_FD_RDMA, /* descriptors, and network cards can register the memory */
    GS_MODE_FD,      /* descriptors */
    GS_MODE_NATIVE,  /* the driver's allocator: nothing of this device is ours */
};

struct gs_device {
    CUdevice ordinal;
    enum gs_device_mode mode;
    CUmemAllocationProp properties; /* for mem_create */
    unsigned char uuid[16];
    size_t total;              /* bytes of memory */
    bool dma_bufs;             /* of its memory can be had */
    CUmemoryPool default_pool; /* NULL: the driver has no stream-ordered allocation */
    bool warmed_up;            /* atomic; whether `warm_up` is kept: */
    struct gs_fd warm_up;      /* of the memory it was probed with */
};

/*
 * Finds out about a device; needs no current context. Does not fail: a device that cannot is in the
 * last mode, and the log says why; with `native` it is put there, for a reason that is known.
 *
 * An export takes 650 us where no process has an exported handle of the device's memory, and 20 us
 * where one has (measured on an H200). So that this process's first one is of the
 * second kind, where `fds` is given the descriptor of the memory that was tried stays there, and
 * 2 MiB with it, until gs_device_end_warm_up: when the device is full, or its last context ends.
 */
void gs_device_probe(const struct gs_driver *driver, const struct gs_log *log, CUdevice ordinal,
                     bool warms_up, bool native, struct gs_device *ret_device);
/* Its memory is to leave the machine: from now on it is made with fabric handles as well, where one
 * such piece can be made. Else the log says why not. */
void gs_device_reach(const struct gs_driver *driver, const struct gs_log *log,
                     struct gs_device *device);
/* The fabric handle of memory made so; or the driver's error. */
CUresult gs_device_fabric(const struct gs_driver *driver, CUmemGenericAllocationHandle handle,
                          unsigned char ret_fabric[sizeof(CUmemFabricHandle)]);
/* Closes it, once; the bytes that come back. */
size_t gs_device_end_warm_up(struct gs_device *device);
/* In a forked child, which is not to have it. The parent's threads may be at it when it forks. */
void gs_device_forked(const struct gs_device *device);

/* False, and zeros: the driver does not tell it. */
bool gs_device_uuid(const struct gs_driver *driver, CUdevice ordinal, unsigned char ret_uuid[16]);

/* Whether the driver has what mapping memory of one's own, or of others, takes. */
bool gs_device_has_vmm(const struct gs_driver *driver);

/* Creates, maps at an address that is reserved and makes accessible `size` bytes (a multiple of
 * 2 MiB). On failure the status is the driver's, and *ret_handle 0: nothing is left behind; or not,
 * where it does not unmap again: the memory and its addresses are lost. */
gs_status gs_device_map(const struct gs_driver *driver, const struct gs_device *device,
                        CUdeviceptr address, size_t size, CUmemGenericAllocationHandle *ret_handle);

/* A descriptor of the handle's memory, close-on-exec and the caller's. OPERATING_SYSTEM: no
 * descriptor is left. *ret_fd is untouched on failure. */
CUresult gs_device_export(const struct gs_driver *driver, CUmemGenericAllocationHandle handle,
                          int *ret_fd);

#endif
