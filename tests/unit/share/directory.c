/* The runtime directory: who may use it, and what is left in it. */
#include <criterion/criterion.h>

#include "core/share/directory.h"
#include "core/share/ipc_handle.h"
#include "other.h"
#include "side.h"
#include "tests/rest.h"
#include "tests/system.h"

#define NOBODY 65533

static char dir[64];
static char dead_name[33]; /* of a process that is gone, */
static char live_name[33]; /* and of this one */
static struct gs_share_options options;

static void setup(void)
{
    side_dir_new(dir, sizeof dir);
    side_options(&options, dir);
    side_name(1, side_gone_pid(), dead_name);
    side_name(2, getpid(), live_name);
}

/* `name` with something behind it. */
static const char *with(const char *name, const char *suffix)
{
    static char text[2][80];
    static int next;

    next = !next;
    snprintf(text[next], sizeof text[next], "%s%s", name, suffix);
    return text[next];
}

static void teardown(void)
{
    side_dir_remove(dir);
}

TestSuite(share_directory, .init = setup, .fini = teardown, .timeout = 120);

static void need_root(void)
{
    if (geteuid() != 0)
        cr_skip("only root can be two users");
}

/* Tries to export; the status. Whatever comes, nothing may be left behind. */
static gs_status try_export(void)
{
    int fds = side_open_fds();
    struct gs_export *export;
    struct side_chunk chunk;
    struct side side;
    unsigned said = side_log_lines();
    gs_status status;

    side_start(&side, &options);
    chunk = side_chunk_new(&side, 2 * MIB);
    status = side_export(&side, &chunk, 0, 512, &export);
    if (status == GS_OK) {
        cr_assert(SIDE_WAIT(side_dir_count(options.dir) == 1), "dead sockets are cleared");
        cr_assert(gs_share_withdraw(side.share, export));
    } else {
        cr_assert_eq(side_export(&side, &chunk, 0, 512, &export), status);
        cr_assert_eq(side_log_lines(), said + 1, "the reason is said once");
    }
    side_stop(&side);
    side_chunk_free(&side, &chunk);
    cr_assert_eq(side_open_fds(), fds);
    return status;
}

static void assert_refused(const char *reason)
{
    cr_assert_eq(try_export(), GS_NOT_OFFERED);
    cr_assert_not_null(strstr(side_logged(), reason), "said: %s", side_logged());
}

Test(share_directory, is_made_for_its_owner_alone)
{
    struct stat info;

    cr_assert_eq(try_export(), GS_OK);
    cr_assert_eq(stat(dir, &info), 0);
    cr_assert_eq(info.st_mode & 07777, 0700);
    cr_assert_eq(side_dir_count(dir), 0);
}

Test(share_directory, what_is_no_good_is_refused_with_the_reason)
{
    char target[80], reason[GS_REASON_SIZE];

    strcat(options.dir, "/below");
    assert_refused("No such file");
    strcpy(options.dir, "relative");
    assert_refused("absolute path");
    memset(options.dir, 'x', sizeof options.dir);
    options.dir[0] = '/';
    cr_assert_eq(gs_directory_open(&options, reason), -1);
    strcpy(options.dir, dir);
    close(open(dir, O_CREAT | O_WRONLY, 0600));
    assert_refused("Not a directory");
    unlink(dir);
    snprintf(target, sizeof target, "%s.real", dir);
    cr_assert_eq(mkdir(target, 0700), 0);
    cr_assert_eq(symlink(target, dir), 0);
    assert_refused("symbolic link");
    cr_assert_eq(side_dir_count(target), 0);
    unlink(dir);
    rmdir(target);
}

