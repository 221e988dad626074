/* What an agent keeps of other machines (shim/agent/peers.c), and what it says of them (say.c). */
#include "shim/agent/agent.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "tests/folder.h"

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

static struct agent agent = {.broker = {.fd = -1}, .share = &share, .log.to = {.line = on_line, .level = &level}};

static void set_up(void)
{
    char reason[LEASES_REASON];
    int folder = open(folder_new("peers"), O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    cr_assert(folder >= 0 && leases_open(&agent.leases, folder, agent.boot, reason), "%s", reason);
}

static void add_machine(struct jobs_event *event, const char *id)
{
    char value[300];
    struct jobs_listed *entry;
    const int size = snprintf(value, sizeof value,
                              "{\"name\":\"m\",\"address\":\"127.0.0.1\",\"port\":1,\"fingerprint\":\"%064x\","
                              "\"boot\":\"%032x\"}", 7, 8);

    entry = calloc(1, sizeof *entry + (size_t)size);
    snprintf(entry->key, sizeof entry->key, JOBS_AGENTS "%s", id);
    memcpy(entry->value, value, (size_t)size);
    entry->size = (size_t)size;
    entry->next = event->entries;
    event->entries = entry;
}

/* Machines numbered from `from` on, as the directory lists them. */
static void list(unsigned from, unsigned count, bool is_whole)
{
    struct jobs_event *event = calloc(1, sizeof *event);
    char id[HEX_SIZE(GS_MACHINE_SIZE)];

    event->is_whole = is_whole;
    for (unsigned i = from; i < from + count; i++) {
        snprintf(id, sizeof id, "%032x", i);
        add_machine(event, id);
    }
    peers_list(&agent, event);
    jobs_free(event);
}

/* Leases of these two are this machine's own, and those of which nobody knows whose they are: one that said that it is
 * one of them could end all of them. */
Test(agent_peers, no_machine_of_the_directory_is_nobody_or_unknown)
{
    struct jobs_event *event = calloc(1, sizeof *event);

    set_up();
    add_machine(event, "00000000000000000000000000000000");
    add_machine(event, "ffffffffffffffffffffffffffffffff");
    add_machine(event, "fffffffffffffffffffffffffffffffe");
    peers_list(&agent, event);
    jobs_free(event);
    cr_assert_eq(HASH_COUNT(agent.peers), 1);
    cr_assert_null(peers_find(&agent, agent_nobody, false));
    cr_assert_null(peers_find(&agent, agent_unknown, false));
}

/* Who may write in the directory may write ever new machines there: of those that have gone nothing is kept, where
 * nothing here is of them. */
Test(agent_peers, who_has_gone_is_forgotten)
{
    unsigned char machine[GS_MACHINE_SIZE];
    struct lease model = {.key.lease = 1};

    set_up();
    list(1, 3, true);
    cr_assert_eq(HASH_COUNT(agent.peers), 3);
    cr_assert(agent_unhex("00000000000000000000000000000002", machine, sizeof machine));
    memcpy(model.key.machine, machine, sizeof machine);
    cr_assert(leases_add(&agent.leases, &model));
    list(3, 1, false);
    cr_assert_eq(HASH_COUNT(agent.peers), 3, "that was not all that there is");
    for (unsigned i = 0; i < 100; i++)
        list(10 + 50 * i, 50, true);
    cr_assert_eq(HASH_COUNT(agent.peers), 51, "%u", HASH_COUNT(agent.peers));
    cr_assert(peers_find(&agent, machine, false), "who has a lease is known");
}

Test(agent_peers, lines_about_one_are_bounded_and_what_is_left_out_is_counted)
{
    struct say one = {0}, another = {0};
    unsigned said;

    for (int i = 0; i < 100000; i++)
        say_line(&agent, &one, GS_LOG_WARNING, "it does it again: %d", i);
    said = lines;
    cr_assert(said >= 10 && said < 100, "%u", said);
    say_line(&agent, &another, GS_LOG_WARNING, "another");
    cr_assert_eq(lines, said + 1, "others have their own");
    cr_assert_str_eq(last, "another");
    one.due_ns = 0; /* later */
    say_line(&agent, &one, GS_LOG_WARNING, "once more");
    cr_assert(strstr(last, "once more (9") && strstr(last, "lines of this kind were left out"), "%s", last);
    say_line(&agent, &one, GS_LOG_WARNING, "and again");
    cr_assert_str_eq(last, "and again");
}

static void say_shared(bool held, uint64_t number)
{
    struct gs_ipc_handle handle = {.block_id = number, .chunk_id = 1, .size = 4096, .instance = {1}};
    union gs_wire_message message;

    gs_wire_start(&message, GS_WIRE_SHARE, 0);
    gs_ipc_handle_write(&handle, message.share.ipc_handle);
    message.share.chunk_size = GS_PAGE_SIZE;
    message.share.held = held;
    exporter_share(&agent, &message.share);
}

/* What the broker holds for machines, and no lease is of: where the file of leases was lost nobody knows whose it
 * is, and people say when it is over. Of what was seen to be free, or is known by the file, it is over. */
Test(agent_peers, what_is_held_and_nobody_knows_for_whom_is_held_until_people_say_so)
{
    struct gs_wire_ask_afar forget = {.forget = "unknown"};
    struct directory_options directory = {.prefix = "p/", .owner = "me", .lease_s = 3};
    const struct lease_side *side;
    char reason[DIRECTORY_REASON], place[300];

    set_up();
    snprintf(place, sizeof place, "folder:%s", folder_new("directory"));
    directory.place = place;
    agent.jobs = jobs_start(&directory, agent.leases.folder, eventfd(0, EFD_CLOEXEC), reason);
    cr_assert_not_null(agent.jobs, "%s", reason);
    for (int known = 0; known < 2; known++) {
        agent.leases.known = known;
        say_shared(false, 1);
        say_shared(true, 1);
        cr_assert_null(leases_side(&agent.leases, agent_unknown), "it was not held before");
        say_shared(true, 2 + known);
        say_shared(true, 2 + known);
        side = leases_side(&agent.leases, agent_unknown);
        cr_assert_eq(side ? side->owed : 0, !known, "one of each, which the file has: %d", known);
        told_ask(&agent, &forget);
        cr_assert_null(leases_side(&agent.leases, agent_unknown));
    }
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
        cr_assert_eq(leases_find(&agent.leases, peer.machine, lease) == NULL, lease == 9, "%d", (int)lease);
    cr_assert(strstr(last, "is here, with 1 of 3 leases"), "%s", last);
}

/* The broker refuses one machine, and while it was asked another one, which had the block, has given it back. */
Test(agent_peers, what_ended_while_another_was_refused_is_given_back)
{
    struct peer had = {.machine = {1}, .has_listed = true}, asks = {.machine = {2}, .takes = 1};
    struct lease model = {.key = {.machine = {1}, .lease = 5}, .block.block_id = 7};
    struct take *take = calloc(1, sizeof *take);
    union gs_wire_message refusal;
    union talk ended;

    set_up();
    agent.broker.fd = 0; /* nothing is sent: it waits for the loop */
    cr_assert(take && leases_add(&agent.leases, &model));
    model.key.machine[0] = 2;
    model.request = take->request = 3;
    take->peer = &asks;
    take->lease = 5;
    take->block = model.block;
    HASH_ADD(hh, agent.takes, request, sizeof take->request, take);
    cr_assert(leases_add(&agent.leases, &model));
    talk_start(&ended, TALK_ENDED);
    ended.ended.lease = 5;
    exporter_message(&agent, &had, &ended);
    cr_assert_null(agent.unsent, "it is asked for");
    gs_wire_start(&refusal, GS_WIRE_REFUSE, 3);
    exporter_answer(&agent, &refusal);
    cr_assert(agent.unsent && agent.unsent->message.head.type == GS_WIRE_CLOSE);
    cr_assert_eq(agent.unsent->message.close.block_id, 7);
    cr_assert(!agent.leases.all && !agent.takes && !asks.takes);
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
    opener_message(&agent, &peer, &recall);
    cr_assert_null(agent.unsent, "nobody has it");
    for (model.key.lease = 1; model.key.lease < 3; model.key.lease++) {
        cr_assert(leases_add(&agent.leases, &model));
        for (int i = 0; i < 2; i++)
            opener_message(&agent, &peer, &recall);
        cr_assert_eq(agent.unsent_count, model.key.lease, "once for each");
    }
    cr_assert(agent.unsent->next->message.head.type == GS_WIRE_RECALL &&
              agent.unsent->next->message.recall.block_id == 7);
}

/* The directory's keys and values are written by others. */
Test(agent_peers, digits_are_as_many_as_there_are_bytes_and_nothing_else)
{
    unsigned char bytes[3] = {9, 9, 9};
    char key[DIRECTORY_KEY];

    cr_assert(agent_unhex("0aff", bytes, 2));
    cr_assert(bytes[0] == 10 && bytes[1] == 255 && bytes[2] == 9);
    for (const char **text = (const char *[]){"", "0af", "0aff0", "0aff00", "0aFF", "0afg", " 0af", "0x0a", NULL}; *text; text++)
        cr_assert(!agent_unhex(*text, bytes, 2), "'%s'", *text);
    agent_key("a/", (const unsigned char[16]){0, 1, 254, [15] = 16}, key);
    cr_assert_str_eq(key, "a/0001fe00000000000000000000000010");
}
