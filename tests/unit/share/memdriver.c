/* A driver on memfds (memdriver.h). A fabric handle is the name of one while its process lives. A
 * handle is a memfd, a mapping is of its whole length; where each lies is noted in a table, with
 * the handle that it was made with. */
#include "memdriver.h"
#include "tests/system.h"

#define GRANULARITY ((size_t)2 << 20)

static struct {
    int alive;
    bool held;
    CUcontext busy;
    CUresult export_result;
    unsigned export_delay, exports, mapped;
} state;

static struct {
    pthread_mutex_t lock;
    struct mapping {
        CUdeviceptr address;
        CUmemGenericAllocationHandle handle;
        struct mapping *next;
    } *first;
} mappings = {.lock = PTHREAD_MUTEX_INITIALIZER};

static bool note_mapping(CUdeviceptr address, CUmemGenericAllocationHandle handle)
{
    struct mapping *mapping = malloc(sizeof *mapping);

    if (!mapping)
        return false;
    pthread_mutex_lock(&mappings.lock);
    *mapping = (struct mapping){address, handle, mappings.first};
    mappings.first = mapping;
    pthread_mutex_unlock(&mappings.lock);
    return true;
}

/* How many there were in the range. */
static int forget_mappings(CUdeviceptr address, size_t size)
{
    int count = 0;

    pthread_mutex_lock(&mappings.lock);
    for (struct mapping **link = &mappings.first; *link;) {
        struct mapping *mapping = *link;

        if (mapping->address - address >= size) {
            link = &mapping->next;
            continue;
        }
        *link = mapping->next;
        free(mapping);
        count++;
    }
    pthread_mutex_unlock(&mappings.lock);
    return count;
}

void memdriver_hold(bool held)
{
    __atomic_store_n(&state.held, held, __ATOMIC_SEQ_CST);
}

void memdriver_busy(CUcontext context)
{
    __atomic_store_n(&state.busy, context, __ATOMIC_SEQ_CST);
}

void memdriver_fail_export(CUresult result)
{
    __atomic_store_n(&state.export_result, result, __ATOMIC_SEQ_CST);
}

void memdriver_delay_export(unsigned microseconds)
{
    __atomic_store_n(&state.export_delay, microseconds, __ATOMIC_SEQ_CST);
}

int memdriver_alive(void)
{
    return __atomic_load_n(&state.alive, __ATOMIC_SEQ_CST);
}

unsigned memdriver_exports(void)
{
    return __atomic_load_n(&state.exports, __ATOMIC_SEQ_CST);
}

unsigned memdriver_mapped(void)
{
    return __atomic_load_n(&state.mapped, __ATOMIC_SEQ_CST);
}

static void count(int change)
{
    __atomic_add_fetch(&state.alive, change, __ATOMIC_SEQ_CST);
}

