/*
 * gpushim.h, in C and C++ (header.cc), without anything to link: with the library in the process
 * its functions are the library's, without it they do nothing and say so. Each is looked up once.
 *
 *   header loaded | not-loaded
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static int looked_up;

static void *counted(void *where, const char *name)
{
    looked_up++;
    return dlsym(where, name);
}

#define dlsym counted
#include "shim/gpushim.h"
#undef dlsym
#include "tests/check.h"

/* ISO C wants an argument for the dots. */
#define IS(condition) CHECK(condition, "")

static void check_results(int expected, int of_memory)
{
    static struct gpushim_memory memory; /* all zero, which C and C++ write otherwise */
    static struct gpushim_registration_counts counts;
    static struct gpushim_named named;
    static struct gpushim_graphs graphs;
    uint64_t address = 7;
    void *handle = &address, *registration = &address;

    memory.size = sizeof memory;
    counts.size = sizeof counts;
    named.size = sizeof named;
    IS(gpushim_pinner_add(NULL) == expected);
    IS(gpushim_pin(NULL, 1, 2, 3, 4, &handle, &registration) == expected);
    IS(gpushim_listen(NULL) == expected);
    IS(gpushim_registration_counts(NULL) == expected);
    IS(gpushim_registration_counts(&counts) == of_memory);
    IS(gpushim_memory(0, &memory) == of_memory && memory.reserved == 0);
    IS(gpushim_publish("", NULL) == expected);
    IS(gpushim_lookup("", &named) == expected && named.bytes == 0);
    IS(gpushim_unpublish("") == expected);
    IS(gpushim_tag("\n") == expected);
    IS(gpushim_attach(NULL, &address) == expected);
    IS(gpushim_detach(0, 0) != 0 && address == 7);
    IS(handle == &address && registration == &address);
    IS(gpushim_registrations(NULL, 0) == 0 && gpushim_externals(NULL, 0) == 0);
    gpushim_flush(NULL, 1);
    gpushim_unpin(NULL);
    IS(!gpushim_allocate(4096, 0, NULL));
    gpushim_free(NULL, 0, 0, NULL);
    gpushim_used(NULL, NULL);
    gpushim_graphs_begin(0, graphs, NULL);
    gpushim_graphs_end(0, graphs);
    gpushim_graphs_gone(0, graphs);
    IS(gpushim_on_failure(NULL) == (expected == EINVAL ? 0 : expected));
}

int main(int argc, char **argv)
{
    int loaded = argc > 1 && strcmp(argv[1], "loaded") == 0;

    CHECK(strcmp(gpushim_version(), loaded ? GPUSHIM_VERSION : "") == 0, "'%s'", gpushim_version());
    CHECK(looked_up == 1, "%d times", looked_up);
    for (int i = 0; i < 2; i++)
        check_results(loaded ? EINVAL : GPUSHIM_NOT_LOADED, loaded ? ENODEV : GPUSHIM_NOT_LOADED);
    CHECK(looked_up == 23, "%d times", looked_up);
    return 0;
}
