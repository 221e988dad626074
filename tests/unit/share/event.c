/* Events of several processes: who is given their file, and what is taken for one. */
#include <criterion/criterion.h>

#include "core/share/event.h"
#include "by_hand.h"
#include "core/share/internal.h"
#include "scene.h"
#include "tests/children.h"
#include "tests/system.h"

#define NOBODY 65533
#define NUMBER 3

static int file; /* that a driver has made */
static struct gs_fd kept;
static struct side importer;
static struct gs_event_handle handle;

static int new_file(off_t size)
{
    int fd = memfd_create("events", MFD_CLOEXEC);

    cr_assert(fd >= 0 && ftruncate(fd, size) == 0);
    return fd;
}

static struct gs_event_handle drivers(uint64_t number)
{
    return (struct gs_event_handle){.pid = (uint64_t)getpid(), .number = number, .place = 4095};
}

static void setup(void)
{
    scene_new();
    scene_side();
    side_start(&importer, &options);
    file = new_file(GS_EVENT_FILE_SIZE);
    kept = gs_fd_keep(file);
    handle = drivers(NUMBER);
    cr_assert_eq(gs_event_export(side.share, &kept, &handle), GS_OK);
}

static void teardown(void)
{
    side_stop(&importer);
    scene_stop();
    close(file);
    side_dir_remove(dir);
}

TestSuite(share_event, .init = setup, .fini = teardown, .timeout = 120);

static bool is_same_file(int fd, int expected)
{
    struct stat one, two;

    return fstat(fd, &one) == 0 && fstat(expected, &two) == 0 && one.st_ino == two.st_ino;
}

/* Opens it, and the file comes. */
static struct gs_event_handle opens(const struct gs_event_handle *asked, int expected)
{
    struct gs_event_handle led = *asked;
    const char *reason;
    int fd = -1;

