/* Memory that an importer passes on: who serves it, and who keeps it, whoever ends when. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/share/token.h"
#include "core/share/wire.h"
#include "other.h"
#include "side.h"
#include "tests/children.h"
#include "tests/rest.h"

#define GRACE_MS 300

static char dir[40];
static struct gs_share_options options;
static struct side third; /* opens what second got from first */
static struct other first, second;
static unsigned char token[GS_TOKEN_SIZE];
static unsigned long there; /* where second has it */

static void setup(void)
{
    char grace[32];

    side_dir_new(dir, sizeof dir);
    side_options(&options, dir);
    side_start(&third, &options);
    other_start(&first, dir, NULL);
    snprintf(grace, sizeof grace, "grace=%d", GRACE_MS);
    other_start(&second, dir, grace);
}

static void teardown(void)
{
    if (first.pid)
        other_stop(&first);
    if (second.pid)
        other_stop(&second);
    side_stop(&third);
    CHECK(memdriver_alive() == 0);
    side_dir_remove(dir);
}

TestSuite(share_relay, .init = setup, .fini = teardown, .timeout = 120);

/* One of them has the block of the other and asks for a handle of it. */
static unsigned long take_and_pass_on(struct other *who, const unsigned char *its_token)
{
    char hex[2 * GS_TOKEN_SIZE + 1], want[sizeof hex + 3];
    unsigned long address = 0;

    cr_assert_eq(other_open(who, its_token, &address), GS_OK);
    token_to_hex(its_token, hex);
    snprintf(want, sizeof want, "ok %s", hex);
    cr_assert_str_eq(other_ask(who, "token %lx", address), want, "another handle");
    return address;
}

static void share_and_pass_on(void)
{
    other_offer(&first, 512, 512, 71, token);
    there = take_and_pass_on(&second, token);
}

static void exits(struct other *who)
{
    int status;

    other_ask(who, "exit");
    waitpid(who->pid, &status, 0);
    who->pid = 0;
}

static CUdeviceptr opens(const unsigned char *its_token)
{
    CUdeviceptr address = 0;

    cr_assert_eq(gs_share_open(third.share, its_token, SIDE_CONTEXT, 0, &address), GS_OK);
    return address;
}

static gs_status try_open(const unsigned char *its_token)
{
    CUdeviceptr address;

    return gs_share_open(third.share, its_token, SIDE_CONTEXT, 0, &address);
}

Test(share_relay, after_the_first_has_exited_the_second_serves)
{
    CUdeviceptr address;

    share_and_pass_on();
    exits(&first);
    address = opens(token);
    cr_assert_eq(*(char *)address, 71);
    *(char *)address = 72;
    cr_assert_str_eq(other_ask(&second, "read %lx", there), "ok 72", "other memory");
    cr_assert_null(strstr(side_logged(), "cannot be opened"), "it complained");
    cr_assert_eq(gs_share_close(third.share, address), GS_OK);
    cr_assert(SIDE_WAIT(gs_map_find(&third.map, address) == NULL));
    cr_assert_eq(*(char *)opens(token), 72);
}

Test(share_relay, after_the_first_was_killed_the_second_serves)
{
    share_and_pass_on();
    other_kill(&first);
    cr_assert_eq(*(char *)opens(token), 71);
}

Test(share_relay, asked_for_a_handle_only_after_the_first_has_ended_the_second_serves)
{
    other_offer(&first, 0, 512, 71, token);
    cr_assert_eq(other_open(&second, token, &there), GS_OK);
    other_kill(&first);
    cr_assert_eq(try_open(token), GS_UNREACHABLE, "nobody had passed it on");
    other_ask(&second, "token %lx", there);
    cr_assert_eq(*(char *)opens(token), 71);
}

