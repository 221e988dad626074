/*
 * Symbols found in loaded objects by reading their own tables: no libc call, so it works before
 * libc, a sanitizer's runtime or anything else in the process is ready, and past every interposer.
 */
#ifndef GPUSHIM_SHIM_ELF_SYMBOLS_H
#define GPUSHIM_SHIM_ELF_SYMBOLS_H

#include <link.h>
#include <stdbool.h>

/* The address of the function or object that the dynamic table of one loaded object defines under a
 * name, its default version if there are several; NULL if none. base is the object's load bias. */
void *gs_elf_symbol(ElfW(Addr) base, const ElfW(Dyn) * dynamic, const char *name);

/* The address for a name in the first object that has it among those loaded after this library, or,
 * where this library came last, among all others. Takes no lock: only for names that an object has
 * which was there at the program's start (libc), as those are never unloaded. NULL if there is
 * none. */
void *gs_elf_next(const char *name);

/* The address in the first object that has the name, as the dynamic linker would have it, of those
 * that were there at the program's start. Takes no lock. */
void *gs_elf_first(const char *name);

/* The path by which this library was loaded, "" where it is not among the program's (dlmopen).
 * Takes no lock. */
const char *gs_elf_path(void);

/* Whether this library was loaded by dlopen or dlmopen, after the program's start; false where that
 * cannot be known. */
bool gs_elf_came_late(void);

/* An object by the dlopen that gs_elf_next finds, past interposers and sanitizers, with these flags
 * of it; it stays loaded. NULL: there is none. */
struct link_map *gs_elf_open(const char *name, int flags);

/* libc's dl_iterate_phdr: what the last visit returned. */
int gs_elf_each(int (*visit)(struct dl_phdr_info *info, size_t size, void *data), void *data);

/* Whether that is this library's dynamic table. */
bool gs_elf_is_self(const ElfW(Dyn) * dynamic);

/* An object that dl_iterate_phdr shows: its dynamic table, NULL if it has none, and whether an
 * address lies in it. */
const ElfW(Dyn) * gs_elf_dynamic(const struct dl_phdr_info *info);
bool gs_elf_contains(const struct dl_phdr_info *info, const void *address);

#endif