/* A volume of Kubernetes (0777, or 2775 with a group of its own), a folder like /tmp. */
Test(share_directory, in_one_that_others_may_write_to_each_user_has_their_own)
{
    static const mode_t modes[] = {0777, 02775, 01777, 0720};
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    char own[160];
    struct stat info;

    snprintf(own, sizeof own, "%s/gpushim-%u", dir, (unsigned)geteuid());
    for (unsigned i = 0; i < sizeof modes / sizeof *modes; i++) {
        struct other giver, taker;
        unsigned long address;

        mkdir(dir, 0700);
        cr_assert_eq(chmod(dir, modes[i]), 0);
        other_start(&giver, dir, NULL);
        other_start(&taker, dir, NULL);
        other_export(&giver, 0, 512, 7, ipc_handle);
        cr_assert_eq(stat(own, &info), 0, "mode %04o", (unsigned)modes[i]);
        cr_assert_eq(info.st_mode & 0777, 0700);
        cr_assert_eq(side_dir_count(dir), 1);
        cr_assert_eq(other_open(&taker, ipc_handle, &address), GS_OK);
        cr_assert_str_eq(other_ask(&taker, "read %lx", address), "ok 7");
        cr_assert_eq(other_stop(&taker), 0);
        cr_assert_eq(other_stop(&giver), 0);
        cr_assert_eq(side_dir_count(own), 0);
        rmdir(own);
        rmdir(dir);
    }
}

/* Any number of them would make looking for somebody slow. */
Test(share_directory, only_numbers_in_one_that_is_open_to_all_are_users)
{
    const char *const names[] = {"directory-a1B2c3", "", "1x", "4294000000", NULL};
    unsigned place = 0, found = 0;
    char path[160];

    mkdir(dir, 0700);
    cr_assert_eq(chmod(dir, 01777), 0);
    for (const char *const *name = names; *name; name++) {
        snprintf(path, sizeof path, "%s/gpushim-%s", dir, *name);
        cr_assert_eq(mkdir(path, 0700), 0);
    }
    for (int fd; (fd = gs_directory_next(&options, &place, NULL)) >= 0; found++)
        close(fd);
    cr_assert_eq(found, 1, "%u are looked into", found);
    for (const char *const *name = names; *name; name++) {
        snprintf(path, sizeof path, "%s/gpushim-%s", dir, *name);
        rmdir(path);
    }
}

Test(share_directory, one_of_another_user_is_refused_unless_they_are_named)
{
    int fd;
    char reason[GS_REASON_SIZE];

    need_root();
    mkdir(dir, 0700);
    cr_assert_eq(chown(dir, NOBODY, NOBODY), 0);
    assert_refused("belongs to user 65533");
    options.uids[options.uid_count++] = NOBODY;
    fd = gs_directory_open(&options, reason);
    cr_assert_geq(fd, 0, "%s", reason);
    close(fd);
}

Test(share_directory, one_that_cannot_be_written_to_is_refused)
{
    struct other other;

    need_root();
    mkdir(dir, 0755); /* root's: to be trusted, not to be written to by others */
    other_start(&other, dir, "uid=65533");
    cr_assert_str_eq(other_ask(&other, "export 0 512 1"), "status -6");
    cr_assert_eq(other_stop(&other), 0);
    cr_assert_eq(side_dir_count(dir), 0);
}

/* Who looks for a process there must not take it for gone. */
Test(share_directory, one_that_no_descriptor_is_left_for_may_be_there)
{
    char reason[GS_REASON_SIZE];
    struct rlimit before, none;
    unsigned place = 0;

    cr_assert_eq(gs_directory_next(&options, &place, reason), -1);
    mkdir(dir, 0700);
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = before;
    none.rlim_cur = place = 0;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
    cr_expect_eq(gs_directory_next(&options, &place, reason), -EMFILE);
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &before), 0);
    cr_assert(strstr(reason, "ulimit -n"), "%s", reason);
}

Test(share_directory, a_path_too_long_for_a_socket_is_no_hindrance)
{
    char *end = options.dir + strlen(options.dir);

    mkdir(options.dir, 0700);
    *end++ = '/';
    memset(end, 'd', (size_t)(options.dir + sizeof options.dir - 1 - end));
    options.dir[sizeof options.dir - 1] = 0;
    cr_assert_eq(strlen(options.dir), sizeof options.dir - 1);
    cr_assert_eq(try_export(), GS_OK);
    rmdir(options.dir);
}

