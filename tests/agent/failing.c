/* Calls that fail, as a test says (failing.h). */
#include "failing.h"

#include <errno.h>
#include <stdbool.h>
#include <sys/types.h>

size_t fails_size;
_Thread_local unsigned fails_at;
unsigned fails_read;
bool disk_is_full;

void *__real_malloc(size_t size);
void *__wrap_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__wrap_calloc(size_t count, size_t size);
ssize_t __real_read(int fd, void *bytes, size_t size);
ssize_t __wrap_read(int fd, void *bytes, size_t size);
ssize_t __real_write(int fd, const void *bytes, size_t size);
ssize_t __wrap_write(int fd, const void *bytes, size_t size);

static bool fails(size_t size)
{
    size_t same = size;

    if (fails_at > 0 && --fails_at == 0)
        return true;
    return size > 0 && __atomic_compare_exchange_n(&fails_size, &same, 0, false, __ATOMIC_SEQ_CST,
                                                   __ATOMIC_SEQ_CST);
}

void *__wrap_malloc(size_t size)
{
    return fails(size) ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    return fails(count * size) ? NULL : __real_calloc(count, size);
}

ssize_t __wrap_read(int fd, void *bytes, size_t size)
{
    if (fails_read > 0 && --fails_read == 0) {
        errno = EIO;
        return -1;
    }
    return __real_read(fd, bytes, size);
}

/* A part of it may have had room. */
ssize_t __wrap_write(int fd, const void *bytes, size_t size)
{
    return __real_write(fd, bytes, disk_is_full ? size / 2 : size);
}
