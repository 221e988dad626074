/*
 * Memory of other machines, as brokers, processes that share and openers have it, between two brokers and
 * two agents that the test plays: what is open on another machine is never used again, whoever ends; and
 * it is, as soon as that machine has given it back.
 */
#include <criterion/criterion.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "afar_scene.h"
#include "tests/children.h"

TestSuite(share_afar, .init = afar_setup, .fini = afar_teardown, .timeout = 120);

/* The far process's block, of which the far agent was told. */
static int shared(unsigned char *ret_ipc_handle, union gs_wire_message *ret_shared)
{
    int agent;

    other_export(&other, 0, 512, 71, ret_ipc_handle);
    cr_assert(SIDE_WAIT(side_broker_pid(far_dir) && side_broker_published(far_dir) == 1));
    agent = agent_dial(far_dir, 1, false);
    agent_hears(agent, GS_WIRE_MACHINE_AFAR, ret_shared); /* nothing of others is open there */
    agent_hears(agent, GS_WIRE_SHARED_AFAR, ret_shared);
    return agent;
}

static int near_agent(void)
{
    union gs_wire_message message;
    int agent = agent_dial(dir, 2, false);

    agent_hears(agent, GS_WIRE_MACHINE_AFAR, &message);
    return agent;
}

static void free_it(void)
{
    cr_assert_str_eq(other_ask(&other, "freed"), "ok");
}

/* ---- Lending --------------------------------------------------------------------------------- */

Test(share_afar, an_agent_is_told_what_may_be_opened_and_what_may_not_any_more)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    union gs_wire_message message;
    int agent = shared(ipc_handle, &message);

    cr_assert_eq(memcmp(message.shared_afar.ipc_handle, ipc_handle, GS_IPC_HANDLE_SIZE), 0);
    cr_assert_eq(message.shared_afar.uid, getuid());
    cr_assert_eq(message.shared_afar.chunk_size, 2 * MIB);
    cr_assert_neq(message.shared_afar.fabric[0], 0);
    free_it();
    cr_assert(SIDE_WAIT(other_withdraws(&other)), "nobody has it");
    agent_hears(agent, GS_WIRE_UNSHARED_AFAR, &message);
    close(agent);
}

Test(share_afar, what_another_machine_has_is_not_used_again_until_its_lease_ends)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    union gs_wire_message message;
    int agent = shared(ipc_handle, &message);

    cr_assert_eq(take(agent, ipc_handle, 2, 11, &message), GS_WIRE_OPENED_AFAR);
    cr_assert_eq(message.opened_afar.lease, 11);
    cr_assert_eq(take(agent, ipc_handle, 3, 11, &message), GS_WIRE_OPENED_AFAR, "of another machine");
    free_it();
    agent_hears(agent, GS_WIRE_RECALL_AFAR, &message);
    end_lease(agent, 2, 11);
    cr_assert(agent_hears_nothing(agent));
    cr_assert_not(other_withdraws(&other), "the other lease is there");
    cr_assert_eq(far_told(0).limbo, 0);
    cr_assert_eq(far_told(1).limbo, 1);
    end_lease(agent, 3, 11);
    cr_assert(SIDE_WAIT(other_withdraws(&other)));
    agent_hears(agent, GS_WIRE_UNSHARED_AFAR, &message);
    close(agent);
}

Test(share_afar, a_block_that_is_free_again_is_refused)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    union gs_wire_message message;
    int agent = shared(ipc_handle, &message);

    free_it();
    cr_assert(SIDE_WAIT(other_withdraws(&other)));
    cr_assert_eq(take(agent, ipc_handle, 2, 11, &message), GS_WIRE_REFUSE);
    cr_assert_eq(message.refuse.reason, GS_REFUSED_HANDLE);
    close(agent);
}