/* A socket bound in the directory; it listens or not. */
static int bind_at(const char *name, bool listening)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    snprintf(address.sun_path, sizeof address.sun_path, "%s/%s", dir, name);
    cr_assert_eq(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    if (listening)
        cr_assert_eq(listen(fd, 1), 0);
    return fd;
}

static bool is_there(const char *name)
{
    char path[160];

    snprintf(path, sizeof path, "%s/%s", dir, name);
    return access(path, F_OK) == 0;
}

/* As if it had been put up so long ago. */
static void make_older(const char *name, time_t seconds)
{
    struct timespec times[2];
    char path[160];

    clock_gettime(CLOCK_REALTIME, &times[0]);
    times[0].tv_sec -= seconds;
    times[1] = times[0];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    cr_assert_eq(utimensat(AT_FDCWD, path, times, AT_SYMLINK_NOFOLLOW), 0);
}

static void sweep(void)
{
    char reason[GS_REASON_SIZE];
    int fd = gs_directory_open(&options, reason);

    gs_directory_sweep(fd, &options);
    close(fd);
}

Test(share_directory, sockets_of_killed_processes_are_cleared_and_live_ones_stay)
{
    int live, full[8];
    struct other killed;
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];

    mkdir(dir, 0700);
    live = bind_at(live_name, true);
    other_start(&killed, dir, NULL);
    other_export(&killed, 0, 512, 1, ipc_handle);
    other_kill(&killed); /* first, as it sweeps by itself */
    close(bind_at(dead_name, true));
    cr_assert_eq(side_dir_count(dir), 3);
    sweep();
    cr_assert_not(is_there(dead_name));
    cr_assert(is_there(live_name));
    cr_assert_eq(side_dir_count(dir), 1);
    /* One whose queue is full answers neither yes nor no: it lives. */
    for (int i = 0; i < 8; i++) {
        struct sockaddr_un address = {.sun_family = AF_UNIX};

        snprintf(address.sun_path, sizeof address.sun_path, "%s/%s", dir, live_name);
        full[i] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        connect(full[i], (struct sockaddr *)&address, sizeof address);
    }
    sweep();
    cr_assert(is_there(live_name));
    for (int i = 0; i < 8; i++)
        close(full[i]);
    close(live);
    sweep();
    cr_assert(is_there(live_name), "its process is there: it may be about to listen");
    make_older(live_name, 2 * 3600);
    sweep();
    cr_assert_eq(side_dir_count(dir), 0);
}

/* A folder on a network, or on a disk that outlasts the machine's restart: a socket of another
 * kernel refuses connections, however alive it is. Of another container under the same kernel one
 * that lives does not. */
Test(share_directory, sockets_from_elsewhere_stay_for_a_while)
{
    static const struct {
        const char *of;
        unsigned digit; /* of the name, that is another */
        bool listens;
        time_t stays_s, goes_s; /* 0: never */
    } cases[] = {
        {"another boot", 2 * 8, false, 23 * 3600, 25 * 3600},
        {"another PID namespace", 2 * 11, false, 1, 2 * 3600},
        {"another PID namespace, and it lives", 2 * 11, true, 2 * 3600, 0},
    };

    mkdir(dir, 0700);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char name[33];
        int fd;

        memcpy(name, dead_name, sizeof name);
        name[cases[i].digit] = name[cases[i].digit] == '0' ? '1' : '0';
        fd = bind_at(name, true);
        if (!cases[i].listens)
            close(fd);
        sweep();
        make_older(name, cases[i].stays_s);
        sweep();
        cr_assert(is_there(name), "%s", cases[i].of);
        make_older(name, cases[i].goes_s ? cases[i].goes_s : cases[i].stays_s);
        sweep();
        cr_assert_eq(is_there(name), cases[i].goes_s == 0, "%s", cases[i].of);
        if (cases[i].listens)
            close(fd);
    }
}

