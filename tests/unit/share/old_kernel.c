/* A kernel that tells nothing about a socket's other end (before Linux 6.5): what the importer sent
 * of itself has to do. Linked into both sides of a test, whose getsockopt this is. */
#include <errno.h>
#include <sys/socket.h>

int old_kernel_error = ENOPROTOOPT; /* what SO_PEERPIDFD comes to */

int __real_getsockopt(int fd, int level, int name, void *value, socklen_t *size);
int __wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *size);

int __wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *size)
{
    if (level == SOL_SOCKET && name == 77) { /* SO_PEERPIDFD */
        errno = __atomic_load_n(&old_kernel_error, __ATOMIC_SEQ_CST);
        return -1;
    }
    return __real_getsockopt(fd, level, name, value, size);
}
