/*
 * Memory of other machines, as brokers, processes that share and importers have it, between two
 * brokers and two agents that the test plays: what is open on another machine is never used again,
 * whoever ends; and it is, as soon as that machine has given it back.
 */
#include <criterion/criterion.h>

#include "cluster_scene.h"
#include "tests/children.h"
#include "tests/system.h"

TestSuite(share_cluster, .init = cluster_setup, .fini = cluster_teardown, .timeout = 120);

/* What a broker tells its new agent first. */
static int hello_of(const char *at, union gs_wire_message *ret_hello)
{
    int agent = agent_dial(at);

    agent_hears(agent, GS_WIRE_HELLO, ret_hello);
    cr_assert_eq(ret_hello->hello.agent, 1);
    return agent;
}

/* The far process's block, of which the far agent was told. */
static int shared(unsigned char *ret_ipc_handle, union gs_wire_message *ret_shared)
{
    int agent;

    other_export(&other, 0, 512, 71, ret_ipc_handle);
    cr_assert(SIDE_WAIT(side_broker_pid(far_dir) && side_broker_published(far_dir) == 1));
    agent = hello_of(far_dir, ret_shared);
    agent_hears(agent, GS_WIRE_SHARE, ret_shared);
    cr_assert_not(ret_shared->share.held);
    return agent;
}

static int near_agent(void)
{
    union gs_wire_message message;

    return hello_of(dir, &message);
}

static void free_it(void)
{
    cr_assert_str_eq(other_ask(&other, "freed"), "ok");
}

/* ---- Lending --------------------------------------------------------------------------------- */

Test(share_cluster, what_the_agent_has_is_not_used_again_until_it_gives_it_back)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    union gs_wire_message message, told;
    int agent = shared(ipc_handle, &told);
    unsigned long long held_ns;
    uint64_t freed;

    for (uint32_t i = 1; i < 3; i++) { /* for two machines, say */
        cr_assert_eq(take(agent, ipc_handle, i, &message), GS_WIRE_GRANT);
        cr_assert(message.grant.far == 1 && message.grant.chunk_size == 2 * MIB);
        cr_assert_eq(memcmp(message.grant.fabric, told.share.fabric, GS_FABRIC_SIZE), 0);
    }
    cr_assert_str_eq(other_ask(&other, "held"), "ok 0 0 of  0", "%s", other.answer);
    freed = side_now();
    free_it();
    agent_hears(agent, GS_WIRE_RECALL, &message);
    cr_assert_eq(sscanf(other_ask(&other, "held"), "ok 1 512 of other machines %llu", &held_ns), 1,
                 "%s", other.answer);
    cr_assert(held_ns > 0 && held_ns < side_now() - freed, "%llu ns", held_ns);
    cr_assert_eq(take(agent, ipc_handle, 3, &message), GS_WIRE_GRANT);
    agent_hears(agent, GS_WIRE_RECALL, &message); /* of which a third machine has not heard */
    cr_assert(agent_hears_nothing(agent));
    cr_assert_not(other_withdraws(&other));
    say_of(agent, GS_WIRE_CLOSE, ipc_handle);
    cr_assert(SIDE_WAIT(other_withdraws(&other)));
    agent_hears(agent, GS_WIRE_CLOSE, &message);
    close(agent);
}

Test(share_cluster, a_changed_handle_and_another_user_are_refused)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE], changed[GS_IPC_HANDLE_SIZE];
    struct gs_ipc_handle read;
    union gs_wire_message message;
    int agent = shared(ipc_handle, &message);

    gs_ipc_handle_read(ipc_handle, &read);
    read.secret[3] ^= 1;
    gs_ipc_handle_write(&read, changed);
    cr_assert_eq(take(agent, changed, 11, &message), GS_WIRE_REFUSE);
    cr_assert_eq(message.refuse.reason, GS_REFUSED_HANDLE);
    message = message_open(ipc_handle, 5, GS_OPEN_HAS_IT);
    message.open.uid = getuid() + 1;
    message.open.gid = getgid() + 1;
    agent_say(agent, message);
    agent_hears(agent, GS_WIRE_REFUSE, &message);
    cr_assert_eq(message.refuse.reason, GS_REFUSED_USER);
    free_it();
    cr_assert(SIDE_WAIT(other_withdraws(&other)), "nothing is held");
    close(agent);
}

