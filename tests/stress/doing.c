/* What is told when something is wrong (stress.h), the options and the random numbers of both
   programs. */
#include "stress.h"

struct options options = {.seconds = 10, .threads = 4, .seed = 1};

static const struct doing *doings[STRESS_THREADS]; /* atomic: NULL while it does not run */
static const struct doing *main_doing;

_Thread_local struct doing stress_doing = {.call = "nothing yet"};

void stress_calls(const char *call)
{
    stress_doing.call = call;
    stress_doing.since_ns = now_ns();
    stress_doing.calls++;
}

/* splitmix64 */
uint32_t stress_random(uint64_t *state)
{
    uint64_t x = *state += UINT64_C(0x9e3779b97f4a7c15);

    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (uint32_t)(x >> 32);
}

uint32_t stress_below(uint64_t *state, uint32_t below)
{
    return (uint32_t)((uint64_t)stress_random(state) * below >> 32);
}

static bool number_of(const char *text, uint64_t *ret_number)
{
    char *end;

    *ret_number = strtoull(text, &end, 10);
    return *text >= '0' && *text <= '9' && !*end;
}

bool stress_options(char **argv, unsigned *jobs)
{
    uint64_t number;

    for (char **at = argv + 1; *at; at++) {
        if (strcmp(*at, "--find") == 0) {
            options.find = true;
            continue;
        }
        if (!jobs && strcmp(*at, "--one-context") == 0) {
            options.one_context = true;
            continue;
        }
        if (!at[1] || !number_of(at[1], &number))
            return false;
        if (strcmp(*at, "--seconds") == 0 && number < 1000000)
            options.seconds = (unsigned)number;
        else if (strcmp(*at, "--threads") == 0 && number > 0 && number <= STRESS_THREADS - 2)
            options.threads = (unsigned)number;
        else if (jobs && strcmp(*at, "--jobs") == 0 && number > 0 && number < 1000)
            *jobs = (unsigned)number;
        else if (strcmp(*at, "--seed") == 0)
            options.seed = number;
        else
            return false;
        at++;
    }
    return true;
}

/* ---- what is wrong ---- */

void stress_wrong(const char *format, ...)
{
    char what[600];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    stress_verdict(true, what);
}

void stress_failed(CUresult result, const char *call)
{
    const char *name = NULL;
    char what[300];

    cuGetErrorName(result, &name);
    snprintf(what, sizeof what, "%s: %s", call, name ? name : "an unknown error");
    /* Memory that went away under a kernel. */
    stress_verdict(result == CUDA_ERROR_ILLEGAL_ADDRESS, what);
}

static void say_doing(const char *who, unsigned number, const struct doing *doing)
{
    char line[300];
    int length = snprintf(line, sizeof line, "%s %u: %s, for %llu ms, its call %llu\n", who, number,
                          doing->call, (unsigned long long)(now_ns() - doing->since_ns) / 1000000,
                          (unsigned long long)doing->calls);
    ssize_t ignored = write(STDOUT_FILENO, line, (size_t)length);

    (void)ignored;
}

/* A signal's handler, and the end. */
static void hung(int signal_number)
{
    say_doing("process", (unsigned)getpid(), main_doing);
    for (unsigned i = 0; i < STRESS_THREADS; i++) {
        const struct doing *doing = __atomic_load_n(&doings[i], __ATOMIC_RELAXED);

        if (doing)
            say_doing("thread", i, doing);
    }
    stress_verdict(false, "it hangs");
}

void stress_watch(unsigned seconds)
{
    main_doing = &stress_doing;
    signal(SIGALRM, hung);
    signal(SIGTERM, hung); /* whoever runs it has waited long enough */
    alarm(seconds);
}

void stress_thread(unsigned number, bool runs)
{
    __atomic_store_n(&doings[number], runs ? &stress_doing : NULL, __ATOMIC_RELAXED);
}
