/*
 * Two libraries define twin(); each gives its own number and that of the next one in load order.
 */
#include <dlfcn.h>
#include <stddef.h>

__attribute__((visibility("default"))) int twin(void);

int twin(void)
{
    int (*next)(void) = dlsym(RTLD_NEXT, "twin");
    return next ? TWIN * 10 + next() : TWIN;
}