Test(share_relay, while_the_first_lives_the_third_has_a_lease_of_its_own)
{
    CUdeviceptr address;

    share_and_pass_on();
    address = opens(token);
    cr_assert(SIDE_WAIT(!strcmp(other_ask(&first, "holds"), "ok 2")));
    other_ask(&first, "freed");
    other_kill(&second);
    usleep(400000); /* longer than the rest after its end */
    cr_assert_str_eq(other_ask(&first, "withdraw"), "held", "the third lost its memory");
    cr_assert_eq(*(char *)address, 71);
    cr_assert_eq(gs_share_close(third.share, address), GS_OK);
    cr_assert(SIDE_WAIT(!strcmp(other_ask(&first, "withdraw"), "ok")));
}

Test(share_relay, the_third_keeps_it_and_passes_it_on_when_both_have_ended)
{
    unsigned char again[GS_TOKEN_SIZE];
    struct other fourth;
    unsigned long far;
    CUdeviceptr address;

    share_and_pass_on();
    other_kill(&first);
    address = opens(token);
    other_kill(&second);
    cr_assert_eq(*(char *)address, 71);
    cr_assert_eq(gs_share_pass_on(third.share, address, again), GS_OK);
    cr_assert_arr_eq(again, token, GS_TOKEN_SIZE);
    other_start(&fourth, dir, NULL);
    cr_assert_eq(other_open(&fourth, token, &far), GS_OK);
    cr_assert_str_eq(other_ask(&fourth, "read %lx", far), "ok 71");
    cr_assert_eq(other_stop(&fourth), 0);
}

Test(share_relay, nobody_serves_what_nobody_has)
{
    share_and_pass_on();
    other_kill(&first);
    other_kill(&second);
    cr_assert_eq(try_open(token), GS_UNREACHABLE);
    cr_assert_not_null(strstr(side_logged(), "has ended"));
}

/* Two blocks of one exporter, passed on by two: each is found at who has it. */
Test(share_relay, each_serves_what_it_has)
{
    unsigned char more[GS_TOKEN_SIZE];
    struct other beside;
    CUdeviceptr one, two;

    share_and_pass_on();
    other_start(&beside, dir, NULL);
    other_offer(&first, 4096, 512, 82, more);
    take_and_pass_on(&beside, more);
    other_kill(&first);
    one = opens(token);
    two = opens(more);
    cr_assert_eq(*(char *)one, 71);
    cr_assert_eq(*(char *)two, 82);
    cr_assert_eq(gs_share_close(third.share, one), GS_OK);
    cr_assert_eq(*(char *)two, 82);
    cr_assert_eq(other_stop(&beside), 0);
    cr_assert_eq(*(char *)two, 82);
}

Test(share_relay, what_it_has_and_did_not_pass_on_it_does_not_serve)
{
    unsigned char more[GS_TOKEN_SIZE];
    unsigned long address;

    share_and_pass_on();
    other_offer(&first, 4096, 512, 82, more);
    cr_assert_eq(other_open(&second, more, &address), GS_OK);
    other_kill(&first);
    cr_assert_neq(try_open(more), GS_OK);
    cr_assert_eq(*(char *)opens(token), 71);
}

Test(share_relay, a_changed_handle_is_refused)
{
    share_and_pass_on();
    other_kill(&first);
    struct gs_token read;
    cr_assert_eq(gs_token_read(token, &read), GS_OK);
    read.secret[0] ^= 1;
    gs_token_write(&read, token);
    cr_assert_eq(try_open(token), GS_UNREACHABLE);
}

/* By a third that has not got it itself. */
static bool can_be_opened_anew(void)
{
    side_stop(&third);
    side_start(&third, &options);
    return try_open(token) == GS_OK;
}

static bool in_grace(uint64_t closed)
{
    return side_within(closed, GRACE_MS * UINT64_C(1000000));
}

