/*
 * What a look-up of one of our names answers.
 *
 * The driver's functions are always taken from libcuda's own symbol table, never through dlsym: a
 * hook then reaches the driver whatever other interposers are in the process, and none of them can
 * end in a loop with us. What the program asks goes the other way, through the real dlsym first,
 * and only an answer that is the driver's function (or our own export, which stands in for it)
 * becomes the hook. So the handle, the scope and other interposers decide as they would without us.
 */
#include "lookup.h"
#include "elf_symbols.h"
#include "shim/hooks/hook.h"
#include "resolve.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static void *const hooks[GS_ENTRY_COUNT] = {
#define GS_ENTRY(symbol, class, since) (void *)&symbol,
    GS_ENTRIES(GS_ENTRY)
#undef GS_ENTRY
};

static const char *const names[GS_ENTRY_COUNT] = {
#define GS_ENTRY(symbol, class, since) #symbol,
    GS_ENTRIES(GS_ENTRY)
#undef GS_ENTRY
};

static CUresult not_loaded(void)
{
    return CUDA_ERROR_NOT_INITIALIZED;
}

static CUresult not_in_driver(void)
{
    return CUDA_ERROR_NOT_SUPPORTED;
}

/* The arguments of these two are the caller's to clean up on the ABIs there are, so that one
 * function stands in for any entry point. A program gets to not_loaded only if it calls the driver
 * without libcuda in the process: no cuInit was ever called, and the driver says this then. */
union gs_real gs_real = {.row = {[0 ... GS_ENTRY_COUNT - 1] = (void *)not_loaded}};

/* libcuda, kept loaded once found. */
static _Atomic(struct link_map *) driver_map;

/* Rows by the driver's address, open addressing: row + 1, 0 for an empty slot. Written before hooks
 * are handed out. Where the driver has one function under two names the first row has it: their
 * prototypes are the same. */
#define SLOTS 512
_Static_assert(GS_ENTRY_COUNT <= SLOTS / 2, "the address map is too full: double SLOTS");
static unsigned char slots[SLOTS];

static unsigned slot_of(const void *address)
{
    return (unsigned)(((uintptr_t)address >> 4) * 0x9e3779b1u >> 16) % SLOTS;
}

static bool driver_has(int row)
{
    return gs_real.row[row] != (void *)not_in_driver && gs_real.row[row] != (void *)not_loaded;
}

bool gs_lookup_find_driver(bool may_load, void **row)
{
    /* Past interposers and sanitizers; libc is there from the start. */
    void *(*next_dlopen)(const char *, int) = gs_elf_next("dlopen");
    int (*next_dlinfo)(void *, int, void *) = gs_elf_next("dlinfo");
    if (!next_dlopen || !next_dlinfo)
        return false;
    void *handle = next_dlopen("libcuda.so.1", RTLD_LAZY | (may_load ? 0 : RTLD_NOLOAD));
    struct link_map *map = NULL;
    if (!handle || next_dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0)
        return false;
    for (int i = 0; i < GS_ENTRY_COUNT; i++)
        row[i] = gs_elf_symbol(map->l_addr, map->l_ld, names[i]);
    atomic_store_explicit(&driver_map, map, memory_order_release);
    return true;
}

void *gs_lookup_driver_symbol(const char *name)
{
    struct link_map *map = atomic_load_explicit(&driver_map, memory_order_acquire);
    return map ? gs_elf_symbol(map->l_addr, map->l_ld, name) : NULL;
}

void gs_lookup_adopt_driver(void *const *row)
{
    for (int i = 0; i < GS_ENTRY_COUNT; i++) {
        gs_real.row[i] = row[i] ? row[i] : (void *)not_in_driver;
        if (!row[i])
            continue;
        unsigned slot = slot_of(row[i]);
        while (slots[slot] && row[slots[slot] - 1] != row[i])
            slot = (slot + 1) % SLOTS;
        if (!slots[slot])
            slots[slot] = (unsigned char)(i + 1);
    }
}

