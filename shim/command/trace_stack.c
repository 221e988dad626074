/* Return addresses in words (trace_read.h), by the modules of the trace and the files that lie
 * there by now. */
#include "shim/command/trace_read.h"

#include <elf.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <link.h>
#include <search.h>

#include "core/base/fd.h"
#include "core/base/regular.h"
#include "shim/command/command.h"

#define MAPS_LINE (PATH_MAX + 128)
#define OVER_MAX  64 /* modules that begin below an address, of which one may reach over it */

struct module {
    uint64_t start, end, offset;
    const char *path; /* in the trace's text */
    int length;
};

#define LOADS_MAX 256 /* program headers that are looked at; linkers write some ten */

/* Those of a file, as far as it can be read. */
struct functions {
    const char *path; /* as a module has it */
    int length;
    unsigned load_count;
    struct load {
        uint64_t place, size, address;
    } *loads;
    ElfW(Sym) * symbols; /* by address */
    size_t count;
    char *names;
};

struct trace_modules {
    const struct trace *trace;
    struct module *modules; /* by their beginnings */
    size_t count, room;
    void *files; /* their functions, by path: a tree (tsearch) */
};

/* ---- /proc/PID/maps ------------------------------------------------------------------------- */

/* "7f00-7f10 r-xp 00001000 fe:01 42   /path": lines that are none are passed over. */
static void add_module(struct trace_modules *modules, const char *line, size_t length)
{
    struct module module = {0};
    char text[MAPS_LINE];
    int path = 0;

    if (length >= sizeof text)
        return;
    memcpy(text, line, length);
    text[length] = 0;
    if (sscanf(text, "%" SCNx64 "-%" SCNx64 " %*15s %" SCNx64 " %*15s %*20s %n", &module.start,
               &module.end, &module.offset, &path) < 3 ||
        path == 0 || !text[path] || module.start >= module.end)
        return;
    module.path = line + path;
    module.length = (int)length - path;
    *COMMAND_NEXT(modules->modules, modules->count, modules->room) = module;
}

/* As in the text those of one beginning, which is their order in time. */
static int by_start(const void *a, const void *b)
{
    const struct module *x = a, *y = b;

    return COMMAND_ORDER(x->start, y->start) ?: COMMAND_ORDER(x->path, y->path);
}

struct trace_modules *trace_modules_make(const struct trace *trace)
{
    struct trace_modules *modules = command_need(calloc(1, sizeof *modules));

    modules->trace = trace;
    for (const char *at = trace->modules, *end; *at; at = *end ? end + 1 : end) {
        end = strchrnul(at, '\n');
        add_module(modules, at, (size_t)(end - at));
    }
    if (modules->count)
        qsort(modules->modules, modules->count, sizeof *modules->modules, by_start);
    return modules;
}

void trace_modules_free(struct trace_modules *modules)
{
    if (!modules)
        return;
    tdestroy(modules->files, functions_free);
    free(modules->modules);
    free(modules);
}

/* What was mapped last is what was there, should two have been. */
static const struct module *find_module(const struct trace_modules *modules, uint64_t address)
{
    size_t low = 0, high = modules->count;
    const struct module *found = NULL;

    while (low < high) {
        const size_t middle = low + (high - low) / 2;

        if (modules->modules[middle].start <= address)
            low = middle + 1;
        else
            high = middle;
    }
    for (unsigned tried = 0; tried < OVER_MAX && low-- > 0; tried++) {
        const struct module *module = &modules->modules[low];

        if (address < module->end && (!found || module->path > found->path))
            found = module;
    }
    return found;
}

static int by_path(const void *a, const void *b)
{
    const struct functions *x = a, *y = b;

    return x->length != y->length ? x->length - y->length
                                  : memcmp(x->path, y->path, (size_t)x->length);
}

