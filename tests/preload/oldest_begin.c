/*
 * A program that begins as shim/command/begin.c has it, with what the oldest libc has for that: its
 * constructors run once, in their order, and are told what main is; its destructors, and those of
 * its libraries, run at its end.
 */
#include "check.h"

#include <stdlib.h>
#include <unistd.h>

static int ran[3], count, told;
static char **told_arguments, **told_environment;

__attribute__((constructor(201))) static void first(int argc, char **argv, char **environment)
{
    ran[count++] = 1;
    told = argc;
    told_arguments = argv;
    told_environment = environment;
}

__attribute__((constructor(202))) static void second(void)
{
    ran[count++] = 2;
}

static bool ended;

/* The last thing of all. */
__attribute__((destructor)) static void end(void)
{
    if (ended)
        _exit(0);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2 && count == 2 && ran[0] == 1 && ran[1] == 2, "%d constructors, %d before %d",
          count, ran[0], ran[1]);
    CHECK(told == argc && told_arguments == argv && told_environment == environ,
          "a constructor was told of %d", told);
    CHECK(getenv("BEGAN") && strcmp(argv[1], "argument") == 0, "main was not told");
    ended = true;
    return 1;
}
