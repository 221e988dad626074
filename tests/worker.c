/* In every program of Criterion's: the process that it runs a test in ends with it, and what a test
 * makes has the mode that the test says, whatever mask of modes the caller has. */
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#ifdef __SANITIZE_ADDRESS__
/* ASan's heap before GCC 14 does not survive a fork beside a thread that allocates: a child in
 * which its lock was held waits for good. Criterion's runner has such threads, and what it forks
 * allocates before it executes the test. So a fork is put off while another thread runs, 0.1 s at
 * most: who sleeps in the kernel has no lock of the heap. */
#include <dirent.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define REST_US       100
#define RESTS_AT_MOST 1000

static bool sleeps(const char *thread)
{
    char path[300], line[300] = "";
    FILE *file;

    snprintf(path, sizeof path, "/proc/self/task/%s/stat", thread);
    file = fopen(path, "re");
    if (!file)
        return true; /* it has ended */
    (void)!fgets(line, sizeof line, file);
    fclose(file);
    return strstr(line, ") S ");
}

static bool others_sleep(void)
{
    DIR *threads = opendir("/proc/self/task");
    const struct dirent *entry;
    bool all = true;

    while (threads && all && (entry = readdir(threads)))
        all = entry->d_name[0] == '.' || atoi(entry->d_name) == gettid() || sleeps(entry->d_name);
    if (threads)
        closedir(threads);
    return all;
}

__attribute__((visibility("default"))) pid_t fork(void)
{
    pid_t (*libcs)(void) = (pid_t (*)(void))dlsym(RTLD_NEXT, "fork");

    for (int rests = 0; rests < RESTS_AT_MOST && !others_sleep(); rests++)
        usleep(REST_US);
    return libcs();
}
#endif

static __attribute__((constructor)) void end_with_the_runner(void)
{
    umask(022);
    if (getenv("BXFI_MAP")) /* what Criterion tells that process */
        prctl(PR_SET_PDEATHSIG, SIGKILL);
}
