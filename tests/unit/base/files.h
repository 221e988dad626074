/* Files that a test may have any number of, and whether a number is one. */
#ifndef TESTS_UNIT_BASE_FILES_H
#define TESTS_UNIT_BASE_FILES_H

#include <criterion/criterion.h>
#include <fcntl.h>
#include <sys/mman.h>

static inline int new_file(void)
{
    int fd = memfd_create("kept", MFD_CLOEXEC);

    cr_assert_geq(fd, 0);
    return fd;
}

static inline bool is_open(int fd)
{
    return fcntl(fd, F_GETFD) >= 0;
}

#endif
