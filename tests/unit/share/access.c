/* Who may do what with a shared block: reading only, blocks alone in their chunk, groups. */
#include <criterion/criterion.h>

#include "core/share/exporter.h"
#include "by_hand.h"
#include "scene.h"
#include "tests/children.h"
#include "tests/forbid.h"
#include "tests/system.h"

static struct gs_export *export;
static unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];

TestSuite(share_access, .init = scene_new, .fini = scene_end, .timeout = 120);

/* Whether the other process ends by writing to what it opened. */
static bool write_kills(unsigned long address)
{
    int status;

    other_ask(&other, "write %lx 1", address);
    if (waitpid(other.pid, &status, WNOHANG) == 0 && other.answer[0])
        return false;
    waitpid(other.pid, &status, 0);
    other.pid = 0;
    return true;
}

Test(share_access, blocks_of_a_read_only_exporter_are_mapped_for_reading)
{
    unsigned long address;

    options.read_only = true;
    scene_block(&export, ipc_handle);
    other_start(&other, dir, NULL);
    *(char *)chunk.base = 5;
    cr_assert_eq(other_open(&other, ipc_handle, &address), GS_OK);
    cr_assert_str_eq(other_ask(&other, "read %lx", address), "ok 5");
    cr_assert(write_kills(address));
    cr_assert_eq(*(char *)chunk.base, 5);
}

Test(share_access, a_read_only_importer_maps_for_reading)
{
    unsigned long address;

    scene_block(&export, ipc_handle);
    other_start(&other, dir, "readonly=1");
    cr_assert_eq(other_open(&other, ipc_handle, &address), GS_OK);
    cr_assert(write_kills(address));
}

/* A user of the group 65533, which both sides name; the directory is root's. */
Test(share_access, a_listed_group_may_open)
{
    unsigned long address;
    char words[32] = "uid=65533";

    if (geteuid() != 0)
        cr_skip_test("only root can be another user");
    options.gids[options.gid_count++] = 65533;
    scene_block(&export, ipc_handle);
    cr_assert_eq(chmod(dir, 0755), 0);
    other_start(&other, dir, words);
    /* It names nobody, so it does not believe us; the kernel's word about it is what counts
     * here. */
    cr_assert_eq(other_open(&other, ipc_handle, &address), GS_UNREACHABLE);
    cr_assert_not_null(strstr(other_ask(&other, "fds"), "ok"));
    other_stop(&other);
    other_start2(&other, dir, "trustgid=0", words);
    cr_assert_eq(other_open(&other, ipc_handle, &address), GS_OK);
}

/* A listed user opens what they have handles of, and is told nothing of who else does. */
Test(share_access, who_holds_what_is_told_to_nobody_who_is_only_listed)
{
    union gs_wire_message message;
    int status;
    pid_t child;

    if (geteuid() != 0)
        cr_skip_test("only root can be another user");
    options.uids[options.uid_count++] = 65533;
    scene_block(&export, ipc_handle);
    cr_assert_eq(chmod(dir, 0755), 0);
    child = fork_child();
    if (child == 0) {
        int fd = setuid(65533) == 0 ? side_connect_by_hand(dir, ipc_handle) : -1;

        say(fd, MESSAGE(QUERY, 1));
        _exit(recv(fd, &message, sizeof message, 0) > 0 && message.head.type == GS_WIRE_REFUSE
                  ? (int)message.refuse.reason
                  : 0);
    }
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert_eq(WEXITSTATUS(status), GS_REFUSED_USER);
}

/* Also where the importer has the block open already and would not have to ask. */
Test(share_access, a_handle_with_another_secret_opens_nothing)
{
    unsigned char forged[GS_IPC_HANDLE_SIZE];
    struct gs_ipc_handle read;
    unsigned long address;

    scene_block(&export, ipc_handle);
    cr_assert_eq(gs_ipc_handle_read(ipc_handle, &read), GS_OK);
    read.secret[3] ^= 1;
    gs_ipc_handle_write(&read, forged);
    other_start(&other, dir, NULL);
    cr_assert_neq(other_open(&other, forged, &address), GS_OK);
    cr_assert_eq(other_open(&other, ipc_handle, &address), GS_OK);
    cr_assert_eq(other_open(&other, forged, &address), GS_BAD_HANDLE);
}

