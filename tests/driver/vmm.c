/*
 * Virtual memory management: reservations, handles, mappings, and handles that travel as file
 * descriptors. As measured: 2 MiB granularity; a mapping takes a whole handle; unmapping does not
 * wait for work; a handle that was imported cannot be exported again; a FABRIC handle is said to be
 * supported and then not permitted, unless there is an NVLink domain (softcuda.h). Exported
 * descriptors are close-on-exec, as those that the real driver opens are.
 */
#include "internal.h"

struct reservation {
    uint64_t base;
    size_t size;
};

static struct sd_ranges reservations;
static unsigned handles_referenced;

/* Descriptors given out: counted while the number still is that file. */
static struct exported {
    int fd;
    uint64_t inode;
} *exported;
static size_t exported_count, exported_room;

unsigned sd_reservation_count(void)
{
    return reservations.count;
}

unsigned sd_handle_count(void)
{
    return handles_referenced;
}

unsigned sd_exported_fd_count(void)
{
    size_t kept = 0;
    struct stat st;

    for (size_t i = 0; i < exported_count; i++)
        if (fstat(exported[i].fd, &st) == 0 && st.st_ino == exported[i].inode)
            exported[kept++] = exported[i];
    exported_count = kept;
    return kept;
}

static void exported_note(int fd, uint64_t inode)
{
    for (size_t i = 0; i < exported_count; i++) {
        if (exported[i].fd == fd) {
            exported[i].inode = inode;
            return;
        }
    }
    if (exported_count == exported_room) {
        size_t room = exported_room ? exported_room * 2 : 16;
        struct exported *at = realloc(exported, room * sizeof *at);
        if (!at)
            return; /* the census misses one */
        exported = at;
        exported_room = room;
    }
    exported[exported_count++] = (struct exported){fd, inode};
}

