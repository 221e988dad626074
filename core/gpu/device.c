/* What a device can do, and making and unmaking one piece's memory (core/gpu/device.h). */
#include "core/gpu/device.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "core/gpu/map.h"

#ifndef CU_MEM_CREATE_USAGE_HW_DECOMPRESS
#define CU_MEM_CREATE_USAGE_HW_DECOMPRESS 0x2 /* cuda.h of 12.8 has it */
#endif

gs_status gs_device_map(const struct gs_driver *driver, const struct gs_device *device,
                        CUdeviceptr address, size_t size, CUmemGenericAllocationHandle *ret_handle)
{
    const CUmemAccessDesc access = {
        .location = device->properties.location,
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    CUmemGenericAllocationHandle handle;
    gs_status status = driver->mem_create(&handle, size, &device->properties, 0);

    *ret_handle = 0;
    if (status != GS_OK)
        return status;
    status = driver->mem_map(address, size, 0, handle, 0);
    if (status == GS_OK) {
        status = driver->mem_set_access(address, size, &access, 1);
        if (status == GS_OK || driver->mem_unmap(address, size) != CUDA_SUCCESS)
            *ret_handle = handle;
    }
    if (!*ret_handle)
        driver->mem_release(handle);
    return status;
}

CUresult gs_device_export(const struct gs_driver *driver, CUmemGenericAllocationHandle handle,
                          int *ret_fd)
{
    int fd;
    CUresult result = driver->mem_export(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);

    if (result == CUDA_SUCCESS) {
        fcntl(fd, F_SETFD, FD_CLOEXEC); /* the driver does not say that it is */
        *ret_fd = fd;
    }
    return result;
}

static int attribute(const struct gs_driver *driver, CUdevice ordinal, CUdevice_attribute which)
{
    int value = 0;

    return driver->device_get_attribute(&value, which, ordinal) == CUDA_SUCCESS ? value : 0;
}

bool gs_device_uuid(const struct gs_driver *driver, CUdevice ordinal, unsigned char ret_uuid[16])
{
    CUuuid uuid = {{0}};
    bool told = driver->device_get_uuid && driver->device_get_uuid(&uuid, ordinal) == CUDA_SUCCESS;

    memcpy(ret_uuid, uuid.bytes, sizeof uuid.bytes);
    return told;
}

/* One full round in the mode that device->properties describe. On failure *ret_step names the
 * call that refused, else *ret_fd stands for what was tried and is the caller's. */
static gs_status try_mode(const struct gs_driver *driver, const struct gs_device *device,
                          const char **ret_step, int *ret_fd)
{
    CUmemGenericAllocationHandle handle, imported;
    CUdeviceptr address;
    size_t granularity = 0;
    gs_status status;
    int fd = -1;

    *ret_step = "cuMemGetAllocationGranularity";
    status = driver->mem_get_granularity(&granularity, &device->properties,
                                         CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    if (status != GS_OK)
        return status;
    if (granularity == 0 || GS_PAGE_SIZE % granularity != 0)
        return GS_NOT_OFFERED;
    *ret_step = "creating and mapping memory";
    status = driver->mem_address_reserve(&address, GS_PAGE_SIZE, GS_PAGE_SIZE, 0, 0);
    if (status != GS_OK)
        return status;
    status = gs_device_map(driver, device, address, GS_PAGE_SIZE, &handle);
    if (status != GS_OK) {
        driver->mem_address_free(address, GS_PAGE_SIZE);
        return status;
    }
    *ret_step = "cuMemExportToShareableHandle";
    status = (gs_status)gs_device_export(driver, handle, &fd);
    if (status == GS_OK) {
        *ret_step = "cuMemImportFromShareableHandle";
        status = driver->mem_import(&imported, (void *)(intptr_t)fd,
                                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
        if (status == GS_OK) {
            driver->mem_release(imported);
            *ret_fd = fd;
        } else {
            close(fd);
        }
    }
    driver->mem_unmap(address, GS_PAGE_SIZE);
    driver->mem_release(handle);
    driver->mem_address_free(address, GS_PAGE_SIZE);
    return status;
}

/* Memory of cuMemAlloc says that hardware may decompress into it (measured on an H200), VMM memory
 * only where that was asked for; drivers before CUDA 12.8 do not know the question. */
static gs_status try_usage(const struct gs_driver *driver, struct gs_device *device,
                           const char **ret_step, int *ret_fd)
{
    gs_status status;

    device->properties.allocFlags.usage = CU_MEM_CREATE_USAGE_HW_DECOMPRESS;
    status = try_mode(driver, device, ret_step, ret_fd);
    if (status == GS_OK || status == (gs_status)CUDA_ERROR_OUT_OF_MEMORY)
        return status;
    device->properties.allocFlags.usage = 0;
    return try_mode(driver, device, ret_step, ret_fd);
}

bool gs_device_has_vmm(const struct gs_driver *driver)
{
    return driver->mem_create && driver->mem_release && driver->mem_address_reserve &&
           driver->mem_address_free && driver->mem_map && driver->mem_unmap &&
           driver->mem_set_access && driver->mem_get_granularity && driver->mem_export &&
           driver->mem_import;
}

static void climb(const struct gs_driver *driver, const struct gs_log *log,
                  struct gs_device *device, int *ret_fd)
{
    const char *step = "virtual memory management";
    gs_status status = GS_NOT_OFFERED;

    if (gs_device_has_vmm(driver) &&
        attribute(driver, device->ordinal,
                  CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)) {
        int rdma = attribute(driver, device->ordinal,
                             CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) != 0;

        device->properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
        device->properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        device->properties.location.id = device->ordinal;
        device->properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        for (; rdma >= 0; rdma--) {
            device->properties.allocFlags.gpuDirectRDMACapable = (unsigned char)rdma;
            status = try_usage(driver, device, &step, ret_fd);
            if (status == GS_OK) {
                device->mode = rdma ? GS_MODE_FD_RDMA : GS_MODE_FD;
                return;
            }
        }
    }
    /* Full now is not incapable: the next allocation climbs again. */
    if (status == (gs_status)CUDA_ERROR_OUT_OF_MEMORY)
        return;
    device->mode = GS_MODE_NATIVE;
    gs_log_line(log, GS_LOG_WARNING,
                "device %d cannot make memory that is shared by descriptor (%s, status %d): its "
                "allocations stay the driver's own",
                (int)device->ordinal, step, status);
}

/* Keeps `fd` as the device's warm-up handle, or closes it. */
static void keep_warm_up(struct gs_device *device, bool warms_up, int fd)
{
    if (fd < 0)
        return;
    if (warms_up)
        device->warm_up = gs_fd_keep(fd);
    if (!device->warm_up.any)
        close(fd);
    __atomic_store_n(&device->warmed_up, device->warm_up.any, __ATOMIC_RELEASE);
}

size_t gs_device_end_warm_up(struct gs_device *device)
{
    if (!__atomic_exchange_n(&device->warmed_up, false, __ATOMIC_ACQ_REL))
        return 0;
    gs_fd_close(&device->warm_up);
    return GS_PAGE_SIZE;
}

void gs_device_forked(const struct gs_device *device)
{
    if (__atomic_load_n(&device->warmed_up, __ATOMIC_ACQUIRE))
        gs_fd_close(&device->warm_up);
}

void gs_device_probe(const struct gs_driver *driver, const struct gs_log *log, CUdevice ordinal,
                     bool warms_up, bool native, struct gs_device *ret_device)
{
    int fd = -1;

    memset(ret_device, 0, sizeof *ret_device);
    ret_device->ordinal = ordinal;
    gs_device_uuid(driver, ordinal, ret_device->uuid);
    if (driver->device_total_mem(&ret_device->total, ordinal) != CUDA_SUCCESS) {
        ret_device->total = 0; /* bounds and parts of it mean nothing */
        native = true;
        gs_log_line(log, GS_LOG_WARNING,
                    "memory of device %d is left to the driver: it does not say how much there is",
                    (int)ordinal);
    }
    ret_device->dma_bufs = attribute(driver, ordinal, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED);
    if (driver->device_get_default_pool &&
        driver->device_get_default_pool(&ret_device->default_pool, ordinal) != CUDA_SUCCESS)
        ret_device->default_pool = NULL;
    if (native)
        ret_device->mode = GS_MODE_NATIVE;
    else
        climb(driver, log, ret_device, &fd);
    keep_warm_up(ret_device, warms_up, fd);
}

/* Devices say that they can, and then are not permitted to (an H200 without an IMEX channel):
 * tried. */
void gs_device_reach(const struct gs_driver *driver, const struct gs_log *log,
                     struct gs_device *device)
{
    CUmemAllocationProp properties = device->properties;
    CUmemGenericAllocationHandle handle;
    CUresult result = CUDA_ERROR_NOT_SUPPORTED;

    if (device->mode != GS_MODE_FD_RDMA && device->mode != GS_MODE_FD)
        return;
    properties.requestedHandleTypes =
        (CUmemAllocationHandleType)((unsigned)properties.requestedHandleTypes |
                                    CU_MEM_HANDLE_TYPE_FABRIC);
    if (attribute(driver, device->ordinal, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED))
        result = driver->mem_create(&handle, GS_PAGE_SIZE, &properties, 0);
    if (result == CUDA_SUCCESS) {
        driver->mem_release(handle);
        device->properties = properties;
        return;
    }
    gs_log_line(log, GS_LOG_INFO,
                "memory of device %d stays on this machine: %s (driver error %d); share.reach = "
                "cluster needs GPUs of one NVLink domain, and an IMEX channel "
                "(/dev/nvidia-caps-imex-channels)",
                (int)device->ordinal,
                result == CUDA_ERROR_NOT_SUPPORTED ? "it makes no fabric handles"
                                                   : "a fabric handle is refused",
                (int)result);
}

CUresult gs_device_fabric(const struct gs_driver *driver, CUmemGenericAllocationHandle handle,
                          unsigned char ret_fabric[sizeof(CUmemFabricHandle)])
{
    CUmemFabricHandle fabric;
    CUresult result = driver->mem_export(&fabric, handle, CU_MEM_HANDLE_TYPE_FABRIC, 0);

    if (result == CUDA_SUCCESS)
        memcpy(ret_fabric, &fabric, sizeof fabric);
    return result;
}
