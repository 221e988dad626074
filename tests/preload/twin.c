/*
 * Two libraries define twin(); each gives its own number and that of the next one in load order.
 * twin_1() and twin_2() are what the program needs each of them for.
 */
#include <dlfcn.h>
#include <stddef.h>

#define EXPORT         __attribute__((visibility("default")))
#define PASTE(a, b)    a##b
#define NUMBERED(a, b) PASTE(a, b)

EXPORT int twin(void);
EXPORT int NUMBERED(twin_, TWIN)(void);

int twin(void)
{
    int (*next)(void) = dlsym(RTLD_NEXT, "twin");
    return next ? TWIN * 10 + next() : TWIN;
}

int NUMBERED(twin_, TWIN)(void)
{
    return TWIN;
}
