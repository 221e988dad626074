/* How a broker is started, replaced and found, by whoever starts it; and how it ends. */
#include <criterion/criterion.h>
#include <sys/file.h>

#include "broker_scene.h"
#include "core/share/internal.h"
#include "tests/children.h"
#include "tests/system.h"

Test(share_broker, killed_itself_it_is_replaced_by_one_that_has_all)
{
    unsigned char ipc_handle[4][GS_IPC_HANDLE_SIZE];
    CUdeviceptr address;

    for (unsigned i = 0; i < 3; i++)
        export_and_leave(i, ipc_handle[i]);
    cr_assert(SIDE_WAIT(other_withdraws(&other))); /* the last one */
    cr_assert(SIDE_WAIT(side_broker_published(dir) == 2));
    kill(side_broker_pid(dir), SIGKILL);
    cr_assert(SIDE_WAIT(side_broker_published(dir) == 2), "it has %llu",
              side_broker_published(dir));
    other_export(&other, 8192, 512, 73, ipc_handle[3]);
    cr_assert(SIDE_WAIT(side_broker_published(dir) == 3));
    other_kill(&other);
    for (int i = 0; i < 4; i++) {
        cr_assert_eq(open_it(ipc_handle[i], &address), i == 2 ? GS_STALE : GS_OK, "block %d", i);
        if (i != 2)
            cr_assert_eq(*(char *)address, 70 + i);
    }
}

/* A launcher takes the orphans of what it starts, as PID 1 of a container does, and waits for all.
 * While its worker runs it sees nothing of the broker that the worker has started; when nothing
 * else is left that does not keep it for as long as the broker keeps what was shared. */
Test(share_broker, a_launcher_that_waits_for_all_its_children_is_not_kept)
{
    struct gs_share_options brokered = options;
    int told[2], go[2];
    pid_t launcher;
    char seen[2];

    cr_assert_eq(pipe(told), 0);
    cr_assert_eq(pipe(go), 0);
    launcher = fork_child();
    if (launcher == 0) {
        pid_t worker, ended;
        int strangers = 0;

        prctl(PR_SET_CHILD_SUBREAPER, 1);
        worker = fork_child();
        if (worker == 0) {
            struct side_chunk its;
            struct gs_export *export;
            struct side second;

            brokered.broker = true;
            brokered.keep_ns = 3600 * UINT64_C(1000000000);
            snprintf(brokered.broker_program, sizeof brokered.broker_program, "%s", BROKER_PROGRAM);
            side_start(&second, &brokered);
            its = side_chunk_new(&second, 2 * MIB);
            if (side_export(&second, &its, 0, 512, &export) != GS_OK ||
                !SIDE_WAIT(side_broker_published(dir) == 1) || write(told[1], "", 1) != 1 ||
                read(go[0], seen, 1) != 1)
                _exit(1);
            _exit(0);
        }
        if (read(told[0], seen, 1) != 1)
            _exit(1);
        ended = waitpid(-1, NULL, WNOHANG); /* the worker runs, and so does the broker */
        if (ended != 0)
            strangers = 100;
        if (write(go[1], "", 1) != 1)
            _exit(1);
        while ((ended = wait(NULL)) > 0)
            strangers += ended != worker;
        _exit(strangers);
    }
    close(told[0]);
    close(told[1]);
    close(go[0]);
    close(go[1]);
    for (int status, i = 0;; i++) {
        pid_t ended = waitpid(launcher, &status, WNOHANG);

        cr_assert_lt(i, 40000, "it waits for the broker");
        if (ended == launcher) {
            cr_assert(WIFEXITED(status));
            cr_assert_leq(WEXITSTATUS(status), 1, "the broker is one process, seen at its end");
            break;
        }
        usleep(1000);
    }
}

/* Whether the broker was started with that in its environment. */
static bool was_told(const char *words)
{
    char path[64], bytes[4096];
    size_t size;
    FILE *file;

    snprintf(path, sizeof path, "/proc/%d/environ", (int)side_broker_pid(dir));
    file = fopen(path, "re");
    cr_assert_not_null(file);
    size = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    return memmem(bytes, size, words, strlen(words) + 1) != NULL;
}

