/* The functions of an ELF file (functions.h): the first of its tables of symbols that has some, and their names. */
#include "shim/command/functions.h"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/fd.h"
#include "core/base/regular.h"
#include "shim/command/command.h"

#define LOADS_MAX  256                   /* program headers that are looked at; linkers write some ten */
#define TABLE_MAX  (UINT64_C(1) << 28) /* bytes of symbols, or of names; a larger table is passed over */
#define NESTED_MAX 16 /* symbols before an address of which one may reach over it, as others that begin later do not */

struct functions {
    unsigned load_count;
    struct load {
        uint64_t place, size, address;
    } loads[LOADS_MAX];
    ElfW(Sym) *symbols; /* by address */
    size_t count;
    char *names;
};

struct file {
    int fd;
    uint64_t size;
};

/* The n-th of a table of structs; false: it is not within the file. */
static bool get(const struct file *file, uint64_t table, uint64_t step, uint64_t n, void *ret, size_t size)
{
    uint64_t place;

    return step >= size && !__builtin_mul_overflow(step, n, &place) && !__builtin_add_overflow(table, place, &place) &&
           gs_regular_read(file->fd, ret, size, place) == size;
}

/* A section, with a zero behind it; NULL: it is too large, or not within the file as a whole. */
static void *read_section(const struct file *file, const ElfW(Shdr) * section)
{
    char *bytes;

    if (section->sh_size > TABLE_MAX || section->sh_size > file->size)
        return NULL;
    bytes = command_need(calloc(1, section->sh_size + 1));
    if (gs_regular_read(file->fd, bytes, section->sh_size, section->sh_offset) == section->sh_size)
        return bytes;
    free(bytes);
    return NULL;
}

static void read_loads(struct functions *functions, const struct file *file, const ElfW(Ehdr) * head)
{
    ElfW(Phdr) segment;

    for (unsigned i = 0; i < head->e_phnum && i < LOADS_MAX; i++)
        if (get(file, head->e_phoff, head->e_phentsize, i, &segment, sizeof segment) && segment.p_type == PT_LOAD)
            functions->loads[functions->load_count++] =
                (struct load){segment.p_offset, segment.p_filesz, segment.p_vaddr};
}

/* Of those that begin together the one whose name comes first is the last. */
static int by_start(const void *a, const void *b)
{
    const ElfW(Sym) *x = a, *y = b;

    if (x->st_value != y->st_value)
        return x->st_value < y->st_value ? -1 : 1;
    return (x->st_name < y->st_name) - (x->st_name > y->st_name);
}

/* The first table of this kind. */
static void read_table(struct functions *functions, const struct file *file, const ElfW(Ehdr) * head, uint32_t kind)
{
    ElfW(Shdr) section, names;
    unsigned i = 0;
    size_t kept = 0;

    do
        if (i == head->e_shnum || !get(file, head->e_shoff, head->e_shentsize, i++, &section, sizeof section))
            return;
    while (section.sh_type != kind);
    if (!get(file, head->e_shoff, head->e_shentsize, section.sh_link, &names, sizeof names))
        return;
    functions->symbols = read_section(file, &section);
    functions->names = functions->symbols ? read_section(file, &names) : NULL;
    for (size_t n = 0; functions->names && n < section.sh_size / sizeof *functions->symbols; n++) {
        const ElfW(Sym) *symbol = &functions->symbols[n];

        if (ELF64_ST_TYPE(symbol->st_info) == STT_FUNC && symbol->st_shndx != SHN_UNDEF && symbol->st_size > 0 &&
            symbol->st_name > 0 && symbol->st_name < names.sh_size && functions->names[symbol->st_name])
            functions->symbols[kept++] = *symbol;
    }
    functions->count = kept;
    if (kept)
        qsort(functions->symbols, kept, sizeof *functions->symbols, by_start);
}

static void drop_table(struct functions *functions)
{
    free(functions->symbols);
    free(functions->names);
    functions->symbols = NULL;
    functions->names = NULL;
}

struct functions *functions_make(const char *path)
{
    struct functions *functions = NULL;
    struct stat info;
    struct file file = {.fd = gs_regular_open(AT_FDCWD, path, 0, &info)};
    ElfW(Ehdr) head;

    if (file.fd < 0)
        return NULL;
    file.size = (uint64_t)info.st_size;
    if (get(&file, 0, sizeof head, 0, &head, sizeof head) && memcmp(head.e_ident, ELFMAG, SELFMAG) == 0 &&
        head.e_ident[EI_CLASS] == (sizeof(void *) == 8 ? ELFCLASS64 : ELFCLASS32)) {
        functions = command_need(calloc(1, sizeof *functions));
        read_loads(functions, &file, &head);
        read_table(functions, &file, &head, SHT_SYMTAB);
        if (!functions->count) { /* the first has all that the second has, where it was not stripped */
            drop_table(functions);
            read_table(functions, &file, &head, SHT_DYNSYM);
        }
    }
    gs_fd_drop(file.fd);
    return functions;
}

void functions_free(struct functions *functions)
{
    if (functions)
        drop_table(functions);
    free(functions);
}

/* ---- One function --------------------------------------------------------------------------- */

/* Where what is at that place of the file is in the module's own addresses. */
static bool address_of(const struct functions *functions, uint64_t place, uint64_t *ret_address)
{
    for (const struct load *load = functions->loads; load < functions->loads + functions->load_count; load++)
        if (place >= load->place && place - load->place < load->size) {
            *ret_address = load->address + (place - load->place);
            return true;
        }
    return false;
}

const char *functions_find(const struct functions *functions, uint64_t place)
{
    uint64_t address;
    size_t low = 0, high = functions->count;

    if (!address_of(functions, place, &address))
        return NULL;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;

        if (functions->symbols[middle].st_value <= address)
            low = middle + 1;
        else
            high = middle;
    }
    for (size_t tried = 0; tried < NESTED_MAX && low-- > 0; tried++)
        if (address - functions->symbols[low].st_value < functions->symbols[low].st_size)
            return functions->names + functions->symbols[low].st_name;
    return NULL;
}
