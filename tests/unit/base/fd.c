/* Descriptors that are kept for long, in a program that may close and reuse them. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/base/fd.h"

static int new_file(void)
{
    int fd = memfd_create("kept", MFD_CLOEXEC);

    cr_assert_geq(fd, 0);
    return fd;
}

static bool is_open(int fd)
{
    return fcntl(fd, F_GETFD) >= 0;
}

Test(fd, none_is_there_and_closing_it_does_nothing)
{
    struct gs_fd none = {0}, of_nothing = gs_fd_keep(-1);

    cr_assert_not(of_nothing.any);
    cr_assert_not(gs_fd_is_there(&none));
    gs_fd_close(&none);
    cr_assert(is_open(STDIN_FILENO));
}

Test(fd, one_that_is_there_is_closed)
{
    int fd = new_file();
    struct gs_fd kept = gs_fd_keep(fd);

    cr_assert(gs_fd_is_there(&kept));
    gs_fd_close(&kept);
    cr_assert_not(is_open(fd));
    cr_assert_not(gs_fd_is_there(&kept));
    errno = 77;
    gs_fd_close(&kept);
    cr_assert_eq(errno, 77);
}

Test(fd, another_file_by_its_number_is_left_alone)
{
    int fd = new_file(), other = new_file();
    struct gs_fd kept = gs_fd_keep(fd);

    cr_assert_eq(dup2(other, fd), fd);
    cr_assert_not(gs_fd_is_there(&kept));
    gs_fd_close(&kept);
    cr_assert(is_open(fd));
}