Test(share_broker, that_a_process_starts_has_the_limits_of_that_process)
{
    static const char *const told[] = {"GPUSHIM_SHARE_KEEP=1000000001ns",
                                       "GPUSHIM_DEBUG_SETTLE=2000002ns",
                                       "GPUSHIM_DEBUG_TIMEOUT=3000000003ns",
                                       "GPUSHIM_DEBUG_MAX_CLIENTS=44",
                                       "GPUSHIM_DEBUG_BROKER_BLOCKS=555",
                                       "GPUSHIM_SHARE_UIDS=66,77",
                                       "GPUSHIM_SHARE_GIDS=88"};
    struct gs_share_options brokered = options;
    struct side_chunk piece;
    struct gs_export *export;
    struct side second;

    brokered.broker = true;
    brokered.keep_ns = 1000000001;
    brokered.settle_ns = 2000002;
    brokered.timeout_ns = 3000000003;
    brokered.max_clients = 44;
    brokered.published_max = 555;
    brokered.uids[brokered.uid_count++] = 66;
    brokered.uids[brokered.uid_count++] = 77;
    brokered.gids[brokered.gid_count++] = 88;
    snprintf(brokered.broker_program, sizeof brokered.broker_program, "%s", BROKER_PROGRAM);
    side_start(&second, &brokered);
    piece = side_chunk_new(&second, 2 * MIB);
    cr_assert_eq(side_export(&second, &piece, 0, 512, &export), GS_OK);
    cr_assert(SIDE_WAIT(side_broker_published(dir) == 1));
    for (size_t i = 0; i < sizeof told / sizeof *told; i++)
        cr_assert(was_told(told[i]), "%s", told[i]);
    cr_assert(side_gets_back(&second, export));
    side_stop(&second);
    side_chunk_free(&second, &piece);
}

static void write_program(const char *path, const char *text)
{
    FILE *file = fopen(path, "we");

    cr_assert_not_null(file);
    fprintf(file, "#!/bin/sh\n%s", text);
    cr_assert_eq(fclose(file), 0);
    cr_assert_eq(chmod(path, 0755), 0);
}

Test(share_broker, that_cannot_be_started_is_said_and_done_without)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    struct gs_export *export;
    unsigned long there;

    scene_stop();
    options.broker = true;
    strcpy(options.broker_program, "/nonexistent/broker");
    scene_block(&export, ipc_handle);
    cr_assert_eq(other_open(&other, ipc_handle, &there), GS_OK);
    cr_assert(SIDE_WAIT(strstr(side_logged(), "no broker (") != NULL));
    cr_assert_eq(side_log_lines(), 1);
    other_ask(&other, "close %lx", there);
    cr_assert(side_gets_back(&side, export));
}

/* It begins when the block was opened, and nobody has given it up by then. */
Test(share_broker, that_begins_late_keeps_no_opener_waiting)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    struct gs_export *export;
    unsigned long there;
    char go[80];

    scene_stop();
    options.broker = true;
    snprintf(go, sizeof go, "%s.go", dir);
    snprintf(options.broker_program, sizeof options.broker_program, "%s.late", dir);
    write_program(
        options.broker_program,
        "for i in $(seq 3000); do [ -e $GPUSHIM_SHARE_DIR.go ] && break; sleep 0.02; done\n"
        "exec " BROKER_PROGRAM " --started\n");
    scene_block(&export, ipc_handle);
    cr_assert_eq(other_open(&other, ipc_handle, &there), GS_OK);
    cr_assert_null(strstr(side_logged(), "no broker ("));
    write_program(go, "");
    cr_assert(SIDE_WAIT(side_broker_published(dir) == 1));
    other_ask(&other, "close %lx", there);
    cr_assert(side_gets_back(&side, export));
    unlink(options.broker_program);
    unlink(go);
}

/* Where it takes none for long, another one is found or started. */
Test(share_broker, that_takes_no_connection_keeps_no_opener_waiting)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    struct gs_export *export;
    unsigned long there;
    int listener, full;

    scene_stop();
    cr_assert(mkdir(dir, 0700) == 0 || errno == EEXIST);
    snprintf(at.sun_path, sizeof at.sun_path, "%.63s/%.43s", dir, side_broker_name());
    listener = side_listen(at.sun_path);
    do
        full = connect(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0),
                       (struct sockaddr *)&at, sizeof at);
    while (full == 0);
    cr_assert_eq(errno, EAGAIN);
    options.broker = true;
    snprintf(options.broker_program, sizeof options.broker_program, "%s", BROKER_PROGRAM);
    scene_block(&export, ipc_handle);
    cr_assert_eq(other_open(&other, ipc_handle, &there), GS_OK);
    cr_assert_null(strstr(side_logged(), "no broker ("));
    close(listener);
    cr_assert(SIDE_WAIT(side_broker_published(dir) == 1));
    other_ask(&other, "close %lx", there);
    cr_assert(side_gets_back(&side, export));
}

