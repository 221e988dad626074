/* Preloaded into gpushim replay: the process of a run is killed when it ends, its result written. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

__attribute__((destructor)) static void end(void)
{
    static const char run[] = "--play";
    char words[4096] = "";
    FILE *file = fopen("/proc/self/cmdline", "re");
    size_t got = file ? fread(words, 1, sizeof words - 1, file) : 0;

    if (memmem(words, got, run, sizeof run))
        raise(SIGKILL);
}
