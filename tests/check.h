/* What does not hold ends the program, saying where and what, and what else is to be said (a
 * format, and what is for it). In programs where a test framework would be one more thing in the
 * process; and where a failed assertion of Criterion 2.4.1 fails no test: in the end of a suite,
 * and in a child. */
#ifndef GPUSHIM_TESTS_CHECK_H
#define GPUSHIM_TESTS_CHECK_H

#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition, ...)                                                     \
    do {                                                                          \
        if (!(condition)) {                                                       \
            fflush(stdout);                                                       \
            fprintf(stderr, "%s:%d: not so: %s", __FILE__, __LINE__, #condition); \
            fprintf(stderr, " " __VA_ARGS__);                                     \
            fputc('\n', stderr);                                                  \
            abort();                                                              \
        }                                                                         \
    } while (0)

#endif