Test(share_directory, a_socket_about_to_be_born_is_not_taken_for_a_dead_one)
{
    int live, dead;

    mkdir(dir, 0700);
    live = bind_at(with(live_name, ".new"), false);
    dead = bind_at(with(dead_name, ".new"), false);
    sweep();
    cr_assert(is_there(with(live_name, ".new")));
    cr_assert_not(is_there(with(dead_name, ".new")), "its maker was killed");
    close(live);
    close(dead);
}

Test(share_directory, nothing_else_in_it_is_touched)
{
    char longer[80], older[80], other_kind[80];
    const char *const names[] = {"notes.txt", "0123456789abcdef",
                                 longer,      "g123456789abcdef0123456789abcdef",
                                 older,       other_kind};
    char path[160];

    snprintf(longer, sizeof longer, "%s0", dead_name);
    snprintf(older, sizeof older, "%s.old", dead_name);
    snprintf(other_kind, sizeof other_kind, "%s.memory", dead_name);
    mkdir(dir, 0700);
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++)
        close(bind_at(names[i], true));
    snprintf(path, sizeof path, "%s/%s", dir, dead_name); /* our kind of name, not a socket */
    close(open(path, O_CREAT | O_WRONLY, 0600));
    cr_assert_eq(side_dir_count(dir), 7);
    sweep();
    cr_assert_eq(side_dir_count(dir), 7);
}

/* Opens a handle whose exporter should be at `name`; the status, which must not take as long as an
 * exporter may. */
static gs_status open_at(const char *name)
{
    struct gs_ipc_handle made = {.block_id = 1, .chunk_id = 1, .size = 512};
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    uint64_t begin = side_now();
    CUdeviceptr address;
    struct side side;
    gs_status status;

    for (unsigned i = 0; i < GS_INSTANCE_SIZE; i++)
        sscanf(name + 2 * i, "%2hhx", &made.instance[i]);
    gs_ipc_handle_write(&made, ipc_handle);
    side_start(&side, &options);
    status = gs_share_open(side.share, ipc_handle, SIDE_CONTEXT, 0, &address);
    side_stop(&side);
    cr_assert(side_within(begin, 10000000000));
    return status;
}

Test(share_directory, what_lies_where_a_socket_should_be_is_refused_at_once)
{
    int fds = side_open_fds(), live;
    char path[160], target[160];

    mkdir(dir, 0700);
    snprintf(path, sizeof path, "%s/%s", dir, dead_name);
    snprintf(target, sizeof target, "%s/elsewhere", dir);
    for (int i = 0; i < 4; i++) { /* the last of them stays */
        int made = i == 0   ? mkfifo(path, 0600)
                   : i == 1 ? mkdir(path, 0700)
                   : i == 2 ? mknod(path, S_IFREG | 0600, 0)
                            : symlink(target, path);

        cr_assert_eq(made, 0);
        cr_assert_eq(open_at(dead_name), GS_UNREACHABLE);
        if (i < 3)
            remove(path);
    }
    close(open(target, O_CREAT | O_WRONLY, 0600));
    sweep();
    cr_assert(is_there("elsewhere") && is_there(dead_name), "a link was followed, or removed");
    unlink(path);
    unlink(target);
    live = bind_at(dead_name, true); /* it listens, and never says a word */
    options.timeout_ns = 300000000;
    cr_assert_eq(open_at(dead_name), GS_UNREACHABLE);
    close(live);
    cr_assert_eq(side_open_fds(), fds);
}

/* What one connects to is judged by its user, wherever its socket is. */
Test(share_directory, in_one_that_is_replaced_after_the_check_no_socket_is_put_up)
{
    char away[80], reason[GS_REASON_SIZE];
    int directory, listener;

    mkdir(dir, 0700);
    directory = gs_directory_open(&options, reason);
    cr_assert_geq(directory, 0);
    snprintf(away, sizeof away, "%s.away", dir);
    cr_assert_eq(rename(dir, away), 0);
    cr_assert_eq(mkdir(dir, 0777), 0);
    listener = gs_directory_listen(directory, &options, "own", reason);
    cr_assert_geq(listener, 0);
    cr_assert_not(is_there("own"));
    cr_assert_eq(side_dir_count(away), 1);
    close(listener);
    close(directory);
    side_dir_remove(away);
}

