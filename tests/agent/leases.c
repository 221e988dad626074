/* The agent's leases, and the file that keeps them beyond its end. */
#include "shim/agent/leases.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/children.h"
#include "tests/folder.h"

TestSuite(agent_leases, .timeout = 60);

static const unsigned char boot[GS_BOOT_BYTES] = {9}, here[GS_MACHINE_SIZE], other[GS_MACHINE_SIZE] = {5};
static int folder = -1;
static char path[256];

static void set_up(void)
{
    snprintf(path, sizeof path, "%s", folder_new("leases"));
    folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    cr_assert(folder >= 0);
}

/* In a process of its own, which has the file's lock until it ends. */
static void in_process(void (*act)(struct leases *leases))
{
    pid_t child = fork_child();
    int status = 1;

    if (child == 0) {
        static struct leases leases;
        char reason[LEASES_REASON];

        if (!leases_open(&leases, folder, boot, reason))
            _exit(1);
        act(&leases);
        _exit(0);
    }
    cr_assert(child > 0 && waitpid(child, &status, 0) == child && status == 0);
}

static struct lease lease_of(const unsigned char *machine, uint64_t number)
{
    struct lease lease = {.key.lease = number, .block.block_id = number % 3};

    memcpy(lease.key.machine, machine, GS_MACHINE_SIZE);
    return lease;
}

static void fill(struct leases *leases)
{
    const struct process self = process_of(getppid());
    struct lease model;

    for (uint64_t i = 1; i <= 20000; i++) { /* the file is written anew in between */
        model = lease_of(i % 2 ? here : other, i);
        if (!leases_add(leases, &model))
            _exit(2);
        if (i > 10)
            leases_end(leases, leases_find(leases, model.key.machine, i));
    }
    leases_hold(leases, leases_find(leases, here, 1), &(struct lease_held){.holder = 1, .process = self});
    leases_note(leases, LEASES_ASKED, other, here);
    leases_note(leases, LEASES_BROKER, here, &self);
}

Test(agent_leases, they_outlive_the_agent)
{
    static struct leases leases;
    char reason[LEASES_REASON];
    unsigned char value[16];
    struct process process;
    bool unknown;
    int pidfd;

    set_up();
    in_process(fill);
    cr_assert(leases_open(&leases, folder, boot, reason), "%s", reason);
    cr_assert(leases.known);
    cr_assert_eq(HASH_COUNT(leases.all), 10);
    for (uint64_t i = 1; i <= 10; i++)
        cr_assert(leases_find(&leases, i % 2 ? here : other, i), "%d", (int)i);
    cr_assert_eq(leases_find(&leases, here, 1)->held_count, 1);
    process = leases_find(&leases, here, 1)->held[0].process;
    cr_assert_eq(process.pid, getpid());
    pidfd = process_open(&process, &unknown);
    cr_assert(pidfd >= 0 && !unknown, "it runs");
    close(pidfd);
    process.started++;
    cr_assert(process_open(&process, &unknown) < 0 && !unknown, "another of its pid is another");
    cr_assert(leases_noted(&leases, LEASES_ASKED, other, value));
    cr_assert_not(leases_noted(&leases, LEASES_BOOT, other, value));
}

Test(agent_leases, another_boot_ends_them_but_not_whom_was_asked)
{
    const unsigned char next[GS_BOOT_BYTES] = {10};
    static struct leases leases;
    char reason[LEASES_REASON];
    unsigned char value[16];

    set_up();
    in_process(fill);
    cr_assert(leases_open(&leases, folder, next, reason), "%s", reason);
    cr_assert_eq(HASH_COUNT(leases.all), 0);
    cr_assert_not(leases.known);
    cr_assert(leases_noted(&leases, LEASES_ASKED, other, value));
}

Test(agent_leases, what_is_no_record_of_ours_is_passed_over)
{
    static struct leases leases;
    char reason[LEASES_REASON], junk[1000];
    int file;

    set_up();
    in_process(fill);
    file = openat(folder, "agent.leases", O_WRONLY | O_APPEND | O_CLOEXEC);
    memset(junk, 0x5a, sizeof junk);
    cr_assert(file >= 0 && write(file, junk, sizeof junk) == sizeof junk);
    close(file);
    cr_assert(leases_open(&leases, folder, boot, reason), "%s", reason);
    cr_assert_eq(HASH_COUNT(leases.all), 10);
}

Test(agent_leases, a_folder_has_one_agent)
{
    static struct leases first, second;
    char reason[LEASES_REASON];

    set_up();
    cr_assert(leases_open(&first, folder, boot, reason), "%s", reason);
    cr_assert_not(leases_open(&second, folder, boot, reason));
    cr_assert(strstr(reason, "another agent"), "%s", reason);
}