/* The hook for an address of the driver's, or the address. Only when hooks are handed out. */
static void *hook_of(void *address)
{
    for (unsigned slot = slot_of(address); slots[slot]; slot = (slot + 1) % SLOTS) {
        int row = slots[slot] - 1;
        if (gs_real.row[row] == address)
            return hooks[row];
    }
    return address;
}

void *gs_lookup_lead(void *address)
{
    return address && gs_state_enter_lookup() ? hook_of(address) : address;
}

static void *ask_real(const struct gs_lookup *lookup, void *handle)
{
    return lookup->version ? gs_next_dlvsym()(handle, lookup->name, lookup->version)
                           : gs_next_dlsym()(handle, lookup->name);
}

/* What stands behind an address that was found under the name of a row; hooked: hooks are handed
 * out. False: our export was found, and as there is no such driver function the look-up goes on as
 * if it were not there. Takes no lock. */
static bool lead_row(int row, void *found, bool hooked, void **ret_answer)
{
    bool driver = gs_state_has_driver() && driver_has(row);
    if (found == hooks[row] && !driver)
        return false;
    if (found == hooks[row])
        found = gs_real.row[row];
    if (hooked && driver && found == gs_real.row[row])
        *ret_answer = hooks[row];
    else
        *ret_answer = hooked ? hook_of(found) : found;
    return true;
}

/* RTLD_NEXT is about the objects after the caller's own. The real dlsym would take us for the
 * caller, so the objects are walked here, in load order and under the dynamic linker's lock. */
struct next_walk {
    const struct gs_lookup *lookup;
    bool hooked;
    void *answer;      /* NULL: none yet */
    bool caller_seen;  /* from here on symbols count */
    bool caller_first; /* the caller was loaded before us */
};

static int next_visit(struct dl_phdr_info *info, size_t size, void *data)
{
    struct next_walk *walk = data;
    const ElfW(Dyn) *dynamic = gs_elf_dynamic(info);
    if (!walk->caller_seen) {
        walk->caller_seen = gs_elf_contains(info, walk->lookup->caller);
        return 0;
    }
    if (gs_elf_is_self(dynamic))
        walk->caller_first = true;
    void *found = gs_elf_symbol(info->dlpi_addr, dynamic, walk->lookup->name);
    return found && lead_row(walk->lookup->row, found, walk->hooked, &walk->answer);
}

static bool answer_next(const struct gs_lookup *lookup, bool hooked, void **ret_answer)
{
    struct next_walk walk = {lookup, hooked, NULL, false, false};
    gs_elf_each(next_visit, &walk);
    *ret_answer = walk.answer;
    if (walk.answer)
        return true;
    /* Nothing but, perhaps, our export: the real function says so, and must not see that export. */
    if (walk.caller_first)
        *ret_answer = ask_real(lookup, RTLD_NEXT);
    return walk.caller_first;
}

bool gs_lookup_answer(const struct gs_lookup *lookup, void **ret_answer)
{
    /* Before the real function is asked, so that dlerror says what that one found. */
    bool hooked = gs_state_enter_lookup();
    if (lookup->handle == RTLD_NEXT)
        return answer_next(lookup, hooked, ret_answer);
    *ret_answer = NULL;
    void *found = ask_real(lookup, lookup->handle);
    if (!found || lead_row(lookup->row, found, hooked, ret_answer))
        return true;
    found = ask_real(lookup, RTLD_NEXT);
    if (!found || !lead_row(lookup->row, found, hooked, ret_answer))
        *ret_answer = found;
    return true;
}

bool gs_lookup_is_ours(const char *symbol)
{
    static const char *const forms[] = {"%s", "%s_v2"};
    char name[80];

    for (int i = 0; i < 2; i++) {
        int length = snprintf(name, sizeof name, forms[i], symbol);
        if (length > 0 && (size_t)length < sizeof name && gs_resolve_row(name) >= 0)
            return true;
    }
    return false;
}
