/* The driver as a table of numbers, and a GPU whose work is done at its time
 * (core/gpu/driver.h). */
#include "simulation.h"

#include <errno.h>
#include <string.h>

#include "core/gpu/driver.h"
#include "core/gpu/map.h"

#define LENGTH(array) (sizeof(array) / sizeof *(array))
#define FIRST_ADDRESS GS_PAGE_SIZE

struct gs_map sim_map = {.lock = GS_LOCK_INITIALIZER(GS_RANK_MAP)};

/* ---- Memory --------------------------------------------------------------------------------- */

void phys_ref(struct phys *phys)
{
    phys->refs++;
}

/* The record stays for as long as the world: what is said of it names it. */
void phys_unref(struct phys *phys)
{
    phys->refs--;
}

static struct handle *handle_new(struct process *process, struct phys *phys)
{
    for (unsigned i = 0; i < LENGTH(process->handles); i++) {
        struct handle *handle = &process->handles[i];

        if (handle->number)
            continue;
        handle->number = ++world.next_number;
        handle->phys = phys;
        handle->retained = false;
        phys_ref(phys);
        return handle;
    }
    return NULL;
}

static struct handle *handle_of(struct process *process, uint64_t number)
{
    for (unsigned i = 0; i < LENGTH(process->handles); i++)
        if (number && process->handles[i].number == number)
            return &process->handles[i];
    return NULL;
}

struct phys *phys_new(uint64_t *ret_handle)
{
    struct phys *phys = sim_alloc(sizeof *phys);
    struct handle *handle = handle_new(process_here(), phys);

    if (!handle) {
        sim_free(phys);
        return NULL;
    }
    phys->id = ++world.next_number;
    phys->maker = process_here()->image;
    phys->next = world.memory;
    world.memory = phys;
    *ret_handle = handle->number;
    return phys;
}

static CUresult mem_release(CUmemGenericAllocationHandle number)
{
    struct handle *handle = handle_of(process_here(), number);

    sim_point();
    if (!handle) {
        sim_fail("driver: process %u releases handle %llu, which it has not", process_here()->index,
                 (unsigned long long)number);
        return CUDA_ERROR_INVALID_VALUE;
    }
    phys_unref(handle->phys);
    handle->number = 0;
    return CUDA_SUCCESS;
}

void driver_release(uint64_t handle)
{
    mem_release(handle);
}

/* A call that may fail for want of something. */
static bool fails(struct process *process)
{
    sim_point();
    return process->driver_left > 0 && --process->driver_left == 0;
}

/* In half of the worlds that have memory in pieces there is room for the descriptor of one at a
 * time: else all would come with the grant. */
static bool has_a_piece_under_way(const struct process *process)
{
    bool any = false;

    for (unsigned i = 0; i < FDS_MAX && world.seed / 10 % 2; i++)
        any |= process->fds[i].file && process->fds[i].is_piece;
    return any;
}

