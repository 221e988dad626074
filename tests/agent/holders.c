/* Processes of this machine that have memory of another's open (shim/agent/holders.c). */
#include "shim/agent/agent.h"

#include <criterion/criterion.h>

#include "tests/children.h"
#include "tests/folder.h"
#include "tests/system.h"

TestSuite(agent_holders, .timeout = 60);

#define SETTLE_NS (10 * GS_NS_PER_S)

static struct gs_share_options share = {.settle_ns = SETTLE_NS};
static struct agent agent = {.broker = {.fd = -1}, .share = &share};
static pid_t children[3];

static void tell_of(uint64_t number, int child, bool gone)
{
    const struct gs_wire_hello told = {.holder = number, .holds = !gone};
    int pidfd = gone ? -1 : (int)syscall(SYS_pidfd_open, children[child], 0);

    cr_assert(gone || pidfd >= 0);
    holders_note(&agent, &told, &pidfd);
    cr_assert_lt(pidfd, 0, "it is the agent's");
}

static void tell(uint64_t number, bool gone)
{
    tell_of(number, (int)number - 1, gone);
}

static void end(int child)
{
    cr_assert_eq(kill(children[child], SIGKILL), 0);
    cr_assert_eq(waitpid(children[child], NULL, 0), children[child]);
}

/* What it had is its own until it has settled. */
static void end_holder(int child)
{
    const uint64_t now = gs_now_ns();

    end(child);
    holders_look(&agent, now);
    holders_look(&agent, now + SETTLE_NS - 1);
    cr_assert(agent.leases.all, "it settles");
    holders_look(&agent, now + SETTLE_NS);
}

static void set_up(void)
{
    struct lease model = {.key.lease = 1, .named = true};
    int folder = open(folder_new("holders"), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    char reason[LEASES_REASON];

    cr_assert(folder >= 0 && leases_open(&agent.leases, folder, agent.boot, reason), "%s", reason);
    for (int i = 0; i < 3; i++) {
        children[i] = fork_child();
        if (children[i] == 0) {
            pause();
            _exit(0);
        }
        cr_assert(children[i] > 0);
        tell((uint64_t)i + 1, false);
    }
    cr_assert_not_null(leases_add(&agent.leases, &model));
}

/* What a broker had when it ended is held until all of its holders have ended, also by the next
 * agent; who had given back what it had by then does not count. */
Test(agent_holders, what_a_broker_had_ends_with_the_last_of_its_holders)
{
    for (int again = 0; again < 2; again++) {
        unsigned count = 0;
        struct holder *holder;

        set_up();
        tell(3, true);
        holders_look(&agent, gs_now_ns());
        cr_assert(agent.leases.all, "its broker is there");
        holders_orphan(&agent);
        if (again) { /* as the file has it */
            agent.holders = NULL;
            holders_restore(&agent);
        }
        for (holder = agent.holders; holder; holder = holder->next)
            count++;
        cr_assert_eq(count, 2);
        end_holder(0);
        cr_assert(agent.leases.all, "one of two is there");
        end_holder(1);
        cr_assert_null(agent.leases.all);
        cr_assert_null(agent.holders);
        end(2);
    }
}

/* It has a connection, and a number, for each that it imports from. */
Test(agent_holders, one_that_imports_from_several_counts_until_it_ends)
{
    for (int again = 0; again < 2; again++) {
        set_up();
        tell_of(4, 0, false);
        tell_of(4, 0, true);
        holders_orphan(&agent);
        if (again) {
            agent.holders = NULL;
            holders_restore(&agent);
        }
        end_holder(1);
        end_holder(2);
        cr_assert(agent.leases.all, "it is there");
        end_holder(0);
        cr_assert_null(agent.leases.all);
    }
}
