/*
 * What the preload tests check with. Plain programs: they run under LD_PRELOAD, under sanitizers
 * and in threads, where a test framework would be one more thing in the process.
 */
#ifndef GPUSHIM_TESTS_PRELOAD_CHECK_H
#define GPUSHIM_TESTS_PRELOAD_CHECK_H

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* _exit: a thread or a forked child may be the one that fails. */
#define CHECK(condition, ...)                                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fflush(stdout);                                                                        \
            fprintf(stderr, "%s:%d: not so: %s: ", __FILE__, __LINE__, #condition);                \
            fprintf(stderr, __VA_ARGS__);                                                          \
            fputc('\n', stderr);                                                                   \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

/* The last component of the file of the object that an address lies in. */
static inline const char *object_of(const void *address)
{
    Dl_info info;
    if (!address || !dladdr(address, &info))
        return "(none)";
    const char *slash = strrchr(info.dli_fname, '/');
    return slash ? slash + 1 : info.dli_fname;
}

static inline bool is_hook(const void *address)
{
    return strcmp(object_of(address), "libgpushim.so") == 0;
}

static inline bool is_driver(const void *address)
{
    return strstr(object_of(address), "libcuda.so") != NULL;
}

#endif
