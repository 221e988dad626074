/*
 * Physical memory and what is mapped where: the machine's memory management unit, so to speak.
 *
 * Physical memory is a memfd, sealed at its size, its name telling the device. It is device memory
 * as long as anything here refers to it, and other processes that got the descriptor keep the
 * bytes alive on their own. Where in the address space it is mapped, space.c says.
 *
 * Work that runs looks each address up here just before it touches it, piece by piece, holding the
 * read side of a lock that mapping and unmapping take the write side of. So memory can vanish under
 * running work, which then faults as on a GPU, and this process never does.
 */
#include "internal.h"

#include <sys/random.h>

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

/* Protects the table of segments, their access and the mappings behind. Taken after sd_lock. */
static pthread_rwlock_t mapped_lock = PTHREAD_RWLOCK_INITIALIZER;
static struct sd_ranges segments;

static struct sd_phys *physical; /* protected by sd_lock */

/*
 * The real driver spends no descriptor on memory. Ours are kept above the soft limit where the
 * hard one leaves room, so that a program's table has the same room, and being full, does not
 * stop an allocation.
 */
static rlim_t limit_raise(void)
{
    struct rlimit limit;
    rlim_t soft;

    if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur >= limit.rlim_max)
        return 0;
    soft = limit.rlim_cur;
    limit.rlim_cur = limit.rlim_max;
    return setrlimit(RLIMIT_NOFILE, &limit) < 0 ? 0 : soft;
}

static void limit_restore(rlim_t soft)
{
    struct rlimit limit;

    if (!soft || getrlimit(RLIMIT_NOFILE, &limit) < 0)
        return;
    limit.rlim_cur = soft;
    setrlimit(RLIMIT_NOFILE, &limit);
}

static int fd_private(int fd, rlim_t soft)
{
    return fcntl(fd, F_DUPFD_CLOEXEC, (int)soft);
}

int sd_memfd_new(size_t size, const char *name)
{
    rlim_t soft = limit_raise();
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd >= 0 && (ftruncate(fd, size) < 0 || fcntl(fd, F_ADD_SEALS, SEALS) < 0)) {
        close(fd);
        fd = -1;
    }
    if (fd >= 0 && soft && (rlim_t)fd < soft) {
        int high = fd_private(fd, soft);
        if (high >= 0) {
            close(fd);
            fd = high;
        }
    }
    limit_restore(soft);
    return fd;
}

int sd_open_private(const char *path, int flags)
{
    rlim_t soft = limit_raise();
    int high, fd = open(path, flags | O_CLOEXEC, 0600);

    if (fd >= 0 && soft && (high = fd_private(fd, soft)) >= 0) {
        close(fd);
        fd = high;
    }
    limit_restore(soft);
    return fd;
}

static void phys_name(int device, char name[64])
{
    char *p = name + sprintf(name, "softcuda-");

    for (int i = 0; i < 16; i++)
        p += sprintf(p, "%02x", (unsigned char)sd_devices[device].uuid.bytes[i]);
}

/* The device that made it, from the descriptor's name; -1 when that is hidden from us. */
static int phys_device(int fd)
{
    char path[64], target[128], name[64];
    ssize_t n;

    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    n = readlink(path, target, sizeof target - 1);
    if (n < 0)
        return -1;
    target[n] = 0;
    for (int i = 0; i < sd_device_count; i++) {
        phys_name(i, name);
        if (strstr(target, name))
            return i;
    }
    return -1;
}

static struct sd_phys *phys_add(int fd, size_t size, int device, bool imported)
{
    struct sd_phys *phys = calloc(1, sizeof *phys);
    struct stat st;

    if (!phys || fstat(fd, &st) < 0) {
        free(phys);
        return NULL;
    }
    phys->refs = 1;
    phys->fd = fd;
    phys->size = size;
    phys->device = device;
    phys->imported = imported;
    phys->id = sd_next_id();
    phys->inode = st.st_ino;
    phys->next = physical;
    physical = phys;
    return phys;
}

