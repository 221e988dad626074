/* Descriptors that are kept for long (core/fd.h). */
#include "core/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define LIMIT_SHARE 8 /* one descriptor in so many of the process's limit */

enum { FREE, CHANGING, KEPT };

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

/* How many there may be, looked up each time since programs change it. */
static unsigned most(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur / LIMIT_SHARE > GS_FDS_MAX)
        return GS_FDS_MAX;
    return (unsigned)(limit.rlim_cur / LIMIT_SHARE);
}

bool gs_fds_has_room(const struct gs_fds *fds)
{
    unsigned count = 0;

    for (unsigned i = 0; i < GS_FDS_MAX; i++)
        count += __atomic_load_n(&fds->kept[i].state, __ATOMIC_RELAXED) != FREE;
    return count < most();
}

struct gs_fd gs_fds_keep(struct gs_fds *fds, int fd)
{
    struct gs_fd kept = {0};

    if (!gs_fds_has_room(fds) || !identify(fd, &kept))
        return kept;
    for (unsigned i = 0; i < GS_FDS_MAX; i++) {
        int expected = FREE;

        if (!__atomic_compare_exchange_n(&fds->kept[i].state, &expected, CHANGING, false,
                                         __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
            continue;
        fds->kept[i].fd = kept;
        __atomic_store_n(&fds->kept[i].state, KEPT, __ATOMIC_RELEASE);
        return kept;
    }
    return (struct gs_fd){0};
}

void gs_fds_close(struct gs_fds *fds, const struct gs_fd *kept)
{
    for (unsigned i = 0; kept->any && i < GS_FDS_MAX; i++) {
        int expected = KEPT;

        if (__atomic_load_n(&fds->kept[i].state, __ATOMIC_ACQUIRE) != KEPT ||
            fds->kept[i].fd.fd != kept->fd ||
            !__atomic_compare_exchange_n(&fds->kept[i].state, &expected, CHANGING, false,
                                         __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
            continue;
        __atomic_store_n(&fds->kept[i].state, FREE, __ATOMIC_RELEASE);
        break;
    }
    gs_fd_close(kept);
}

void gs_fds_forked(struct gs_fds *fds)
{
    for (unsigned i = 0; i < GS_FDS_MAX; i++)
        if (__atomic_load_n(&fds->kept[i].state, __ATOMIC_ACQUIRE) == KEPT)
            gs_fd_close(&fds->kept[i].fd);
}
