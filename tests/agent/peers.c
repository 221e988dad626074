/* What an agent keeps of other machines (shim/agent/peers.c), and what it says of them (say.c). */
#include "shim/agent/agent.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* Machines numbered from `from` on, as the directory lists them. */
static void list(unsigned from, unsigned count, bool is_whole)
{
    struct jobs_event *event = calloc(1, sizeof *event);

    event->is_whole = is_whole;
    for (unsigned i = from; i < from + count; i++) {
        char value[300];
        struct jobs_listed *entry;
        const int size = snprintf(value, sizeof value,
                                  "{\"name\":\"m\",\"address\":\"127.0.0.1\",\"port\":1,\"fingerprint\":\"%064x\","
                                  "\"boot\":\"%032x\"}", 7, 8);

        entry = calloc(1, sizeof *entry + (size_t)size);
        snprintf(entry->key, sizeof entry->key, JOBS_AGENTS "%032x", i);
        memcpy(entry->value, value, (size_t)size);
        entry->size = (size_t)size;
        entry->next = event->entries;
        event->entries = entry;
    }
    peers_list(&agent, event);
    jobs_free(event);
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