Test(share_relay, what_was_closed_is_served_for_the_grace_and_then_no_more)
{
    uint64_t closed;
    bool served;

    share_and_pass_on();
    other_kill(&first);
    closed = side_now();
    other_ask(&second, "close %lx", there);
    cr_assert(all_rest(second.pid));
    served = can_be_opened_anew();
    cr_assert(served || !in_grace(closed));
    usleep(500000);
    cr_assert(SIDE_WAIT(!can_be_opened_anew()));
}

/* The first frees the block, the second closes it: what the second passed on is not stale yet. */
Test(share_relay, a_block_that_was_passed_on_is_held_for_the_grace)
{
    CUdeviceptr address = 0;
    uint64_t closed;
    gs_status status;

    share_and_pass_on();
    other_ask(&first, "freed");
    closed = side_now();
    other_ask(&second, "close %lx", there);
    cr_assert(all_rest(second.pid));
    status = gs_share_open(third.share, token, SIDE_CONTEXT, 0, &address);
    cr_assert(status == GS_OK || !in_grace(closed), "%d", status);
    cr_assert(!address || *(char *)address == 71);
    cr_assert(SIDE_WAIT(!strcmp(other_ask(&first, "holds"), address ? "ok 1" : "ok 0")));
}

Test(share_relay, a_block_that_was_passed_on_does_not_go_back_in_the_grace)
{
    uint64_t closed;
    bool held;

    share_and_pass_on();
    other_ask(&first, "freed");
    closed = side_now();
    other_ask(&second, "close %lx", there);
    cr_assert(all_rest(second.pid));
    held = !strcmp(other_ask(&first, "withdraw"), "held");
    cr_assert(held || !in_grace(closed));
    if (held)
        cr_assert(SIDE_WAIT(!strcmp(other_ask(&first, "withdraw"), "ok")));
}

/* Sends an OPEN to the second by hand; the reason it gives, or 0 with a grant. */
static enum gs_wire_reason second_says(void)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    union gs_wire_message message;
    DIR *list = opendir(dir);
    struct dirent *entry;

    while ((entry = readdir(list)))
        if (strlen(entry->d_name) == 65)
            snprintf(to.sun_path, sizeof to.sun_path, "%s/%.65s", dir, entry->d_name);
    closedir(list);
    cr_assert_eq(connect(fd, (struct sockaddr *)&to, sizeof to), 0, "it has put up no name");
    gs_wire_start(&message, GS_WIRE_HELLO, 0);
    memcpy(message.hello.instance, token + 8, 16);
    gs_wire_send(fd, &message, -1);
    gs_wire_start(&message, GS_WIRE_OPEN, 1);
    memcpy(message.open.token, token, GS_TOKEN_SIZE);
    message.open.want_fd = 1;
    gs_wire_send(fd, &message, -1);
    cr_assert_gt(recv(fd, &message, sizeof message, 0), 0);
    close(fd);
    return message.head.type == GS_WIRE_GRANT ? 0 : message.refuse.reason;
}

/* Or the first could give the memory to another block while somebody has it without a lease. */
Test(share_relay, while_the_first_lives_the_second_does_not_serve)
{
    share_and_pass_on();
    cr_assert_eq(second_says(), GS_REFUSED_EARLY);
    halt(first.pid);
    cr_assert_eq(second_says(), GS_REFUSED_EARLY);
    kill(first.pid, SIGCONT);
    other_kill(&first);
    cr_assert_eq(second_says(), 0);
}

static int fds_of(struct other *who)
{
    int fds = 0;

    sscanf(other_ask(who, "fds"), "ok %d", &fds);
    return fds;
}

