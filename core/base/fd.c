/* Descriptors (core/base/fd.h). */
#include "core/base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static bool identify(int fd, struct gs_fd *ret)
{
    struct statx info;

    /* Another's file system is not asked: it may not answer. */
    if (fd < 0 || statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_INO, &info) != 0)
        return false;
    *ret = (struct gs_fd){true, fd, info.stx_ino,
                          ((uint64_t)info.stx_dev_major << 32) | info.stx_dev_minor};
    return true;
}

struct gs_fd gs_fd_keep(int fd)
{
    struct gs_fd kept = {0};

    identify(fd, &kept);
    return kept;
}

bool gs_fd_is_there(const struct gs_fd *kept)
{
    struct gs_fd now;

    return kept->any && identify(kept->fd, &now) && now.inode == kept->inode &&
           now.device == kept->device;
}

void gs_fd_close(const struct gs_fd *kept)
{
    int saved = errno;

    if (gs_fd_is_there(kept))
        close(kept->fd);
    errno = saved;
}

int gs_fd_copy(int fd)
{
    return fcntl(fd, F_DUPFD_CLOEXEC, 0);
}

void gs_fd_drop(int fd)
{
    int saved = errno;

    if (fd >= 0)
        close(fd);
    errno = saved;
}

uint64_t gs_fd_limit(void)
{
    struct rlimit limit;

    return getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : UINT64_MAX;
}
