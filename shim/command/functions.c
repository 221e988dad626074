/* The functions of an ELF file (functions.h): its table of symbols is read once, and their names where
 * they are asked for. */
#include "shim/command/functions.h"

#include <elf.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/regular.h"
#include "shim/command/command.h"
#include "shim/command/spans.h"

#define LOADS_MAX 256               /* program headers that are looked at; linkers write some ten */
#define TABLE_MAX (UINT64_C(1) << 28) /* bytes of symbols; a larger table is passed over */
#define AT_ONCE   1024              /* symbols that are read together */

struct functions {
    int fd;
    uint64_t size;
    unsigned load_count;
    struct load {
        uint64_t place, size, address;
    } loads[LOADS_MAX];
    struct spans spans;         /* by address; of each its name, from `names` on */
    uint64_t names, names_size; /* their place in the file */
};

static bool holds(const struct functions *functions, uint64_t place, uint64_t size)
{
    return place <= functions->size && size <= functions->size - place;
}

/* The n-th of a table of structs; false: it is not within the file. */
static bool get(const struct functions *functions, uint64_t table, uint64_t step, uint64_t n,
                void *ret, size_t size)
{
    uint64_t place;

    return step >= size && !__builtin_mul_overflow(step, n, &place) &&
           !__builtin_add_overflow(table, place, &place) && holds(functions, place, size) &&
           gs_regular_read(functions->fd, ret, size, place) == size;
}

static void read_loads(struct functions *functions, const ElfW(Ehdr) * head)
{
    ElfW(Phdr) segment;

    for (unsigned i = 0; i < head->e_phnum && i < LOADS_MAX; i++) {
        if (!get(functions, head->e_phoff, head->e_phentsize, i, &segment, sizeof segment))
            return;
        if (segment.p_type == PT_LOAD)
            functions->loads[functions->load_count++] =
                (struct load){segment.p_offset, segment.p_filesz, segment.p_vaddr};
    }
}

/* ---- Symbols -------------------------------------------------------------------------------- */

struct list {
    struct span *spans;
    size_t count, room;
};

static void add(struct list *list, const ElfW(Sym) * symbol)
{
    uint64_t end;

    list->spans = command_room(list->spans, list->count, &list->room, sizeof *list->spans);
    if (__builtin_add_overflow(symbol->st_value, symbol->st_size, &end))
        end = UINT64_MAX;
    list->spans[list->count++] = (struct span){symbol->st_value, end, symbol->st_name};
}

/* Of nested functions the inner counts (the one that begins later); of those that begin together the one
 * whose name comes first. */
static int by_start(const void *a, const void *b)
{
    const struct span *x = a, *y = b;

    if (x->start != y->start)
        return x->start < y->start ? -1 : 1;
    return x->what > y->what ? -1 : x->what < y->what;
}

static void read_symbols(struct functions *functions, const ElfW(Shdr) * symbols, struct list *list)
{
    ElfW(Sym) some[AT_ONCE];
    size_t got = sizeof some;

    for (uint64_t done = 0; done < symbols->sh_size && got == sizeof some; done += got) {
        uint64_t left = symbols->sh_size - done;

        got = gs_regular_read(functions->fd, some, left < sizeof some ? left : sizeof some,
                              symbols->sh_offset + done);
        for (size_t i = 0; i < got / sizeof *some; i++)
            if (ELF64_ST_TYPE(some[i].st_info) == STT_FUNC && some[i].st_shndx != SHN_UNDEF &&
                some[i].st_size > 0 && some[i].st_name > 0 &&
                some[i].st_name < functions->names_size)
                add(list, &some[i]);
    }
}

/* The first table of this kind. */
static void read_table(struct functions *functions, const ElfW(Ehdr) * head, uint32_t kind)
{
    ElfW(Shdr) section, names;
    struct list list = {0};
    unsigned i = 0;

    do
        if (i == head->e_shnum || !get(functions, head->e_shoff, head->e_shentsize, i++, &section, sizeof section))
            return;
    while (section.sh_type != kind);
    if (!get(functions, head->e_shoff, head->e_shentsize, section.sh_link, &names, sizeof names) ||
        !holds(functions, section.sh_offset, section.sh_size) || section.sh_size > TABLE_MAX ||
        !holds(functions, names.sh_offset, names.sh_size))
        return;
    functions->names = names.sh_offset;
    functions->names_size = names.sh_size;
    read_symbols(functions, &section, &list);
    if (list.count > 0) {
        qsort(list.spans, list.count, sizeof *list.spans, by_start);
        spans_make(&functions->spans, list.spans, list.count);
    }
    free(list.spans);
}

struct functions *functions_make(int fd, uint64_t size)
{
    struct functions *functions = command_need(calloc(1, sizeof *functions));
    ElfW(Ehdr) head;

    functions->fd = fd;
    functions->size = size;
    if (!get(functions, 0, sizeof head, 0, &head, sizeof head) || memcmp(head.e_ident, ELFMAG, SELFMAG) != 0 ||
        head.e_ident[EI_CLASS] != (sizeof(void *) == 8 ? ELFCLASS64 : ELFCLASS32)) {
        free(functions);
        return NULL;
    }
    read_loads(functions, &head);
    read_table(functions, &head, SHT_SYMTAB);
    if (!functions->spans.count) /* the first has all that the second has, where it was not stripped */
        read_table(functions, &head, SHT_DYNSYM);
    return functions;
}

void functions_free(struct functions *functions)
{
    if (!functions)
        return;
    close(functions->fd);
    spans_free(&functions->spans);
    free(functions);
}

/* ---- One function --------------------------------------------------------------------------- */

/* Where what is at that place of the file is in the module's own addresses. */
static bool address_of(const struct functions *functions, uint64_t place, uint64_t *ret_address)
{
    for (unsigned i = 0; i < functions->load_count; i++) {
        const struct load *load = &functions->loads[i];

        if (place >= load->place && place - load->place < load->size) {
            *ret_address = load->address + (place - load->place);
            return true;
        }
    }
    return false;
}

bool functions_find(const struct functions *functions, uint64_t place,
                    char ret_name[FUNCTIONS_NAME])
{
    uint64_t address, left;
    size_t got;
    uint32_t name;

    if (!address_of(functions, place, &address) ||
        !spans_find(&functions->spans, address, &name))
        return false;
    left = functions->names_size - name;
    got = gs_regular_read(functions->fd, ret_name, left < FUNCTIONS_NAME ? left : FUNCTIONS_NAME,
                          functions->names + name);
    if (got == FUNCTIONS_NAME)
        ret_name[FUNCTIONS_NAME - 1] = 0;
    return got > 0 && ret_name[0] && memchr(ret_name, 0, got);
}
