/* The program gpushim in a fuzz target: what it says goes nowhere. */
#ifndef GS_TESTS_FUZZ_COMMAND_H
#define GS_TESTS_FUZZ_COMMAND_H

#include <stddef.h>

/* Once: standard output and errors of the program are /dev/null, those of libFuzzer are not. */
void fuzz_silence(void);
/* A file with these bytes in memory, and the path by which it is opened. */
int fuzz_file(const void *bytes, size_t size, char ret_path[64]);

#endif
