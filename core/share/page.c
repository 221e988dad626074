/* A page that processes share (core/share/page.h). */
#include "core/share/page.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core/base/clock.h"

bool gs_page_get(int fd, off_t at, void *value, size_t size)
{
    return pread(fd, value, size, at) == (ssize_t)size;
}

bool gs_page_put(int fd, off_t at, const void *value, size_t size)
{
    return pwrite(fd, value, size, at) == (ssize_t)size;
}

int gs_page_lock(int fd, short type, off_t byte, off_t count)
{
    struct flock range = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = count};

    return fcntl(fd, F_OFD_SETLK, &range) == 0 ? 0 : errno == EACCES ? EAGAIN : errno;
}

bool gs_page_is_locked(int fd, off_t byte, off_t count)
{
    struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte,
                          .l_len = count};

    return fcntl(fd, F_OFD_GETLK, &range) == 0 && range.l_type != F_UNLCK;
}

void gs_page_pause(uint64_t ns)
{
    const struct timespec time = {(time_t)(ns / GS_NS_PER_S), (long)(ns % GS_NS_PER_S)};

    nanosleep(&time, NULL);
}

bool gs_page_lock_within(int fd, off_t byte, uint64_t ns)
{
    int error;

    /* By pauses, not by the clock: when the machine has stood still, who has it has as well. */
    for (uint64_t waited = 0; (error = gs_page_lock(fd, F_WRLCK, byte, 1)) == EAGAIN && waited < ns;
         waited += GS_NS_PER_MS)
        gs_page_pause(GS_NS_PER_MS);
    return error == 0;
}

int gs_page_open(int directory, bool make)
{
    int fd = openat(directory, GS_PAGE_FILE_NAME,
                    O_RDWR | O_NOFOLLOW | O_NOCTTY | O_NONBLOCK | O_CLOEXEC | (make ? O_CREAT : 0),
                    0600);
    struct statx info;

    if (fd < 0)
        return -1;
    /* Another user who owns the directory could have put something else there. */
    if (statx(fd, "", AT_EMPTY_PATH, STATX_TYPE | STATX_MODE | STATX_UID, &info) == 0 &&
        S_ISREG(info.stx_mode) && info.stx_uid == geteuid() && !(info.stx_mode & 077))
        return fd;
    close(fd);
    errno = EPERM;
    return -1;
}

void gs_page_wake(const char *page, off_t at)
{
    syscall(SYS_futex, page + at, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void gs_page_wait(const char *page, off_t at, uint32_t seen, uint64_t ns)
{
    const struct timespec time = {(time_t)(ns / GS_NS_PER_S), (long)(ns % GS_NS_PER_S)};

    syscall(SYS_futex, page + at, FUTEX_WAIT, seen, ns ? &time : NULL, NULL, 0);
}

void gs_page_remove_unused(int fd, int directory)
{
    struct statx info;

    if (gs_page_lock(fd, F_WRLCK, GS_PAGE_SLOT_BYTE, GS_PAGE_SLOTS) != 0)
        return;
    if (statx(fd, "", AT_EMPTY_PATH, STATX_NLINK, &info) == 0 && info.stx_nlink > 0)
        unlinkat(directory, GS_PAGE_FILE_NAME, 0);
    gs_page_lock(fd, F_UNLCK, GS_PAGE_SLOT_BYTE, GS_PAGE_SLOTS);
}

void gs_page_sweep(int directory)
{
    int fd = gs_page_open(directory, false);

    if (fd < 0)
        return;
    gs_page_remove_unused(fd, directory);
    close(fd);
}