Test(share_afar, a_changed_handle_and_another_user_are_refused)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE], changed[GS_IPC_HANDLE_SIZE];
    struct gs_ipc_handle read;
    union gs_wire_message message;
    int agent = shared(ipc_handle, &message);

    gs_ipc_handle_read(ipc_handle, &read);
    read.secret[3] ^= 1;
    gs_ipc_handle_write(&read, changed);
    cr_assert_eq(take(agent, changed, 2, 11, &message), GS_WIRE_REFUSE);
    cr_assert_eq(message.refuse.reason, GS_REFUSED_HANDLE);
    gs_wire_start(&message, GS_WIRE_TAKE_AFAR, 5);
    memcpy(message.take_afar.ipc_handle, ipc_handle, GS_IPC_HANDLE_SIZE);
    memset(message.take_afar.machine, 2, GS_MACHINE_SIZE);
    message.take_afar.lease = 12;
    message.take_afar.uid = getuid() + 1;
    message.take_afar.gid = getgid() + 1;
    agent_say(agent, &message);
    agent_hears(agent, GS_WIRE_REFUSE, &message);
    cr_assert_eq(message.refuse.reason, GS_REFUSED_USER);
    free_it();
    cr_assert(SIDE_WAIT(other_withdraws(&other)), "no lease is left behind");
    close(agent);
}

Test(share_afar, what_a_killed_process_shared_is_taken_from_its_broker)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    union gs_wire_message message;
    int agent = shared(ipc_handle, &message);

    cr_assert_eq(take(agent, ipc_handle, 2, 11, &message), GS_WIRE_OPENED_AFAR);
    other_kill(&other);
    cr_assert_eq(take(agent, ipc_handle, 2, 12, &message), GS_WIRE_OPENED_AFAR);
    cr_assert_eq(far_told(0).leases, 2);
    close(agent);
}

Test(share_afar, a_stopped_process_keeps_a_lease_waiting_and_its_agent_may_give_it_up)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    union gs_wire_message message;
    int agent = shared(ipc_handle, &message);

    halt(other.pid);
    take_say(agent, ipc_handle, 2, 11);
    cr_assert(agent_hears_nothing(agent));
    end_lease(agent, 2, 11);
    kill(other.pid, SIGCONT);
    cr_assert_eq(take(agent, ipc_handle, 2, 12, &message), GS_WIRE_OPENED_AFAR);
    end_lease(agent, 2, 12);
    free_it();
    cr_assert(SIDE_WAIT(other_withdraws(&other)));
    close(agent);
}

Test(share_afar, the_log_names_other_machines_among_those_who_hold_what_is_freed)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    union gs_wire_message message;
    struct gs_share_held held;
    struct gs_export *export;
    struct side sharer;
    struct side_chunk piece = sharer_start(&sharer);
    int agent = near_agent();

    cr_assert_eq(side_export(&sharer, &piece, 0, 512, &export), GS_OK);
    gs_export_handle(export, ipc_handle);
    agent_hears(agent, GS_WIRE_SHARED_AFAR, &message);
    cr_assert_eq(take(agent, ipc_handle, 3, 11, &message), GS_WIRE_OPENED_AFAR);
    gs_share_freed(sharer.share, export, side_now());
    gs_share_held(sharer.share, NULL, &held);
    cr_assert_eq(held.holders, 1);
    cr_assert_eq(held.bytes, 512);
    cr_assert_str_eq(held.most[0].name, "other machines");
    end_lease(agent, 3, 11);
    cr_assert(side_gets_back(&sharer, export));
    side_stop(&sharer);
    side_chunk_free(&sharer, &piece);
    close(agent);
}

/* ---- Ends that are none ----------------------------------------------------------------------- */

