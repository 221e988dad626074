/*
 * What glibc 2.38's headers make of strtol, sscanf and their kin, called as they are called there:
 * the library answers these names itself (shim/lookup/old_libc.c), whatever libc this is built
 * with.
 */
#include <stdio.h>
#include <string.h>

int __isoc23_sscanf(const char *text, const char *format, ...);
long __isoc23_strtol(const char *text, char **end, int base);
unsigned long __isoc23_strtoul(const char *text, char **end, int base);
long long __isoc23_strtoll(const char *text, char **end, int base);
unsigned long long __isoc23_strtoull(const char *text, char **end, int base);

int main(void)
{
    char state = 0, word[8] = "";
    long threads = 0;
    char *end;

    if (__isoc23_sscanf(" S 1 17 abc", " %c %*s %ld %7s", &state, &threads, word) != 3 ||
        state != 'S' || threads != 17 || strcmp(word, "abc") != 0)
        return puts("sscanf"), 1;
    if (__isoc23_strtol("-12x", &end, 10) != -12 || *end != 'x' ||
        __isoc23_strtoul("0x10", NULL, 0) != 16 || __isoc23_strtoll("-9", NULL, 10) != -9 ||
        __isoc23_strtoull("18446744073709551615", NULL, 10) != 18446744073709551615ull)
        return puts("strtol and its kin"), 1;
    return 0;
}