CUresult sd_address_reserve_call(CUdeviceptr *ptr, size_t size, size_t align, CUdeviceptr at,
                                 unsigned long long flags)
{
    struct reservation *reservation;

    if (!ptr || !size || size % SD_GRANULE || (align & (align - 1)) || flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (align < SD_GRANULE)
        align = SD_GRANULE;
    reservation = malloc(sizeof *reservation);
    if (!reservation)
        return CUDA_ERROR_OUT_OF_MEMORY;
    reservation->size = size;
    reservation->base = sd_address_reserve(size, align, at);
    if (!reservation->base) {
        free(reservation);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (!sd_ranges_add(&reservations, reservation->base, size, reservation)) {
        sd_address_release(reservation->base, size);
        free(reservation);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *ptr = reservation->base;
    return CUDA_SUCCESS;
}

/* True when some mapping lies in the range. */
static bool mapped_in(uint64_t base, size_t size)
{
    size_t next = sd_ranges_after(&sd_blocks, base);

    return next < sd_blocks.count && sd_blocks.at[next].base < base + size;
}

CUresult sd_address_free_call(CUdeviceptr ptr, size_t size)
{
    struct reservation *reservation = sd_ranges_find(&reservations, ptr);

    if (!reservation || reservation->base != ptr || reservation->size != size ||
        mapped_in(ptr, size))
        return CUDA_ERROR_INVALID_VALUE;
    sd_ranges_remove(&reservations, ptr);
    sd_address_release(ptr, size);
    free(reservation);
    return CUDA_SUCCESS;
}

static CUresult prop_check(const CUmemAllocationProp *prop)
{
    if (!prop || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
        prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sd_device_get_ptr(prop->location.id))
        return CUDA_ERROR_INVALID_DEVICE;
    if (prop->requestedHandleTypes &
        ~(unsigned)(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_FABRIC))
        return CUDA_ERROR_NOT_SUPPORTED;
    if (prop->requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR &&
        !sd_feature(SD_WITH_POSIX_FD))
        return CUDA_ERROR_NOT_SUPPORTED;
    return CUDA_SUCCESS;
}

/* Takes the reference to the memory over, also on failure. */
static struct sd_allocation *allocation_new(struct sd_phys *phys, const CUmemAllocationProp *prop,
                                            bool imported)
{
    struct sd_allocation *allocation = sd_object_new(SD_ALLOCATION, sizeof *allocation);

    if (!allocation) {
        sd_phys_unref(phys);
        return NULL;
    }
    allocation->phys = phys;
    allocation->prop = *prop;
    allocation->prop.allocFlags.gpuDirectRDMACapable &= sd_feature(SD_WITH_RDMA);
    allocation->imported = imported;
    allocation->refs = 1;
    handles_referenced++;
    return allocation;
}

static void allocation_settle(struct sd_allocation *allocation)
{
    if (allocation->refs || allocation->maps)
        return;
    sd_phys_unref(allocation->phys);
    sd_object_free(allocation);
}

/* The handle, when the program holds a reference to it. */
static struct sd_allocation *allocation_get(CUmemGenericAllocationHandle handle)
{
    struct sd_allocation *allocation = sd_object_check((void *)(uintptr_t)handle, SD_ALLOCATION);

    return allocation && allocation->refs ? allocation : NULL;
}

static CUresult memory_new(const CUmemAllocationProp *prop, size_t size, struct sd_phys **ret)
{
    return prop->requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC
               ? sd_phys_new_fabric(prop->location.id, size, ret)
               : sd_phys_new(prop->location.id, size, ret);
}

CUresult sd_vmm_create(CUmemGenericAllocationHandle *handle, size_t size,
                       const CUmemAllocationProp *prop, unsigned long long flags)
{
    struct sd_allocation *allocation;
    struct sd_phys *phys;
    CUresult result = prop_check(prop);

    if (!result && (!handle || flags || !size || size % SD_GRANULE))
        result = CUDA_ERROR_INVALID_VALUE;
    if (!result)
        result = memory_new(prop, size, &phys);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && sd_pools_release(prop->location.id))
        result = memory_new(prop, size, &phys);
    if (result)
        return result;
    allocation = allocation_new(phys, prop, false);
    if (!allocation)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *handle = (uintptr_t)allocation;
    return CUDA_SUCCESS;
}

CUresult sd_vmm_release(CUmemGenericAllocationHandle handle)
{
    struct sd_allocation *allocation = allocation_get(handle);

    if (!allocation)
        return CUDA_ERROR_INVALID_VALUE;
    if (--allocation->refs == 0)
        handles_referenced--;
    allocation_settle(allocation);
    return CUDA_SUCCESS;
}

CUresult sd_vmm_map(CUdeviceptr ptr, size_t size, size_t offset,
                    CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    struct sd_allocation *allocation = allocation_get(handle);
    struct reservation *reservation = sd_ranges_find(&reservations, ptr);
    struct sd_segment *segment;
    struct sd_block *block;
    CUresult result;

    if (!allocation || flags || !size || size % SD_GRANULE || ptr % SD_GRANULE || !reservation ||
        ptr + size < ptr || ptr + size > reservation->base + reservation->size)
        return CUDA_ERROR_INVALID_VALUE;
    if (offset || size > allocation->phys->size)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (size != allocation->phys->size || mapped_in(ptr, size))
        return CUDA_ERROR_INVALID_VALUE;
    result = sd_segment_map(ptr, allocation->phys, true, &segment);
    if (result)
        return result;
    block = sd_block_new(SD_BLOCK_VMM, ptr, size, segment, NULL, allocation->phys->device);
    if (!block) {
        sd_segment_unmap(segment);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    block->allocation = allocation;
    allocation->maps++;
    return CUDA_SUCCESS;
}

static struct sd_block *mapping_at(uint64_t address)
{
    struct sd_block *block = sd_block_find(address);

    return block && block->kind == SD_BLOCK_VMM ? block : NULL;
}

/* The range is mapped without a gap, and cuts no mapping. */
static bool whole_mappings(uint64_t ptr, size_t size)
{
    uint64_t at = ptr, end = ptr + size;

    while (at < end) {
        const struct sd_block *block = mapping_at(at);
        if (!block || block->base != at)
            return false;
        at += block->size;
    }
    return size && at == end;
}

/* What is unmapped may go on behind the mappings of its reservation (measured on an H200). */
CUresult sd_vmm_unmap(CUdeviceptr ptr, size_t size)
{
    const struct reservation *reservation = sd_ranges_find(&reservations, ptr);

    if (reservation && size > reservation->base + reservation->size - ptr)
        size = reservation->base + reservation->size - ptr;
    while (size > SD_GRANULE && !mapping_at(ptr + size - SD_GRANULE))
        size -= SD_GRANULE;
    if (!whole_mappings(ptr, size))
        return CUDA_ERROR_INVALID_VALUE;
    for (uint64_t end = ptr + size; ptr < end;) {
        struct sd_block *block = mapping_at(ptr);
        struct sd_allocation *allocation = block->allocation;
        ptr += block->size;
        sd_segment_unmap(block->segment);
        sd_block_delete(block);
        allocation->maps--;
        allocation_settle(allocation);
    }
    return CUDA_SUCCESS;
}

CUresult sd_vmm_set_access(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count)
{
    CUresult result = CUDA_SUCCESS;

    if (!desc || !count || !whole_mappings(ptr, size))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        if (desc[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
            (desc[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE &&
             desc[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
             desc[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE))
            return CUDA_ERROR_INVALID_VALUE;
        if (!sd_device_get_ptr(desc[i].location.id))
            return CUDA_ERROR_INVALID_DEVICE;
        if (desc[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE && !sd_feature(SD_WITH_PEER) &&
            desc[i].location.id != mapping_at(ptr)->device)
            return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    }
    for (uint64_t end = ptr + size; ptr < end && !result;) {
        struct sd_block *block = mapping_at(ptr);
        for (size_t i = 0; i < count && !result; i++)
            result = sd_segment_set_access(block->segment, desc[i].location.id,
                                           (enum sd_access)desc[i].flags);
        ptr += block->size;
    }
    return result;
}

CUresult sd_vmm_get_access(unsigned long long *flags, const CUmemLocation *location,
                           CUdeviceptr ptr)
{
    const struct sd_block *block = sd_block_find(ptr);

    if (!flags || !location || location->type != CU_MEM_LOCATION_TYPE_DEVICE || !block)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sd_device_get_ptr(location->id))
        return CUDA_ERROR_INVALID_DEVICE;
    if (block->kind != SD_BLOCK_VMM) { /* measured: success, and no access */
        *flags = 0;
        return CUDA_SUCCESS;
    }
    *flags = block->segment->access[location->id];
    return CUDA_SUCCESS;
}

static CUresult fd_out(struct sd_phys *phys, int *ret_fd)
{
    int fd = fcntl(phys->fd, F_DUPFD_CLOEXEC, 3);

    if (fd < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    exported_note(fd, phys->inode);
    sd_phys_list(phys);
    *ret_fd = fd;
    return CUDA_SUCCESS;
}

CUresult sd_vmm_export(void *out, CUmemGenericAllocationHandle handle,
                       CUmemAllocationHandleType type, unsigned long long flags)
{
    struct sd_allocation *allocation = allocation_get(handle);

    if (!out || !allocation || flags || allocation->imported || !type ||
        !(allocation->prop.requestedHandleTypes & type))
        return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_MEM_HANDLE_TYPE_FABRIC)
        return fd_out(allocation->phys, out);
    sd_phys_fabric_handle(allocation->phys, out);
    return CUDA_SUCCESS;
}

CUresult sd_vmm_import(CUmemGenericAllocationHandle *handle, void *os_handle,
                       CUmemAllocationHandleType type)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
                                .allocFlags = {.gpuDirectRDMACapable = 1}};
    struct sd_allocation *allocation;
    struct sd_phys *phys;
    CUresult result;

    if ((type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && type != CU_MEM_HANDLE_TYPE_FABRIC) ||
        !handle || (type == CU_MEM_HANDLE_TYPE_FABRIC && !os_handle))
        return CUDA_ERROR_INVALID_VALUE;
    prop.requestedHandleTypes = type;
    if (type == CU_MEM_HANDLE_TYPE_FABRIC)
        result = sd_phys_import_fabric(os_handle, &phys);
    else
        result = sd_feature(SD_WITH_POSIX_FD) ? sd_phys_import((int)(intptr_t)os_handle, &phys)
                                              : CUDA_ERROR_NOT_SUPPORTED;
    if (result)
        return result;
    sd_phys_list(phys);
    prop.location.id = phys->device < 0 ? -2 : phys->device; /* -2: of a device we do not see */
    allocation = allocation_new(phys, &prop, true);
    if (!allocation)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *handle = (uintptr_t)allocation;
    return CUDA_SUCCESS;
}

CUresult sd_vmm_granularity(size_t *granularity, const CUmemAllocationProp *prop,
                            CUmemAllocationGranularity_flags option)
{
    if (!granularity || !prop || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
        prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        (option != CU_MEM_ALLOC_GRANULARITY_MINIMUM &&
         option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED))
        return CUDA_ERROR_INVALID_VALUE;
    if (!sd_device_get_ptr(prop->location.id))
        return CUDA_ERROR_INVALID_DEVICE;
    *granularity = SD_GRANULE;
    return CUDA_SUCCESS;
}

CUresult sd_vmm_properties(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle)
{
    struct sd_allocation *allocation = allocation_get(handle);

    if (!prop || !allocation)
        return CUDA_ERROR_INVALID_VALUE;
    *prop = allocation->prop;
    return CUDA_SUCCESS;
}

CUresult sd_vmm_retain(CUmemGenericAllocationHandle *handle, void *address)
{
    struct sd_block *block = mapping_at((uint64_t)address);

    if (!handle || !block)
        return CUDA_ERROR_INVALID_VALUE;
    if (block->allocation->refs++ == 0)
        handles_referenced++;
    *handle = (uintptr_t)block->allocation;
    return CUDA_SUCCESS;
}

/* Without a gap; as measured it may go on through mappings side by side. */
static bool is_mapped_through(const struct sd_block *block, uint64_t end)
{
    while (block && block->kind == SD_BLOCK_VMM && end > block->base + block->size)
        block = mapping_at(block->base + block->size);
    return block && end <= block->base + block->size;
}

/* One of several descriptors' memory has its size, its first page, and its address in its name:
 * what lies there is what it stands for while that stays mapped (tests/rdma/verbs_stand_in.c). */
static CUresult dma_buf_of_several(uint64_t base, size_t size, int *ret_fd)
{
    struct stat st;
    char name[64];
    int fd;

    sprintf(name, "softcuda-dma-buf-%llx", (unsigned long long)base);
    fd = sd_memfd_new(size, name);
    if (fd < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    if (fstat(fd, &st) == 0 && pwrite(fd, (const void *)base, 4096, 0) == 4096)
        exported_note(fd, st.st_ino);
    *ret_fd = fd;
    return CUDA_SUCCESS;
}

/* A dma-buf is a duplicate of the memory's descriptor here. */
CUresult sd_vmm_range_handle(void *out, CUdeviceptr ptr, size_t size, CUmemRangeHandleType type,
                             unsigned long long flags)
{
    const size_t page = 4096;
    struct sd_context *context;
    struct sd_block *block = sd_block_find(ptr);
    CUresult result = sd_current(&context);

    if (result)
        return result;
    if (!out || type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD || !size || ptr % page || size % page ||
        !sd_block_is_device(block) || ptr + size < ptr || !is_mapped_through(block, ptr + size))
        return CUDA_ERROR_INVALID_VALUE;
    if (ptr + size > block->base + block->size)
        return dma_buf_of_several(ptr, size, out);
    return fd_out(block->segment->phys, out);
}
