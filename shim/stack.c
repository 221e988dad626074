/* Return addresses (stack.h). */
#include "stack.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "core/base/trace.h"
#include "process.h"
#include "shim/lookup/elf_symbols.h"

#define OWN_MOST 32 /* frames of the library's, and of an interposer's in front */

/* As unwind.h of gcc has them, which not every compiler brings along. */
struct _Unwind_Context;
typedef int visit_fn(struct _Unwind_Context *context, void *arg);
enum { GO_ON = 0, STOP = 5 }; /* _URC_NO_REASON, _URC_NORMAL_STOP */

static unsigned wanted;
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

    if (!gs_tracing() || !wanted || atomic_load(&unwind))
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
    unsigned found, looked;
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
    return walk->found < wanted ? GO_ON : STOP;
}

unsigned gs_stack(uint64_t *ret_frames, void *caller)
{
    int (*walk_stack)(visit_fn *, void *);
    struct walk walk = {ret_frames, (uintptr_t)caller, 0, 0};

    if (!wanted)
        return 0;
    walk_stack = atomic_load_explicit(&unwind, memory_order_acquire);
    if (walk_stack && wanted > 1)
        walk_stack(visit, &walk);
    if (walk.found == 0)
        ret_frames[walk.found++] = (uintptr_t)caller;
    return walk.found;
}
