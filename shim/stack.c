/* Return addresses (stack.h). */
#include "stack.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "core/record/trace.h"
#include "process.h"
#include "python.h"
#include "shim/lookup/elf_symbols.h"

#define OWN_MOST 32 /* frames of the library's, and of an interposer's in front */

/* As unwind.h of gcc has them, which not every compiler brings along. */
struct _Unwind_Context;
typedef int visit_fn(struct _Unwind_Context *context, void *arg);
enum { GO_ON = 0, STOP = 5 }; /* _URC_NO_REASON, _URC_NORMAL_STOP */

static unsigned wanted;
static _Thread_local char tag[64]; /* "": none */
static _Atomic(int (*)(visit_fn *, void *)) unwind;
static uintptr_t (*address_of)(struct _Unwind_Context *context); /* before `unwind` */

void gs_stack_want(unsigned frames)
{
    wanted = frames;
}

void gs_stack_load(void)
{
    struct link_map *map;
    void *found;

    if (!gs_tracing() || !wanted)
        return;
    gs_python_load();
    if (atomic_load(&unwind))
        return;
    map = gs_elf_open("libgcc_s.so.1", RTLD_NOW);
    if (!map)
        return;
    address_of = (__typeof__(address_of))gs_elf_symbol(map->l_addr, map->l_ld, "_Unwind_GetIP");
    found = gs_elf_symbol(map->l_addr, map->l_ld, "_Unwind_Backtrace");
    if (address_of && found)
        atomic_store(&unwind, (int (*)(visit_fn *, void *))found);
}

struct walk {
    uint64_t *frames;
    uintptr_t caller;
    unsigned found, looked, most;
};

/* What is before the caller is this library. */
static int visit(struct _Unwind_Context *context, void *arg)
{
    struct walk *walk = arg;
    uintptr_t address = address_of(context);

    if (walk->found == 0 && address != walk->caller)
        return ++walk->looked < OWN_MOST ? GO_ON : STOP;
    if (address == 0)
        return STOP;
    walk->frames[walk->found++] = address;
    return walk->found < walk->most ? GO_ON : STOP;
}

void gs_stack_tag(const char *label)
{
    snprintf(tag, sizeof tag, "%s", label);
}

/* What has a name: the label, and lines of a script. */
static unsigned named(uint64_t *ret_frames)
{
    const unsigned room = GS_TRACE_FRAMES_MAX - 1; /* but for one address */
    unsigned found = 0;

    if (tag[0])
        ret_frames[found++] = gs_trace_name(tag, "", 0);
    if (wanted)
        found +=
            gs_python_frames(ret_frames + found, wanted < room - found ? wanted : room - found);
    return found;
}

unsigned gs_stack(uint64_t *ret_frames, void *caller)
{
    const unsigned before = named(ret_frames), room = GS_TRACE_FRAMES_MAX - before;
    struct walk walk = {ret_frames + before, (uintptr_t)caller, 0, 0,
                        wanted < room ? wanted : room};
    int (*walk_stack)(visit_fn *, void *);

    if (!wanted)
        return before;
    walk_stack = atomic_load_explicit(&unwind, memory_order_acquire);
    if (walk_stack && wanted > 1)
        walk_stack(visit, &walk);
    if (walk.found == 0)
        walk.frames[walk.found++] = (uintptr_t)caller;
    return before + walk.found;
}
