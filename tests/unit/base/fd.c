/* Descriptors that are kept for long, in a program that may close and reuse them. */
#include <criterion/criterion.h>

#include "core/base/fd.h"
#include "tests/system.h"
#include "tests/unit/base/files.h"

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

Test(fd, a_copy_is_not_inherited_and_a_drop_leaves_errno_alone)
{
    int fd = new_file(), copy = gs_fd_copy(fd);

    cr_assert_neq(copy, fd);
    cr_assert_eq(fcntl(copy, F_GETFD), FD_CLOEXEC);
    errno = 77;
    gs_fd_drop(copy);
    cr_assert_not(is_open(copy));
    errno = 77;
    gs_fd_drop(copy);
    gs_fd_drop(-1);
    cr_assert_eq(errno, 77);
    cr_assert(is_open(fd));
}

Test(fd, the_limit_is_the_one_that_holds)
{
    struct rlimit limit;

    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    cr_assert_gt(limit.rlim_max, 100);
    limit.rlim_cur = 100;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    cr_assert_eq(gs_fd_limit(), 100);
}