/* ---- What the system forbids ----------------------------------------------------------------- */

/* From now on this system call fails in this thread. */
static void forbid(unsigned number, unsigned error)
{
    cr_assert(forbid_call(number, SECCOMP_RET_ERRNO | error));
}

static void must_be_said_as_forbidden(unsigned number, unsigned error)
{
    CUdeviceptr address;

    scene_side();
    other_start(&other, dir, NULL);
    other_export(&other, 0, 512, 5, ipc_handle);
    cr_assert_eq(gs_share_serve(side.share), GS_OK);
    forbid(number, error);
    cr_assert_eq(gs_share_open(side.share, ipc_handle, SIDE_CONTEXT, 0, &address), GS_UNREACHABLE);
    cr_assert_not_null(strstr(side_logged(), "a security module"), "%s", side_logged());
    cr_assert_null(strstr(side_logged(), "another user's"), "%s", side_logged());
}

Test(share_access, a_connection_that_a_security_module_refuses_is_said_as_that)
{
    must_be_said_as_forbidden(SYS_connect, EACCES);
}

Test(share_access, one_that_a_filter_refuses_too)
{
    must_be_said_as_forbidden(SYS_connect, EPERM);
}

Test(share_access, a_kernel_that_may_not_say_whose_process_it_is_makes_nobody_another_user)
{
    must_be_said_as_forbidden(SYS_getsockopt, EACCES);
}

static void opens_as_another(void *arg)
{
    CUdeviceptr address;

    side_start(&side, &options);
    CHECK(gs_share_open(side.share, ipc_handle, SIDE_CONTEXT, 0, &address) == GS_UNREACHABLE);
    CHECK(strstr(side_logged(), "its socket is another user's"));
    CHECK(!strstr(side_logged(), "a security module"));
    side_stop(&side);
}

Test(share_access, a_socket_that_is_another_users_is_said_as_that)
{
    if (geteuid() != 0) {
        scene_end();
        cr_skip("only root can be two users");
    }
    other_start(&other, dir, NULL);
    other_export(&other, 0, 512, 5, ipc_handle);
    cr_assert_eq(chmod(dir, 0755), 0);
    options.uids[options.uid_count++] = 0; /* the folder is to be taken */
    other_user_end(other_user_start(opens_as_another, NULL));
}

/* 0: it is. In a broker that lets in whoever has no number. */
static int leaves_nothing(void)
{
    struct gs_share share = {.options = {.is_broker = true, .uids = {65534}, .uid_count = 1}};
    struct gs_client client = {.greeted = true, .uid = 65534};
    const struct gs_wire_publish published = {.uid_count = 0};
    int none = -1;

    return gs_publisher_on_publish(&share, &client, &published, &none) ||
           !strstr(client.fault, "and leave nothing");
}

/* 0: as it has to be. Of a process that has this number in a user namespace of its own. */
static int own_by(const char *number, bool expected)
{
    char map[64];
    int fd, status = 0;
    pid_t child;

    snprintf(map, sizeof map, "%s %u 1", number, (unsigned)geteuid());
    child = fork_child();
    if (child == 0) {
        if (unshare(CLONE_NEWUSER) != 0)
            _exit(77);
        if (gs_user_is_own(geteuid()) || leaves_nothing() != 0) /* nobody has a number yet */
            _exit(1);
        fd = open("/proc/self/uid_map", O_WRONLY | O_CLOEXEC);
        if (write(fd, map, strlen(map)) != (ssize_t)strlen(map))
            _exit(77);
        _exit(gs_user_is_own((uid_t)atoi(number)) != expected);
    }
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* The kernel tells by 65534 of each user for whom the user namespace has no number. */
Test(share_access, whoever_cannot_be_told_from_others_is_nobodys_own)
{
    const int apart = own_by("65534", false);

    if (apart == 77)
        cr_skip_test("no user namespace can be made here");
    cr_assert_eq(apart, 0);
    cr_assert_eq(own_by("1000", true), 0);
    cr_assert(gs_user_is_own(geteuid()));
}