Test(share_broker, there_is_one_for_a_directory)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    char said[512];
    pid_t first;

    export_and_leave(0, ipc_handle);
    first = side_broker_pid(dir);
    cr_assert_neq(run_broker("", said, sizeof said), 0);
    cr_assert_not_null(strstr(said, "a broker runs"), "%s", said);
    cr_assert_eq(run_broker("--detach", said, sizeof said), 0);
    cr_assert_eq(side_broker_pid(dir), first);
    kill(first, SIGKILL); /* its socket stays behind, and is no hindrance */
    cr_assert(SIDE_WAIT(side_broker_pid(dir) != first));
    cr_assert_eq(run_broker("--detach", said, sizeof said), 0, "%s", said);
    cr_assert_neq(side_broker_pid(dir), 0);
}

Test(share_broker, in_the_background_it_says_as_well_why_it_cannot_be)
{
    static const char *const ways[] = {"", "--detach"};
    char said[512];
    FILE *file = fopen(dir, "we");

    cr_assert_not_null(file);
    fclose(file);
    for (int i = 0; i < 2; i++) {
        cr_assert_neq(run_broker(ways[i], said, sizeof said), 0);
        cr_assert_not_null(strstr(said, "cannot be opened: Not a directory"), "%d: %s", i, said);
    }
    cr_assert_eq(unlink(dir), 0);
    cr_assert_eq(run_broker("--detach", said, sizeof said), 0, "%s", said);
    cr_assert_str_eq(said, "");
}

Test(share_broker, one_killed_before_it_listened_is_no_hindrance)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    char said[512];

    cr_assert_eq(mkdir(dir, 0700), 0);
    snprintf(to.sun_path, sizeof to.sun_path, "%s/%s.new", dir, side_broker_name());
    cr_assert_eq(bind(fd, (struct sockaddr *)&to, sizeof to), 0);
    close(fd);
    cr_assert_eq(run_broker("--detach", said, sizeof said), 0, "%s", said);
    cr_assert_neq(side_broker_pid(dir), 0);
    cr_assert_eq(access(to.sun_path, F_OK), -1);
}

Test(share_broker, a_locked_directory_is_not_waited_for_for_ever)
{
    char said[512];
    int fd;

    cr_assert_eq(mkdir(dir, 0700), 0);
    fd = open(dir, O_RDONLY | O_CLOEXEC); /* as anybody may who can read it */
    cr_assert_eq(flock(fd, LOCK_EX), 0);
    cr_assert_neq(run_broker("", said, sizeof said), 0);
    cr_assert_not_null(strstr(said, "cannot be locked"), "%s", said);
    close(fd);
    cr_assert_eq(run_broker("--detach", said, sizeof said), 0, "%s", said);
}

Test(share_broker, one_that_is_started_later_is_found)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    struct side_chunk piece;
    struct gs_export *export;
    CUdeviceptr address;
    pid_t broker;
    struct side sharer;

    piece = sharer_start(&sharer);
    cr_assert_eq(side_export(&sharer, &piece, 0, 512, &export), GS_OK);
    gs_export_handle(export, ipc_handle);
    cr_assert(SIDE_WAIT(strstr(side_logged(), "no broker (") != NULL));
    broker = broker_by_hand("GPUSHIM_LOG", "debug");
    cr_assert(SIDE_WAIT(side_broker_published(dir) == 1), "nothing was left with it");
    cr_assert(side_gets_back(&sharer, export));
    cr_assert_eq(open_it(ipc_handle, &address), GS_STALE);
    cr_assert_eq(side_log_lines(), 1);
    sharer_stop(&sharer, &piece, broker);
}

/* The number of this process's connection to a broker. */
static int broker_connection(void)
{
    struct sockaddr_un at;

    for (int fd = 3; fd < 256; fd++) {
        socklen_t size = sizeof at;

        memset(&at, 0, sizeof at);
        if (getpeername(fd, (struct sockaddr *)&at, &size) == 0 &&
            strstr(at.sun_path, side_broker_name()))
            return fd;
    }
    return -1;
}

