/* The agent's leases, and the file that keeps them beyond its end. */
#include "shim/agent/leases.h"

#include <criterion/criterion.h>

#include "failing.h"
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
        if (!leases_look(leases))
            _exit(3);
    }
    for (unsigned char i = 1; i < 3; i++)
        leases_note(leases, LEASES_HOLDER, (unsigned char[GS_MACHINE_SIZE]){i}, &self);
    leases_unnote(leases, LEASES_HOLDER, (unsigned char[GS_MACHINE_SIZE]){2});
    leases_note(leases, LEASES_ASKED, other, here);
    memcpy(ids, leases->id, sizeof leases->id);
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
        cr_assert(leases_look(&leases));
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
    cr_assert_neq(memcmp(leases.id, ids, sizeof leases.id), 0,
                  "nobody has anything by this one yet");
    cr_assert(leases_noted(&leases, LEASES_ASKED, other, value));
}

static void fill_some(struct leases *leases)
{
    for (uint64_t i = 1; i <= 10; i++) {
        const struct lease model = lease_of(i % 2 ? here : other, i);

        if (!leases_add(leases, &model))
            _exit(2);
    }
    memcpy(ids, leases->id, sizeof leases->id);
}

static void is_lost(struct leases *leases)
{
    if (HASH_COUNT(leases->all) > 0 || HASH_COUNT(leases->notes) != 1 ||
        memcmp(leases->id, ids, sizeof leases->id) == 0)
        _exit(4);
}

static void is_whole(struct leases *leases)
{
    if (HASH_COUNT(leases->all) != 10 || memcmp(leases->id, ids, sizeof leases->id) != 0)
        _exit(5);
}

/* What is not there may be of the same block as what is. */
static void is_lost_where(const char *what, off_t place, size_t size, off_t length)
{
    static const char junk[1000];
    int file;

    in_process(fill_some);
    in_process(is_whole);
    file = openat(folder, "agent.leases", O_WRONLY | O_CLOEXEC);
    cr_assert(file >= 0 && pwrite(file, junk, size, place) == (ssize_t)size);
    cr_assert(length == 0 || ftruncate(file, length) == 0);
    close(file);
    in_process(is_lost);
    cr_assert_eq(unlinkat(folder, "agent.leases", 0), 0);
    puts(what);
}

Test(agent_leases, what_cannot_be_read_whole_is_as_lost)
{
    struct stat info;

    set_up();
    in_process(fill_some);
    cr_assert_eq(fstatat(folder, "agent.leases", &info, 0), 0);
    is_lost_where("zeros within", 300, 50, 0);
    is_lost_where("anything behind it", info.st_size, 1000, 0);
    is_lost_where("a last one that is cut", 0, 0, info.st_size - 1);
    for (int i = 0; i < 3; i++) {
        in_process(fill_some);
        fails_read = i == 0 ? 5 : 0;
        fails_size = i == 1 ? sizeof(struct lease) : i == 2 ? sizeof(struct leases_note) : 0;
        in_process(is_lost);
        fails_read = 0;
        fails_size = 0;
    }
}

static bool has_room_again, is_taken_away;

static void run_out_of_room(struct leases *leases)
{
    struct lease model = lease_of(here, 11);

    fill_some(leases);
    if (is_taken_away && unlinkat(folder, "agent.leases", 0) != 0)
        _exit(6);
    disk_is_full = true;
    if (!is_taken_away && !leases_add(leases, &model))
        _exit(2);
    if (leases_look(leases) || faccessat(folder, "agent.leases", F_OK, 0) == 0)
        _exit(7);
    if (leases_find(leases, here, 11))
        leases_end(leases, leases_find(leases, here, 11)); /* nothing brings it back but this: */
    disk_is_full = !has_room_again;
    if (leases_look(leases) != has_room_again)
        _exit(8);
}

/* Also where somebody took it away: what would be said in it next is nowhere. */
Test(agent_leases, a_file_that_lacks_one_is_none_until_it_is_written_anew)
{
    set_up();
    for (int i = 0; i < 4; i++) {
        has_room_again = i & 1;
        is_taken_away = i & 2;
        in_process(run_out_of_room);
        in_process(has_room_again ? is_whole : is_lost);
        cr_assert_eq(unlinkat(folder, "agent.leases", 0), 0);
    }
}

Test(agent_leases, a_folder_has_one_agent)
{
    static struct leases first, second;
    char reason[LEASES_REASON];

    set_up();
    cr_assert(leases_open(&first, folder, boot, reason), "%s", reason);
    for (int again = 0; again < 2; again++) { /* also where somebody took the lock's file away */
        cr_assert_not(leases_open(&second, folder, boot, reason));
        cr_assert(strstr(reason, "another agent"), "%s", reason);
        cr_assert_eq(unlinkat(folder, "agent.leases.lock", 0), 0);
        cr_assert(leases_look(&first));
    }
    cr_assert_eq(unlinkat(folder, "agent.leases.lock", 0), 0);
    cr_assert(leases_open(&second, folder, boot, reason), "%s", reason);
    for (int again = 0; again < 2; again++) { /* the first one writes nothing any more */
        cr_assert_not(leases_look(&first));
        cr_assert_eq(errno, EWOULDBLOCK);
    }
}
