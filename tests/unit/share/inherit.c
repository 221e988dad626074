/* Nothing of what the library opens is inherited by a program that this one executes. It is linked
 * so that its calls for sockets are those below. */
#include <criterion/criterion.h>

#include "core/share/directory.h"
#include "other.h"
#include "side.h"
#include "tests/system.h"

static char dir[64];
static struct gs_share_options options;
static struct side exporter, importer;
static struct side_chunk chunk;

static unsigned made, accepted, inherited; /* atomic */

static void look_at(int flags, unsigned *count)
{
    __atomic_add_fetch(count, 1, __ATOMIC_SEQ_CST);
    if (!(flags & SOCK_CLOEXEC))
        __atomic_add_fetch(&inherited, 1, __ATOMIC_SEQ_CST);
}

int __real_socket(int domain, int type, int protocol);
int __wrap_socket(int domain, int type, int protocol);

int __wrap_socket(int domain, int type, int protocol)
{
    look_at(type, &made);
    return __real_socket(domain, type, protocol);
}

int __real_accept4(int fd, struct sockaddr *from, socklen_t *size, int flags);
int __wrap_accept4(int fd, struct sockaddr *from, socklen_t *size, int flags);

int __wrap_accept4(int fd, struct sockaddr *from, socklen_t *size, int flags)
{
    look_at(flags, &accepted);
    return __real_accept4(fd, from, size, flags);
}

static void setup(void)
{
    side_dir_new(dir, sizeof dir);
    side_options(&options, dir);
    side_start(&exporter, &options);
    side_start(&importer, &options);
    chunk = side_chunk_new(&exporter, 2 * MIB);
}

static void teardown(void)
{
    side_stop(&importer);
    side_stop(&exporter);
    side_chunk_free(&exporter, &chunk);
    CHECK(side_broker_end(dir));
    side_dir_remove(dir);
}

TestSuite(share_inherit, .init = setup, .fini = teardown, .timeout = 120);

/* Descriptors from `first` on that a program executed now would have; the test's driver keeps
 * memory by some of its own. */
static int count_inherited(int first)
{
    DIR *all = opendir("/proc/self/fd");
    struct dirent *entry;
    int count = 0;

    cr_assert_not_null(all);
    while ((entry = readdir(all))) {
        char path[300], target[64] = "";
        int fd = atoi(entry->d_name), flags = fcntl(fd, F_GETFD);

        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        if (readlink(path, target, sizeof target - 1) < 0 || strstr(target, "memfd:"))
            continue;
        count += fd >= first && flags >= 0 && !(flags & FD_CLOEXEC);
    }
    closedir(all);
    return count;
}

Test(share_inherit, no_descriptor_outlives_an_exec)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    struct gs_export *export;
    CUdeviceptr address;
    int before = count_inherited(0);

    cr_assert_eq(side_export(&exporter, &chunk, 0, 512, &export), GS_OK);
    gs_export_handle(export, ipc_handle);
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(gs_share_open(importer.share, ipc_handle, SIDE_CONTEXT, 0, &address), GS_OK);
        cr_assert_eq(count_inherited(0), before);
        cr_assert_eq(gs_share_close(importer.share, address), GS_OK);
    }
    /* By the longer way, too, which leads to nobody here. */
    cr_assert_lt(gs_directory_connect(AT_FDCWD, &options, "nobody", 1), 0);
    cr_assert(side_gets_back(&exporter, export));
    cr_assert_geq(made, 3, "one that listens and two that connect");
    cr_assert_geq(accepted, 1);
    cr_assert_eq(inherited, 0);
}
