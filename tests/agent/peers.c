/* What an agent keeps of other machines (shim/agent/peers.c), and what it says of them (say.c). */
#include "shim/agent/agent.h"

#include <criterion/criterion.h>
#include <sys/eventfd.h>

#include "failing.h"
#include "tests/folder.h"
#include "tests/system.h"

TestSuite(agent_peers, .timeout = 60);

static unsigned lines;
static char last[600];
static int level = GS_LOG_INFO;
static struct gs_share_options share;

static void on_line(enum gs_log_level of, const void *place, const char *text)
{
    lines++;
    snprintf(last, sizeof last, "%s", text);
}

static struct agent agent = {.broker = {.fd = -1},
                             .share = &share,
                             .log.to = {.line = on_line, .level = &level}};

static void set_up(void)
{
    char reason[LEASES_REASON];
    int folder = open(folder_new("peers"), O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    cr_assert(folder >= 0 && leases_open(&agent.leases, folder, agent.boot, reason), "%s", reason);
}

static void start_jobs(void)
{
    static struct directory_options directory = {.prefix = "p/", .owner = "me", .lease_s = 60};
    static char place[300];
    char reason[DIRECTORY_REASON];

    snprintf(place, sizeof place, "folder:%s", folder_new("directory"));
    directory.place = place;
    agent.jobs = jobs_start(&directory, eventfd(0, EFD_CLOEXEC), reason);
    cr_assert_not_null(agent.jobs, "%s", reason);
}

/* What the directory has of a machine. */
static void find_machine(const char *id, unsigned boot)
{
    const struct known_agent known = {.version = TALK_VERSION,
                                      .port = 1,
                                      .name = "m",
                                      .address = "127.0.0.1",
                                      .fingerprint = {7},
                                      .boot = {(unsigned char)boot}};
    struct jobs_event event = {.found = DIRECTORY_FOUND};

    cr_assert(gs_text_unhex(id, event.key.id, sizeof event.key.id));
    memcpy(event.value, &known, sizeof known);
    event.size = sizeof known;
    peers_got(&agent, &event);
}

/* Leases of these two are this machine's own, and those of which nobody knows whose they are: one
 * that said that it is one of them could end all of them. */
Test(agent_peers, no_machine_of_the_directory_is_nobody_or_unknown)
{
    set_up();
    find_machine("00000000000000000000000000000000", 8);
    find_machine("ffffffffffffffffffffffffffffffff", 8);
    find_machine("fffffffffffffffffffffffffffffffe", 8);
    cr_assert_eq(HASH_COUNT(agent.peers), 1);
    cr_assert_null(peers_find(&agent, agent_nobody, false));
    cr_assert_null(peers_find(&agent, agent_unknown, false));
}

/* It is looked up each time that it is not reached. */
Test(agent_peers, who_is_not_reached_is_called_sooner_when_the_directory_has_something_new)
{
    struct peer *peer;

    set_up();
    find_machine("fffffffffffffffffffffffffffffff0", 8);
    peer = agent.peers;
    peer->retry_ns = 77;
    peer->wait_ns = 88 * GS_NS_PER_S;
    find_machine("fffffffffffffffffffffffffffffff0", 8);
    cr_assert(peer->retry_ns == 77 && peer->wait_ns == 88 * GS_NS_PER_S);
    peer->known.fingerprint[0]++; /* of another agent, which had ended */
    find_machine("fffffffffffffffffffffffffffffff0", 8);
    cr_assert(peer->retry_ns == 0 && peer->wait_ns < GS_NS_PER_S);
}

/* Who may write in the directory may write ever new machines there, and call as them: of those that
 * have gone nothing is kept, where nothing here is of them. */
Test(agent_peers, who_has_gone_is_forgotten)
{
    unsigned char machine[GS_MACHINE_SIZE];
    struct lease model = {.key.lease = 1};
    char id[HEX_SIZE(GS_MACHINE_SIZE)];

    set_up();
    start_jobs();
    for (unsigned i = 1; i < 100; i++) {
        snprintf(id, sizeof id, "%032x", i);
        find_machine(id, 8);
    }
    cr_assert_eq(HASH_COUNT(agent.peers), 99);
    cr_assert(gs_text_unhex("00000000000000000000000000000002", machine, sizeof machine));
    memcpy(model.key.machine, machine, sizeof machine);
    cr_assert(leases_add(&agent.leases, &model));
    agent.forget_ns = 10;
    peers_look(&agent, 9);
    cr_assert_eq(HASH_COUNT(agent.peers), 99, "not at once");
    peers_look(&agent, 10);
    cr_assert_eq(HASH_COUNT(agent.peers), 1, "%u", HASH_COUNT(agent.peers));
    cr_assert(peers_find(&agent, machine, false), "who has a lease is known");
    jobs_end(agent.jobs);
}

/* The caller's to free. */
static struct jobs_event *next_answer(void)
{
    struct jobs_event *event;

    while (!(event = jobs_take(agent.jobs)))
        gs_rest_ns(GS_NS_PER_MS);
    return event;
}

/* The next answer is about this. */
static void gets(const unsigned char machine[GS_MACHINE_SIZE])
{
    struct jobs_event *event = next_answer();

    cr_assert_eq(event->key.kind, DIRECTORY_AGENTS);
    cr_assert_eq(memcmp(event->key.id, machine, GS_MACHINE_SIZE), 0);
    free(event);
}

/* Until the directory has this of it. */
static void await(const unsigned char id[SEAL_ID], enum directory_found wanted)
{
    enum directory_found found = DIRECTORY_FAILED;

    while (found != wanted) {
        struct jobs_event *event;

        jobs_ask(agent.jobs, DIRECTORY_EXPORTS, id);
        event = next_answer();
        found = event->found;
        free(event);
        gs_rest_ns(GS_NS_PER_MS);
    }
}

/* Of the machine that has something here and does not call, and of no other, the directory is asked
 * now and then whether it was started anew. */
Test(agent_peers, who_has_something_here_and_does_not_call_is_looked_for)
{
    const unsigned char one[GS_MACHINE_SIZE] = {1}, another[GS_MACHINE_SIZE] = {2},
                        boot[GS_BOOT_BYTES] = {5}, nothing[GS_BOOT_BYTES] = {0};
    struct lease model = {.key = {.machine = {1}, .lease = 1}};
    struct link in = {.is_out = false};
    uint64_t now = 1;

    set_up();
    leases_note(&agent.leases, LEASES_BOOT, one, boot);
    cr_assert(leases_add(&agent.leases, &model));
    peers_start(&agent);
    start_jobs();
    peers_find(&agent, nothing, true); /* has nothing here */
    while (!jobs_is_good(agent.jobs))
        gs_rest_ns(GS_NS_PER_MS);
    peers_find(&agent, one, false)->in = &in;
    peers_look(&agent, now);
    jobs_ask(agent.jobs, DIRECTORY_AGENTS, another);
    gets(another); /* first, as nobody asks of who is linked */
    peers_find(&agent, one, false)->in = NULL;
    for (int i = 0; i < 3; i++, now += 5 * GS_NS_PER_S) {
        for (int again = 0; again < 3; again++)
            peers_look(&agent, now + again);
        gets(one);
        jobs_ask(agent.jobs, DIRECTORY_AGENTS, another);
        gets(another);
    }
    jobs_end(agent.jobs);
    find_machine("01000000000000000000000000000000", 8);
    cr_assert_null(agent.leases.all, "its boot is another");
}

Test(agent_peers, lines_about_one_are_bounded_and_what_is_left_out_is_counted)
{
    struct say one = {0}, another = {0};
    unsigned said;

    for (int i = 0; i < 100000; i++)
        say_line(&agent, &one, GS_LOG_WARNING, "it does it again: %d", i);
    said = lines;
    cr_assert(said >= 10 && said < 100, "%u", said);
    cr_assert_leq(one.due_ns, gs_now_ns() + 40 * GS_NS_PER_S, "20 at once, one in two seconds");
    say_line(&agent, &another, GS_LOG_WARNING, "another");
    cr_assert_eq(lines, said + 1, "others have their own");
    cr_assert_str_eq(last, "another");
    one.due_ns = 0; /* later */
    say_line(&agent, &one, GS_LOG_WARNING, "once more");
    cr_assert(strstr(last, "once more (9") && strstr(last, "lines of this kind were left out"),
              "%s", last);
    say_line(&agent, &one, GS_LOG_WARNING, "and again");
    cr_assert_str_eq(last, "and again");
}

static struct gs_ipc_handle handle_of(uint64_t number)
{
    return (struct gs_ipc_handle){.block_id = number, .chunk_id = 1, .size = 4096, .instance = {1}};
}

static void say_shared(bool held, uint64_t number)
{
    const struct gs_ipc_handle handle = handle_of(number);
    union gs_wire_message message;

    gs_wire_start(&message, GS_WIRE_SHARE, 0);
    gs_ipc_handle_write(&handle, message.share.ipc_handle);
    message.share.chunk_size = GS_PAGE_SIZE;
    message.share.held = held;
    exporter_share(&agent, &message.share);
}

/* How many leases are of nobody knows whom. */
static unsigned unknown(void)
{
    const struct lease_side *side = leases_side(&agent.leases, agent_unknown);

    return side ? side->owed : 0;
}

/* It goes back: what is to be said to the broker last. */
static bool is_let_go(uint64_t block_id)
{
    const struct unsent *said = agent.unsent ? agent.unsent->prev : NULL;

    return said && said->message.head.type == GS_WIRE_CLOSE &&
           said->message.close.block_id == block_id;
}

/* What the broker holds for machines, and neither a lease nor this agent's memory is of: where the
 * file of leases was lost nobody knows whose it is, however late its process says so, and people
 * say when it is over. */
Test(agent_peers, what_is_held_and_nobody_knows_for_whom_is_held_until_people_say_so)
{
    struct gs_wire_query forget = {.about = GS_ABOUT_MACHINE, .name = "unknown"};

    set_up();
    start_jobs();
    agent.broker.fd = 0; /* nothing is sent: it waits for the loop */
    say_shared(false, 1);
    say_shared(true, 2);
    say_shared(true, 2);
    cr_assert_eq(unknown(), 1, "one, which the file has");
    cr_assert_null(agent.unsent);
    told_ask(&agent, &forget);
    cr_assert_eq(unknown(), 0);
    jobs_end(agent.jobs);
}

/* A lease of a machine's that the broker was asked for. */
static struct lease *ask_for(unsigned char machine, uint64_t number, uint64_t block_id,
                             uint32_t request);
static void end_it(unsigned char machine, uint64_t number);

/* It had ended, and the broker before may not have heard so. That of the third was in the file, and
 * ends before its process comes to the broker; and another's has it still. */
Test(agent_peers, what_was_closed_while_there_was_no_broker_is_given_back_to_the_next)
{
    set_up();
    start_jobs();
    say_shared(false, 1);
    say_shared(true, 2);
    ask_for(1, 5, 3, 0);
    ask_for(1, 6, 4, 0);
    ask_for(2, 6, 4, 0);
    exporter_broker_gone(&agent);
    exporter_end_all(&agent, agent_unknown);
    end_it(1, 5);
    end_it(1, 6);
    agent.broker.fd = 0;
    for (uint64_t block = 1; block < 5; block++) {
        say_shared(true, block);
        cr_assert_eq(is_let_go(block), block < 4, "%d", (int)block);
        say_shared(true, block);
    }
    cr_assert_eq(unknown(), 0);
    end_it(2, 6);
    cr_assert(is_let_go(4));
    jobs_end(agent.jobs);
}

/* So many are known as a broker keeps; what is held of others stays. */
Test(agent_peers, what_brokers_did_not_share_is_forgotten_beyond_a_number)
{
    set_up();
    start_jobs();
    share.published_max = 1;
    say_shared(false, 1);
    for (int again = 0; again < 3; again++)
        exporter_broker_gone(&agent);
    cr_assert(agent.exports && !agent.exports_by_id);
    say_shared(true, 1);
    cr_assert_eq(unknown(), 0);
    exporter_broker_gone(&agent);
    share.published_max = 0;
    exporter_broker_gone(&agent);
    cr_assert_null(agent.exports);
    say_shared(true, 1);
    cr_assert_eq(unknown(), 1);
    jobs_end(agent.jobs);
}

/* What it shared goes from the directory with a broker, and is there again as the next one says
 * it. */
Test(agent_peers, what_a_broker_shared_goes_with_it)
{
    const struct gs_ipc_handle handle = handle_of(1);
    unsigned char id[SEAL_ID];

    set_up();
    start_jobs();
    seal_id(&handle, id);
    for (int again = 0; again < 2; again++) {
        say_shared(false, 1);
        await(id, DIRECTORY_FOUND);
        exporter_broker_gone(&agent);
        cr_assert_null(agent.exports_by_id);
        await(id, DIRECTORY_NONE);
    }
    jobs_end(agent.jobs);
}

/* Which a list of that file ends, if it does not name it. */
Test(agent_peers, what_is_taken_is_of_the_file_that_its_machine_has_then)
{
    const struct gs_ipc_handle handle = handle_of(1);
    struct peer peer = {.machine = {1}, .file = {9}, .has_listed = true};
    const struct lease *lease;
    union talk take;

    set_up();
    start_jobs();
    while (!jobs_is_good(agent.jobs))
        gs_rest_ns(GS_NS_PER_MS);
    agent.broker.fd = 0; /* nothing is sent: it waits for the loop */
    agent.is_synced = true;
    say_shared(false, 1);
    talk_start(&take, TALK_TAKE);
    take.take.lease = 5;
    seal_id(&handle, take.take.id);
    seal_proof(&handle, SEAL_IMPORTER, peer.machine, agent.machine, 5, take.take.proof);
    exporter_message(&agent, &peer, &take);
    lease = leases_find(&agent.leases, peer.machine, 5);
    cr_assert(lease && agent.unsent, "the broker is asked for it");
    cr_assert_eq(memcmp(lease->exporter, peer.file, sizeof peer.file), 0);
    jobs_end(agent.jobs);
}

/* What its file of leases may not have had stays: who has it there nobody can say. */
Test(agent_peers, what_a_list_does_not_name_ends_where_it_is_of_the_same_file)
{
    struct peer peer = {.machine = {1}, .file = {9}};
    struct lease model = {.key.machine = {1}};
    union talk said;

    set_up();
    for (model.key.lease = 8; model.key.lease < 11; model.key.lease++) {
        model.exporter[0] = (unsigned char)model.key.lease;
        cr_assert(leases_add(&agent.leases, &model));
    }
    talk_start(&said, TALK_HELLO);
    exporter_message(&agent, &peer, &said);
    talk_start(&said, TALK_KEPT);
    said.kept.lease = 10;
    exporter_message(&agent, &peer, &said);
    talk_start(&said, TALK_LISTED);
    exporter_message(&agent, &peer, &said);
    for (uint64_t lease = 8; lease < 11; lease++)
        cr_assert_eq(leases_find(&agent.leases, peer.machine, lease) == NULL, lease == 9, "%d",
                     (int)lease);
    cr_assert(strstr(last, "is here, with 1 of 3 leases"), "%s", last);
}

static struct lease *ask_for(unsigned char machine, uint64_t number, uint64_t block_id,
                             uint32_t request)
{
    struct lease model = {.key = {.machine = {machine}, .lease = number},
                          .block = {.instance = {1}, .block_id = block_id},
                          .request = request};
    struct lease *lease = leases_add(&agent.leases, &model);
    struct peer *peer = peers_find(&agent, model.key.machine, true);

    cr_assert(lease && peer);
    peer->has_listed = true;
    peer->takes += request != 0;
    if (request)
        HASH_ADD(by_request, agent.takes, request, sizeof request, lease);
    return lease;
}

static void end_it(unsigned char machine, uint64_t number)
{
    const unsigned char id[GS_MACHINE_SIZE] = {machine};
    union talk ended;

    talk_start(&ended, TALK_ENDED);
    ended.ended.lease = number;
    exporter_message(&agent, peers_find(&agent, id, false), &ended);
}

/* What the broker holds for a machine, and how much of it is freed. What it has not answered, and a
 * machine that has nothing, are no rows. */
Test(agent_peers, people_are_told_what_each_machine_has)
{
    struct gs_wire_query query = {.about = GS_ABOUT_MACHINE};
    const unsigned char one[GS_MACHINE_SIZE] = {1}, three[GS_MACHINE_SIZE] = {3};
    const uint64_t begun = gs_now_ns();
    const struct gs_wire_machine *told;

    set_up();
    start_jobs();
    agent.broker.fd = 0; /* nothing is sent: it waits for the loop */
    for (uint64_t block = 1; block < 4; block++)
        say_shared(false, block);
    ask_for(1, 5, 1, 0)->since_ns = begun;
    ask_for(1, 6, 2, 0)->since_ns = begun + 1;
    leases_find(&agent.leases, one, 6)->recalled = true;
    ask_for(1, 7, 3, 9);
    cr_assert(peers_find(&agent, three, true));
    for (; query.index < 3; query.index++)
        told_ask(&agent, &query);
    told = &agent.unsent->message.report.machine;
    cr_assert_eq(told->machines, 1);
    cr_assert_eq(memcmp(told->machine, one, sizeof one), 0);
    cr_assert(told->leases == 2 && told->bytes == 2 * 4096, "%llu, %llu bytes",
              (unsigned long long)told->leases, (unsigned long long)told->bytes);
    cr_assert(told->limbo == 1 && told->limbo_bytes == 4096, "%llu, %llu bytes",
              (unsigned long long)told->limbo, (unsigned long long)told->limbo_bytes);
    cr_assert(told->age_ns > 0 && told->age_ns <= gs_now_ns() - begun, "%llu",
              (unsigned long long)told->age_ns);
    told = &agent.unsent->next->message.report.machine;
    cr_assert(told->machines == 1 && !told->leases && !told->bytes, "there is no second one");
    jobs_end(agent.jobs);
}

/* The broker refuses one machine, and while it was asked another one, which had the block, has
 * given it back. */
Test(agent_peers, what_ended_while_another_was_refused_is_given_back)
{
    union gs_wire_message refusal;

    set_up();
    agent.broker.fd = 0; /* nothing is sent: it waits for the loop */
    ask_for(1, 5, 7, 0);
    ask_for(2, 5, 7, 3);
    end_it(1, 5);
    cr_assert_null(agent.unsent, "it is asked for");
    gs_wire_start(&refusal, GS_WIRE_REFUSE, 3);
    exporter_answer(&agent, &refusal);
    cr_assert(agent.unsent && agent.unsent->message.head.type == GS_WIRE_CLOSE);
    cr_assert_eq(agent.unsent->message.close.block_id, 7);
    cr_assert(!agent.leases.all && !agent.takes);
}

static void answers(enum gs_wire_type type, uint32_t request, uint32_t reason)
{
    union gs_wire_message message;

    gs_wire_start(&message, type, request);
    if (reason)
        message.refuse.reason = reason;
    exporter_answer(&agent, &message);
}

/* Which of its leases are there, as bits, and which of them the broker has not answered. */
static unsigned there(bool asked)
{
    const unsigned char one[GS_MACHINE_SIZE] = {1};
    unsigned bits = 0;

    for (unsigned i = 1; i <= 5; i++) {
        const struct lease *lease = leases_find(&agent.leases, one, i);

        bits |= (lease && (!asked || lease->request)) << i;
    }
    return bits;
}

/* One answer is of all that was asked of the block by then, and of no more; a refusal is of one
 * user, unless the block is going. What its machine does not want any more ends with the answer. */
Test(agent_peers, an_answer_is_of_all_that_was_asked_of_the_block_before_it)
{
    set_up();
    start_jobs();
    agent.broker.fd = 0;
    say_shared(false, 7);
    for (uint32_t i = 1; i <= 5; i++)
        ask_for(1, i, i == 4 ? 8 : 7, i);
    end_it(1, 2);
    cr_assert_eq(there(true), 0x3e, "what is asked for is answered first");
    answers(GS_WIRE_REFUSE, 3, GS_REFUSED_USER);
    cr_assert(there(false) == 0x36 && there(true) == 0x36, "%x, %x", there(false), there(true));
    answers(GS_WIRE_GRANT, 2, 0);
    cr_assert(there(false) == 0x32 && there(true) == 0x30, "%x, %x", there(false), there(true));
    answers(GS_WIRE_REFUSE, 5, GS_REFUSED_ENDING);
    cr_assert(there(false) == 0x12 && there(true) == 0x10, "%x, %x", there(false), there(true));
    answers(GS_WIRE_REFUSE, 5, GS_REFUSED_ENDING);
    cr_assert_null(agent.unsent, "one is given");
    end_it(1, 1);
    cr_assert(agent.unsent && agent.unsent->message.close.block_id == 7 && !agent.unsent->next);
    jobs_end(agent.jobs);
}

/* A broker has ended here, and what it had was recalled; its successor has the block too. */
Test(agent_peers, what_another_broker_opened_since_is_recalled_too)
{
    struct peer peer = {.machine = {1}};
    struct lease model = {.exporter = {1}, .block.block_id = 7};
    union talk recall;

    set_up();
    agent.broker.fd = 0; /* nothing is sent: it waits for the loop */
    talk_start(&recall, TALK_RECALL);
    recall.recall.block_id = 7;
    importer_message(&agent, &peer, &recall);
    cr_assert_null(agent.unsent, "nobody has it");
    for (model.key.lease = 1; model.key.lease < 3; model.key.lease++) {
        cr_assert(leases_add(&agent.leases, &model));
        for (int i = 0; i < 2; i++)
            importer_message(&agent, &peer, &recall);
        cr_assert_eq(agent.unsent_count, model.key.lease, "once for each");
    }
    cr_assert(agent.unsent->next->message.head.type == GS_WIRE_RECALL &&
              agent.unsent->next->message.recall.block_id == 7);
}

/* A broker that is there; whether it was hung up on since, so that it tells all anew. */
static int broker_end;

static void join(void)
{
    int ends[2];

    cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    agent.broker.fd = ends[0];
    broker_end = ends[1];
}

static bool is_hung_up_on(void)
{
    char byte;

    return recv(broker_end, &byte, 1, 0) == 0;
}

static bool wants_all(void)
{
    return jobs_news(agent.jobs, agent.trouble) & JOBS_WANT_ALL;
}

/* What is not kept, as no memory is left, is said again, or written. */
Test(agent_peers, what_no_memory_is_left_for_is_asked_for_again)
{
    const struct gs_wire_hello holds = {.holder = 7, .holds = 1};
    int nobody = -1;
    unsigned at;

    set_up();
    start_jobs();
    while (!wants_all()) /* once, with its lease */
        gs_rest_ns(GS_NS_PER_MS);
    join();
    say_shared(true, 1);
    cr_assert(!is_hung_up_on() && !wants_all());
    fails_at = 2; /* the write of the directory's, behind the record of it */
    say_shared(false, 2);
    cr_assert_eq(fails_at, 0);
    cr_assert(wants_all() && !wants_all() && !is_hung_up_on());
    fails_at = 1;
    say_shared(false, 3);
    cr_assert_eq(HASH_COUNT(agent.exports), 2);
    cr_assert(is_hung_up_on());
    join();
    fails_at = 1;
    say_shared(true, 4);
    cr_assert_eq(unknown(), 1, "the first one");
    cr_assert(is_hung_up_on());
    join();
    say_shared(true, 4);
    cr_assert_eq(unknown(), 2, "nor is it taken for one of nobody");
    for (fails_at = 1; fails_at < 3; fails_at = at + 1) { /* the holder, and in the file */
        at = fails_at;
        join();
        holders_note(&agent, &holds, &nobody);
        cr_assert(!agent.holders && is_hung_up_on(), "%u", at);
    }
    jobs_end(agent.jobs);
}

/* The directory's keys and values are written by others. */
Test(agent_peers, digits_are_as_many_as_there_are_bytes_and_nothing_else)
{
    unsigned char bytes[3] = {9, 9, 9};
    const struct directory_key key = {.kind = DIRECTORY_AGENTS, .id = {0, 1, 254, [15] = 16}};
    char name[DIRECTORY_NAME];

    cr_assert(gs_text_unhex("0aff", bytes, 2));
    cr_assert(bytes[0] == 10 && bytes[1] == 255 && bytes[2] == 9);
    for (const char **text =
             (const char *[]){"", "0af", "0aff0", "0aff00", "0aFF", "0afg", " 0af", "0x0a", NULL};
         *text; text++)
        cr_assert(!gs_text_unhex(*text, bytes, 2), "'%s'", *text);
    directory_name(&key, "p/", '.', name);
    cr_assert_str_eq(name, "p/agents.0001fe00000000000000000000000010");
}
