/*
 * A library whose destructor calls back, loaded before or after the driver was used: its end is as
 * late, or as early, as the linker has it.
 */
#include <stddef.h>

__attribute__((visibility("default"))) void late_set(void (*call)(void));

static void (*late_call)(void);

void late_set(void (*call)(void))
{
    late_call = call;
}

__attribute__((destructor)) static void end(void)
{
    if (late_call)
        late_call();
}