    cr_assert_eq(gs_event_open(importer.share, false, &led, &fd, &reason), GS_OK);
    cr_assert(is_same_file(fd, expected));
    cr_assert(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    close(fd);
    cr_assert(led.pid > 0x7f000000 && led.pid <= 0x7fffffff);
    cr_assert_eq(led.number, asked->number);
    cr_assert_eq(led.place, asked->place);
    return led;
}

/* Does not, says why, and leaves the handle to the driver as it was. */
static const char *fails(const struct gs_event_handle *asked, gs_status expected)
{
    struct gs_event_handle led = *asked;
    const char *reason = "";
    int fd = -1, fds = side_open_fds();

    cr_assert_eq(gs_event_open(importer.share, false, &led, &fd, &reason), expected);
    cr_assert_eq((reason != NULL), (expected != GS_NOT_OURS));
    cr_assert_arr_eq(&led, asked, sizeof led);
    cr_assert(SIDE_WAIT(side_open_fds() <= fds));
    return reason;
}

Test(share_event, a_file_is_had_once_and_then_known_by_a_pid_of_its_own)
{
    struct gs_event_handle second = drivers(NUMBER + 1), led, again;
    int other_file = new_file(2 * GS_EVENT_FILE_SIZE), fd = 7;
    struct gs_fd other_kept = gs_fd_keep(other_file);
    const char *reason;

    cr_assert_eq(gs_event_export(side.share, &other_kept, &second), GS_OK);
    led = opens(&handle, file);
    opens(&handle, file); /* the driver does not have it yet */
    gs_event_opened(importer.share, &led);
    again = handle;
    again.place = 7; /* another event in it */
    cr_assert_eq(gs_event_open(importer.share, false, &again, &fd, &reason), GS_OK);
    cr_assert_eq(fd, -1);
    cr_assert_eq(again.pid, led.pid);
    again = handle;
    cr_assert_eq(gs_event_open(importer.share, true, &again, &fd, &reason), GS_OK);
    cr_assert(is_same_file(fd, file));
    cr_assert_eq(again.pid, led.pid);
    close(fd);
    cr_assert_neq(opens(&second, other_file).pid, led.pid);
    close(other_file);
}

Test(share_event, a_handle_says_the_same_each_time_and_each_file_has_a_secret)
{
    struct gs_event_handle again = drivers(NUMBER), second = drivers(NUMBER + 1),
                           used = drivers(NUMBER);
    static const unsigned char none[GS_SECRET_SIZE];
    int other_file = new_file(GS_EVENT_FILE_SIZE);
    struct gs_fd newer;

    again.place = handle.place;
    cr_assert_eq(gs_event_export(side.share, &kept, &again), GS_OK);
    cr_assert_arr_eq(&again, &handle, sizeof handle);
    cr_assert_eq(gs_event_export(side.share, &kept, &second), GS_OK);
    cr_assert_arr_eq(second.instance, handle.instance, sizeof handle.instance);
    cr_assert_arr_neq(second.secret, handle.secret, sizeof handle.secret);
    cr_assert_arr_neq(handle.secret, none, sizeof none);
    opens(&again, file);
    newer = gs_fd_keep(other_file); /* the driver has made another of that number */
    again = drivers(NUMBER);
    cr_assert_eq(gs_event_export(side.share, &newer, &again), GS_OK);
    cr_assert_arr_neq(again.secret, handle.secret, sizeof handle.secret);
    opens(&again, other_file);
    opens(&handle, file);
    close(other_file);
    for (size_t i = 24; i < sizeof used; i++) { /* what a driver has there stays */
        struct gs_event_handle before;

        used = drivers(NUMBER);
        ((unsigned char *)&used)[i] = 1;
        before = used;
        cr_assert_eq(gs_event_export(side.share, &kept, &used), GS_NOT_OURS);
        cr_assert_arr_eq(&used, &before, sizeof used);
    }
}

Test(share_event, a_changed_handle_is_the_drivers)
{
    struct gs_event_handle changed;

    for (size_t i = 0; i < sizeof changed; i++) {
        bool is_magic = i >= 24 && i < 32, is_read = i < 8 || (i >= 16 && i < 24);

        changed = handle;
        ((unsigned char *)&changed)[i] ^= 0x10;
        if (is_read)
            opens(&changed, file); /* nobody is to look at them but the driver */
        else
            fails(&changed, is_magic ? GS_NOT_OURS : GS_UNREACHABLE);
    }
    gs_event_opened(importer.share, &handle); /* nor once it is mapped */
    changed = handle;
    changed.secret[3]++;
    fails(&changed, GS_UNREACHABLE);
}

Test(share_event, it_is_the_drivers_where_sharing_is_off_or_it_is_its_own)
{
    struct gs_event_handle off = drivers(NUMBER), before = off, led = handle;
    struct gs_share_options none = options;
    struct side without;
    const char *reason;
    int fd;

    none.enable = false;
    side_start(&without, &none);
    cr_assert_eq(gs_event_export(without.share, &kept, &off), GS_NOT_OFFERED);
    cr_assert_arr_eq(&off, &before, sizeof off);
    cr_assert_eq(gs_event_open(without.share, false, &led, &fd, &reason), GS_NOT_OURS);
    cr_assert_eq(gs_event_open(side.share, false, &led, &fd, &reason), GS_NOT_OURS);
    cr_assert_arr_eq(&led, &handle, sizeof led);
    side_stop(&without);
}

Test(share_event, what_the_program_has_closed_is_not_given)
{
    int other_file = new_file(2 * GS_EVENT_FILE_SIZE);

    cr_assert_eq(dup2(other_file, file), file); /* it has the number of another file */
    cr_assert_not_null(strstr(fails(&handle, GS_UNREACHABLE), "stale"));
    close(other_file);
}

/* ---- By hand --------------------------------------------------------------------------------- */

/* Where whoever made the handle listens: side_path_of and side_dial skip eight bytes. */
static const unsigned char *place_of(const struct gs_event_handle *of)
{
    return of->instance - 8;
}

/* What it answers, with a descriptor or without; 0: it hangs up. */
static uint32_t asks(const struct gs_event_handle *of, uint32_t *ret_reason, int *ret_fd)
{
    union gs_wire_message message =
        MESSAGE(QUERY, 9, .query = {.about = GS_ABOUT_EVENTS, .number = of->number});
    int fd = side_dial(dir, place_of(of)), error = -EAGAIN;

    *ret_fd = -1;
    memcpy(message.query.secret, of->secret, sizeof of->secret);
    if (fd < 0 || say(fd, message) != 0)
        return 0;
    while (error == -EAGAIN) {
        usleep(500);
        error = gs_wire_receive(fd, &message, ret_fd);
    }
    close(fd);
    *ret_reason = message.refuse.reason;
    return error || message.head.request != 9 ? 0 : message.head.type;
}

static void is_refused(void *arg)
{
    uint32_t reason = 0;
    int fd;

    if (asks(&handle, &reason, &fd) != GS_WIRE_REFUSE || reason != GS_REFUSED_USER || fd >= 0)
        _exit(2);
}

Test(share_event, another_user_is_refused_though_they_are_named)
{
    struct sockaddr_un at;
    uint32_t reason;
    int fd;

    if (geteuid() != 0)
        cr_skip("not root: there is no other user");
    side_stop(&importer);
    scene_stop();
    options.uids[options.uid_count++] = NOBODY;
    scene_side();
    side_start(&importer, &options);
    handle = drivers(NUMBER);
    cr_assert_eq(gs_event_export(side.share, &kept, &handle), GS_OK);
    side_path_of(dir, place_of(&handle), &at);
    cr_assert_eq(chmod(dir, 0711) | chmod(at.sun_path, 0666), 0);
    other_user_end(other_user_start(is_refused, NULL));
    cr_assert_eq(asks(&handle, &reason, &fd), GS_WIRE_REPORT);
    cr_assert(is_same_file(fd, file));
    close(fd);
}

enum lie {
    HONEST,
    HONEST_THE_SECOND_TIME, /* too many descriptors are under way before */
    DIRECTORY,
    PIPE,
    SHORT,
    IN_HUGE_PAGES,
    ON_A_DISK,
    DEVICE,
    NONE,
    TWO,
    OTHER_REQUEST,
    OTHER_TYPE,
    REFUSES,
    OTHER_VERSION,
    GARBAGE,
    HANGS_UP,
    SILENT,
    LIES
};

static int liars_file(enum lie lie)
{
    static char name[] = "/var/tmp/gpushim-event-XXXXXX";
    int ends[2], fd;

    switch (lie) {
    case DIRECTORY:
        return open("/dev/shm", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    case PIPE:
        return pipe2(ends, O_CLOEXEC) ? -1 : ends[0];
    case SHORT:
        return new_file(GS_EVENT_FILE_SIZE - 1);
    case IN_HUGE_PAGES:
        fd = memfd_create("events", MFD_CLOEXEC | MFD_HUGETLB);
        return ftruncate(fd, 2 * MIB) ? -1 : fd;
    case ON_A_DISK:
        fd = mkostemp(name, O_CLOEXEC);
        unlink(name);
        return ftruncate(fd, GS_EVENT_FILE_SIZE) ? -1 : fd;
    case DEVICE:
        return open("/dev/zero", O_RDWR | O_CLOEXEC);
    default:
        return new_file(GS_EVENT_FILE_SIZE);
    }
}

static void lies_once(int fd, enum lie lie, unsigned times, uint32_t request)
{
    bool is_busy = lie == HONEST_THE_SECOND_TIME && times == 0, refuses = lie == REFUSES || is_busy;
    int of = liars_file(lie);
    struct gs_wire_fds fds = {lie == NONE || refuses ? 0 : 1 + (lie == TWO), {of, of}};
    union gs_wire_message message;

    gs_wire_start(&message,
                  refuses             ? GS_WIRE_REFUSE
                  : lie == OTHER_TYPE ? GS_WIRE_GRANT
                                      : GS_WIRE_REPORT,
                  request + (lie == OTHER_REQUEST));
    if (refuses)
        message.refuse.reason = is_busy ? GS_REFUSED_FLIGHT : GS_REFUSED_HANDLE;
    message.head.version += lie == OTHER_VERSION;
    message.head.magic += lie == GARBAGE;
    gs_wire_send_all(fd, &message, &fds);
    close(of);
}

static void lies(int listener, void *arg)
{
    const enum lie lie = *(const enum lie *)arg;

    for (unsigned times = 0;;) {
        union gs_wire_message message;
        int fd = accept(listener, NULL, NULL);

        if (recv(fd, &message, sizeof message, 0) > 0 && lie != HANGS_UP && lie != SILENT)
            lies_once(fd, lie, times++, message.head.request);
        if (lie != SILENT)
            close(fd);
    }
}

Test(share_event, what_is_no_file_of_events_is_refused)
{
    for (enum lie lie = HONEST; lie < LIES; lie++) {
        struct gs_event_handle asked = handle, led;
        const char *reason = NULL;
        int fd = -1, fds = side_open_fds();
        struct player player;
        gs_status status;

        memset(asked.instance, 0x50 + (int)lie, sizeof asked.instance);
        led = asked;
        player_start_for(&player, dir, place_of(&asked), lies, &lie);
        if (lie == SILENT) {
            side_stop(&importer);
            options.timeout_ns = 200 * MS;
            side_start(&importer, &options);
            fds = side_open_fds();
        }
        status = gs_event_open(importer.share, false, &led, &fd, &reason);
        if (lie <= HONEST_THE_SECOND_TIME) {
            cr_assert_eq(status, GS_OK, "the lies prove nothing: %d", status);
            close(fd);
        } else {
            cr_assert_eq(status, GS_UNREACHABLE, "lie %d: %d", lie, status);
            cr_assert_not_null(reason, "nothing is said of lie %d", lie);
            cr_assert_arr_eq(&led, &asked, sizeof led);
        }
        if (lie == OTHER_VERSION)
            cr_assert_not_null(strstr(reason, "version"));
        cr_assert(SIDE_WAIT(side_open_fds() <= fds), "lie %d", lie);
        player_kill(&player);
    }
}

/* A child that it forked has its socket, and answers nobody. */
Test(share_event, who_has_ended_is_not_waited_for)
{
    struct gs_event_handle asked = handle;
    struct sockaddr_un address;
    int status, started[2];
    pid_t exporter, child;

    memset(asked.instance, 0x33, sizeof asked.instance);
    side_path_of(dir, place_of(&asked), &address);
    cr_assert_eq(pipe2(started, O_CLOEXEC), 0);
    exporter = fork_child();
    if (exporter == 0) {
        side_listen(address.sun_path);
        child = fork();
        if (child == 0) {
            alarm(CHILD_S);
            pause();
        }
        _exit(write(started[1], &child, sizeof child) < 0);
    }
    cr_assert_eq(read(started[0], &child, sizeof child), sizeof child);
    cr_assert_eq(waitpid(exporter, &status, 0), exporter);
    side_stop(&importer);
    options.timeout_ns = 2000 * MS; /* an answer that does not come has another reason */
    side_start(&importer, &options);
    cr_assert_not_null(strstr(fails(&asked, GS_UNREACHABLE), "has ended"));
    kill(child, SIGKILL);
    unlink(address.sun_path);
}
