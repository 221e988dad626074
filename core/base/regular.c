/* Reading files that may be anybody's (core/base/regular.h). */
#include "core/base/regular.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "core/base/fd.h"

int gs_regular_open(int folder, const char *path, int flags, struct stat *ret_info)
{
    /* NONBLOCK: a pipe is not waited for. NOCTTY: no terminal becomes this process's. */
    int fd = openat(folder, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | flags);
    int error = fd < 0 || fstat(fd, ret_info) != 0 ? errno
                : S_ISREG(ret_info->st_mode)       ? 0
                : S_ISDIR(ret_info->st_mode)       ? EISDIR
                                                   : ESPIPE;

    if (!error)
        return fd;
    gs_fd_drop(fd);
    errno = error;
    return -1;
}

size_t gs_regular_read(int fd, void *ret_bytes, size_t size, uint64_t place)
{
    size_t done = 0;

    while (done < size && place + done <= INT64_MAX) {
        ssize_t got = pread(fd, (char *)ret_bytes + done, size - done, (off_t)(place + done));

        if (got == 0 || (got < 0 && errno != EINTR))
            break;
        done += got > 0 ? (size_t)got : 0;
    }
    return done;
}