/* A file that several modules are of is read once. */
static const struct functions *functions_of(struct trace_modules *modules,
                                            const struct module *module)
{
    const struct functions like = {.path = module->path, .length = module->length};
    struct functions *const *found = tfind(&like, &modules->files, by_path), *functions;
    char path[PATH_MAX] = "";

    if (found)
        return *found;
    if (like.path[0] == '/' && like.length < PATH_MAX)
        snprintf(path, sizeof path, "%.*s", like.length, like.path);
    functions = functions_make(path);
    functions->path = like.path;
    functions->length = like.length;
    command_need(tsearch(functions, &modules->files, by_path));
    return functions;
}

/* ---- A place -------------------------------------------------------------------------------- */

/* Text of others: up to the line's end, or the tab. */
static void put_name(const char *text, char ret[TRACE_FRAME_SIZE])
{
    size_t length = strcspn(text, "\t\n");

    snprintf(ret, TRACE_FRAME_SIZE, "%.*s",
             (int)(length < TRACE_FRAME_SIZE ? length : TRACE_FRAME_SIZE - 1), text);
}

static void look_up_name(const struct trace *trace, uint64_t number, struct trace_place *ret_place)
{
    const struct trace_name *name =
        number < GS_TRACE_NAMES_MOST && trace->names ? &trace->names[number] : NULL;

    *ret_place = (struct trace_place){.is_named = true, .function = "?"};
    if (!name || !name->function)
        return;
    put_name(name->function, ret_place->function);
    put_name(name->file, ret_place->file);
    ret_place->line = name->line;
    ret_place->is_label = !name->line && !ret_place->file[0];
}

void trace_place(struct trace_modules *modules, uint64_t address, struct trace_place *ret_place)
{
    const char *slash, *name;
    const struct module *module;

    *ret_place = (struct trace_place){.offset = address};
    if (address & GS_TRACE_NAMED) {
        look_up_name(modules->trace, address & ~GS_TRACE_NAMED, ret_place);
        return;
    }
    module = find_module(modules, address);
    if (!module)
        return;
    ret_place->offset = address - module->start + module->offset;
    slash = memrchr(module->path, '/', (size_t)module->length);
    name = slash ? slash + 1 : module->path;
    snprintf(ret_place->file, sizeof ret_place->file, "%.*s",
             (int)(module->path + module->length - name), name);
    /* The call is before the address to which it returns, which may be another function's. */
    name = ret_place->offset > 0
               ? functions_find(functions_of(modules, module), ret_place->offset - 1)
               : NULL;
    if (name) /* of any length: no more of it is looked at than there is room for */
        snprintf(ret_place->function, sizeof ret_place->function, "%.*s",
                 (int)sizeof ret_place->function - 1, name);
}

void trace_frame_text(struct trace_modules *modules, uint64_t address,
                      char ret_text[TRACE_FRAME_SIZE])
{
    struct trace_place place;

    trace_place(modules, address, &place);
    if (place.is_label)
        snprintf(ret_text, TRACE_FRAME_SIZE, "label %.400s", place.function);
    else if (place.is_named && !place.line && !place.file[0])
        snprintf(ret_text, TRACE_FRAME_SIZE, "?"); /* which of both was not told */
    else if (place.is_named)
        snprintf(ret_text, TRACE_FRAME_SIZE, "%.150s (%.300s:%u)", place.function, place.file,
                 place.line);
    else if (!place.file[0])
        snprintf(ret_text, TRACE_FRAME_SIZE, "0x%" PRIx64, place.offset);
    else if (place.function[0])
        snprintf(ret_text, TRACE_FRAME_SIZE, "%.300s (%.150s+0x%" PRIx64 ")", place.function,
                 place.file, place.offset);
    else
        snprintf(ret_text, TRACE_FRAME_SIZE, "%.400s+0x%" PRIx64, place.file, place.offset);
}

/* ---- Functions of an ELF file ---------------------------------------------------------------- */

#define TABLE_MAX \
    (UINT64_C(1) << 28) /* bytes of symbols, or of names; a larger table is passed over */
#define NESTED_MAX \
    16 /* symbols before an address of which one may reach over it, as others that begin later do not */

struct file {
    int fd;
    uint64_t size;
};