static CUresult adopt(int fd, CUmemGenericAllocationHandle *handle)
{
    if (fd < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    *handle = (CUmemGenericAllocationHandle)fd + 1;
    count(1);
    return CUDA_SUCCESS;
}

static int fd_of(CUmemGenericAllocationHandle handle)
{
    return (int)handle - 1;
}

static CUresult mem_create(CUmemGenericAllocationHandle *handle, size_t size,
                           const CUmemAllocationProp *prop, unsigned long long flags)
{
    int fd;

    if (size == 0 || size % GRANULARITY)
        return CUDA_ERROR_INVALID_VALUE;
    fd = memfd_create("chunk", MFD_CLOEXEC);
    if (fd >= 0 && ftruncate(fd, (off_t)size) != 0) {
        close(fd);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return adopt(fd, handle);
}

static CUresult mem_release(CUmemGenericAllocationHandle handle)
{
    count(-1);
    return close(fd_of(handle)) == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult mem_export(void *shareable, CUmemGenericAllocationHandle handle,
                           CUmemAllocationHandleType type, unsigned long long flags)
{
    CUresult failure = __atomic_load_n(&state.export_result, __ATOMIC_SEQ_CST);
    unsigned delay = __atomic_load_n(&state.export_delay, __ATOMIC_SEQ_CST);
    int fd;

    if (failure != CUDA_SUCCESS)
        return failure;
    if (type == CU_MEM_HANDLE_TYPE_FABRIC) {
        memset(shareable, 0, sizeof(CUmemFabricHandle));
        snprintf(shareable, sizeof(CUmemFabricHandle), "/proc/%d/fd/%d", (int)getpid(),
                 fd_of(handle));
        return CUDA_SUCCESS;
    }
    if (delay)
        usleep(delay);
    fd = fcntl(fd_of(handle), F_DUPFD_CLOEXEC, 0);
    if (fd < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    *(int *)shareable = fd;
    __atomic_add_fetch(&state.exports, 1, __ATOMIC_SEQ_CST);
    return CUDA_SUCCESS;
}

static CUresult mem_import(CUmemGenericAllocationHandle *handle, void *shareable,
                           CUmemAllocationHandleType type)
{
    if (type != CU_MEM_HANDLE_TYPE_FABRIC)
        return adopt(fcntl((int)(uintptr_t)shareable, F_DUPFD_CLOEXEC, 0), handle);
    if (!memchr(shareable, 0, sizeof(CUmemFabricHandle)) || memcmp(shareable, "/proc/", 6) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    return adopt(open(shareable, O_RDWR | O_CLOEXEC), handle);
}

/* Of a handle that is still referenced; as this driver has it, one more is another number. */
static CUresult mem_retain(CUmemGenericAllocationHandle *handle, void *address)
{
    CUresult result = CUDA_ERROR_INVALID_VALUE;

    pthread_mutex_lock(&mappings.lock);
    for (const struct mapping *mapping = mappings.first; mapping; mapping = mapping->next)
        if (mapping->address == (uintptr_t)address)
            result = adopt(fcntl(fd_of(mapping->handle), F_DUPFD_CLOEXEC, 0), handle);
    pthread_mutex_unlock(&mappings.lock);
    return result;
}

static CUresult mem_address_reserve(CUdeviceptr *address, size_t size, size_t alignment,
                                    CUdeviceptr hint, unsigned long long flags)
{
    char *whole = mmap(NULL, size + GRANULARITY, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uintptr_t base;

    if (whole == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    base = ((uintptr_t)whole + GRANULARITY - 1) & ~(uintptr_t)(GRANULARITY - 1);
    if (base != (uintptr_t)whole)
        munmap(whole, base - (uintptr_t)whole);
    if (base + size != (uintptr_t)whole + size + GRANULARITY)
        munmap((void *)(base + size), (uintptr_t)whole + GRANULARITY - base);
    *address = base;
    count(1);
    return CUDA_SUCCESS;
}

static CUresult mem_address_free(CUdeviceptr address, size_t size)
{
    count(-1);
    return munmap((void *)(uintptr_t)address, size) == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult mem_map(CUdeviceptr address, size_t size, size_t offset,
                        CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    struct stat info;

    if (offset != 0)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (fstat(fd_of(handle), &info) != 0 || (size_t)info.st_size != size)
        return CUDA_ERROR_INVALID_VALUE;
    if (mmap((void *)(uintptr_t)address, size, PROT_NONE, MAP_SHARED | MAP_FIXED, fd_of(handle),
             0) == MAP_FAILED ||
        !note_mapping(address, handle))
        return CUDA_ERROR_OUT_OF_MEMORY;
    __atomic_add_fetch(&state.mapped, 1, __ATOMIC_SEQ_CST);
    count(1);
    return CUDA_SUCCESS;
}

static CUresult mem_unmap(CUdeviceptr address, size_t size)
{
    int mapped = forget_mappings(address, size);

    count(-mapped);
    __atomic_sub_fetch(&state.mapped, mapped, __ATOMIC_SEQ_CST);
    mmap((void *)(uintptr_t)address, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
         0);
    return CUDA_SUCCESS;
}

static CUresult mem_set_access(CUdeviceptr address, size_t size, const CUmemAccessDesc *desc,
                               size_t descs)
{
    int access = desc->flags == CU_MEM_ACCESS_FLAGS_PROT_READ ? PROT_READ : PROT_READ | PROT_WRITE;

    return mprotect((void *)(uintptr_t)address, size, access) == 0 ? CUDA_SUCCESS
                                                                   : CUDA_ERROR_INVALID_VALUE;
}

static CUresult ctx_push_current(CUcontext context)
{
    return CUDA_SUCCESS;
}

static CUresult ctx_pop_current(CUcontext *context)
{
    return CUDA_SUCCESS;
}

static CUresult ctx_synchronize(void)
{
    while (__atomic_load_n(&state.held, __ATOMIC_SEQ_CST))
        usleep(1000);
    return CUDA_SUCCESS;
}

static CUresult event_create(CUevent *event, unsigned flags)
{
    *event = calloc(1, sizeof(CUcontext)); /* in which it was recorded */
    count(1);
    return CUDA_SUCCESS;
}

static CUresult event_destroy(CUevent event)
{
    free(event);
    count(-1);
    return CUDA_SUCCESS;
}

static CUresult ctx_record_event(CUcontext context, CUevent event)
{
    *(CUcontext *)event = context;
    return CUDA_SUCCESS;
}

static CUresult event_query(CUevent event)
{
    const CUcontext busy = __atomic_load_n(&state.busy, __ATOMIC_SEQ_CST);

    return __atomic_load_n(&state.held, __ATOMIC_SEQ_CST) || (busy && *(CUcontext *)event == busy)
               ? CUDA_ERROR_NOT_READY
               : CUDA_SUCCESS;
}

static CUresult ctx_get_current(CUcontext *context)
{
    *context = (CUcontext)&state;
    return CUDA_SUCCESS;
}

static CUresult mem_host_register(void *memory, size_t size, unsigned flags)
{
    count(1);
    return CUDA_SUCCESS;
}

static CUresult mem_host_unregister(void *memory)
{
    count(-1);
    return CUDA_SUCCESS;
}

static CUresult mem_host_get_device_pointer(CUdeviceptr *address, void *memory, unsigned flags)
{
    *address = (uintptr_t)memory;
    return CUDA_SUCCESS;
}

void memdriver_fill(struct gs_driver *ret_driver)
{
    *ret_driver = (struct gs_driver){
        .ctx_get_current = ctx_get_current,
        .mem_host_register = mem_host_register,
        .mem_host_unregister = mem_host_unregister,
        .mem_host_get_device_pointer = mem_host_get_device_pointer,
        .ctx_push_current = ctx_push_current,
        .ctx_pop_current = ctx_pop_current,
        .ctx_synchronize = ctx_synchronize,
        .ctx_record_event = ctx_record_event,
        .event_create = event_create,
        .event_destroy = event_destroy,
        .event_query = event_query,
        .mem_create = mem_create,
        .mem_release = mem_release,
        .mem_address_reserve = mem_address_reserve,
        .mem_address_free = mem_address_free,
        .mem_map = mem_map,
        .mem_unmap = mem_unmap,
        .mem_set_access = mem_set_access,
        .mem_export = mem_export,
        .mem_import = mem_import,
        .mem_retain = mem_retain,
    };
}
