/* Runs worlds, one seed after the other, until one breaks a rule. */
#include "simulation.h"

#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static struct {
    uint64_t seed, seeds, all_steps;
    unsigned steps;
    bool shrink;
    const char *replay, *output;
} wanted = {.seed = 1,
            .seeds = NEVER,
            .all_steps = 1000000,
            .steps = 2000,
            .shrink = true,
            .output = "simulation.trace"};

static int usage(void)
{
    fputs(
        "simulation [--seed N] [--seeds N] [--all-steps N] [--steps N] [--processes N]\n"
        "           [--strategy embedded|broker|cluster] [--trace] [--no-shrink] [--output FILE]\n"
        "           [--replay FILE]\n",
        stderr);
    return 2;
}

static bool read_options(int argc, char **argv)
{
    static const struct option options[] = {{"seed", 1, NULL, 's'},
                                            {"seeds", 1, NULL, 'n'},
                                            {"all-steps", 1, NULL, 'a'},
                                            {"steps", 1, NULL, 'l'},
                                            {"processes", 1, NULL, 'p'},
                                            {"strategy", 1, NULL, 'b'},
                                            {"trace", 0, NULL, 't'},
                                            {"no-shrink", 0, NULL, 'k'},
                                            {"output", 1, NULL, 'o'},
                                            {"replay", 1, NULL, 'r'},
                                            {0}};
    int option;

    world.process_count = 4;
    while ((option = getopt_long(argc, argv, "", options, NULL)) >= 0) {
        if (option == 's')
            wanted.seed = strtoull(optarg, NULL, 10);
        else if (option == 'n')
            wanted.seeds = strtoull(optarg, NULL, 10);
        else if (option == 'a')
            wanted.all_steps = strtoull(optarg, NULL, 10);
        else if (option == 'l')
            wanted.steps = (unsigned)strtoul(optarg, NULL, 10);
        else if (option == 'p')
            world.process_count = (unsigned)strtoul(optarg, NULL, 10);
        else if (option == 'b')
            world.cluster = strcmp(optarg, "cluster") == 0,
            world.broker = world.cluster || strcmp(optarg, "broker") == 0;
        else if (option == 't')
            world.trace = true;
        else if (option == 'k')
            wanted.shrink = false;
        else if (option == 'o')
            wanted.output = optarg;
        else if (option == 'r')
            wanted.replay = optarg;
        else
            return false;
    }
    return optind == argc;
}

/* The library itself has crashed: then the seed is all that there is to say. */
static void on_crash(int number)
{
    char text[128];
    int length = snprintf(text, sizeof text, "seed %llu: signal %d after %llu steps of all\n",
                          (unsigned long long)world.seed, number, (unsigned long long)world.steps);
    ssize_t ignored = write(STDERR_FILENO, text, (size_t)length);

    (void)ignored;
    signal(number, SIG_DFL);
    raise(number);
}

static void catch_crashes(void)
{
    static char stack[64 * 1024];
    const stack_t other = {.ss_sp = stack, .ss_size = sizeof stack};
    const struct sigaction act = {.sa_handler = on_crash, .sa_flags = SA_ONSTACK};

    sigaltstack(&other, NULL);
    sigaction(SIGSEGV, &act, NULL);
    sigaction(SIGABRT, &act, NULL);
    sigaction(SIGXCPU, &act, NULL); /* a world that does not end (tests/mutants/mutants.py) */
}

static double now_s(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static int failed(struct decisions *decisions)
{
    printf("seed %llu fails after %llu steps of all, by %zu decisions:\n  %s\n",
           (unsigned long long)world.seed, (unsigned long long)world.steps, decisions->count,
           world.failure);
    if (wanted.shrink) {
        shrink(world.seed, decisions);
        world_run(world.seed, 0, decisions, true);
        printf("%zu decisions do:\n  %s\n", decisions->count, world.failure);
    }
    if (decisions_write(decisions, wanted.output))
        printf("again: --trace --replay %s\n", wanted.output);
    return 1;
}

static int replay(void)
{
    struct decisions decisions = {0};
    uint64_t seed;

    if (!decisions_read(&decisions, wanted.replay, &seed)) {
        fprintf(stderr, "%s cannot be read\n", wanted.replay);
        return 2;
    }
    if (world_run(seed, 0, &decisions, true)) {
        puts("no rule was broken");
        return 0;
    }
    printf("%s\n", world.failure);
    return 1;
}

int main(int argc, char **argv)
{
    struct decisions decisions = {0};
    double begun = now_s(), took;
    uint64_t seed;

    if (!read_options(argc, argv))
        return usage();
    catch_crashes();
    if (wanted.replay)
        return replay();
    for (seed = wanted.seed; seed - wanted.seed < wanted.seeds && world.steps < wanted.all_steps;
         seed++) {
        decisions.count = 0;
        if (!world_run(seed, wanted.steps, &decisions, false))
            return failed(&decisions);
    }
    took = now_s() - begun;
    printf("%s: %llu seeds, %llu steps, no rule was broken; %.1f million steps a minute\n",
           world.cluster  ? "cluster"
           : world.broker ? "broker"
                          : "embedded",
           (unsigned long long)(seed - wanted.seed), (unsigned long long)world.steps,
           (double)world.steps / took * 60 / 1e6);
    free(decisions.list);
    return 0;
}