/* The n-th of a table of structs; false: it is not within the file. */
static bool get(const struct file *file, uint64_t table, uint64_t step, uint64_t n, void *ret,
                size_t size)
{
    uint64_t place;

    return step >= size && !__builtin_mul_overflow(step, n, &place) &&
           !__builtin_add_overflow(table, place, &place) &&
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

static void read_loads(struct functions *functions, const struct file *file,
                       const ElfW(Ehdr) * head)
{
    ElfW(Phdr) segment;

    functions->loads = command_need(calloc(LOADS_MAX, sizeof *functions->loads));
    for (unsigned i = 0; i < head->e_phnum && i < LOADS_MAX; i++)
        if (get(file, head->e_phoff, head->e_phentsize, i, &segment, sizeof segment) &&
            segment.p_type == PT_LOAD)
            functions->loads[functions->load_count++] =
                (struct load){segment.p_offset, segment.p_filesz, segment.p_vaddr};
}

/* Of those that begin together the one whose name comes first is the last. */
static int by_value(const void *a, const void *b)
{
    const ElfW(Sym) *x = a, *y = b;

    return COMMAND_ORDER(x->st_value, y->st_value) ?: COMMAND_ORDER(y->st_name, x->st_name);
}

/* The first table of this kind. */
static void read_table(struct functions *functions, const struct file *file,
                       const ElfW(Ehdr) * head, uint32_t kind)
{
    ElfW(Shdr) section, names;
    unsigned i = 0;
    size_t kept = 0;

    do
        if (i == head->e_shnum ||
            !get(file, head->e_shoff, head->e_shentsize, i++, &section, sizeof section))
            return;
    while (section.sh_type != kind);
    if (!get(file, head->e_shoff, head->e_shentsize, section.sh_link, &names, sizeof names))
        return;
    functions->symbols = read_section(file, &section);
    functions->names = functions->symbols ? read_section(file, &names) : NULL;
    for (size_t n = 0; functions->names && n < section.sh_size / sizeof *functions->symbols; n++) {
        const ElfW(Sym) *symbol = &functions->symbols[n];

        if (ELF64_ST_TYPE(symbol->st_info) == STT_FUNC && symbol->st_shndx != SHN_UNDEF &&
            symbol->st_size > 0 && symbol->st_name > 0 && symbol->st_name < names.sh_size &&
            functions->names[symbol->st_name])
            functions->symbols[kept++] = *symbol;
    }
    functions->count = kept;
    if (kept)
        qsort(functions->symbols, kept, sizeof *functions->symbols, by_value);
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
    struct functions *functions = command_need(calloc(1, sizeof *functions));
    struct stat info;
    struct file file = {.fd = gs_regular_open(AT_FDCWD, path, 0, &info)};
    ElfW(Ehdr) head;

    if (file.fd < 0)
        return functions;
    file.size = (uint64_t)info.st_size;
    if (get(&file, 0, sizeof head, 0, &head, sizeof head) &&
        memcmp(head.e_ident, ELFMAG, SELFMAG) == 0 &&
        head.e_ident[EI_CLASS] == (sizeof(void *) == 8 ? ELFCLASS64 : ELFCLASS32)) {
        read_loads(functions, &file, &head);
        read_table(functions, &file, &head, SHT_SYMTAB);
        if (!functions
                 ->count) { /* the first has all that the second has, where it was not stripped */
            drop_table(functions);
            read_table(functions, &file, &head, SHT_DYNSYM);
        }
    }
    gs_fd_drop(file.fd);
    return functions;
}

void functions_free(void *functions_)
{
    struct functions *functions = functions_;

    drop_table(functions);
    free(functions->loads);
    free(functions);
}

/* Where what is at that place of the file is in the module's own addresses. */
static bool address_of(const struct functions *functions, uint64_t place, uint64_t *ret_address)
{
    for (unsigned i = 0; i < functions->load_count; i++) {
        const struct load *load = &functions->loads[i];

        *ret_address = load->address + (place - load->place);
        if (place >= load->place && place - load->place < load->size)
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
