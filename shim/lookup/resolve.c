/*
 * Which look-ups are about the driver's entry points. Every dlsym of the process comes through
 * here, from constructors and from sanitizers that have not started too: this file is compiled
 * without instrumentation and makes no libc call, and a name that is not ours leaves after a few
 * instructions. What is ours goes on to lookup.c.
 */
#include "resolve.h"
#include "elf_symbols.h"
#include "shim/entry_points.h"
#include "lookup.h"

#include "shim/state.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum {
#define GS_ENTRY(symbol, class, since) ROW_##symbol,
    GS_ENTRIES(GS_ENTRY)
#undef GS_ENTRY
    ROWS
};

static const char *const names[ROWS] = {
#define GS_ENTRY(symbol, class, since) #symbol,
    GS_ENTRIES(GS_ENTRY)
#undef GS_ENTRY
};

/* Names by hash, open addressing: row + 1, 0 for an empty slot. Filled by whoever comes first;
 * threads that come together write the same values. */
#define SLOTS 1024 /* as many as name_hash tells apart */
_Static_assert(ROWS <= SLOTS / 4, "the name table is too full: double SLOTS");
_Static_assert(ROWS < 256, "a row and 1 is a byte of the table");
static _Atomic unsigned char slots[SLOTS];
static atomic_bool slots_filled;

static uint32_t name_hash(const char *name)
{
    uint32_t h = 0;
    for (; *name; name++)
        h = (h ^ (unsigned char)*name) * 0x01000193;
    return h >> 22;
}

static bool same(const char *a, const char *b)
{
    while (*a && *a == *b) {
        a++;
        b++;
    }
    return *a == *b;
}

static void slots_fill(void)
{
    volatile unsigned char filled[SLOTS]; /* volatile: clearing it calls no memset */

    for (unsigned slot = 0; slot < SLOTS; slot++)
        filled[slot] = 0;
    for (unsigned row = 0; row < ROWS; row++) {
        uint32_t slot = name_hash(names[row]);
        while (filled[slot])
            slot = (slot + 1) % SLOTS;
        filled[slot] = (unsigned char)(row + 1);
    }
    for (unsigned slot = 0; slot < SLOTS; slot++)
        atomic_store_explicit(&slots[slot], filled[slot], memory_order_relaxed);
    atomic_store_explicit(&slots_filled, true, memory_order_release);
}

static inline bool may_be_ours(const char *name)
{
    return name && name[0] == 'c' && name[1] == 'u' && name[2] >= 'A' && name[2] <= 'Z';
}

/* Of the libraries that register memory: ibv_, gdr_, and cuFile as above. */
static inline bool may_be_pinning(const char *name)
{
    return name && ((name[0] == 'i' && name[1] == 'b' && name[2] == 'v' && name[3] == '_') ||
                    (name[0] == 'g' && name[1] == 'd' && name[2] == 'r' && name[3] == '_') ||
                    (name[0] == 'c' && name[1] == 'u' && name[2] == 'F' && name[3] == 'i'));
}

int gs_resolve_row(const char *name)
{
    if (!may_be_ours(name))
        return -1;
    if (!atomic_load_explicit(&slots_filled, memory_order_acquire))
        slots_fill();
    for (uint32_t slot = name_hash(name);; slot = (slot + 1) % SLOTS) {
        int row = atomic_load_explicit(&slots[slot], memory_order_relaxed) - 1;
        if (row < 0 || same(names[row], name))
            return row;
    }
}

/* A function of the objects after us, found once. */
static inline void *next(_Atomic(void *) *cache, const char *name)
{
    void *found = atomic_load_explicit(cache, memory_order_relaxed);
    if (__builtin_expect(!found, 0)) {
        found = gs_elf_next(name);
        atomic_store_explicit(cache, found, memory_order_relaxed);
    }
    return found;
}

static _Atomic(void *) next_dlsym, next_dlvsym;

gs_dlsym_fn *gs_next_dlsym(void)
{
    return (gs_dlsym_fn *)next(&next_dlsym, "dlsym");
}

gs_dlvsym_fn *gs_next_dlvsym(void)
{
    return (gs_dlvsym_fn *)next(&next_dlvsym, "dlvsym");
}

/* Jump to the real function; where the process has none, the answer is that there is no symbol. */
static inline struct gs_resolution pass_on(void *real)
{
    return (struct gs_resolution){real, real == NULL};
}

/* Apart from the rest, so that a foreign name does not pay for its registers. */
__attribute__((noinline)) static struct gs_resolution
may_answer(void *real, void *handle, const char *name, const char *version, const void *caller)
{
    int row = gs_resolve_row(name);
    struct gs_lookup lookup = {handle, name, version, caller, row};
    void *answer;
    if (row < 0 && real && may_be_pinning(name) && gs_pin_answer(&lookup, &answer))
        return (struct gs_resolution){answer, 1};
    if (row < 0 || !real || !gs_lookup_answer(&lookup, &answer))
        return pass_on(real);
    return (struct gs_resolution){answer, 1};
}

struct gs_resolution gs_resolve_dlsym(void *handle, const char *name, const void *caller)
{
    void *real = atomic_load_explicit(&next_dlsym, memory_order_relaxed);
    if (__builtin_expect(real && !may_be_ours(name) && !may_be_pinning(name), 1))
        return pass_on(real);
    return may_answer((void *)gs_next_dlsym(), handle, name, NULL, caller);
}

struct gs_resolution gs_resolve_dlvsym(void *handle, const char *name, const char *version,
                                       const void *caller)
{
    void *real = atomic_load_explicit(&next_dlvsym, memory_order_relaxed);
    if (__builtin_expect(real && !may_be_ours(name) && !may_be_pinning(name), 1))
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
    return (struct gs_dlopen_way){next(&next_dlopen, "dlopen"), (unsigned)flags};
}
