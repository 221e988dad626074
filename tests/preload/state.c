/*
 * The state machine by itself: shim/state.c between a driver and a start that this file makes slow,
 * absent or re-entrant at will.
 *
 * usage: state CASE; a process has one state, so each case is a run.
 */
#include "../../shim/state.h"
#include "../../shim/lookup/driver.h"
#include "check.h"
#include "core/record/trace.h"
#include "shim/stack.h"
#include "tests/system.h"

static bool driver_there = true, start_result = true;
static atomic_int starts, loads, adoptions, forks, announced;
static atomic_bool start_is_slow;
static sem_t in_start, go_on;
static bool entered_in_start, had_driver_in_start;

bool gs_driver_find(bool may_load, void **row)
{
    loads += may_load;
    errno = 5;
    return driver_there;
}

void gs_driver_adopt(void *const *row)
{
    adoptions++;
}

void gs_shim_forking(void)
{
    announced++;
}

void gs_shim_forked(void)
{
    forks++;
}

void gs_trace_forked(void)
{
}

void gs_stack_load(void)
{
}

bool gs_shim_start(void)
{
    starts++;
    CHECK(adoptions > 0, "started before the driver's addresses are there");
    entered_in_start = gs_state_enter() || gs_state_enter_lookup();
    had_driver_in_start = gs_state_has_driver();
    if (start_is_slow) {
        sem_post(&in_start);
        sem_wait(&go_on);
    }
    errno = 6;
    return start_result;
}

static int status_of(pid_t pid)
{
    int status;
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid, "fork or waitpid: %s", strerror(errno));
    return status;
}

static pid_t child(void)
{
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm(60);
    }
    return pid;
}

static void once(void)
{
    driver_there = false;
    CHECK(!gs_state_enter_lookup() && !gs_state_enter(), "without a driver");
    CHECK(loads == 1, "a look-up loads libcuda, or a call does not: %d", loads);
    CHECK(gs_state == GS_STATE_UNBORN && starts == 0 && !gs_state_has_driver(), "not unborn");
    driver_there = true;
    errno = 77;
    CHECK(gs_state_enter(), "with a driver");
    CHECK(errno == 77, "errno is %d", errno);
    CHECK(gs_state == GS_STATE_READY && gs_state_has_driver(), "not ready");
    CHECK(!entered_in_start && had_driver_in_start, "what start calls is to pass on");
    CHECK(gs_state_enter() && gs_state_enter_lookup() && starts == 1, "%d starts", starts);
}

static void disabled(void)
{
    start_result = false;
    CHECK(!gs_state_enter_lookup() && !gs_state_enter(), "disabled, and hooks do work");
    CHECK(gs_state == GS_STATE_DISABLED && starts == 1, "%d starts", starts);
    CHECK(gs_state_has_driver(), "where to pass on to");
    pid_t pid = child();
    if (pid == 0)
        _exit(gs_state_enter() || gs_state != GS_STATE_DISABLED);
    CHECK(status_of(pid) == 0, "the child");
}

static void forked(void)
{
    pid_t pid = child();
    if (pid == 0)
        _exit(!gs_state_enter()); /* its own beginning */
    CHECK(status_of(pid) == 0, "a child of an unborn process");
    CHECK(announced == 0, "a fork of an unborn process");
    CHECK(gs_state_enter(), "the parent");
    pid = child();
    if (pid == 0) {
        if (gs_state_enter() || gs_state_enter_lookup() || !gs_state_has_driver())
            _exit(1);
        pid_t grandchild = child();
        if (grandchild == 0)
            _exit(gs_state_enter());
        _exit(status_of(grandchild) != 0 || starts != 1 || forks != 1 || announced != 1);
    }
    CHECK(status_of(pid) == 0, "a child of a process that is ready");
    CHECK(gs_state_enter(), "the parent after the fork");
}

static void *enter(void *argument)
{
    return gs_state_enter() ? argument : NULL;
}

static void others_wait(void)
{
    pthread_t threads[64];
    start_is_slow = true;
    for (int i = 0; i < 64; i++)
        CHECK(pthread_create(&threads[i], NULL, enter, threads) == 0, "a thread");
    sem_wait(&in_start);
    CHECK(gs_state == GS_STATE_LOADING && !gs_state_has_driver(), "not loading");

    /* The thread that loads does not come along into a child. */
    pid_t pid = child();
    if (pid == 0) {
        int before = adoptions;
        _exit(gs_state_enter() || gs_state_enter_lookup() || !gs_state_has_driver() ||
              adoptions == before || gs_state != GS_STATE_CHILD);
    }
    CHECK(status_of(pid) == 0, "a child of a process that is loading");

    sem_post(&go_on);
    for (int i = 0; i < 64; i++) {
        void *entered;
        CHECK(pthread_join(threads[i], &entered) == 0 && entered, "thread %d passed on", i);
    }
    CHECK(starts == 1, "%d starts", starts);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } cases[] = {
        {"once", once},
        {"disabled", disabled},
        {"forked", forked},
        {"others-wait", others_wait},
    };
    CHECK(argc == 2, "usage: state CASE");
    sem_init(&in_start, 0, 0);
    sem_init(&go_on, 0, 0);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (strcmp(cases[i].name, argv[1]) == 0) {
            cases[i].run();
            return 0;
        }
    }
    CHECK(false, "no case %s", argv[1]);
}