Test(share_cluster, a_stopped_process_keeps_an_open_waiting_and_the_agent_may_give_it_up)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    union gs_wire_message message;
    int agent = shared(ipc_handle, &message);

    halt(other.pid);
    take_say(agent, ipc_handle, 11);
    cr_assert(agent_hears_nothing(agent));
    say_of(agent, GS_WIRE_CLOSE, ipc_handle);
    agent_hears(agent, GS_WIRE_REFUSE, &message);
    cr_assert_eq(message.head.request, 11);
    kill(other.pid, SIGCONT);
    cr_assert_eq(take(agent, ipc_handle, 12, &message), GS_WIRE_GRANT);
    say_of(agent, GS_WIRE_CLOSE, ipc_handle);
    free_it();
    cr_assert(SIDE_WAIT(other_withdraws(&other)));
    close(agent);
}

/* Of another block its process is asked behind that: when it has answered that, it has this. */
Test(share_cluster, what_the_agent_gave_up_while_its_process_was_asked_is_not_held)
{
    unsigned char another[GS_IPC_HANDLE_SIZE], ipc_handle[GS_IPC_HANDLE_SIZE];
    union gs_wire_message message;
    int agent = shared(another, &message);

    other_export(&other, 1024, 512, 72, ipc_handle);
    agent_hears(agent, GS_WIRE_SHARE, &message);
    halt(other.pid);
    take_say(agent, ipc_handle, 11);
    say_of(agent, GS_WIRE_CLOSE, ipc_handle);
    agent_hears(agent, GS_WIRE_REFUSE, &message);
    take_say(agent, another, 12);
    kill(other.pid, SIGCONT);
    agent_hears(agent, GS_WIRE_GRANT, &message);
    cr_assert_eq(message.head.request, 12);
    say_of(agent, GS_WIRE_CLOSE, another);
    free_it();
    cr_assert(SIDE_WAIT(other_withdraws(&other)));
    close(agent);
}

/* ---- Ends that are none ---------------------------------------------------------------------- */

Test(share_cluster, people_ask_the_agent_by_the_broker)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    union gs_wire_message message;
    int agent = shared(ipc_handle, &message), asks = ask_at(far_dir, "rack2");
    uint64_t client;

    agent_hears(agent, GS_WIRE_QUERY, &message);
    cr_assert_str_eq(message.query.name, "rack2");
    client = message.query.number;
    for (int i = 0; i < 2; i++) {
        message = MESSAGE(REPORT, 3, .report = {.machine = {.leases = 5 + i}});
        message.report.machine.client = i ? client : UINT64_MAX; /* whom there is not */
        agent_say(agent, message);
    }
    agent_hears(asks, GS_WIRE_REPORT, &message);
    cr_assert(message.report.machine.leases == 6 && message.report.machine.has_agent == 1 &&
              message.report.machine.shared == 1);
    close(asks);
    close(agent);
    cr_assert(SIDE_WAIT(!told_at(far_dir).has_agent));
    cr_assert_eq(told_at(far_dir).shared, 1);
    asks = ask_at(far_dir, "rack2");
    agent_hears(asks, GS_WIRE_REFUSE, &message);
    cr_assert_eq(message.refuse.reason, GS_REFUSED_ALONE);
    close(asks);
}

/* ---- Borrowing ------------------------------------------------------------------------------- */

/* ---- Refusals -------------------------------------------------------------------------------- */

Test(share_cluster, without_an_agent_an_open_fails_and_says_why)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    CUdeviceptr address;

    other_export(&other, 0, 512, 71, ipc_handle);
    cr_assert_eq(open_it(ipc_handle, &address), GS_UNREACHABLE);
    cr_assert_not_null(strstr(side_logged(), "no gpushim-agent"), "%s", side_logged());
}

/* A connection to the near broker that asks it for the block. */
static int ask_to_open(const unsigned char *ipc_handle)
{
    union gs_wire_message message = message_open(ipc_handle, 1, GS_OPEN_HAS_IT);
    int importer = greet_broker(ipc_handle + offsetof(struct gs_ipc_handle, instance), -1);

    message.open.cluster = 1;
    agent_say(importer, message);
    return importer;
}

Test(share_cluster, an_agents_refusal_and_its_end_reach_who_waits)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    union gs_wire_message message;
    int near = near_agent(), importer;
    struct opening opening;

    other_export(&other, 0, 512, 71, ipc_handle);
    open_begin(&opening, ipc_handle);
    agent_awaits(near, GS_WIRE_OPEN, &message);
    agent_say(near,
              MESSAGE(REFUSE, message.head.request, .refuse = {.reason = GS_REFUSED_DIRECTORY}));
    cr_assert_eq(open_end(&opening), GS_UNREACHABLE);
    cr_assert_not_null(strstr(side_logged(), "cannot use its directory"), "%s", side_logged());
    importer = ask_to_open(ipc_handle);
    agent_awaits(near, GS_WIRE_OPEN, &message);
    close(near);
    agent_hears(importer, GS_WIRE_REFUSE, &message);
    cr_assert_eq(message.refuse.reason, GS_REFUSED_ALONE);
    close(importer);
}