Test(share_afar, the_end_of_an_agent_ends_no_lease_and_its_list_ends_those_that_are_not_on_it)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    union gs_wire_message message;
    int agent = shared(ipc_handle, &message);

    cr_assert_eq(take(agent, ipc_handle, 2, 11, &message), GS_WIRE_OPENED_AFAR);
    cr_assert_eq(take(agent, ipc_handle, 2, 12, &message), GS_WIRE_OPENED_AFAR);
    free_it();
    agent_hears(agent, GS_WIRE_RECALL_AFAR, &message);
    close(agent);
    cr_assert(SIDE_WAIT(!far_told(0).has_agent));
    cr_assert_eq(far_told(0).leases, 2);
    agent = agent_dial(far_dir, 1, false);
    agent_awaits(agent, GS_WIRE_RECALL_AFAR, &message); /* the new one is told, too */
    say_machine(agent, 2, 5, GS_MACHINE_LOST);
    say_machine(agent, 2, 5, GS_MACHINE_LISTING);
    say_kept(agent, ipc_handle, 2, 12);
    agent_hears(agent, GS_WIRE_RECALL_AFAR, &message); /* it may not have heard of it */
    cr_assert(agent_hears_nothing(agent));
    cr_assert_eq(far_told(0).leases, 2, "until the list has ended");
    say_machine(agent, 2, 5, GS_MACHINE_LISTED);
    cr_assert(agent_hears_nothing(agent));
    cr_assert_eq(far_told(0).leases, 1);
    cr_assert_str_eq(far_told(0).name, "rack2");
    cr_assert_not(other_withdraws(&other));
    say_machine(agent, 2, 5, GS_MACHINE_LISTING);
    say_machine(agent, 2, 5, GS_MACHINE_LISTED);
    cr_assert(SIDE_WAIT(other_withdraws(&other)));
    close(agent);
}

Test(share_afar, a_machine_that_was_started_anew_has_nothing)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    union gs_wire_message message;
    int agent = shared(ipc_handle, &message);

    say_machine(agent, 2, 5, GS_MACHINE_LISTING);
    say_machine(agent, 2, 5, GS_MACHINE_LISTED);
    cr_assert_eq(take(agent, ipc_handle, 2, 11, &message), GS_WIRE_OPENED_AFAR);
    cr_assert_eq(take(agent, ipc_handle, 3, 11, &message), GS_WIRE_OPENED_AFAR);
    free_it();
    say_machine(agent, 2, 6, GS_MACHINE_LISTING);
    cr_assert_eq(far_told(0).leases + far_told(1).leases, 1);
    cr_assert_not(other_withdraws(&other), "the third machine's is there");
    end_lease(agent, 3, 11);
    cr_assert(SIDE_WAIT(other_withdraws(&other)));
    close(agent);
}

Test(share_afar, an_operator_has_a_machine_forgotten)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    union gs_wire_message message;
    int agent = shared(ipc_handle, &message), fd = side_broker_dial(far_dir);

    say_machine(agent, 2, 5, GS_MACHINE_LISTING);
    say_machine(agent, 2, 5, GS_MACHINE_LISTED);
    cr_assert_eq(take(agent, ipc_handle, 2, 11, &message), GS_WIRE_OPENED_AFAR);
    free_it();
    agent_hears(agent, GS_WIRE_RECALL_AFAR, &message);
    gs_wire_start(&message, GS_WIRE_HELLO, 0);
    agent_say(fd, &message);
    for (int i = 0; i < 2; i++) {
        gs_wire_start(&message, GS_WIRE_FORGET_AFAR, 4);
        strcpy(message.forget_afar.machine, i ? "rack2" : "rack7");
        agent_say(fd, &message);
        agent_hears(fd, GS_WIRE_FORGOTTEN_AFAR, &message);
        cr_assert_eq(message.forgotten_afar.leases, (uint32_t)i);
        cr_assert_eq(message.forgotten_afar.machines, (uint32_t)i);
    }
    agent_hears(agent, GS_WIRE_MACHINE_AFAR, &message);
    cr_assert_eq(message.machine_afar.state, GS_MACHINE_FORGOTTEN);
    cr_assert(SIDE_WAIT(other_withdraws(&other)));
    close(fd);
    close(agent);
}

/* With a lease of a block that is freed the broker is killed, and its agent ends. The process starts
 * another broker, and tells it what it holds. */
static void lose_broker(unsigned char *ret_ipc_handle)
{
    union gs_wire_message message;
    int agent = shared(ret_ipc_handle, &message);
    pid_t broker = side_broker_pid(far_dir);

    cr_assert_eq(take(agent, ret_ipc_handle, 2, 11, &message), GS_WIRE_OPENED_AFAR);
    free_it();
    agent_hears(agent, GS_WIRE_RECALL_AFAR, &message);
    kill(broker, SIGKILL);
    close(agent);
    cr_assert(SIDE_WAIT(side_broker_pid(far_dir) && side_broker_pid(far_dir) != broker));
    cr_assert(SIDE_WAIT(far_told(0).leases == 1));
}