/* Asks for all there is; what comes as memory and what as a RING is told by a pipe. */
static void asks_for_more(int listener, void *pipe)
{
    int fd = accept(listener, NULL, NULL);
    union gs_wire_message message;

    while (recv(fd, &message, sizeof message, 0) > 0) {
        if (message.head.type == GS_WIRE_RING || message.head.type == GS_WIRE_SHARE)
            cr_assert_eq(write(*(int *)pipe, message.head.type == GS_WIRE_RING ? "r" : "s", 1), 1);
        if (message.head.type != GS_WIRE_HELLO)
            say(fd, MESSAGE(PULL, 0));
    }
}

/* The thread that sleeps until then is woken for it. */
Test(share_broker, what_is_taken_back_is_told_to_one_that_asks)
{
    struct gs_export *export;
    struct player player;
    struct side_chunk piece;
    struct side sharer;
    char path[128], told;
    int pipes[2];

    cr_assert_eq(pipe2(pipes, O_CLOEXEC), 0);
    cr_assert(mkdir(dir, 0700) == 0 || errno == EEXIST);
    snprintf(path, sizeof path, "%.63s/%.43s", dir, side_broker_name());
    player_start(&player, path, asks_for_more, &pipes[1]);
    piece = sharer_start(&sharer);
    cr_assert_eq(side_export(&sharer, &piece, 0, 512, &export), GS_OK);
    cr_assert_eq(read(pipes[0], &told, 1), 1);
    cr_assert_eq(told, 's');
    cr_assert(SIDE_WAIT(__atomic_load_n(&sharer.share->link.asks, __ATOMIC_SEQ_CST)));
    usleep(2500000); /* what the thread does by itself after its start is done */
    cr_assert(gs_share_withdraw(sharer.share, export));
    cr_assert_eq(poll(&(struct pollfd){.fd = pipes[0], .events = POLLIN}, 1, 30000), 1);
    cr_assert_eq(read(pipes[0], &told, 1), 1);
    cr_assert_eq(told, 'r');
    sharer_stop(&sharer, &piece, player.pid);
    unlink(path);
}

/* What it was to be told would come to the program, memory and all. */
Test(share_broker, a_connection_that_the_program_has_closed_is_made_anew)
{
    pid_t broker = broker_by_hand("GPUSHIM_LOG", "debug");
    struct gs_export *exports[4];
    struct side_chunk piece;
    struct side sharer;
    int fd, pair[2];
    char byte;

    piece = sharer_start(&sharer);
    for (unsigned i = 0; i < 2; i++)
        cr_assert_eq(side_export(&sharer, &piece, i * 512, 512, &exports[i]), GS_OK);
    cr_assert(SIDE_WAIT(side_broker_published(dir) == 2));
    fd = broker_connection();
    cr_assert_geq(fd, 0);
    cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    cr_assert_eq(dup2(pair[0], fd), fd);
    close(pair[0]);
    cr_assert(side_gets_back(&sharer, exports[1]));
    for (unsigned i = 2; i < 4; i++)
        cr_assert_eq(side_export(&sharer, &piece, i * 512, 512, &exports[i]), GS_OK);
    cr_assert(SIDE_WAIT(side_broker_published(dir) == 3), "it has %llu",
              side_broker_published(dir));
    cr_assert_eq(recv(pair[1], &byte, 1, MSG_DONTWAIT), -1, "the program's socket was written to");
    cr_assert_eq(errno, EAGAIN);
    cr_assert(side_gets_back(&sharer, exports[0]));
    cr_assert(side_gets_back(&sharer, exports[2]));
    cr_assert(side_gets_back(&sharer, exports[3]));
    sharer_stop(&sharer, &piece, broker);
    cr_assert_eq(recv(pair[1], &byte, 1, MSG_DONTWAIT), -1, "the program's socket was shut down");
    cr_assert_eq(errno, EAGAIN);
}

/* On a busy machine who started it looks for it late. */
Test(share_broker, that_keeps_nothing_is_there_for_who_started_it)
{
    char said[512];

    setenv("GPUSHIM_SHARE_KEEP", "0", 1);
    cr_assert_eq(run_broker("--detach", said, sizeof said), 0, "%s", said);
    unsetenv("GPUSHIM_SHARE_KEEP");
    usleep(1500000);
    cr_assert_neq(side_broker_pid(dir), 0);
    cr_assert(side_broker_gone(dir), "it does not end with who came");
}
