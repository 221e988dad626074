/* An exit that takes a while, as one does that has much memory to take down: its sockets go first. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/param.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "scene.h"
#include "tests/children.h"

static void setup(void)
{
    scene_new();
    scene_side();
    other_start(&other, dir, "strict=1");
}

TestSuite(share_exits, .init = setup, .fini = scene_end, .timeout = 120);

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

/* Killed in the midst of a request, by a tracer of one of its threads: until that has read the thread's
 * end the exit is not reported, as if there were much memory to take down. */
static void *kill_slowly(void *tid)
{
    pid_t thread = *(pid_t *)tid;

    if (ptrace(PTRACE_SEIZE, thread, NULL, NULL) != 0)
        return strerror(errno);
    usleep(300000);
    kill(other.pid, SIGKILL);
    usleep(300000);
    waitpid(thread, NULL, __WALL);
    return NULL;
}

/* Of another PID namespace: only a pidfd tells it of an exit. */
static void start_elsewhere(struct other *opener)
{
    int own = open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC);

    cr_assert_geq(own, 0);
    if (unshare(CLONE_NEWPID) != 0) {
        scene_end();
        cr_skip("no PID namespace can be made here");
    }
    other_start(opener, dir, "timeout=100000");
    cr_assert_eq(setns(own, CLONE_NEWPID), 0);
    close(own); /* and LeakSanitizer starts something */
}

/* Its time, 100 s, is longer than this test's. */
Test(share_exits, an_exporter_killed_while_a_block_is_opened_is_waited_for_until_its_exit)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    struct other opener;
    unsigned long there;
    pthread_t killer;
    pid_t thread;
    void *failed;

    start_elsewhere(&opener);
    other_export(&other, 0, 512, 5, ipc_handle);
    if (side_with_broker())
        cr_assert(SIDE_WAIT(side_broker_published(dir) == 1));
    halt(other.pid); /* it never answers */
    thread = thread_of(other.pid);
    cr_assert_gt(thread, 0);
    cr_assert_eq(pthread_create(&killer, NULL, kill_slowly, &thread), 0);
    cr_assert_eq(other_open(&opener, ipc_handle, &there),
                 side_with_broker() ? GS_OK : GS_UNREACHABLE);
    pthread_join(killer, &failed);
    other_kill(&other);
    cr_assert_eq(other_stop(&opener), 0);
    if (failed)
        cr_skip_test("a thread cannot be traced here: %s", (char *)failed);
}
