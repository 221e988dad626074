/*
 * Another user who is let in, asks for descriptors and reads none of them. The kernel counts those
 * under way for whoever sent them, and sends none beyond the sender's limit (but root's): neither
 * for the one that is asked, nor for any other process of its user.
 */
#include <criterion/criterion.h>

#include "core/share/wire.h"
#include "other.h"
#include "side.h"
#include "tests/system.h"

#define LIMIT   128 /* the exporter's, of descriptors */
#define ASKED   8   /* over one connection: so many answers fit */
#define DIALLED 32
#define LEFT    24

static char dir[64];
static struct other exporter, importer, next;
static unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
static int fds[DIALLED];

static void setup(void)
{
    char user[16];

    if (geteuid() != 0)
        cr_skip("only root can be two users");
    side_dir_new(dir, sizeof dir);
    /* No other test's user: what that one has under way would count. */
    snprintf(user, sizeof user, "uid=%d", 61000 + getpid() % 4000);
    other_start2(&exporter, dir, user, "trust=0");
    other_start2(&importer, dir, user, "trust=0");
    other_start2(&next, dir, user, "trust=0");
    other_export(&exporter, 0, 512, 3, ipc_handle);
    cr_assert_str_eq(other_ask(&exporter, "nofile %d", LIMIT), "ok");
    for (int i = 0; i < DIALLED; i++)
        fds[i] = -1;
}

static void hang_up(void)
{
    for (int i = 0; i < DIALLED; i++)
        if (fds[i] >= 0)
            close(fds[i]);
}

static void teardown(void)
{
    CHECK(other_stop(&importer) == 0);
    CHECK(other_stop(&next) == 0);
    CHECK(other_stop(&exporter) == 0);
    side_dir_remove(dir);
}

TestSuite(share_hostile_unread, .init = setup, .fini = teardown, .timeout = 120);

/* Asks again and again over a new connection, or says that it uses nothing and is to be hung up on,
 * and sees the first answer come. */
static int ask(const union gs_wire_message *message, bool leaves)
{
    int fd = side_connect_by_hand(dir, ipc_handle);
    struct pollfd answer = {.fd = fd, .events = POLLIN};
    union gs_wire_message bye;

    fcntl(fd, F_SETFL, O_NONBLOCK);
    for (int i = 0; i < (leaves ? 1 : ASKED); i++)
        gs_wire_send(fd, message, -1);
    if (leaves) {
        gs_wire_start(&bye, GS_WIRE_BYE, 0);
        gs_wire_send(fd, &bye, -1);
        send(fd, "no message", 10, MSG_NOSIGNAL);
    }
    cr_assert_eq(poll(&answer, 1, 20000), 1);
    return fd;
}

static unsigned exporter_fds(void)
{
    unsigned count = 0;

    cr_assert_eq(sscanf(other_ask(&exporter, "fds"), "ok %u", &count), 1);
    return count;
}

/* Who has had it open needs no descriptor. */
static void assert_opens(struct other *who)
{
    unsigned long address;

    cr_assert_eq(other_open(who, ipc_handle, &address), GS_OK, "an honest open was refused");
    other_ask(who, "close %lx", address);
}

/* Whether the next answer came with a descriptor, which is read now. */
static bool was_granted(int fd)
{
    union gs_wire_message message;
    int came = -1;
    bool granted = gs_wire_receive(fd, &message, &came) == 0 && message.head.type == GS_WIRE_GRANT;

    if (came >= 0)
        close(came);
    return granted;
}

Test(share_hostile_unread, memory_of_many_connections)
{
    union gs_wire_message message;

    gs_wire_start(&message, GS_WIRE_OPEN, 1);
    memcpy(message.open.ipc_handle, ipc_handle, GS_IPC_HANDLE_SIZE);
    message.open.want_fd = 1;
    for (int i = 0; i < 32; i++)
        fds[i] = ask(&message, false);
    assert_opens(&importer);
    cr_assert(was_granted(fds[0]));
    cr_assert_not(was_granted(fds[0]), "a second one came before that was read");
    hang_up();
}

/* What lies unread in a connection that was hung up on stays under way: of such there are a
 * sixteenth of the limit, and then no more are sent. */
Test(share_hostile_unread, memory_of_connections_that_came_and_went)
{
    union gs_wire_message message;
    unsigned before, granted = 0;

    assert_opens(&importer);
    before = exporter_fds();
    gs_wire_start(&message, GS_WIRE_OPEN, 1);
    memcpy(message.open.ipc_handle, ipc_handle, GS_IPC_HANDLE_SIZE);
    message.open.want_fd = 1;
    for (int i = 0; i < LEFT; i++)
        fds[i] = ask(&message, true);
    assert_opens(&next);
    for (int i = 0; i < LEFT; i++)
        granted += was_granted(fds[i]);
    cr_assert_eq(granted, LIMIT / 16);
    hang_up();
    cr_assert(SIDE_WAIT(exporter_fds() <= before + 2), "%u, %u before", exporter_fds(), before);
    assert_opens(&importer);
}
