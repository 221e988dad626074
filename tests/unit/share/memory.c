/* Host memory runs out at every allocation of a call in turn: it fails and changes nothing. */
#include <criterion/criterion.h>

#include "core/share/cluster.h"
#include "core/share/wire.h"
#include "scene.h"
#include "tests/system.h"

static _Thread_local int fail_in; /* the n-th allocation from now fails; 0: none */
static int fail_elsewhere; /* the same for all threads but this test's; -1: all fail; atomic */
static _Thread_local bool is_test;

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *old, size_t size);

static bool fails(void)
{
    if (is_test)
        return fail_in > 0 && --fail_in == 0;
    return __atomic_load_n(&fail_elsewhere, __ATOMIC_SEQ_CST) < 0 ||
           (__atomic_load_n(&fail_elsewhere, __ATOMIC_SEQ_CST) > 0 &&
            __atomic_sub_fetch(&fail_elsewhere, 1, __ATOMIC_SEQ_CST) == 0);
}

void *__wrap_malloc(size_t size)
{
    return fails() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    if (!fails())
        return __real_calloc(count, size);
    errno = ENOMEM;
    return NULL;
}

void *__wrap_realloc(void *old, size_t size)
{
    return fails() ? NULL : __real_realloc(old, size);
}

static bool
    sends_fail; /* of all threads but this test's, for want of the kernel's memory; atomic */

ssize_t __real_sendmsg(int fd, const struct msghdr *message, int flags);
ssize_t __wrap_sendmsg(int fd, const struct msghdr *message, int flags);

ssize_t __wrap_sendmsg(int fd, const struct msghdr *message, int flags)
{
    if (is_test || !__atomic_load_n(&sends_fail, __ATOMIC_SEQ_CST))
        return __real_sendmsg(fd, message, flags);
    errno = ENOBUFS;
    return -1;
}

static void setup(void)
{
    is_test = true;
    scene_new();
    scene_chunk();
    other_start(&other, dir, NULL);
}

TestSuite(share_memory, .init = setup, .fini = scene_end, .timeout = 120);

/* Who cannot ask does not know, which is another thing than that nobody has it. */
Test(share_memory, a_name_is_not_said_to_be_nobodys_for_want_of_memory)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    enum gs_look_up outcome;
    struct gs_found found;
    int fds, tries = 0;

    other_export(&other, 0, 512, 9, ipc_handle);
    cr_assert_str_eq(other_ask(&other, "name w 0 2"), "status 0");
    fds = side_open_fds();
    do {
        fail_in = ++tries;
        outcome = gs_share_look_up(side.share, "w", &found);
        cr_assert(outcome == GS_LOOK_FOUND || (fail_in == 0 && outcome == GS_LOOK_SILENT),
                  "try %d: %d", tries, outcome);
        cr_assert_eq(side_open_fds(), fds, "try %d", tries);
    } while (fail_in == 0 && tries < 100);
    fail_in = 0;
    cr_assert(tries > 2 && tries < 100);
    cr_assert_eq(outcome, GS_LOOK_FOUND);
}

/* A process without any memory at all tells the importer so, whose patience is much longer than this
 * test. */
Test(share_memory, an_importer_does_not_wait_for_one_without_any_memory)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    struct gs_export *export;
    unsigned long address;
    struct other first;

    other_stop(&other);
    other_start(&first, dir, "timeout=1000000");
    other_start(&other, dir, "timeout=1000000");
    export = scene_export(0, 512, ipc_handle);
    cr_assert_eq(other_open(&first, ipc_handle, &address), GS_OK);
    cr_assert_str_eq(other_ask(&first, "close %lx", address), "status 0");
    cr_assert(side_gets_back(&side, export));
    export = scene_export(0, 512, ipc_handle);
    __atomic_store_n(&fail_elsewhere, -1, __ATOMIC_SEQ_CST);
    for (int kernel_too = 0; kernel_too < 2; kernel_too++) {
        __atomic_store_n(&sends_fail, kernel_too, __ATOMIC_SEQ_CST);
        cr_assert_eq(other_open(&first, ipc_handle, &address), GS_UNREACHABLE,
                     "over its connection");
        cr_assert_eq(strstr(side_logged(), "is hung up on") != NULL, kernel_too,
                     "it would wait for the connection to be idle for too long");
        cr_assert_eq(other_open(&other, ipc_handle, &address), GS_UNREACHABLE, "over a new one");
    }
    __atomic_store_n(&sends_fail, false, __ATOMIC_SEQ_CST);
    __atomic_store_n(&fail_elsewhere, 0, __ATOMIC_SEQ_CST);
    cr_assert_eq(other_open(&first, ipc_handle, &address), GS_OK);
    other_kill(&first);
    cr_assert(side_gets_back(&side, export));
}

Test(share_memory, a_look_up_without_memory_keeps_errno)
{
    struct gs_found found;

    for (int n = 1; n < 5; n++) {
        fail_in = n;
        errno = 77;
        gs_share_look_up(side.share, "name", &found);
        cr_assert_eq(errno, 77, "allocation %d", n);
    }
    fail_in = 0;
}

static char said[200];

static void keep_line(enum gs_log_level level, const void *place, const char *text)
{
    snprintf(said, sizeof said, "%s", text);
}

/* It is told something, which has to wait, and there is no memory to keep it in. */
Test(share_memory, an_agent_is_not_blamed_for_memory_that_is_out)
{
    struct gs_share share = {.log = {.line = keep_line}};
    struct gs_client agent = {.id = 7, .pid = 8};
    union gs_wire_message message;
    int sockets[2];

    cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets), 0);
    agent.fd = sockets[0];
    agent.kept_fd = gs_fd_keep(agent.fd);
    share.store.cluster.agent = agent.id;
    share.store.cluster.line = (struct gs_agent_line *)&share; /* something waits already */
    HASH_ADD(hh, share.clients.first, id, sizeof agent.id, &agent);
    gs_wire_start(&message, GS_WIRE_CLOSE, 0);
    fail_in = 1;
    cr_assert_not(gs_agent_tell(&share, &message, -1));
    cr_assert_str_eq(said, "the agent (process 8) is hung up on: no host memory is left for what "
                           "it is to be told");
    HASH_DELETE(hh, share.clients.first, &agent);
}
