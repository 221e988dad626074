/* In every program of Criterion's: the process that it runs a test in ends with it, and what a test
 * makes has the mode that the test says, whatever mask of modes the caller has. */
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <signal.h>

#ifdef __SANITIZE_ADDRESS__
/* ASan's heap before GCC 14 does not survive a fork beside threads that allocate: a child in which
 * its lock was held waits for good. Criterion's runner has such threads, and what it forks
 * allocates before it executes the test. */
void *__interceptor_malloc(size_t size);
static _Alignas(16) char of_a_fork[16384];
static size_t taken;
static bool forked;

void *malloc(size_t size)
{
    if (!forked)
        return __interceptor_malloc(size);
    if (size > sizeof(of_a_fork) - taken)
        return NULL;
    void *given = of_a_fork + taken;
    taken += (size + 15) & ~(size_t)15;
    return given;
}

static void is_forked(void)
{
    forked = true;
}
#endif

static __attribute__((constructor)) void end_with_the_runner(void)
{
    umask(022);
    if (getenv("BXFI_MAP")) { /* what Criterion tells that process */
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        return;
    }
#ifdef __SANITIZE_ADDRESS__
    pthread_atfork(NULL, NULL, is_forked);
#endif
}
