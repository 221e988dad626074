/* Processes of this machine that have memory of another's open (shim/agent/holders.c). */
#include "shim/agent/agent.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/children.h"

TestSuite(agent_holders, .timeout = 60);

/* The broker, which sent its pidfd, has it still. */
Test(agent_holders, of_one_that_is_gone_the_end_is_not_told)
{
    static struct gs_share_options share;
    static struct agent agent = {.broker = {.fd = -1}, .share = &share};
    struct gs_wire_holder_afar told = {.holder = 7};
    struct epoll_event event;
    int pidfd, brokers;
    pid_t child;

    agent.epoll = epoll_create1(EPOLL_CLOEXEC);
    child = fork_child();
    if (child == 0) {
        pause();
        _exit(0);
    }
    pidfd = (int)syscall(SYS_pidfd_open, child, 0);
    brokers = dup(pidfd);
    cr_assert(agent.epoll >= 0 && child > 0 && pidfd >= 0 && brokers >= 0);
    holders_note(&agent, &told, pidfd);
    cr_assert_not_null(agent.holders);
    told.gone = 1;
    holders_note(&agent, &told, -1);
    holders_look(&agent, 1);
    cr_assert_null(agent.holders);
    cr_assert_eq(kill(child, SIGKILL), 0);
    cr_assert_eq(waitpid(child, NULL, 0), child);
    cr_assert_eq(epoll_wait(agent.epoll, &event, 1, 0), 0, "a holder that has been freed would be called");
    close(brokers);
    close(agent.epoll);
}