static void grant(int near, const union gs_wire_message *question)
{
    agent_say(near,
              MESSAGE(GRANT, question->head.request, .grant = {.chunk_size = 2 * MIB, .far = 1}));
}

/* What it held would be let go where its broker ended before the next agent has heard of it. */
Test(share_cluster, what_is_here_goes_to_nobody_of_whom_the_agent_does_not_hear)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    union gs_wire_message message;
    int near = near_agent(), first, second;

    other_export(&other, 0, 512, 71, ipc_handle);
    first = ask_to_open(ipc_handle);
    agent_awaits(near, GS_WIRE_OPEN, &message);
    grant(near, &message);
    agent_hears(first, GS_WIRE_GRANT, &message);
    close(near);
    cr_assert(SIDE_WAIT(!told_at(dir).has_agent));
    second = ask_to_open(ipc_handle);
    agent_hears(second, GS_WIRE_REFUSE, &message);
    cr_assert_eq(message.refuse.reason, GS_REFUSED_ALONE);
    message = message_open(ipc_handle, 2, GS_OPEN_HAS_IT);
    message.open.cluster = 1;
    for (int again = 0; again < 2; again++) {
        agent_say(first, message);
        agent_hears(first, GS_WIRE_GRANT, &(union gs_wire_message){0});
    }
    near = agent_dial(dir);
    agent_awaits(near, GS_WIRE_RESUME, &(union gs_wire_message){0});
    agent_hears(near, GS_WIRE_HELLO, &(union gs_wire_message){0});
    agent_say(second, message);
    agent_hears(second, GS_WIRE_GRANT, &message);
    agent_hears(near, GS_WIRE_HELLO, &message);
    cr_assert_eq(message.hello.holds, 1);
    close(first);
    close(second);
    close(near);
}

/* As soon as the socket has room. */
static void say_late(int fd, union gs_wire_message message)
{
    while (say_with(fd, message, -1) != 0)
        cr_assert_eq(poll(&(struct pollfd){.fd = fd, .events = POLLOUT}, 1, SIDE_PATIENCE_MS), 1);
}

/* What it is to be told waits for it to read. */
Test(share_cluster, what_is_here_goes_to_nobody_of_whom_the_agent_hears_late)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    union gs_wire_message message, open;
    int near = near_agent(), first, second;

    other_export(&other, 0, 512, 71, ipc_handle);
    open = message_open(ipc_handle, 2, GS_OPEN_HAS_IT);
    open.open.cluster = 1;
    first = ask_to_open(ipc_handle);
    agent_awaits(near, GS_WIRE_OPEN, &message);
    grant(near, &message);
    agent_hears(first, GS_WIRE_GRANT, &message);
    second = greet_broker(ipc_handle + offsetof(struct gs_ipc_handle, instance), -1);
    for (int i = 0; i < 2000; i++) { /* more than a socket takes */
        const union gs_wire_message query = MESSAGE(QUERY, 2, .query = {.about = GS_ABOUT_MACHINE});

        say_late(second, query);
    }
    say_late(second, open);
    agent_hears(second, GS_WIRE_REFUSE, &message);
    cr_assert_eq(message.refuse.reason, GS_REFUSED_EARLY);
    agent_say(first, open);
    agent_hears(first, GS_WIRE_GRANT, &message);
    for (int i = 0; i < 2000; i++)
        agent_awaits(near, GS_WIRE_QUERY, &message);
    agent_say(second, open);
    agent_hears(second, GS_WIRE_GRANT, &message);
    close(first);
    close(second);
    close(near);
}

Test(share_cluster, what_makes_no_sense_is_given_back)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    union gs_wire_message question, message;
    int near = near_agent();

    other_export(&other, 0, 512, 71, ipc_handle);
    for (int i = 0; i < 3; i++) {
        int importer = ask_to_open(ipc_handle);

        agent_awaits(near, GS_WIRE_OPEN, &question);
        agent_say(near, MESSAGE(GRANT, question.head.request,
                                .grant = {.chunk_size = i == 0 ? 4096 : 2 * MIB,
                                          .offset = i == 1 ? 2 * MIB : 0,
                                          .far = i != 2}));
        agent_hears(importer, GS_WIRE_REFUSE, &message);
        agent_awaits(near, GS_WIRE_CLOSE, &message);
        cr_assert_eq(message.close.lease, question.open.lease);
        close(importer);
    }
    close(near);
}

