/* An exit that takes a while, as one does that has much memory to take down: its sockets go
 * first. */
#include <criterion/criterion.h>
#include <sys/param.h>
#include <sys/ptrace.h>

#include "scene.h"
#include "tests/children.h"
#include "tests/system.h"

static void setup(void)
{
    scene_new();
    scene_side();
    other_start(&other, dir, "strict=1");
}

TestSuite(share_exits, .init = setup, .fini = scene_end, .timeout = 60);

/* A thread of its beside the first, which must be there. */
static pid_t thread_of(pid_t pid)
{
    char path[64];
    struct dirent *entry;
    pid_t thread = 0;

    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *tasks = opendir(path);
    while (tasks && (entry = readdir(tasks)))
        thread = MAX(thread, atoi(entry->d_name));
    if (tasks)
        closedir(tasks);
    return thread > pid ? thread : 0;
}

/* Killed in the midst of a request; slowly: by a tracer of one of its threads. Until that has read
 * the thread's end the exit is not reported, as if there were much memory to take down. */
static void *kill_other(void *slowly)
{
    pid_t thread = thread_of(other.pid);

    if (slowly && (thread == 0 || ptrace(PTRACE_SEIZE, thread, NULL, NULL) != 0))
        slowly = NULL;
    usleep(300000);
    kill(other.pid, SIGKILL);
    if (slowly) {
        usleep(300000);
        waitpid(thread, NULL, __WALL);
    }
    return slowly;
}

/* A block of a process that never answers, and is killed meanwhile. */
static pthread_t export_and_be_killed(unsigned char *ret_ipc_handle, void *slowly)
{
    pthread_t killer;

    other_export(&other, 0, 512, 5, ret_ipc_handle);
    if (side_with_broker())
        cr_assert(SIDE_WAIT(side_broker_published(dir) == 1));
    halt(other.pid);
    cr_assert_eq(pthread_create(&killer, NULL, kill_other, slowly), 0);
    return killer;
}

Test(share_exits, one_whose_exit_takes_a_while_is_waited_for_until_then)
{
    static char slowly[] = "";
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    struct other importer;
    unsigned long there;
    pthread_t killer;
    void *was_slow;

    if (!other_start_apart(&importer, dir, "timeout=100000")) {
        scene_end();
        cr_skip("no PID namespace can be made here");
    }
    killer = export_and_be_killed(ipc_handle, slowly);
    cr_assert_eq(other_open(&importer, ipc_handle, &there),
                 side_with_broker() ? GS_OK : GS_UNREACHABLE);
    pthread_join(killer, &was_slow);
    other_kill(&other);
    cr_assert_eq(other_stop(&importer), 0);
    if (!was_slow)
        cr_skip_test("a thread cannot be traced here");
}
