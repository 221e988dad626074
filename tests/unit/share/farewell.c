/* Last figures of processes that have ended, as a broker keeps them: how many, how long, whose, and
 * who is told. The program is linked with a clock of its own. */
#include <criterion/criterion.h>
#include <string.h>
#include <unistd.h>

#include "core/share/exporter.h"
#include "leave_by_hand.h"

#define HOUR_NS (3600 * GS_NS_PER_S)
#define FIRST   50001 /* users that are not this one */

static struct gs_share share;
static uint64_t clock_ns, next_id;

uint64_t __wrap_gs_now_ns(void);
uint64_t __wrap_gs_now_ns(void)
{
    return clock_ns;
}

static void setup(void)
{
    share = (struct gs_share){.options = {.is_broker = true, .listen_fd = 0, .uid_count = 1}};
    share.options.uids[0] = FIRST;
    clock_ns = 5 * HOUR_NS;
}

static void put_users_away(void)
{
    gs_farewells_free(&share);
    cr_assert_null(share.clients.users, "nothing of a user is left");
}

TestSuite(share_farewell, .init = setup, .fini = put_users_away, .timeout = 60);

static struct gs_client visitor(uid_t uid, gid_t gid)
{
    struct gs_client client = {.id = ++next_id, .fd = -1, .uid = uid, .gid = gid, .is_seen = true};

    client.user = gs_user_of(&share, uid);
    client.user->clients++;
    client.greeted = true;
    client.pid = (pid_t)(1000 + next_id);
    strcpy(client.said.name, "program");
    return client;
}

/* One that has said whom it shares with. */
static struct gs_client process(uid_t uid, uid_t listed_uid, gid_t listed_gid)
{
    struct gs_client client = visitor(uid, 7);
    union gs_wire_message message;
    int memory = leave_memory();

    gs_wire_start(&message, GS_WIRE_PUBLISH, 0);
    message.publish.uid_count = message.publish.gid_count = 1;
    message.publish.uids[0] = listed_uid;
    message.publish.gids[0] = listed_gid;
    cr_assert(gs_publisher_on_publish(&share, &client, &message.publish, &memory));
    return client;
}

static void leave(struct gs_client *client)
{
    gs_farewell_client_gone(&share, client);
    gs_publisher_unref(&share, client->publisher);
    client->user->clients--;
    gs_user_reap(&share, client->user);
}

static bool say(struct gs_client *client, uint32_t device, uint64_t hits)
{
    union gs_wire_message message;

    gs_wire_start(&message, GS_WIRE_FAREWELL, 0);
    message.farewell.device = device;
    message.farewell.figures.hits = hits;
    return gs_farewell_came(&share, client, &message.farewell);
}

/* A process of the user's begins, ends with so many hits, and its pid is told. */
static pid_t ends(uid_t uid, uint64_t hits)
{
    struct gs_client client = process(uid, uid, 9999);

    cr_assert(say(&client, 0, hits));
    leave(&client);
    return client.pid;
}

static struct gs_wire_report ask(uint32_t number, uint32_t device)
{
    const struct gs_wire_query query = {.index = number, .device = device, .about = GS_ABOUT_ENDED};
    struct gs_wire_report report = {.farewell = 0};

    gs_farewell_tell(&share, &query, &report);
    return report;
}

/* How many are told of; of the last one the number of hits. */
static unsigned told(uint64_t *ret_last)
{
    struct gs_wire_report report = ask(0, 0);
    unsigned count = 0;

    for (; report.farewell; report = ask(report.farewell + 1, 0)) {
        count++;
        *ret_last = report.figures.hits;
    }
    return count;
}

Test(share_farewell, those_of_the_last_64_are_kept)
{
    struct gs_wire_report report;
    pid_t pids[70];
    uint64_t last;

    for (unsigned i = 0; i < 70; i++)
        pids[i] = ends(geteuid(), 100 + i);
    cr_assert_eq(told(&last), 64);
    cr_assert_eq(last, 169);
    report = ask(0, 0);
    for (unsigned i = 6; i < 70; i++, report = ask(report.farewell + 1, 0)) {
        cr_assert_eq(report.figures.hits, 100 + i);
        cr_assert_eq(report.client_pid, (uint64_t)pids[i]);
        cr_assert_eq(report.client_seen, 1);
        cr_assert_str_eq(report.client_name, "program");
    }
}

Test(share_farewell, each_is_kept_for_an_hour_and_its_age_is_told)
{
    uint64_t last;

    cr_assert_eq(gs_farewells_tick(&share, clock_ns), GS_NEVER);
    ends(geteuid(), 1);
    clock_ns += HOUR_NS / 2;
    ends(geteuid(), 2);
    cr_assert_eq(gs_farewells_tick(&share, clock_ns), clock_ns + HOUR_NS / 2);
    cr_assert_eq(ask(0, 0).client_age_ns, HOUR_NS / 2);
    clock_ns += HOUR_NS / 2 - 1;
    cr_assert_eq(told(&last), 2);
    clock_ns++;
    cr_assert_eq(told(&last), 1, "also where nobody has come to drop it");
    cr_assert_eq(last, 2);
    cr_assert_eq(gs_farewells_tick(&share, clock_ns), clock_ns + HOUR_NS / 2);
    cr_assert_eq(gs_farewells_tick(&share, clock_ns + HOUR_NS / 2), GS_NEVER);
    cr_assert_null(share.store.farewells);
}

Test(share_farewell, a_process_is_told_of_when_it_has_ended)
{
    struct gs_client client = process(geteuid(), FIRST, 9999);
    uint64_t last;

    cr_assert(say(&client, 0, 3));
    clock_ns += GS_NS_PER_S;
    cr_assert_eq(told(&last), 0);
    leave(&client);
    cr_assert_eq(told(&last), 1);
    cr_assert_eq(ask(0, 0).client_age_ns, 0);
}

/* Who would not be told of them pushes nobody's out. */
Test(share_farewell, those_of_other_users_are_not_kept)
{
    uint64_t last;

    ends(geteuid(), 1);
    for (unsigned i = 0; i < 300; i++)
        ends(FIRST, i);
    cr_assert_eq(told(&last), 1);
    cr_assert_eq(last, 1);
}

Test(share_farewell, what_makes_no_sense_is_refused_and_not_kept)
{
    struct gs_client stranger = visitor(geteuid(), 7), client = process(geteuid(), FIRST, 9999);
    union gs_wire_message message;
    uint64_t last;

    cr_assert_not(say(&stranger, 0, 1), "one that did not say whom it shares with");
    cr_assert_str_eq(stranger.fault, "it takes this process for a broker");
    cr_assert_not(say(&client, GS_FAREWELL_DEVICES, 1));
    cr_assert_not(say(&client, UINT32_MAX, 1));
    gs_wire_start(&message, GS_WIRE_FAREWELL, 0);
    message.farewell.zero = 1;
    cr_assert_not(gs_farewell_came(&share, &client, &message.farewell));
    cr_assert_str_eq(client.fault, "its message has fields that make no sense");
    share.options.is_broker = false;
    cr_assert_not(say(&client, 0, 1), "and who is no broker keeps nothing");
    leave(&stranger);
    leave(&client);
    cr_assert_eq(told(&last), 0);
}