Test(share_afar, a_killed_broker_ends_no_lease)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    union gs_wire_message message;
    int agent;

    lose_broker(ipc_handle);
    cr_assert_str_eq(far_told(0).name, "unknown");
    cr_assert_not(other_withdraws(&other));
    agent = agent_dial(far_dir, 1, true);
    agent_awaits(agent, GS_WIRE_RECALL_AFAR, &message);
    say_machine(agent, 2, 5, GS_MACHINE_LISTING);
    say_kept(agent, ipc_handle, 2, 11);
    agent_hears(agent, GS_WIRE_RECALL_AFAR, &message);
    say_machine(agent, 2, 5, GS_MACHINE_LISTED);
    say_machine(agent, 0, 0, GS_MACHINE_LISTED);
    cr_assert(agent_hears_nothing(agent));
    cr_assert_str_eq(far_told(0).name, "rack2");
    cr_assert_not(other_withdraws(&other));
    end_lease(agent, 2, 11);
    cr_assert(SIDE_WAIT(other_withdraws(&other)));
    close(agent);
}

Test(share_afar, only_an_agent_that_knew_all_leases_ends_those_of_an_unknown_machine)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    union gs_wire_message message;
    int agent;

    lose_broker(ipc_handle);
    for (int knows = 0; knows < 2; knows++) {
        cr_assert_not(other_withdraws(&other));
        agent = agent_dial(far_dir, 1, knows != 0);
        agent_awaits(agent, GS_WIRE_RECALL_AFAR, &message);
        say_machine(agent, 0, 0, GS_MACHINE_LISTED);
        if (!knows) {
            cr_assert(agent_hears_nothing(agent));
            close(agent);
            cr_assert(SIDE_WAIT(!far_told(0).has_agent));
        }
    }
    cr_assert(SIDE_WAIT(other_withdraws(&other)));
    close(agent);
}

/* ---- Borrowing --------------------------------------------------------------------------------- */

Test(share_afar, a_block_of_another_machine_is_opened_and_opened_again_by_nobodys_leave)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    union gs_wire_message message;
    int far_agent = shared(ipc_handle, &message), near = near_agent();
    CUdeviceptr address, again;
    uint64_t lease;

    cr_assert_eq(open_by_agents(near, far_agent, ipc_handle, &address, &lease), GS_OK, "%s",
                 side_logged());
    cr_assert_eq(*(char *)address, 71);
    *(char *)address = 72;
    agent_hears(near, GS_WIRE_HOLDS_AFAR, &message);
    cr_assert_eq(message.holds_afar.lease, lease);
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(gs_share_close(side.share, address), GS_OK);
        cr_assert_eq(open_it(ipc_handle, &again), GS_OK);
        cr_assert_eq(again, address);
    }
    cr_assert(agent_hears_nothing(near), "it stayed mapped");
    cr_assert(agent_hears_nothing(far_agent));
    cr_assert_eq(gs_share_close(side.share, address), GS_OK);
    close(near);
    close(far_agent);
}

Test(share_afar, a_free_calls_idle_mappings_of_other_machines_back)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    union gs_wire_message message;
    int far_agent = shared(ipc_handle, &message), near = near_agent();
    CUdeviceptr address;
    uint64_t lease;

    cr_assert_eq(open_by_agents(near, far_agent, ipc_handle, &address, &lease), GS_OK);
    free_it();
    agent_hears(far_agent, GS_WIRE_RECALL_AFAR, &message);
    agent_say(near, &message);
    agent_hears(near, GS_WIRE_HOLDS_AFAR, &message);
    cr_assert(agent_hears_nothing(near), "its program has it open");
    cr_assert_not(other_withdraws(&other));
    cr_assert_eq(gs_share_close(side.share, address), GS_OK);
    agent_hears(near, GS_WIRE_ENDED_AFAR, &message);
    cr_assert_eq(message.ended_afar.lease, lease);
    end_lease(far_agent, 2, lease);
    cr_assert(SIDE_WAIT(other_withdraws(&other)));
    close(near);
    close(far_agent);
}

