/*
 * Reads symbols out of loaded objects; see elf_symbols.h. Compiled without instrumentation and free
 * of libc calls: dlsym runs through here in programs whose sanitizer has not started yet.
 */
#include "elf_symbols.h"

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/auxv.h>

/* glibc's list of loaded objects. Weak: another libc must not be kept from loading us, nor its
 * programs from using dlsym. */
extern struct r_debug _r_debug __attribute__((weak));

/* Our own dynamic table, given by the linker. */
extern ElfW(Dyn) _DYNAMIC[] __attribute__((visibility("hidden")));

struct symbols {
    const ElfW(Sym) * table;
    const char *strings;
    const ElfW(Half) * versions; /* NULL: the object has none */
    const uint32_t *gnu_hash;    /* NULL: it has the old table alone */
    const ElfW(Word) * hash;
    ElfW(Addr) base;
};

/* Most loaders write an object's absolute addresses into its dynamic table; some tables (the
 * kernel's vDSO) keep the offsets. */
static const void *at(ElfW(Addr) base, ElfW(Addr) value)
{
    return (const void *)(value < base ? base + value : value);
}

static bool symbols_read(struct symbols *s, ElfW(Addr) base, const ElfW(Dyn) * dynamic)
{
    *s = (struct symbols){.base = base};
    for (const ElfW(Dyn) *d = dynamic; d->d_tag != DT_NULL; d++) {
        switch (d->d_tag) {
        case DT_SYMTAB:
            s->table = at(base, d->d_un.d_ptr);
            break;
        case DT_STRTAB:
            s->strings = at(base, d->d_un.d_ptr);
            break;
        case DT_VERSYM:
            s->versions = at(base, d->d_un.d_ptr);
            break;
        case DT_GNU_HASH:
            s->gnu_hash = at(base, d->d_un.d_ptr);
            break;
        case DT_HASH:
            s->hash = at(base, d->d_un.d_ptr);
            break;
        }
    }
    return s->table && s->strings && (s->gnu_hash || s->hash);
}

static bool same(const char *a, const char *b)
{
    while (*a && *a == *b) {
        a++;
        b++;
    }
    return *a == *b;
}

/* Whether the symbol is a definition of that name. *ret_default: of its default version. */
static bool matches(const struct symbols *s, uint32_t index, const char *name, bool *ret_default)
{
    const ElfW(Sym) *symbol = &s->table[index];
    unsigned type = symbol->st_info & 0xf; /* the same in both ELF classes */
    unsigned bind = symbol->st_info >> 4;
    if (symbol->st_shndx == SHN_UNDEF || symbol->st_value == 0)
        return false;
    if ((type != STT_FUNC && type != STT_OBJECT && type != STT_NOTYPE) || bind == STB_LOCAL)
        return false;
    if (!same(s->strings + symbol->st_name, name))
        return false;
    *ret_default = !s->versions || !(s->versions[index] & 0x8000);
    return true;
}

static uint32_t gnu_hash(const char *name)
{
    uint32_t h = 5381;
    for (; *name; name++)
        h = h * 33 + (unsigned char)*name;
    return h;
}

/* The index of the best match in the GNU hash table, 0 if there is none. */
static uint32_t find_gnu(const struct symbols *s, const char *name)
{
    uint32_t buckets = s->gnu_hash[0];
    uint32_t first = s->gnu_hash[1];
    uint32_t bloom_words = s->gnu_hash[2];
    const ElfW(Addr) *bloom = (const ElfW(Addr) *)&s->gnu_hash[4];
    const uint32_t *bucket = (const uint32_t *)&bloom[bloom_words];
    const uint32_t *chain = &bucket[buckets];
    if (buckets == 0)
        return 0;
    uint32_t h = gnu_hash(name);
    uint32_t index = bucket[h % buckets];
    uint32_t other = 0;
    if (index < first)
        return 0;
    for (;; index++) {
        uint32_t link = chain[index - first];
        bool is_default;
        if ((link | 1) == (h | 1) && matches(s, index, name, &is_default)) {
            if (is_default)
                return index;
            other = index;
        }
        if (link & 1)
            return other;
    }
}

/* Finds a name in the System V table, walked whole: objects without a GNU table are rare and
 * small. */
static uint32_t find_sysv(const struct symbols *s, const char *name)
{
    uint32_t other = 0;
    for (uint32_t index = 1; index < s->hash[1]; index++) {
        bool is_default;
        if (matches(s, index, name, &is_default)) {
            if (is_default)
                return index;
            other = index;
        }
    }
    return other;
}

