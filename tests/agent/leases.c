/* The agent's leases, and the file that keeps them beyond its end. */
#include "shim/agent/leases.h"

#include <criterion/criterion.h>

#include "tests/children.h"
#include "tests/folder.h"
#include "tests/system.h"

TestSuite(agent_leases, .timeout = 60);

static const unsigned char boot[GS_BOOT_BYTES] = {9}, here[GS_MACHINE_SIZE],
                           other[GS_MACHINE_SIZE] = {5};
static int folder = -1;
static char path[256];
static unsigned char *ids; /* of the file, shared with the process that fills it */

static void set_up(void)
{
    snprintf(path, sizeof path, "%s", folder_new("leases"));
    ids = mmap(NULL, sizeof(struct leases), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
               0);
    cr_assert(ids != MAP_FAILED);
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
    for (unsigned char i = 1; i < 3; i++)
        leases_note(leases, LEASES_HOLDER, (unsigned char[GS_MACHINE_SIZE]){i}, &self);
    leases_unnote(leases, LEASES_HOLDER, (unsigned char[GS_MACHINE_SIZE]){2});
    leases_note(leases, LEASES_ASKED, other, here);
    memcpy(ids, leases->id, sizeof leases->id);
    leases_note(leases, LEASES_KNOWN, here, &self);
}

Test(agent_leases, they_outlive_the_agent)
{
    static struct leases leases;
    char reason[LEASES_REASON];
    unsigned char value[16];
    struct process process;
    int pidfd;

    set_up();
    in_process(fill);
    cr_assert(leases_open(&leases, folder, boot, reason), "%s", reason);
    cr_assert(leases_noted(&leases, LEASES_KNOWN, here, NULL));
    cr_assert_eq(memcmp(leases.id, ids, sizeof leases.id), 0, "it is the same file");
    cr_assert_eq(HASH_COUNT(leases.all), 10);
    for (uint64_t i = 1; i <= 10; i++)
        cr_assert(leases_find(&leases, i % 2 ? here : other, i), "%d", (int)i);
    cr_assert(leases_noted(&leases, LEASES_HOLDER, (unsigned char[GS_MACHINE_SIZE]){1}, &process));
    cr_assert_not(leases_noted(&leases, LEASES_HOLDER, (unsigned char[GS_MACHINE_SIZE]){2}, value));
    cr_assert_eq(process.pid, getpid());
    pidfd = process_open(&process);
    cr_assert(pidfd >= 0, "it runs");
    close(pidfd);
    process.started++;
    cr_assert_eq(process_open(&process), -ESRCH, "another of its pid is another");
    cr_assert(leases_noted(&leases, LEASES_ASKED, other, value));
    cr_assert_not(leases_noted(&leases, LEASES_BOOT, other, value));
}

/* As many records as say nothing any more, and some: then it is written anew. */
Test(agent_leases, what_is_noted_does_not_have_the_file_written_again_and_again)
{
    static struct leases leases;
    char reason[LEASES_REASON];
    struct stat before, after;
    unsigned written = 0;

    set_up();
    cr_assert(leases_open(&leases, folder, boot, reason), "%s", reason);
    for (uint64_t i = 1; i <= 16000; i++) {
        unsigned char holder[GS_MACHINE_SIZE] = {i % 256, (unsigned char)(i >> 8)};

        cr_assert_eq(fstatat(folder, "agent.leases", &before, 0), 0);
        leases_note(&leases, LEASES_HOLDER, holder, boot);
        cr_assert_eq(fstatat(folder, "agent.leases", &after, 0), 0);
        written += before.st_ino != after.st_ino;
    }
    cr_assert_eq(written, 0, "all of it counts: it was written anew %u times", written);
}

/* What one machine makes us hold is bounded, and what all do; something is left for who comes
 * later. */
Test(agent_leases, no_machine_has_all_the_room)
{
    static struct leases leases;
    char reason[LEASES_REASON];
    unsigned char liar[GS_MACHINE_SIZE] = {1}, second[GS_MACHINE_SIZE] = {2};
    struct lease model;
    uint64_t number = 0;

    set_up();
    cr_assert(leases_open(&leases, folder, boot, reason), "%s", reason);
    leases.most = 1000;
    while (leases_has_room(&leases, liar)) {
        model = lease_of(liar, ++number);
        cr_assert(leases_add(&leases, &model));
    }
    cr_assert_eq(number, 500, "half of it is left over: %d", (int)number);
    while (leases_has_room(&leases, second)) {
        model = lease_of(second, ++number);
        cr_assert(leases_add(&leases, &model));
    }
    cr_assert_eq(number, 750, "and of that half");
    cr_assert(leases_has_room(&leases, other));
}

static void fill_and_forget(struct leases *leases)
{
    fill(leases);
    leases_unnote(leases, LEASES_KNOWN, here);
}

Test(agent_leases, what_was_known_once_may_be_no_more)
{
    static struct leases leases;
    char reason[LEASES_REASON];

    set_up();
    in_process(fill_and_forget);
    cr_assert(leases_open(&leases, folder, boot, reason), "%s", reason);
    cr_assert_not(leases_noted(&leases, LEASES_KNOWN, here, NULL));
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
    cr_assert_not(leases_noted(&leases, LEASES_KNOWN, here, NULL));
    cr_assert_neq(memcmp(leases.id, ids, sizeof leases.id), 0,
                  "nobody has anything by this one yet");
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
