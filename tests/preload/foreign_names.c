/*
 * Look-ups that are not about the driver come out as they do without the shim: this program runs
 * with and without it, built at -O0 and at -O2, and checks the same things.
 *
 * usage: foreign_names LIBRARY, where LIBRARY is cu_neighbours.c's.
 */
#include "check.h"

#include <errno.h>
#include <stdlib.h>

int wrap_malloc_calls(void);
int twin(void);
int twin_1(void);
int twin_2(void);

static void next_is_the_callers_next(void)
{
    void *block = malloc(10);
    CHECK(block && wrap_malloc_calls() > 0, "%d calls", wrap_malloc_calls());
    free(block);
    CHECK(twin_1() == 1 && twin_2() == 2, "both libraries");
    CHECK(twin() == 12, "twin() is %d", twin());
    void *next = dlsym(RTLD_NEXT, "twin");
    CHECK(next == (void *)twin, "the program's next twin is in %s", object_of(next));
}

static void default_scope(void)
{
    CHECK(dlsym(RTLD_DEFAULT, "getenv") == (void *)getenv, "getenv");
    CHECK(strncmp(object_of(dlsym(RTLD_DEFAULT, "malloc")), "libwrap_malloc", 14) == 0, "malloc");
    dlerror();
    CHECK(!dlsym(RTLD_DEFAULT, "no_such_symbol"), "a symbol nobody has");
    const char *error = dlerror();
    CHECK(error && strstr(error, "undefined symbol: no_such_symbol"), "%s", error);
    CHECK(strstr(error, "foreign_names"), "the caller's name is not in: %s", error);
}

static void versions(void)
{
    void *any = dlvsym(RTLD_DEFAULT, "getenv", OLDEST_GLIBC);
    CHECK(any == (void *)getenv, "getenv is in %s", object_of(any));
#ifdef __x86_64__
    void *old_copy = dlvsym(RTLD_DEFAULT, "memcpy", "GLIBC_2.2.5");
    void *new_copy = dlvsym(RTLD_DEFAULT, "memcpy", "GLIBC_2.14");
    CHECK(old_copy && new_copy && old_copy != new_copy, "%p, %p", old_copy, new_copy);
#endif
    dlerror();
    CHECK(!dlvsym(RTLD_DEFAULT, "getenv", "GLIBC_1.0"), "a version nobody has");
    const char *error = dlerror();
    CHECK(error && strstr(error, "getenv") && strstr(error, "GLIBC_1.0"), "%s", error);
    CHECK(dlvsym(RTLD_NEXT, "getenv", OLDEST_GLIBC) == (void *)getenv, "next getenv");
}

static void neighbours_pass(const char *library)
{
    static const char *const names[] = {"cublasCreate_v2", "cudaMalloc", "cuMemAlloc_v2_other",
                                        "cuMemAlloc_v", "cuM"};
    void *handle = dlopen(library, RTLD_NOW);
    CHECK(handle, "%s", dlerror());
    for (int i = 0; i < 5; i++) {
        int (*function)(void) = dlsym(handle, names[i]);
        CHECK(function && function() == i + 1, "%s", names[i]);
    }
    CHECK(!dlsym(handle, "cu") && !dlsym(handle, "") && !dlsym(handle, "c"), "short names");
    dlclose(handle);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2, "usage: foreign_names LIBRARY");
    next_is_the_callers_next();
    default_scope();
    versions();
    neighbours_pass(argv[1]);
    errno = 77;
    CHECK(dlsym(RTLD_DEFAULT, "getenv") && errno == 77, "errno is %d", errno);
    return 0;
}