/* The second opener: nobody but his broker is asked. */
Test(share_afar, openers_of_one_machine_share_a_lease_and_a_killed_one_is_seen)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    union gs_wire_message message;
    int far_agent = shared(ipc_handle, &message), near = near_agent(), pidfd;
    struct other second = {.pid = 0};
    struct gs_ipc_handle read;
    unsigned long there;
    CUdeviceptr address;
    uint64_t lease;

    cr_assert_eq(open_by_agents(near, far_agent, ipc_handle, &address, &lease), GS_OK);
    agent_hears(near, GS_WIRE_HOLDS_AFAR, &message);
    other_start(&second, dir, "reach=1");
    cr_assert_eq(other_open(&second, ipc_handle, &there), GS_OK);
    pidfd = agent_hears(near, GS_WIRE_HOLDER_AFAR, &message);
    cr_assert_geq(pidfd, 0);
    cr_assert_eq(message.holder_afar.pid, (uint64_t)second.pid);
    close(pidfd);
    agent_hears(near, GS_WIRE_HOLDS_AFAR, &message);
    cr_assert_eq(message.holds_afar.lease, lease);
    other_kill(&second);
    agent_hears(near, GS_WIRE_HOLDER_AFAR, &message);
    cr_assert_eq(message.holder_afar.gone, 1);
    cr_assert(agent_hears_nothing(near), "the first one has it still");
    gs_ipc_handle_read(ipc_handle, &read);
    gs_wire_start(&message, GS_WIRE_RECALL_AFAR, 0);
    memcpy(message.block_afar.instance, read.instance, GS_INSTANCE_SIZE);
    message.block_afar.block_id = read.block_id;
    agent_say(near, &message);
    cr_assert_eq(gs_share_close(side.share, address), GS_OK);
    agent_hears(near, GS_WIRE_ENDED_AFAR, &message);
    close(near);
    close(far_agent);
}

Test(share_afar, a_new_agent_is_told_what_is_borrowed_and_by_whom)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    union gs_wire_message message;
    int far_agent = shared(ipc_handle, &message), near = near_agent(), pidfd;
    CUdeviceptr address;
    uint64_t lease;

    cr_assert_eq(open_by_agents(near, far_agent, ipc_handle, &address, &lease), GS_OK);
    close(near);
    cr_assert_eq(*(char *)address, 71);
    cr_assert(SIDE_WAIT(!told_at(dir, 0).has_agent));
    near = agent_dial(dir, 2, false);
    agent_hears(near, GS_WIRE_KEPT_AFAR, &message);
    cr_assert_eq(message.kept_afar.lease, lease);
    pidfd = agent_hears(near, GS_WIRE_HOLDER_AFAR, &message);
    cr_assert_geq(pidfd, 0);
    close(pidfd);
    agent_hears(near, GS_WIRE_HOLDS_AFAR, &message);
    agent_hears(near, GS_WIRE_MACHINE_AFAR, &message);
    cr_assert_eq(message.machine_afar.state, GS_MACHINE_LISTED);
    cr_assert_eq(gs_share_close(side.share, address), GS_OK);
    close(near);
    close(far_agent);
}

/* ---- Refusals ---------------------------------------------------------------------------------- */

Test(share_afar, without_an_agent_an_open_fails_and_says_why)
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
    union gs_wire_message message;
    int opener = greet_broker(ipc_handle + offsetof(struct gs_ipc_handle, instance), -1);

    gs_wire_start(&message, GS_WIRE_OPEN, 1);
    memcpy(message.open.ipc_handle, ipc_handle, GS_IPC_HANDLE_SIZE);
    message.open.afar = 1;
    agent_say(opener, &message);
    return opener;
}

