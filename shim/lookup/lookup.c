/*
 * What a look-up of one of our names answers. What the program asks goes through the real dlsym
 * first, and only an answer that is the driver's function (or our own export, which stands in for
 * it) becomes the hook. So the handle, the scope and other interposers decide as they would without
 * us.
 */
#include "lookup.h"
#include "driver.h"
#include "elf_symbols.h"
#include "names.h"
#include "shim/hooks/bound.h"
#include "shim/hooks/hook.h"
#include "shim/hooks/newer.h"
#include "shim/registration/pinning.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static void *const hooks[GS_ROWS] = {
#define GS_ENTRY(symbol, ...) [GS_ROW_##symbol] = (void *)&symbol,
    GS_ENTRIES(GS_ENTRY) GS_LIBRARY_ENTRIES(GS_ENTRY)
#undef GS_ENTRY
};

/* Rows whose hooks are for a bounded program alone. */
static const bool bound[GS_ROWS] = {
#define GS_ENTRY(symbol, since, what, ...) [GS_ROW_##symbol] = GS_DOES_##what == GS_DOES_BOUND,
    GS_ENTRIES(GS_ENTRY) GS_LIBRARY_ENTRIES(GS_ENTRY)
#undef GS_ENTRY
};

/* Whether look-ups are given the hook of a row. */
static bool is_wanted(int row)
{
    return !bound[row] || gs_bound_applies();
}

/* The hook for an address of the driver's, or the address. Only when hooks are handed out. */
static void *hook_of(void *address)
{
    int row = gs_driver_row(address);

    return row < 0 || !is_wanted(row) ? address : hooks[row];
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
    bool driver = gs_state_has_driver() && gs_driver_has(row);
    if (found == hooks[row] && !driver)
        return false;
    if (found == hooks[row])
        found = gs_real.row[row];
    if (hooked && driver && found == gs_real.row[row] && is_wanted(row))
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

/* Of another library than the driver: nothing of ours starts for that. */
static bool answer_library(const struct gs_lookup *lookup, void **ret_answer)
{
    if (lookup->handle == RTLD_NEXT)
        return false;
    *ret_answer = ask_real(lookup, lookup->handle);
    if (*ret_answer == hooks[lookup->row]) /* it stands before what the program would find */
        *ret_answer = ask_real(lookup, RTLD_NEXT);
    if (*ret_answer && is_wanted(lookup->row) && *ret_answer == gs_pin_find(lookup->row))
        *ret_answer = hooks[lookup->row];
    return true;
}

bool gs_lookup_answer(const struct gs_lookup *lookup, void **ret_answer)
{
    if (lookup->row >= GS_DRIVER_ROWS)
        return answer_library(lookup, ret_answer);
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

static bool ends(const char *text, const char *end)
{
    const size_t length = strlen(text), rest = strlen(end);

    return length >= rest && strcmp(text + length - rest, end) == 0;
}

static int libcuda_visit(struct dl_phdr_info *info, size_t size, void *found)
{
    const char *slash = info->dlpi_name ? strrchr(info->dlpi_name, '/') : NULL;
    const char *name = slash ? slash + 1 : info->dlpi_name;

    return name && strncmp(name, "libcuda.so", strlen("libcuda.so")) == 0 &&
           gs_elf_contains(info, found);
}

/* Names of other libraries begin like the driver's: nothing is done in a process that has no other
 * business with it. */
bool gs_lookup_newer(const struct gs_lookup *lookup, void **ret_answer)
{
    const bool next =
        lookup->handle == RTLD_NEXT; /* the real function would take us for the caller */
    void *const found = next ? gs_driver_symbol(lookup->name) : ask_real(lookup, lookup->handle);

    if (!found || !gs_elf_each(libcuda_visit, found) || !gs_state_enter_lookup() ||
        found != gs_driver_symbol(lookup->name))
        return false;
    *ret_answer = gs_newer_found(lookup->name, 0, found, ends(lookup->name, "_ptsz"));
    return !next;
}

bool gs_lookup_is_ours(const char *symbol)
{
    static const char *const forms[] = {"%s", "%s_v2"};
    char name[80];

    for (int i = 0; i < 2; i++) {
        int length = snprintf(name, sizeof name, forms[i], symbol);
        int row = length > 0 && (size_t)length < sizeof name ? gs_name_row(name) : -1;
        if (row >= 0 && is_wanted(row))
            return true;
    }
    return false;
}