void *gs_elf_symbol(ElfW(Addr) base, const ElfW(Dyn) * dynamic, const char *name)
{
    struct symbols s;
    if (!dynamic || !symbols_read(&s, base, dynamic))
        return NULL;
    uint32_t index = s.gnu_hash ? find_gnu(&s, name) : find_sysv(&s, name);
    return index ? (void *)(base + s.table[index].st_value) : NULL;
}

bool gs_elf_is_self(const ElfW(Dyn) * dynamic)
{
    return dynamic == _DYNAMIC;
}

/* Where libc has no _r_debug (musl): the program's own dynamic table says what debuggers read. */
static struct link_map *loaded_of_program(void)
{
    struct dl_phdr_info program = {.dlpi_phdr = (const ElfW(Phdr) *)getauxval(AT_PHDR),
                                   .dlpi_phnum = (ElfW(Half))getauxval(AT_PHNUM)};

    for (size_t i = 0; i < program.dlpi_phnum; i++) {
        if (program.dlpi_phdr[i].p_type == PT_PHDR)
            program.dlpi_addr = (ElfW(Addr))program.dlpi_phdr - program.dlpi_phdr[i].p_vaddr;
    }
    for (const ElfW(Dyn) *d = gs_elf_dynamic(&program); d && d->d_tag != DT_NULL; d++) {
        if (d->d_tag == DT_DEBUG && d->d_un.d_ptr)
            return ((const struct r_debug *)d->d_un.d_ptr)->r_map;
    }
    return NULL;
}

static struct link_map *first_loaded(void)
{
    return &_r_debug ? _r_debug.r_map : loaded_of_program();
}

static struct link_map *self_loaded(void)
{
    struct link_map *map = first_loaded();

    while (map && !gs_elf_is_self(map->l_ld))
        map = map->l_next;
    return map;
}

const char *gs_elf_path(void)
{
    const struct link_map *self = self_loaded();

    return self ? self->l_name : "";
}

/* Of what is there at the start the dynamic linker comes last or nearly so, as a library of libc's;
 * what is loaded later comes after it. */
bool gs_elf_came_late(void)
{
    ElfW(Addr) linker = getauxval(AT_BASE); /* 0: the program was started by running the linker */
    struct link_map *map = first_loaded();

    while (map && !gs_elf_is_self(map->l_ld) && map->l_addr != linker)
        map = map->l_next;
    return linker && map && !gs_elf_is_self(map->l_ld);
}

void *gs_elf_first(const char *name)
{
    ElfW(Addr) linker = getauxval(AT_BASE);
    void *found = NULL;

    for (struct link_map *map = linker ? first_loaded() : NULL; map && !found; map = map->l_next) {
        found = gs_elf_symbol(map->l_addr, map->l_ld, name);
        if (map->l_addr == linker)
            break;
    }
    return found;
}

void *gs_elf_next(const char *name)
{
    struct link_map *first = first_loaded();
    struct link_map *self = self_loaded();
    for (struct link_map *map = self ? self->l_next : NULL; map; map = map->l_next) {
        void *found = gs_elf_symbol(map->l_addr, map->l_ld, name);
        if (found)
            return found;
    }
    for (struct link_map *map = first; map && map != self; map = map->l_next) {
        void *found = gs_elf_symbol(map->l_addr, map->l_ld, name);
        if (found)
            return found;
    }
    return NULL;
}

struct link_map *gs_elf_open(const char *name, int flags)
{
    void *(*open)(const char *, int) = (void *(*)(const char *, int))gs_elf_next("dlopen");
    int (*info)(void *, int, void *) = (int (*)(void *, int, void *))gs_elf_next("dlinfo");
    void *handle = open && info ? open(name, flags) : NULL;
    struct link_map *map = NULL;

    return handle && info(handle, RTLD_DI_LINKMAP, &map) == 0 ? map : NULL;
}

int gs_elf_each(int (*visit)(struct dl_phdr_info *info, size_t size, void *data), void *data)
{
    int (*each)(int (*)(struct dl_phdr_info *, size_t, void *), void *) =
        (int (*)(int (*)(struct dl_phdr_info *, size_t, void *), void *))gs_elf_next(
            "dl_iterate_phdr");

    return each ? each(visit, data) : 0;
}

const ElfW(Dyn) * gs_elf_dynamic(const struct dl_phdr_info *info)
{
    for (size_t i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
            return (const ElfW(Dyn) *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
    }
    return NULL;
}

bool gs_elf_contains(const struct dl_phdr_info *info, const void *address)
{
    for (size_t i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        ElfW(Addr) start = info->dlpi_addr + p->p_vaddr;
        if (p->p_type == PT_LOAD && (ElfW(Addr))address - start < p->p_memsz)
            return true;
    }
    return false;
}