/* As long as one waits it need. */
Test(share_cluster, what_nobody_waits_for_any_more_the_agent_need_not_answer)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    union gs_wire_message question, message;
    int near = near_agent(), importers[2];

    other_export(&other, 0, 512, 71, ipc_handle);
    for (int i = 0; i < 2; i++)
        importers[i] = ask_to_open(ipc_handle);
    agent_awaits(near, GS_WIRE_OPEN, &question);
    /* Which comes behind the second one's: */
    agent_say(importers[1], MESSAGE(QUERY, 2, .query = {.about = GS_ABOUT_MACHINE}));
    agent_awaits(near, GS_WIRE_QUERY, &message);
    close(importers[0]);
    agent_hears(near, GS_WIRE_HELLO, &message);
    cr_assert_eq(message.hello.holds, 0);
    cr_assert(agent_hears_nothing(near));
    close(importers[1]);
    agent_awaits(near, GS_WIRE_CLOSE, &message);
    cr_assert_eq(message.close.lease, question.open.lease);
    agent_hears(near, GS_WIRE_HELLO, &message);
    cr_assert_eq(message.hello.holds, 0);
    /* Which has crossed that: */
    agent_say(near,
              MESSAGE(GRANT, question.head.request, .grant = {.chunk_size = 2 * MIB, .far = 1}));
    cr_assert(agent_hears_nothing(near));
    close(near);
    cr_assert(SIDE_WAIT(!told_at(dir).has_agent));
    cr_assert_eq(told_at(dir).opened, 0);
}

Test(share_cluster, a_second_agent_is_refused_and_an_agent_says_what_is_its_to_say)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    union gs_wire_message message;
    int agent = shared(ipc_handle, &message), second = agent_dial(far_dir);

    agent_hears(second, GS_WIRE_REFUSE, &message);
    cr_assert_eq(message.refuse.reason, GS_REFUSED_AGENT);
    cr_assert_eq(take(second, ipc_handle, 11, &message), GS_WIRE_REFUSE);
    agent_say(second, MESSAGE(REPORT, 12)); /* hung up on */
    agent_hears(second, GS_WIRE_REFUSE, &message);
    cr_assert_eq(message.refuse.reason, GS_REFUSED_MESSAGE);
    cr_assert_eq(take(agent, ipc_handle, 11, &message), GS_WIRE_GRANT);
    agent_say(agent, MESSAGE(HELLO, 13));
    agent_awaits(agent, GS_WIRE_REFUSE, &message);
    cr_assert_eq(message.refuse.reason, GS_REFUSED_MESSAGE);
    close(second);
    close(agent);
}

/* What is said to an agent it may not say itself; and nothing of that is believed. */
Test(share_cluster, an_agent_that_says_what_is_not_its_to_say_is_hung_up_on)
{
    static const enum gs_wire_type others[] = {GS_WIRE_HELLO,  GS_WIRE_SHARE,   GS_WIRE_RESUME,
                                               GS_WIRE_FLUSH,  GS_WIRE_FLUSHED, GS_WIRE_PUBLISH,
                                               GS_WIRE_BYE,    GS_WIRE_ORDER,   GS_WIRE_DONE,
                                               GS_WIRE_FORKED, GS_WIRE_NAME,    GS_WIRE_PULL,
                                               GS_WIRE_RING};
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    union gs_wire_message message;
    int agent = shared(ipc_handle, &message);

    for (unsigned i = 0; i < sizeof others / sizeof *others; i++) {
        message = message_of(others[i], 0, (union gs_wire_message){0});
        if (others[i] == GS_WIRE_SHARE)
            message = message_share(ipc_handle);
        agent_say(agent, message);
        cr_assert_eq(refusal_and_end(agent), GS_REFUSED_MESSAGE, "type %d", others[i]);
        close(agent);
        agent = agent_dial(far_dir);
        agent_awaits(agent, GS_WIRE_SHARE, &message);
        cr_assert(gs_bytes_equal(message.share.ipc_handle, ipc_handle, GS_IPC_HANDLE_SIZE));
    }
    cr_assert(agent_hears_nothing(agent), "more is shared");
    cr_assert_eq(take(agent, ipc_handle, 11, &message), GS_WIRE_GRANT);
    close(agent);
}

Test(share_cluster, an_importer_that_does_not_want_to_is_told_of_no_other_machine)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    int near = near_agent();
    struct other plain = {.pid = 0};
    unsigned long there;

    other_export(&other, 0, 512, 71, ipc_handle);
    other_start(&plain, dir, NULL);
    cr_assert_eq(other_open(&plain, ipc_handle, &there), GS_STALE);
    cr_assert(agent_hears_nothing(near));
    cr_assert_eq(other_stop(&plain), 0);
    close(near);
}
