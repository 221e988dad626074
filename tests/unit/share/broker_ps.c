/* What a broker tells about itself, and those of other versions and other users. */
#include <criterion/criterion.h>

#include "broker_scene.h"
#include "tests/children.h"
#include "tests/system.h"

Test(share_broker, ps_tells_what_is_freed_and_kept_since_when_and_by_whom)
{
    unsigned char ipc_handle[2][GS_IPC_HANDLE_SIZE];
    CUdeviceptr address;
    char said[2048], expected[128];
    long freed, first, second;

    export_and_leave(0, ipc_handle[0]);
    cr_assert_eq(open_it(ipc_handle[0], &address), GS_OK);
    usleep(2100000);
    other_export(&other, 4096, 2048, 7, ipc_handle[1]);
    cr_assert_eq(open_it(ipc_handle[1], &address), GS_OK);
    usleep(1100000);
    cr_assert_str_eq(other_ask(&other, "freed"), "ok");
    cr_assert_eq(run_broker("ps", said, sizeof said), 0);
    cr_assert_not_null(strstr(said, "freed and kept 1, 2.0 KiB, the oldest for "), "%s", said);
    freed = atol(strstr(strstr(said, "kept 1"), ", the oldest for ") + strlen(", the oldest for "));
    snprintf(expected, sizeof expected, "held by pid %d (", (int)getpid());
    cr_assert_not_null(strstr(said, expected), "%s", said);
    cr_assert_not_null(strstr(said, "): 2 blocks, 2.5 KiB, the longest for "), "%s", said);
    first = atol(strstr(said, ", the longest for ") + strlen(", the longest for "));
    cr_assert_not_null(strstr(said, " s; of freed ones 1, 2.0 KiB\n"), "%s", said);
    cr_assert_not_null(strstr(said, "block 2 of 2.0 KiB: held for "), "%s", said);
    second = atol(strstr(said, " KiB: held for ") + strlen(" KiB: held for "));
    cr_assert(second >= freed + 1 && first >= second + 2, "%s", said);
}

/* How somebody answers who is not of this version, or not well. */
enum manner { OLDER, OTHER_SHAPE, TURNS_AWAY, HANGS_UP, SILENT, MANNERS };

static void answer_by_hand(int fd, enum manner manner)
{
    union gs_wire_message asked, answer = MESSAGE(REFUSE, 0);
    struct pollfd gone = {.fd = fd};

    if (recv(fd, &asked, sizeof asked, 0) <= 0 || manner == HANGS_UP)
        return;
    if (manner == SILENT) {
        poll(&gone, 1, -1);
        return;
    }
    if (manner == OTHER_SHAPE)
        answer = MESSAGE(REPORT, 0);
    if (manner == OLDER)
        answer.head.version--;
    else if (manner == OTHER_SHAPE)
        answer.head.size -= 8; /* of a build that had one figure less */
    answer.refuse.reason = manner == OLDER ? GS_REFUSED_VERSION : GS_REFUSED_BUSY;
    gs_wire_send(fd, &answer, -1);
}

/* A process of the user that listens under the name and answers in that manner, until it is
 * killed. */
static pid_t stand_in(const char *name, enum manner manner, uid_t user)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    int ready[2], fd;
    pid_t child;
    char byte;

    mkdir(dir, 0700);
    snprintf(at.sun_path, sizeof at.sun_path, "%s/%s", dir, name);
    cr_assert_eq(pipe2(ready, O_CLOEXEC), 0);
    child = fork_child();
    if (child == 0) {
        fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        if (bind(fd, (struct sockaddr *)&at, sizeof at) != 0 || !become_user(user, getegid()) ||
            listen(fd, 8) != 0 || write(ready[1], "", 1) != 1)
            _exit(1);
        for (;;) {
            int caller = accept4(fd, NULL, NULL, SOCK_CLOEXEC);

            answer_by_hand(caller, manner);
            close(caller);
        }
    }
    close(ready[1]);
    cr_assert_eq(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    return child;
}

static void stand_down(pid_t child, const char *name)
{
    char path[128];

    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    snprintf(path, sizeof path, "%s/%s", dir, name);
    unlink(path);
}

Test(share_broker, ps_tells_of_those_that_do_not_answer_in_this_version)
{
    static const char *const said_of[MANNERS] = {
        [OLDER] = "is of another version of this library (protocol %u, here %u)",
        [OTHER_SHAPE] = "gives an answer that this version does not know\n",
        [TURNS_AWAY] = "does not tell: it serves as many as it may (debug.max_clients)\n",
        [HANGS_UP] = "has ended, or closed the connection\n",
        [SILENT] = "does not answer\n",
    };
    char said[4096], names[MANNERS][40], text[128], expected[192];
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    pid_t child[MANNERS];

    for (int manner = 0; manner < MANNERS; manner++) {
        snprintf(names[manner], sizeof names[manner], "%032x", manner);
        child[manner] = stand_in(names[manner], manner, getuid());
    }
    export_and_leave(0, ipc_handle);
    cr_assert_eq(run_broker("ps", said, sizeof said), 0);
    for (int manner = 0; manner < MANNERS; manner++) {
        snprintf(text, sizeof text, said_of[manner], GS_WIRE_VERSION - 1, GS_WIRE_VERSION);
        snprintf(expected, sizeof expected, "process pid %d (test_share_brok): %s",
                 (int)child[manner], text);
        cr_expect_not_null(strstr(said, expected), "no '%s' in:\n%s", expected, said);
        stand_down(child[manner], names[manner]);
    }
    snprintf(expected, sizeof expected, "process pid %d (share_other): 1 blocks", (int)other.pid);
    cr_expect_not_null(strstr(said, expected), "%s", said);
    cr_expect_not_null(strstr(said, "broker pid "), "%s", said);
}

Test(share_broker, one_of_another_version_is_named_by_those_who_would_leave_memory)
{
    pid_t child = stand_in(side_broker_name(), OLDER, getuid());
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    struct gs_export *export;
    char expected[160], said[1024];

    cr_assert_eq(run_broker("ps", said, sizeof said), 0);
    snprintf(expected, sizeof expected, "broker pid %d (test_share_brok): is of another version",
             (int)child);
    cr_assert_not_null(strstr(said, expected), "%s", said);
    scene_stop();
    options.broker = true;
    scene_block(&export, ipc_handle);
    snprintf(expected, sizeof expected,
             "the broker has another version of this library (protocol %u, here %u): memory is "
             "shared as long as this process runs",
             GS_WIRE_VERSION - 1, GS_WIRE_VERSION);
    cr_assert(SIDE_WAIT(strstr(side_logged(), expected) != NULL), "%s", side_logged());
    stand_down(child, side_broker_name());
    cr_assert(side_gets_back(&side, export));
}

Test(share_broker, one_of_another_user_is_given_nothing)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    struct gs_export *export;
    pid_t child;

    if (geteuid() != 0)
        cr_skip_test("only root can be another user");
    child = stand_in(side_broker_name(), SILENT, 65533);
    scene_stop();
    options.broker = true;
    scene_block(&export, ipc_handle);
    cr_assert(SIDE_WAIT(strstr(side_logged(), "the broker is of user 65533, who is not to be "
                                              "trusted with memory") != NULL),
              "%s", side_logged());
    stand_down(child, side_broker_name());
    cr_assert(side_gets_back(&side, export));
}
