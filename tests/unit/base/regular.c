/* Reading files that anybody may have put there. */
#include <criterion/criterion.h>

#include "core/base/regular.h"
#include "tests/system.h"

static char folder[] = "/tmp/gpushim-regular-XXXXXX";
static int dir = -1;

static void make_folder(void)
{
    cr_assert(mkdtemp(folder));
    dir = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    cr_assert_geq(dir, 0);
}

static void remove_folder(void)
{
    unlinkat(dir, "it", 0);
    close(dir);
    rmdir(folder);
}

TestSuite(regular, .init = make_folder, .fini = remove_folder);

static int opened(const char *path, int flags)
{
    struct stat info;

    errno = 0;
    return gs_regular_open(dir, path, flags, &info);
}

Test(regular, a_pipe_that_nobody_writes_to_is_not_waited_for)
{
    cr_assert_eq(mkfifoat(dir, "it", 0600), 0);
    cr_assert_eq(opened("it", 0), -1);
    cr_assert_eq(errno, ESPIPE);
}

Test(regular, folders_devices_and_links_are_no_files)
{
    cr_assert(opened(".", 0) == -1 && errno == EISDIR);
    cr_assert(opened("/dev/zero", 0) == -1 && errno == ESPIPE);
    cr_assert(opened("it", 0) == -1 && errno == ENOENT);
    cr_assert_eq(symlinkat("/etc/passwd", dir, "it"), 0);
    cr_assert(opened("it", O_NOFOLLOW) == -1 && errno == ELOOP);
}

Test(regular, what_there_is_is_read_wherever_it_ends)
{
    struct stat info;
    char bytes[8] = "";
    int made = openat(dir, "it", O_WRONLY | O_CREAT | O_CLOEXEC, 0600), fd;

    cr_assert_eq(write(made, "12345", 5), 5);
    fd = gs_regular_open(dir, "it", O_NOFOLLOW, &info);
    cr_assert_geq(fd, 0);
    cr_assert_eq(info.st_size, 5);
    cr_assert(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    cr_assert_eq(gs_regular_read(fd, bytes, 2, 1), 2);
    cr_assert_arr_eq(bytes, "23", 2);
    cr_assert_eq(gs_regular_read(fd, bytes, sizeof bytes, 3), 2);
    cr_assert_eq(gs_regular_read(fd, bytes, sizeof bytes, 5), 0);
    cr_assert_eq(gs_regular_read(fd, bytes, sizeof bytes, UINT64_MAX), 0);
    cr_assert_eq(ftruncate(made, 0), 0);
    cr_assert_eq(gs_regular_read(fd, bytes, sizeof bytes, 0), 0);
    close(fd);
    close(made);
}
