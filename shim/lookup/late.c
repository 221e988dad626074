/*
 * A library that came when the program had begun is asked by nobody: it says so, once. The only code
 * that runs when the library is loaded, and in a program that was started with it, it compares two
 * or three addresses; as resolve.c without instrumentation and libc.
 */
#include "elf_symbols.h"
#include "late.h"

__attribute__((constructor)) static void look_when_it_was_loaded(void)
{
    if (gs_elf_came_late())
        gs_shim_too_late();
}