Test(share_relay, without_descriptors_it_is_opened_at_the_first_only)
{
    unsigned char tokens[12][GS_TOKEN_SIZE];
    struct side_chunk chunks[12];
    struct gs_offer *offers[12];
    struct side exporter;

    other_ask(&second, "nofile 64");
    side_start(&exporter, &options);
    for (int i = 0; i < 12; i++) {
        chunks[i] = side_chunk_new(&exporter, 2 * MIB);
        cr_assert_eq(side_offer(&exporter, &chunks[i], 0, 512, &offers[i]), GS_OK);
        gs_offer_token(offers[i], tokens[i]);
        take_and_pass_on(&second, tokens[i]);
    }
    cr_assert(SIDE_WAIT(fds_of(&second) < 3 + 2 + 12 + 12 + 8), "%d descriptors are left",
              fds_of(&second));
    for (int i = 0; i < 12; i++)
        cr_assert_eq(*(char *)opens(tokens[i]), 0);
    side_stop(&third);
    side_start(&third, &options);
    side_stop(&exporter);
    for (int i = 0; i < 12; i++) /* an eighth of 64 */
        cr_assert_eq(try_open(tokens[i]), i < 8 ? GS_OK : GS_UNREACHABLE, "block %d", i);
    for (int i = 0; i < 12; i++)
        side_chunk_free(&exporter, &chunks[i]);
}

static unsigned discarded; /* atomic */

void __real_gs_discard(int fd, uid_t from);
void __wrap_gs_discard(int fd, uid_t from);
void __wrap_gs_discard(int fd, uid_t from)
{
    __atomic_add_fetch(&discarded, 1, __ATOMIC_SEQ_CST);
    __real_gs_discard(fd, from);
}

#define BLOCKS 24 /* an eighth of 128 are kept */

/* What is closed by others waits for them, and a process has few. */
Test(share_relay, without_room_for_descriptors_it_asks_for_none)
{
    const struct rlimit few = {.rlim_cur = 128, .rlim_max = 1024};
    struct side_chunk chunks[BLOCKS];
    struct gs_offer *offers[BLOCKS];
    unsigned char its[GS_TOKEN_SIZE];
    CUdeviceptr at[BLOCKS];
    struct side exporter;
    unsigned before;

    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
    side_start(&exporter, &options);
    for (int i = 0; i < BLOCKS; i++) {
        chunks[i] = side_chunk_new(&exporter, 2 * MIB);
        cr_assert_eq(side_offer(&exporter, &chunks[i], 0, 512, &offers[i]), GS_OK);
        gs_offer_token(offers[i], its);
        cr_assert_eq(gs_share_open(third.share, its, SIDE_CONTEXT, 0, &at[i]), GS_OK);
    }
    before = __atomic_load_n(&discarded, __ATOMIC_SEQ_CST);
    for (int i = 0; i < BLOCKS; i++)
        cr_assert_eq(gs_share_pass_on(third.share, at[i], its), GS_OK);
    cr_assert_eq(__atomic_load_n(&discarded, __ATOMIC_SEQ_CST), before);
    side_stop(&third);
    side_start(&third, &options);
    side_stop(&exporter);
    for (int i = 0; i < BLOCKS; i++)
        side_chunk_free(&exporter, &chunks[i]);
}

Test(share_relay, its_names_are_taken_down)
{
    share_and_pass_on();
    cr_assert_eq(side_dir_count(dir), 3);
    cr_assert_eq(other_stop(&second), 0);
    cr_assert_eq(side_dir_count(dir), 1);
    other_start(&second, dir, NULL);
    take_and_pass_on(&second, token);
    cr_assert_eq(side_dir_count(dir), 3);
    exits(&second);
    cr_assert_eq(side_dir_count(dir), 1);
    other_start(&second, dir, NULL);
    take_and_pass_on(&second, token);
    cr_assert(all_rest(first.pid)); /* it has swept */
    other_kill(&second); /* the next to offer something sweeps */
    cr_assert_eq(side_dir_count(dir), 3);
    struct side_chunk chunk = side_chunk_new(&third, 2 * MIB);
    struct gs_offer *offer;
    cr_assert_eq(side_offer(&third, &chunk, 0, 512, &offer), GS_OK);
    cr_assert(SIDE_WAIT(side_dir_count(dir) == 2), "%d are left", side_dir_count(dir));
    side_chunk_free(&third, &chunk);
}
