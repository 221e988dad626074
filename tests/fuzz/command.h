/* The program gpushim in a fuzz target. */
#ifndef GS_TESTS_FUZZ_COMMAND_H
#define GS_TESTS_FUZZ_COMMAND_H

#include <stdbool.h>
#include <stddef.h>

/* From now on, or no more: what the program says goes nowhere. */
void fuzz_silence(bool silent);
/* A file with these bytes in memory, and the path by which it is opened. */
int fuzz_file(const void *bytes, size_t size, char ret_path[64]);

#endif
