/*
 * Lets the broker start where libc is older than the one it was built with, as old_libc.c does for
 * the library: glibc 2.34 gave the function that every program begins with a new symbol version,
 * because it runs a program's constructors itself from then on. The older one, which all have, runs
 * them by the function that it is given.
 */
#include <stddef.h>

#include "shim/command/old_dl.h"

typedef void constructor_fn(int argc, char **argv, char **environment);

/* Given by the linker. */
extern constructor_fn *__init_array_start[] __attribute__((visibility("hidden")));
extern constructor_fn *__init_array_end[] __attribute__((visibility("hidden")));

__asm__(".symver oldest_start_main, __libc_start_main@" OLDEST_GLIBC);
extern int oldest_start_main(int (*)(int, char **, char **), int, char **, constructor_fn *,
                             void (*)(void), void (*)(void), void *);

static void run_constructors(int argc, char **argv, char **environment)
{
    for (constructor_fn **each = __init_array_start; each < __init_array_end; each++)
        (*each)(argc, argv, environment);
}

int __wrap___libc_start_main(int (*program)(int, char **, char **), int argc, char **argv,
                             constructor_fn *no_init, void (*no_end)(void),
                             void (*end_linker)(void), void *stack_end);
int __wrap___libc_start_main(int (*program)(int, char **, char **), int argc, char **argv,
                             constructor_fn *no_init, void (*no_end)(void),
                             void (*end_linker)(void), void *stack_end)
{
    return oldest_start_main(program, argc, argv, run_constructors, no_end, end_linker, stack_end);
}
