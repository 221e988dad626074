/*
 * _exit and _Exit: the end without exit handlers, by which workers that a program has forked, and
 * Python's multiprocessing, mostly end. In a process that uses CUDA its figures are said before;
 * all else is left to the next one of that name: libc's, or a tool's (a sanitizer). As resolve.c
 * without instrumentation and libc, for the children of every program that is started with the
 * library end here.
 */
#include "elf_symbols.h"
#include "leave.h"
#include "names.h"

#include "shim/state.h"

/* Where nobody else has the name. */
__attribute__((noreturn)) static void end(int status)
{
    for (;;) {
#if defined(__x86_64__)
        long call = 231; /* exit_group */
        __asm__ volatile("syscall" : "+a"(call) : "D"((long)status) : "rcx", "r11", "memory");
#elif defined(__aarch64__)
        register long call __asm__("x8") = 94;
        register long argument __asm__("x0") = status;
        __asm__ volatile("svc 0" : "+r"(argument) : "r"(call) : "memory");
#else
        __builtin_trap();
#endif
    }
}

__attribute__((noreturn)) static void leave(_Atomic(void *) *cache, const char *name, int status)
{
    void (*next)(int);

    if (gs_state_is_on())
        gs_shim_leaves();
    next = (void (*)(int))gs_next(cache, name);
    if (next)
        next(status);
    end(status);
}

__attribute__((visibility("default"), noreturn)) void _exit(int status);
__attribute__((visibility("default"), noreturn)) void _Exit(int status);

void _exit(int status)
{
    static _Atomic(void *) found;

    leave(&found, "_exit", status);
}

void _Exit(int status)
{
    static _Atomic(void *) found;

    leave(&found, "_Exit", status);
}

/* A library that came when the program had begun is asked by nobody: it says so, once. The only
 * code that runs when the library is loaded, and in a program that was started with it, it compares
 * two or three addresses. */
__attribute__((constructor)) static void look_when_it_was_loaded(void)
{
    if (gs_elf_came_late())
        gs_shim_too_late();
}
