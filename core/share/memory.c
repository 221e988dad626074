/* Memory that lies behind a descriptor (core/share/memory.h): memfds, and what a driver exports. */
#include "core/share/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#ifndef MFD_CLOEXEC
#define MFD_CLOEXEC       1u
#define MFD_ALLOW_SEALING 2u
#endif

int gs_memory_new(size_t size, uint64_t **ret_words)
{
    int fd = (int)syscall(SYS_memfd_create, "gpushim-confirmed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    void *words;

    if (fd < 0)
        return -errno;
    words =
        ftruncate(fd, (off_t)size) != 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0
            ? MAP_FAILED
            : mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (words == MAP_FAILED) {
        int error = errno;

        close(fd);
        return -error;
    }
    madvise(words, size, MADV_DONTFORK);
    *ret_words = words;
    return fd;
}

void gs_memory_free(uint64_t *words, size_t size)
{
    munmap(words, size);
}

/* Only a memfd has seals. */
bool gs_memory_is_sound(int fd)
{
    int seals = fd < 0 ? -1 : fcntl(fd, F_GET_SEALS);

    return seals >= 0 && seals & F_SEAL_SHRINK;
}

bool gs_memory_is_pages(uint64_t address, uint64_t size)
{
    return ((address | size) & ((uint64_t)sysconf(_SC_PAGESIZE) - 1)) == 0;
}

#define ALIGNED ((uintptr_t)1 << 21)

/* 0; -EINVAL: it is smaller; -ERANGE: its pages are larger than the addresses that are taken for
 * it: the kernel would round what is mapped beyond them. */
static int holds(int fd, uint64_t end)
{
    struct stat info;

    if (fstat(fd, &info) != 0 || (uint64_t)info.st_size < end)
        return -EINVAL;
    return (uintptr_t)info.st_blksize > ALIGNED ? -ERANGE : 0;
}

int gs_memory_seal(int fd, uint64_t end)
{
    if (fd < 0 || fcntl(fd, F_GET_SEALS) < 0)
        return -EINVAL;
    if (!gs_memory_is_sound(fd) && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) != 0)
        return -EPERM;
    return holds(fd, end);
}

/* Addresses alone; NULL without. */
static char *reserve(size_t whole)
{
    char *all =
        mmap(NULL, whole + ALIGNED, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    size_t before;

    if (all == MAP_FAILED)
        return NULL;
    before = -(uintptr_t)all & (ALIGNED - 1);
    if (before > 0)
        munmap(all, before);
    munmap(all + before + whole, ALIGNED - before);
    return all + before;
}

int gs_memory_map(int fd, uint64_t offset, size_t size, size_t whole, bool read_only,
                  void **ret_memory)
{
    const int access = read_only ? PROT_READ : PROT_READ | PROT_WRITE;
    int error = gs_memory_is_sound(fd) ? holds(fd, offset + size) : -EINVAL;
    char *memory;

    if (error)
        return error;
    memory = reserve(whole);
    if (!memory)
        return -ENOMEM;
    if (mmap(memory, size, access, MAP_SHARED | MAP_FIXED, fd, (off_t)offset) == MAP_FAILED) {
        error = errno;
        munmap(memory, whole);
        return -error;
    }
    *ret_memory = memory;
    return 0;
}

void gs_memory_unmap(void *memory, size_t whole)
{
    munmap(memory, whole);
}

void gs_memory_read(int fd, size_t first, uint64_t *ret_words, size_t count)
{
    ssize_t got =
        pread(fd, ret_words, count * sizeof *ret_words, (off_t)(first * sizeof *ret_words));

    for (size_t i = got > 0 ? (size_t)got / sizeof *ret_words : 0; i < count; i++)
        ret_words[i] = 0;
}

/* Only files of memory have seals, so no other file system is asked. */
bool gs_memory_is_in_shm(int fd, uint64_t size)
{
    struct statfs system;
    struct statx info;

    return fd >= 0 && fcntl(fd, F_GET_SEALS) >= 0 &&
           statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_SIZE, &info) == 0 &&
           info.stx_size >= size && fstatfs(fd, &system) == 0 && system.f_type == TMPFS_MAGIC;
}

bool gs_memory_may_be_drivers(int fd)
{
    struct statx info;

    if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &info) != 0)
        return false;
    if (S_ISREG(info.stx_mode))
        return fcntl(fd, F_GET_SEALS) >= 0;
    return S_ISCHR(info.stx_mode) || !(info.stx_mode & S_IFMT);
}