static bool connects_at_once(const char *name)
{
    int fd = gs_directory_connect_at_once(&options, name);

    cr_assert(fd >= 0 || fd == -EAGAIN);
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

/* What the quick way does not do, the other does or gives the reason for. */
Test(share_directory, is_judged_before_a_word_is_said_over_a_connection_that_is_there)
{
    char away[80];
    int fds, live;

    mkdir(dir, 0700);
    live = bind_at(dead_name, true);
    fds = side_open_fds();
    cr_assert(connects_at_once(dead_name));
    cr_assert_not(connects_at_once(live_name));
    chmod(dir, 0770);
    cr_assert_not(connects_at_once(dead_name));
    cr_assert_eq(open_at(dead_name), GS_UNREACHABLE);
    cr_assert_not_null(strstr(side_logged(), "others may write to"), "%s", side_logged());
    chmod(dir, 0700);
    snprintf(away, sizeof away, "%s.away", dir);
    cr_assert_eq(rename(dir, away), 0);
    cr_assert_eq(symlink(away, dir), 0);
    cr_assert_not(connects_at_once(dead_name), "through a link");
    cr_assert_eq(unlink(dir), 0);
    cr_assert_eq(rename(away, dir), 0);
    strcpy(options.dir, dir + 1);
    cr_assert_not(connects_at_once(dead_name));
    strcpy(options.dir, dir);
    cr_assert_eq(side_open_fds(), fds);
    close(live);
    cr_assert_not(connects_at_once(dead_name));
}

Test(share_directory, a_connection_that_is_not_there_at_once_is_not_waited_for_on_the_quick_way)
{
    int live, full[8], count = 0;

    mkdir(dir, 0700);
    live = bind_at(dead_name, true);
    options.timeout_ns = SIDE_HOUR;
    while (count < 8 && (full[count] = gs_directory_connect_at_once(&options, dead_name)) >= 0)
        count++;
    cr_assert_gt(count, 0);
    cr_assert_lt(count, 8, "its queue takes two");
    while (count > 0)
        close(full[--count]);
    close(live);
}

Test(share_directory, of_another_user_is_not_connected_through)
{
    int live;

    need_root();
    mkdir(dir, 0700);
    cr_assert_eq(chown(dir, NOBODY, NOBODY), 0);
    live = bind_at(dead_name, true);
    cr_assert_not(connects_at_once(dead_name));
    options.uids[options.uid_count++] = NOBODY;
    cr_assert(connects_at_once(dead_name));
    close(live);
}

/* However short its life. */
Test(share_directory, who_exits_at_once_clears_up_too)
{
    struct other other;
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    int status;

    mkdir(dir, 0700);
    close(bind_at(dead_name, true));
    other_start(&other, dir, NULL);
    other_export(&other, 0, 512, 1, ipc_handle);
    other_ask(&other, "exit");
    cr_assert_eq(waitpid(other.pid, &status, 0), other.pid);
    cr_assert_eq(side_dir_count(dir), 0);
}

/* By its number alone, whatever else is listed. */
Test(share_directory, who_is_listed_is_named_by_number)
{
    const uid_t other = geteuid() + 5;

    options.gids[options.gid_count++] = 500;
    options.gids[options.gid_count++] = 400;
    options.uids[options.uid_count++] = other;
    cr_assert(gs_process_is_listed(&options, other + 1, 500));
    cr_assert(gs_process_is_listed(&options, other + 1, 400));
    cr_assert_not(gs_process_is_listed(&options, other + 1, 450));
    cr_assert_not(gs_process_is_listed(&options, other + 1, 399));
    cr_assert_not(gs_process_is_listed(&options, other + 1, 501));
    cr_assert(gs_process_is_listed(&options, other, 450));
    cr_assert(gs_user_is_listed(&options, geteuid()));
    cr_assert_not(gs_user_is_listed(&options, other - 1));
    cr_assert_not(gs_user_is_listed(&options, other + 1));
}
