/*
 * Which look-ups are about the driver's entry points. Every dlsym of the process comes through
 * here, from constructors and from sanitizers that have not started too: this file is compiled
 * without instrumentation and makes no libc call, and a name that is not ours leaves after a few
 * instructions. What is ours goes on to lookup.c.
 */
#include "resolve.h"
#include "lookup.h"
#include "names.h"

#include "shim/state.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

/* Jump to the real function; where the process has none, the answer is that there is no symbol. */
static inline struct gs_resolution pass_on(void *real)
{
    return (struct gs_resolution){real, real == NULL};
}

/* Apart from the rest, so that a foreign name does not pay for its registers. */
__attribute__((noinline)) static struct gs_resolution
may_answer(void *real, void *handle, const char *name, const char *version, const void *caller)
{
    int row = gs_name_row(name);
    struct gs_lookup lookup = {handle, name, version, caller, row};
    void *answer;
    if (row == GS_NAME_UNKNOWN && real && gs_name_may_be_drivers(name) &&
        gs_lookup_newer(&lookup, &answer))
        return (struct gs_resolution){answer, 1};
    if (row < 0 || !real || !gs_lookup_answer(&lookup, &answer))
        return pass_on(real);
    return (struct gs_resolution){answer, 1};
}

struct gs_resolution gs_resolve_dlsym(void *handle, const char *name, const void *caller)
{
    void *real = atomic_load_explicit(&gs_next_dlsym_found, memory_order_relaxed);
    if (__builtin_expect(real && !gs_name_may_be_ours(name), 1))
        return pass_on(real);
    return may_answer((void *)gs_next_dlsym(), handle, name, NULL, caller);
}

struct gs_resolution gs_resolve_dlvsym(void *handle, const char *name, const char *version,
                                       const void *caller)
{
    void *real = atomic_load_explicit(&gs_next_dlvsym_found, memory_order_relaxed);
    if (__builtin_expect(real && !gs_name_may_be_ours(name), 1))
        return pass_on(real);
    return may_answer((void *)gs_next_dlvsym(), handle, name, version, caller);
}

/* The variable as its option would be read (config/options.h), without libc. A configuration file
 * is not read for it. */
extern char **environ __attribute__((weak));

static bool is_word(const char *text, const char *word)
{
    while (*text && (*text | 0x20) == *word) {
        text++;
        word++;
    }
    return !*text && !*word;
}

static bool switched_off(void)
{
    static const char name[] = "GPUSHIM_ENABLE=";
    static const char *const words[] = {"off", "no", "false", "0"};

    if (atomic_load_explicit(&gs_state, memory_order_relaxed) == GS_STATE_DISABLED)
        return true;
    for (char **at = &environ ? environ : NULL; at && *at; at++) {
        size_t i = 0;
        while (i < sizeof name - 1 && (*at)[i] == name[i])
            i++;
        for (int k = 0; i == sizeof name - 1 && k < 4; k++)
            if (is_word(*at + i, words[k]))
                return true;
    }
    return false;
}

struct gs_dlopen_way gs_resolve_dlopen(int flags)
{
    static _Atomic(void *) next_dlopen;

    if ((flags & RTLD_DEEPBIND) && !switched_off())
        flags &= ~RTLD_DEEPBIND;
    return (struct gs_dlopen_way){gs_next(&next_dlopen, "dlopen"), (unsigned)flags};
}
