/* Descriptors that are kept for long, in a program that may close and reuse them. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/fd.h"

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

Test(fd, so_many_are_kept_as_the_limit_allows)
{
    static struct gs_fds fds;
    struct rlimit limit;
    struct gs_fd kept[3];

    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = 24;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    for (int i = 0; i < 3; i++) {
        cr_assert(gs_fds_has_room(&fds));
        kept[i] = gs_fds_keep(&fds, new_file());
        cr_assert(kept[i].any);
    }
    cr_assert_not(gs_fds_has_room(&fds));
    cr_assert_not(gs_fds_keep(&fds, STDIN_FILENO).any);
    gs_fds_close(&fds, &kept[1]);
    cr_assert_not(is_open(kept[1].fd));
    cr_assert(gs_fds_has_room(&fds));
    kept[1] = gs_fds_keep(&fds, new_file());
    cr_assert(kept[1].any);
    for (int i = 0; i < 3; i++) {
        gs_fds_close(&fds, &kept[i]);
        cr_assert_not(is_open(kept[i].fd));
    }
}

/* More than there is room for, whatever the limit. */
Test(fd, no_more_are_kept_than_have_a_place)
{
    static struct gs_fds fds;
    struct rlimit limit;
    int fd = new_file();

    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    if (limit.rlim_cur < 8 * GS_FDS_MAX || setrlimit(RLIMIT_NOFILE, &limit) != 0)
        cr_skip("the limit is too low");
    for (int i = 0; i < GS_FDS_MAX; i++)
        cr_assert(gs_fds_keep(&fds, dup(fd)).any);
    cr_assert_not(gs_fds_has_room(&fds));
    cr_assert_not(gs_fds_keep(&fds, fd).any);
}

/* A number that is another file's by then stays open there. */
Test(fd, a_forked_child_closes_what_is_kept_and_nothing_else)
{
    static struct gs_fds fds;
    int fd[3] = {new_file(), new_file(), new_file()}, other = new_file(), status;
    struct gs_fd kept[3];
    pid_t child;

    for (int i = 0; i < 3; i++)
        kept[i] = gs_fds_keep(&fds, fd[i]);
    gs_fds_close(&fds, &kept[0]);
    dup2(other, fd[0]);
    dup2(other, fd[1]);
    child = fork();
    if (child == 0) {
        gs_fds_forked(&fds);
        _exit(is_open(fd[0]) && is_open(fd[1]) && !is_open(fd[2]) ? 42 : 1);
    }
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert_eq(WEXITSTATUS(status), 42);
    cr_assert(is_open(fd[2]));
}