Test(share_afar, an_agents_refusal_and_its_end_reach_who_waits)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    union gs_wire_message message;
    int near = near_agent(), opener;
    struct opening opening;

    other_export(&other, 0, 512, 71, ipc_handle);
    open_begin(&opening, ipc_handle);
    agent_awaits(near, GS_WIRE_OPEN_AFAR, &message);
    gs_wire_start(&message, GS_WIRE_REFUSE, message.head.request);
    message.refuse.reason = GS_REFUSED_DIRECTORY;
    agent_say(near, &message);
    cr_assert_eq(open_end(&opening), GS_UNREACHABLE);
    cr_assert_not_null(strstr(side_logged(), "cannot use its directory"), "%s", side_logged());
    opener = ask_to_open(ipc_handle);
    agent_awaits(near, GS_WIRE_OPEN_AFAR, &message);
    close(near);
    agent_hears(opener, GS_WIRE_REFUSE, &message);
    cr_assert_eq(message.refuse.reason, GS_REFUSED_ALONE);
    close(opener);
}

Test(share_afar, what_makes_no_sense_or_comes_late_is_given_back)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    union gs_wire_message question, message;
    int near = near_agent();

    other_export(&other, 0, 512, 71, ipc_handle);
    for (int i = 0; i < 3; i++) {
        int opener = ask_to_open(ipc_handle);

        agent_awaits(near, GS_WIRE_OPEN_AFAR, &question);
        gs_wire_start(&message, GS_WIRE_OPENED_AFAR, question.head.request);
        message.opened_afar.lease = question.open_afar.lease;
        message.opened_afar.chunk_size = i == 0 ? 4096 : 2 * MIB;
        message.opened_afar.offset = i == 1 ? 2 * MIB : 0;
        message.opened_afar.zero = i == 2;
        agent_say(near, &message);
        agent_hears(opener, GS_WIRE_REFUSE, &message);
        agent_awaits(near, GS_WIRE_ENDED_AFAR, &message);
        cr_assert_eq(message.ended_afar.lease, question.open_afar.lease);
        close(opener);
    }
    gs_wire_start(&message, GS_WIRE_OPENED_AFAR, question.head.request);
    message.opened_afar.lease = 99;
    agent_say(near, &message);
    agent_awaits(near, GS_WIRE_ENDED_AFAR, &message);
    cr_assert_eq(message.ended_afar.lease, 99);
    close(near);
}

/* A handle that is none of the domain's: the mapping fails, and the lease goes back. */
Test(share_afar, memory_that_the_driver_does_not_import_is_given_back)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    union gs_wire_message question, message;
    int near = near_agent();
    struct opening opening;

    other_export(&other, 0, 512, 71, ipc_handle);
    open_begin(&opening, ipc_handle);
    agent_awaits(near, GS_WIRE_OPEN_AFAR, &question);
    gs_wire_start(&message, GS_WIRE_OPENED_AFAR, question.head.request);
    message.opened_afar.lease = question.open_afar.lease;
    message.opened_afar.chunk_size = 2 * MIB;
    agent_say(near, &message);
    cr_assert_eq(open_end(&opening), (gs_status)CUDA_ERROR_INVALID_VALUE);
    agent_awaits(near, GS_WIRE_ENDED_AFAR, &message);
    close(near);
}

Test(share_afar, a_second_agent_is_refused_and_so_is_what_only_an_agent_may_say)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    union gs_wire_message message;
    int agent = shared(ipc_handle, &message), second = agent_dial(far_dir, 2, false);

    agent_hears(second, GS_WIRE_REFUSE, &message);
    cr_assert_eq(message.refuse.reason, GS_REFUSED_BUSY);
    take_say(second, ipc_handle, 2, 11); /* hung up on */
    agent_hears(second, GS_WIRE_REFUSE, &message);
    cr_assert_eq(message.refuse.reason, GS_REFUSED_MESSAGE);
    cr_assert_eq(take(agent, ipc_handle, 2, 11, &message), GS_WIRE_OPENED_AFAR);
    take_say(agent, ipc_handle, 2, 11); /* again */
    agent_awaits(agent, GS_WIRE_REFUSE, &message);
    cr_assert_eq(message.refuse.reason, GS_REFUSED_MESSAGE);
    close(second);
    close(agent);
}

Test(share_afar, an_opener_that_does_not_want_to_is_told_of_no_other_machine)
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