static CUresult mem_export(void *ret_fd, CUmemGenericAllocationHandle number,
                           CUmemAllocationHandleType type, unsigned long long flags)
{
    struct handle *handle;
    struct file *file;
    int fd;

    if (fails(process_here()))
        return CUDA_ERROR_OUT_OF_MEMORY;
    handle = handle_of(process_here(), number);
    if (!handle) {
        sim_fail("driver: process %u exports handle %llu, which it has not", process_here()->index,
                 (unsigned long long)number);
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (type == CU_MEM_HANDLE_TYPE_FABRIC) {
        memset(ret_fd, 0, sizeof(CUmemFabricHandle));
        memcpy(ret_fd, &handle->phys->id, sizeof handle->phys->id);
        return CUDA_SUCCESS;
    }
    if (handle->retained && has_a_piece_under_way(process_here()))
        return CUDA_ERROR_OPERATING_SYSTEM;
    file = file_new(FILE_MEMORY);
    file->phys = handle->phys;
    phys_ref(file->phys);
    fd = fd_new(process_here(), file);
    if (fd < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    process_here()->fds[fd].is_piece = handle->retained;
    *(int *)ret_fd = fd;
    return CUDA_SUCCESS;
}

/* That anybody has still. */
static struct phys *phys_of_fabric(const void *fabric)
{
    struct phys *phys = world.memory;
    uint64_t id;

    memcpy(&id, fabric, sizeof id);
    while (phys && (phys->id != id || phys->refs == 0))
        phys = phys->next;
    return phys;
}

static CUresult mem_import(CUmemGenericAllocationHandle *ret_handle, void *fd,
                           CUmemAllocationHandleType type)
{
    struct handle *handle;
    const struct file *file;
    struct phys *phys;

    if (fails(process_here()))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (type == CU_MEM_HANDLE_TYPE_FABRIC) {
        phys = phys_of_fabric(fd);
    } else {
        file = fd_file((int)(intptr_t)fd, FILE_MEMORY);
        phys = file && !file->phys->host ? file->phys : NULL;
    }
    handle = phys ? handle_new(process_here(), phys) : NULL;
    if (!handle)
        return phys ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
    *ret_handle = handle->number;
    return CUDA_SUCCESS;
}

/* ---- Addresses ------------------------------------------------------------------------------ */

static struct mapping *mapping_at(const struct process *process, CUdeviceptr address)
{
    for (unsigned i = 0; i < LENGTH(process->mappings); i++)
        if (address - process->mappings[i].base < process->mappings[i].size)
            return (struct mapping *)&process->mappings[i];
    return NULL;
}

static struct phys **page_of(struct mapping *mapping, CUdeviceptr address)
{
    return &mapping->pages[(address - mapping->base) / GS_PAGE_SIZE];
}

static bool is_all(struct mapping *mapping, CUdeviceptr base, size_t size, bool mapped)
{
    for (CUdeviceptr at = base; at < base + size; at += GS_PAGE_SIZE)
        if ((*page_of(mapping, at) != NULL) != mapped)
            return false;
    return true;
}

static struct mapping *expect(CUdeviceptr base, size_t size, bool mapped, const char *what)
{
    struct mapping *mapping = mapping_at(process_here(), base);

    if (mapping && base + size <= mapping->base + mapping->size &&
        is_all(mapping, base, size, mapped))
        return mapping;
    sim_fail("driver: process %u %s at %llx, where it has %s", process_here()->index, what,
             (unsigned long long)base, mapping ? "something else" : "nothing");
    return NULL;
}

static CUresult mem_address_reserve(CUdeviceptr *ret_base, size_t size, size_t alignment,
                                    CUdeviceptr address, unsigned long long flags)
{
    struct process *process = process_here();

    if (fails(process) || size > STRIP_MAX * GS_PAGE_SIZE)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (unsigned i = 0; i < LENGTH(process->mappings); i++) {
        if (process->mappings[i].size)
            continue;
        process->mappings[i] =
            (struct mapping){.base = FIRST_ADDRESS + world.next_address + GS_PAGE_SIZE,
                             .size = size};
        world.next_address += size;
        *ret_base = process->mappings[i].base;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult mem_address_free(CUdeviceptr base, size_t size)
{
    struct mapping *mapping;

    sim_point();
    mapping = expect(base, size, false, "frees addresses");
    if (mapping && mapping->size != size)
        sim_fail("driver: process %u frees a part of its addresses", process_here()->index);
    else if (mapping)
        mapping->size = 0;
    return CUDA_SUCCESS;
}

static CUresult mem_map(CUdeviceptr base, size_t size, size_t offset,
                        CUmemGenericAllocationHandle number, unsigned long long flags)
{
    struct handle *handle;
    struct mapping *mapping;

    if (fails(process_here()))
        return CUDA_ERROR_OUT_OF_MEMORY;
    handle = handle_of(process_here(), number);
    mapping = expect(base, size, false, "maps memory");
    if (!handle || !mapping) {
        sim_fail("driver: process %u maps a handle that it has not", process_here()->index);
        return CUDA_ERROR_INVALID_VALUE;
    }
    *page_of(mapping, base) = handle->phys;
    mapping->accessible = false;
    phys_ref(handle->phys);
    return CUDA_SUCCESS;
}

/* Of what is mapped there. */
static CUresult mem_retain(CUmemGenericAllocationHandle *ret_handle, void *address)
{
    struct mapping *mapping;
    struct handle *handle;
    struct phys *phys;

    if (fails(process_here()))
        return CUDA_ERROR_OUT_OF_MEMORY;
    mapping = mapping_at(process_here(), (CUdeviceptr)(uintptr_t)address);
    phys = mapping ? *page_of(mapping, (CUdeviceptr)(uintptr_t)address) : NULL;
    handle = phys ? handle_new(process_here(), phys) : NULL;
    if (!handle)
        return CUDA_ERROR_INVALID_VALUE;
    handle->retained = true;
    *ret_handle = handle->number;
    return CUDA_SUCCESS;
}

static CUresult mem_unmap(CUdeviceptr base, size_t size)
{
    struct mapping *mapping;

    sim_point();
    mapping = expect(base, size, true, "unmaps memory");
    if (!mapping)
        return CUDA_ERROR_INVALID_VALUE;
    for (CUdeviceptr at = base; at < base + size; at += GS_PAGE_SIZE) {
        struct phys **page = page_of(mapping, at);

        rule_unmapped(process_here(), *page, at);
        phys_unref(*page);
        *page = NULL;
    }
    return CUDA_SUCCESS;
}

static CUresult mem_set_access(CUdeviceptr base, size_t size, const CUmemAccessDesc *access,
                               size_t count)
{
    struct mapping *mapping;

    if (fails(process_here()))
        return CUDA_ERROR_OUT_OF_MEMORY;
    mapping = expect(base, size, true, "sets the access of memory");
    if (mapping)
        mapping->accessible = true;
    return CUDA_SUCCESS;
}

struct phys *phys_at(const struct process *process, uint64_t address, uint64_t *ret_offset)
{
    struct mapping *mapping = mapping_at(process, address);

    if (!mapping || !mapping->accessible)
        return NULL;
    *ret_offset = (address - mapping->base) % GS_PAGE_SIZE;
    return *page_of(mapping, address);
}

/* ---- Memory of the host: a page that a process has mapped, and made known to the driver ------ */

int host_map(struct phys *phys, uint64_t *ret_base)
{
    CUdeviceptr base;

    if (mem_address_reserve(&base, GS_PAGE_SIZE, 0, 0, 0) != CUDA_SUCCESS)
        return -ENOMEM;
    mapping_at(process_here(), base)->pages[0] = phys;
    phys_ref(phys);
    *ret_base = base;
    return 0;
}

void host_unmap(uint64_t base)
{
    struct mapping *mapping = expect(base, GS_PAGE_SIZE, true, "unmaps memory of the host");

    if (!mapping)
        return;
    if (mapping->registered)
        sim_fail("driver: process %u unmaps memory of the host that the driver knows",
                 process_here()->index);
    phys_unref(mapping->pages[0]);
    *mapping = (struct mapping){0};
}

static CUresult mem_host_register(void *memory, size_t size, unsigned flags)
{
    struct mapping *mapping;

    if (fails(process_here()))
        return CUDA_ERROR_OUT_OF_MEMORY;
    mapping = expect((CUdeviceptr)(uintptr_t)memory, size, true, "registers memory of the host");
    if (!mapping || mapping->registered)
        return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    mapping->registered = mapping->accessible = true;
    return CUDA_SUCCESS;
}

static CUresult mem_host_get_device_pointer(CUdeviceptr *ret_address, void *memory, unsigned flags)
{
    *ret_address = (CUdeviceptr)(uintptr_t)memory;
    return CUDA_SUCCESS;
}

static CUresult ctx_synchronize(void);

/* Waits for the GPU. */
static CUresult mem_host_unregister(void *memory)
{
    const CUdeviceptr base = (CUdeviceptr)(uintptr_t)memory;
    struct mapping *mapping = expect(base, GS_PAGE_SIZE, true, "unregisters memory of the host");

    if (!mapping)
        return CUDA_ERROR_INVALID_VALUE;
    if (!mapping->registered)
        sim_fail("driver: process %u unregisters memory of the host that the driver does not know",
                 process_here()->index);
    rule_unmapped(process_here(), mapping->pages[0], base);
    ctx_synchronize();
    mapping->registered = mapping->accessible = false;
    return CUDA_SUCCESS;
}

static CUresult pointer_get_attribute(void *ret_id, CUpointer_attribute attribute,
                                      CUdeviceptr address)
{
    uint64_t offset;
    const struct phys *phys = phys_at(process_here(), address, &offset);

    if (attribute != CU_POINTER_ATTRIBUTE_BUFFER_ID || !phys)
        return CUDA_ERROR_INVALID_VALUE;
    *(unsigned long long *)ret_id = phys->id;
    return CUDA_SUCCESS;
}

static CUresult ctx_get_current(CUcontext *ret_context)
{
    *ret_context = program_context(process_here());
    return CUDA_SUCCESS;
}

/* ---- Events: one context, whose work is done in its order ------------------------------------ */

static struct event *event_of(CUevent event)
{
    struct process *process = process_here();

    for (unsigned i = 0; i < LENGTH(process->events); i++)
        if (event && process->events[i].number == (uint64_t)(uintptr_t)event)
            return &process->events[i];
    sim_fail("driver: process %u has not the event that it names", process->index);
    return &process->events[0];
}

static CUresult event_create(CUevent *ret_event, unsigned flags)
{
    struct process *process = process_here();

    for (unsigned i = 0; i < LENGTH(process->events); i++)
        if (!process->events[i].number) {
            process->events[i] = (struct event){.number = ++world.next_number};
            *ret_event = (CUevent)(uintptr_t)process->events[i].number;
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult event_destroy(CUevent event)
{
    event_of(event)->number = 0;
    return CUDA_SUCCESS;
}

static CUresult ctx_record_event(CUcontext context, CUevent event)
{
    event_of(event)->done_ns = process_here()->gpu_busy_ns;
    return CUDA_SUCCESS;
}

static CUresult event_query(CUevent event)
{
    return event_of(event)->done_ns <= world.now_ns ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static CUresult ctx_push_current(CUcontext context)
{
    const struct process *process = process_here();

    return process->context_gone || context != program_context(process)
               ? CUDA_ERROR_CONTEXT_IS_DESTROYED
               : CUDA_SUCCESS;
}

static CUresult ctx_pop_current(CUcontext *ret_context)
{
    return CUDA_SUCCESS;
}

static CUresult ctx_synchronize(void)
{
    while (process_here()->gpu_busy_ns > world.now_ns)
        gs_rest_ns(process_here()->gpu_busy_ns - world.now_ns);
    return CUDA_SUCCESS;
}

const struct gs_driver sim_driver = {
    .mem_export = mem_export,
    .mem_import = mem_import,
    .mem_release = mem_release,
    .mem_address_reserve = mem_address_reserve,
    .mem_address_free = mem_address_free,
    .mem_map = mem_map,
    .mem_unmap = mem_unmap,
    .mem_retain = mem_retain,
    .mem_set_access = mem_set_access,
    .mem_host_register = mem_host_register,
    .mem_host_unregister = mem_host_unregister,
    .mem_host_get_device_pointer = mem_host_get_device_pointer,
    .pointer_get_attribute = pointer_get_attribute,
    .ctx_get_current = ctx_get_current,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_query = event_query,
    .ctx_record_event = ctx_record_event,
    .ctx_push_current = ctx_push_current,
    .ctx_pop_current = ctx_pop_current,
    .ctx_synchronize = ctx_synchronize,
};

/* With its context its events go, and what of the host it knew. */
void driver_end_context(struct process *process)
{
    for (unsigned i = 0; i < LENGTH(process->mappings); i++)
        if (process->mappings[i].registered)
            process->mappings[i].registered = process->mappings[i].accessible = false;
    for (unsigned i = 0; i < LENGTH(process->events); i++)
        process->events[i].number = 0;
}

/* ---- Its end -------------------------------------------------------------------------------- */

bool driver_maps(const struct process *process, const struct phys *phys)
{
    for (unsigned i = 0; i < LENGTH(process->mappings); i++)
        for (unsigned k = 0; k < STRIP_MAX; k++)
            if (process->mappings[i].size && process->mappings[i].pages[k] == phys)
                return true;
    return false;
}

unsigned driver_count(const struct process *process)
{
    unsigned count = 0;

    for (unsigned i = 0; i < LENGTH(process->handles); i++)
        count += process->handles[i].number != 0;
    for (unsigned i = 0; i < LENGTH(process->mappings); i++)
        count += process->mappings[i].size != 0;
    for (unsigned i = 0; i < LENGTH(process->events); i++)
        count += process->events[i].number != 0;
    return count;
}

static void map_forget(uint64_t base, size_t size)
{
    for (uint64_t page = base >> GS_PAGE_SHIFT; page < (base + size) >> GS_PAGE_SHIFT; page++) {
        struct gs_map_leaf *leaf = sim_map.leaf[page >> GS_MAP_LEAF_BITS];

        if (leaf)
            leaf->entry[page & (((uint64_t)1 << GS_MAP_LEAF_BITS) - 1)] = NULL;
    }
}

void driver_forget(struct process *process)
{
    for (unsigned i = 0; i < LENGTH(process->handles); i++) {
        if (process->handles[i].number)
            phys_unref(process->handles[i].phys);
        process->handles[i].number = 0;
    }
    for (unsigned i = 0; i < LENGTH(process->mappings); i++) {
        struct mapping *mapping = &process->mappings[i];

        if (!mapping->size)
            continue;
        map_forget(mapping->base, mapping->size);
        for (unsigned k = 0; k < STRIP_MAX; k++)
            if (mapping->pages[k])
                phys_unref(mapping->pages[k]);
        *mapping = (struct mapping){0};
    }
    driver_end_context(process);
    process->gpu_busy_ns = 0;
}