/* Takes `fd`, which may be -1. */
static CUresult phys_made(int device, size_t size, int fd, struct sd_phys **ret)
{
    *ret = fd < 0 ? NULL : phys_add(fd, size, device, false);
    if (*ret)
        return CUDA_SUCCESS;
    if (fd >= 0)
        close(fd);
    sd_device_give(&sd_devices[device], size);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult sd_phys_new(int device, size_t size, struct sd_phys **ret)
{
    char name[64];

    if (!sd_device_take(&sd_devices[device], size))
        return CUDA_ERROR_OUT_OF_MEMORY;
    phys_name(device, name);
    return phys_made(device, size, sd_memfd_new(size, name), ret);
}

/* ---- Memory of an NVLink domain: a file in its folder, with the name of a memfd and a number
 * --- */

static const char *domain(void)
{
    const char *folder = getenv("SOFTCUDA_FABRIC");

    return folder && access(folder, W_OK | X_OK) == 0 ? folder : NULL;
}

CUresult sd_phys_new_fabric(int device, size_t size, struct sd_phys **ret)
{
    char name[64], path[256];
    uint64_t number;
    CUresult result;
    int fd;

    if (!domain())
        return CUDA_ERROR_NOT_PERMITTED;
    if (!sd_device_take(&sd_devices[device], size))
        return CUDA_ERROR_OUT_OF_MEMORY;
    phys_name(device, name);
    if (getrandom(&number, sizeof number, 0) != sizeof number)
        number = sd_next_id();
    snprintf(path, sizeof path, "%s/%s-%016llx", domain(), name, (unsigned long long)number);
    fd = sd_open_private(path, O_RDWR | O_CREAT | O_EXCL);
    if (fd >= 0 && ftruncate(fd, size) < 0) {
        close(fd);
        fd = -1;
    }
    result = phys_made(device, size, fd, ret);
    if (!result)
        (*ret)->fabric = strdup(path);
    return result;
}

void sd_phys_fabric_handle(const struct sd_phys *phys, CUmemFabricHandle *ret)
{
    memset(ret, 0, sizeof *ret);
    strncpy((char *)ret->data, strrchr(phys->fabric, '/') + 1, sizeof ret->data - 1);
}

/* A file of the domain is as good as a sealed memfd. */
static bool is_of_domain(int fd)
{
    char path[64], target[256];
    ssize_t n;

    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    n = readlink(path, target, sizeof target - 1);
    target[n < 0 ? 0 : n] = 0;
    return domain() && strstr(target, "/softcuda-") && fcntl(fd, F_GET_SEALS) >= 0;
}

CUresult sd_phys_import_fabric(const CUmemFabricHandle *handle, struct sd_phys **ret)
{
    char path[256];
    CUresult result;
    int fd;

    if (!domain())
        return CUDA_ERROR_NOT_PERMITTED;
    if (memcmp(handle->data, "softcuda-", 9) != 0 ||
        memchr(handle->data, '/', sizeof handle->data) ||
        !memchr(handle->data, 0, sizeof handle->data))
        return CUDA_ERROR_INVALID_VALUE;
    snprintf(path, sizeof path, "%s/%s", domain(), (const char *)handle->data);
    fd = sd_open_private(path, O_RDWR);
    if (fd < 0)
        return CUDA_ERROR_INVALID_VALUE;
    result = sd_phys_import(fd, ret);
    close(fd);
    return result;
}

CUresult sd_phys_import(int fd, struct sd_phys **ret)
{
    struct stat st;
    rlim_t soft;
    int own;

    if (fstat(fd, &st) < 0 || (fcntl(fd, F_GET_SEALS) != SEALS && !is_of_domain(fd)) || !st.st_size)
        return CUDA_ERROR_INVALID_VALUE;
    for (struct sd_phys *phys = physical; phys; phys = phys->next) {
        if (phys->inode == st.st_ino) {
            *ret = sd_phys_ref(phys);
            return CUDA_SUCCESS;
        }
    }
    soft = limit_raise();
    own = fd_private(fd, soft ? soft : 3);
    limit_restore(soft);
    if (own < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    *ret = phys_add(own, st.st_size, phys_device(fd), true);
    if (*ret)
        return CUDA_SUCCESS;
    close(own);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

void sd_phys_list(struct sd_phys *phys)
{
    const struct sd_device *device = phys->device < 0 ? NULL : &sd_devices[phys->device];

    if (!phys->listed && device)
        phys->listed = sd_machine_list(device, phys->inode, phys->size, !phys->imported);
}

struct sd_phys *sd_phys_ref(struct sd_phys *phys)
{
    phys->refs++;
    return phys;
}

void sd_phys_unref(struct sd_phys *phys)
{
    struct sd_phys **at = &physical;

    if (!phys || --phys->refs)
        return;
    while (*at != phys)
        at = &(*at)->next;
    *at = phys->next;
    if (phys->listed)
        sd_machine_unlist(phys->inode);
    if (!phys->imported && phys->listed)
        sd_devices[phys->device].used -= phys->size;
    else if (!phys->imported)
        sd_device_give(&sd_devices[phys->device], phys->size);
    close(phys->fd);
    if (phys->fabric)
        unlink(phys->fabric);
    free(phys->fabric);
    free(phys);
}

static bool segment_publish(struct sd_segment *segment)
{
    bool added;

    pthread_rwlock_wrlock(&mapped_lock);
    added = sd_ranges_add(&segments, segment->base, segment->size, segment);
    pthread_rwlock_unlock(&mapped_lock);
    return added;
}

CUresult sd_segment_map(uint64_t base, struct sd_phys *phys, bool listed, struct sd_segment **ret)
{
    const int prot = listed ? PROT_NONE : PROT_READ | PROT_WRITE;
    struct sd_segment *segment = calloc(1, sizeof *segment);

    if (!segment)
        return CUDA_ERROR_OUT_OF_MEMORY;
    segment->base = base;
    segment->size = phys->size;
    segment->phys = sd_phys_ref(phys);
    segment->device = phys->device;
    segment->listed = listed;
    if (mmap((void *)base, phys->size, prot, MAP_SHARED | MAP_FIXED, phys->fd, 0) == MAP_FAILED) {
        sd_phys_unref(phys);
        free(segment);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (!segment_publish(segment)) {
        sd_segment_unmap(segment);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *ret = segment;
    return CUDA_SUCCESS;
}

struct sd_segment *sd_segment_add_host(uint64_t base, size_t size)
{
    struct sd_segment *segment = calloc(1, sizeof *segment);

    if (!segment)
        return NULL;
    segment->base = base;
    segment->size = size;
    segment->device = -1;
    if (segment_publish(segment))
        return segment;
    free(segment);
    return NULL;
}

void sd_segment_unmap(struct sd_segment *segment)
{
    pthread_rwlock_wrlock(&mapped_lock);
    sd_ranges_remove(&segments, segment->base);
    if (segment->phys &&
        mmap((void *)segment->base, segment->size, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
        mprotect((void *)segment->base, segment->size, PROT_NONE);
    pthread_rwlock_unlock(&mapped_lock);
    sd_phys_unref(segment->phys);
    free(segment);
}

CUresult sd_segment_set_access(struct sd_segment *segment, int device, enum sd_access access)
{
    unsigned all = 0;
    int prot = PROT_NONE;

    pthread_rwlock_wrlock(&mapped_lock);
    segment->access[device] = access;
    for (int i = 0; i < SD_MAX_DEVICES; i++)
        all |= segment->access[i];
    if (all & SD_ACCESS_READ)
        prot |= PROT_READ;
    if ((all & SD_ACCESS_WRITE) == SD_ACCESS_WRITE)
        prot |= PROT_WRITE;
    prot = mprotect((void *)segment->base, segment->size, prot);
    pthread_rwlock_unlock(&mapped_lock);
    return prot < 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult sd_segment_new(int device, size_t size, bool listed, struct sd_segment **ret)
{
    struct sd_phys *phys;
    uint64_t base;
    CUresult result = sd_phys_new(device, size, &phys);

    if (result)
        return result;
    base = sd_address_reserve(size, SD_GRANULE, 0);
    result = base ? sd_segment_map(base, phys, listed, ret) : CUDA_ERROR_OUT_OF_MEMORY;
    if (result && base)
        sd_address_release(base, size);
    sd_phys_unref(phys);
    return result;
}

CUresult sd_segment_new_pressed(int device, size_t size, bool listed, struct sd_segment **ret)
{
    CUresult result = sd_segment_new(device, size, listed, ret);

    if (result == CUDA_ERROR_OUT_OF_MEMORY && sd_pools_release(device))
        result = sd_segment_new(device, size, listed, ret);
    return result;
}

void sd_segment_delete(struct sd_segment *segment)
{
    uint64_t base = segment->base;
    size_t size = segment->size;

    sd_segment_unmap(segment);
    sd_address_release(base, size);
}

enum sd_access sd_segment_access(const struct sd_segment *segment, const struct sd_context *context)
{
    unsigned any = 0;

    if (segment->device < 0 && !segment->listed)
        return segment->read_only ? SD_ACCESS_READ : SD_ACCESS_WRITE;
    if (segment->listed && context)
        return segment->access[context->device];
    if (segment->listed) {
        for (int i = 0; i < SD_MAX_DEVICES; i++)
            any |= segment->access[i];
        return any;
    }
    return !context || segment->device == context->device ||
                   sd_context_reaches(context, segment->life)
               ? SD_ACCESS_WRITE
               : SD_ACCESS_NONE;
}

void sd_touch_begin(void)
{
    pthread_rwlock_rdlock(&mapped_lock);
}

size_t sd_touch(const struct sd_context *context, uint64_t address, enum sd_access access)
{
    const struct sd_segment *segment = sd_ranges_find(&segments, address);

    if (!segment || (sd_segment_access(segment, context) & access) != access)
        return 0;
    return segment->base + segment->size - address;
}

void sd_touch_end(void)
{
    pthread_rwlock_unlock(&mapped_lock);
}
