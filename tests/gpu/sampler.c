/*
 * Samples where a process spends its CPU time: tests/gpu/workloads/beside.py loads it. Each millisecond of CPU
 * time, of all threads together, a signal notes where the thread is that gets it.
 */
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <ucontext.h>

#define SAMPLES_MOST (1 << 20) /* later ones are lost */
#define EACH_US 1000

__attribute__((visibility("default"))) int sampler_start(void);
__attribute__((visibility("default"))) int sampler_stop(const char *path);

static uintptr_t samples[SAMPLES_MOST];
static unsigned count; /* atomic */

static void note(int number, siginfo_t *info, void *state)
{
    unsigned at = __atomic_fetch_add(&count, 1, __ATOMIC_RELAXED);

    if (at >= SAMPLES_MOST)
        return;
#if defined(__x86_64__)
    samples[at] = (uintptr_t)((const ucontext_t *)state)->uc_mcontext.gregs[REG_RIP];
#elif defined(__aarch64__)
    samples[at] = (uintptr_t)((const ucontext_t *)state)->uc_mcontext.pc;
#endif
}

static int set_timer(suseconds_t each_us)
{
    const struct itimerval timer = {{0, each_us}, {0, each_us}};

    return setitimer(ITIMER_PROF, &timer, NULL);
}

/* -1: the system refuses it. */
int sampler_start(void)
{
    struct sigaction action = {.sa_sigaction = note, .sa_flags = SA_SIGINFO | SA_RESTART};

    __atomic_store_n(&count, 0, __ATOMIC_RELAXED);
    return sigaction(SIGPROF, &action, NULL) == 0 ? set_timer(EACH_US) : -1;
}

/* Writes a line for each sample: the file that was executed. -1: it cannot be written. */
int sampler_stop(const char *path)
{
    unsigned noted;
    FILE *file;

    set_timer(0);
    file = fopen(path, "w");
    if (!file)
        return -1;
    noted = __atomic_load_n(&count, __ATOMIC_RELAXED);
    for (unsigned i = 0; i < noted && i < SAMPLES_MOST; i++) {
        Dl_info info;
        const char *name = dladdr((const void *)samples[i], &info) ? info.dli_fname : NULL;
        const char *slash = name ? strrchr(name, '/') : NULL;

        fprintf(file, "%s\n", slash ? slash + 1 : name ? name : "?");
    }
    return fclose(file) == 0 ? 0 : -1;
}
