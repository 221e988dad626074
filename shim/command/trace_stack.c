/* Return addresses in words (trace_stack.h). The files are whatever lies there by now, so all that
 * they say of themselves is checked. */
#include "shim/command/trace_stack.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shim/command/command.h"
#include "shim/command/old_dl.h"

OLDEST(dlopen);
OLDEST(dlsym);

#define SYMBOL_MOST 4096 /* longer ones stay as they are */

/* A file, mapped here to be looked at; NULL bytes: it is not there, or is no ELF file. */
struct image {
    char *path;
    const unsigned char *bytes;
    size_t size;
    bool tried;
};

struct module {
    uint64_t start, end, offset;
    size_t image;
};

/* What was found for an address, which comes again and again. */
struct found {
    bool is;
    uint64_t address;
    struct trace_place place;
};

#define FOUND 4096

struct trace_modules {
    struct found *found; /* FOUND of them, each at its address's place */
    struct module *modules;
    struct image *images;
    size_t count, image_count;
};

/* ---- /proc/PID/maps ------------------------------------------------------------------------- */

static size_t image_of(struct trace_modules *modules, const char *path, size_t length)
{
    for (size_t i = modules->image_count; i-- > 0;)
        if (strncmp(modules->images[i].path, path, length) == 0 && !modules->images[i].path[length])
            return i;
    modules->images[modules->image_count].path = strndup(path, length);
    return modules->images[modules->image_count].path ? modules->image_count++ : SIZE_MAX;
}

/* "7f00-7f10 r-xp 00001000 fe:01 42   /path": lines that are none are passed over. */
static void add_module(struct trace_modules *modules, const char *line, const char *end)
{
    struct module module;
    char text[PATH_MAX + 128];
    int path = 0;

    snprintf(text, sizeof text, "%.*s", (int)(end - line < PATH_MAX ? end - line : PATH_MAX), line);
    if (sscanf(text, "%" SCNx64 "-%" SCNx64 " %*15s %" SCNx64 " %*15s %*20s %n", &module.start,
               &module.end, &module.offset, &path) < 3 ||
        path == 0 || !text[path] || module.start >= module.end)
        return;
    module.image = image_of(modules, text + path, strlen(text + path));
    if (module.image != SIZE_MAX)
        modules->modules[modules->count++] = module;
}

struct trace_modules *trace_modules_make(const struct trace *trace)
{
    struct trace_modules *modules = calloc(1, sizeof *modules);
    size_t lines = 1;

    for (const char *at = trace->modules; (at = strchr(at, '\n')); at++)
        lines++;
    if (modules) {
        modules->modules = calloc(lines, sizeof *modules->modules);
        modules->found = calloc(FOUND, sizeof *modules->found);
        modules->images = calloc(lines, sizeof *modules->images);
    }
    if (!modules || !modules->modules || !modules->images || !modules->found) {
        trace_modules_free(modules);
        command_complain("there is too little memory for the names of functions");
        return NULL;
    }
    for (const char *at = trace->modules, *end; *at; at = *end ? end + 1 : end) {
        end = strchrnul(at, '\n');
        add_module(modules, at, end);
    }
    return modules;
}

void trace_modules_free(struct trace_modules *modules)
{
    if (!modules)
        return;
    for (size_t i = 0; modules->images && i < modules->image_count; i++) {
        if (modules->images[i].bytes)
            munmap((void *)modules->images[i].bytes, modules->images[i].size);
        free(modules->images[i].path);
    }
    free(modules->found);
    free(modules->images);
    free(modules->modules);
    free(modules);
}

/* ---- Symbols -------------------------------------------------------------------------------- */

static void open_image(struct image *image)
{
    int fd = open(image->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    struct stat info;
    void *bytes;

    image->tried = true;
    if (fd >= 0 && fstat(fd, &info) == 0 && S_ISREG(info.st_mode) &&
        info.st_size > (off_t)sizeof(ElfW(Ehdr))) {
        bytes = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (bytes != MAP_FAILED) {
            image->bytes = bytes;
            image->size = (size_t)info.st_size;
        }
    }
    if (fd >= 0)
        close(fd);
    if (image->bytes &&
        (memcmp(image->bytes, ELFMAG, SELFMAG) != 0 ||
         image->bytes[EI_CLASS] != (sizeof(void *) == 8 ? ELFCLASS64 : ELFCLASS32))) {
        munmap((void *)image->bytes, image->size);
        image->bytes = NULL;
    }
}

static bool holds(const struct image *image, uint64_t at, uint64_t size)
{
    return at <= image->size && size <= image->size - at;
}

/* The n-th of a table of structs; false: it is not within the file. */
static bool get(const struct image *image, uint64_t table, uint64_t step, uint64_t n, void *ret,
                size_t size)
{
    uint64_t at;

    if (step < size || __builtin_mul_overflow(step, n, &at) ||
        __builtin_add_overflow(table, at, &at) || !holds(image, at, size))
        return false;
    memcpy(ret, image->bytes + at, size);
    return true;
}

/* Where what is at that place of the file is in the module's own addresses. */
static bool address_of(const struct image *image, const ElfW(Ehdr) * head, uint64_t offset,
                       uint64_t *ret_address)
{
    ElfW(Phdr) segment;

    for (unsigned i = 0; i < head->e_phnum; i++) {
        if (!get(image, head->e_phoff, head->e_phentsize, i, &segment, sizeof segment))
            return false;
        if (segment.p_type == PT_LOAD && offset >= segment.p_offset &&
            offset - segment.p_offset < segment.p_filesz) {
            *ret_address = segment.p_vaddr + (offset - segment.p_offset);
            return true;
        }
    }
    return false;
}

/* The function's name in one table of symbols; NULL: it has none for the address. */
static const char *find_symbol(const struct image *image, const ElfW(Shdr) * symbols,
                               const ElfW(Shdr) * names, uint64_t address)
{
    const char *found = NULL;
    uint64_t best = 0;
    ElfW(Sym) symbol;

    if (!holds(image, symbols->sh_offset, symbols->sh_size) ||
        !holds(image, names->sh_offset, names->sh_size))
        return NULL;
    for (uint64_t i = 0; i < symbols->sh_size / sizeof symbol; i++) {
        const char *name;

        memcpy(&symbol, image->bytes + symbols->sh_offset + i * sizeof symbol, sizeof symbol);
        if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || symbol.st_shndx == SHN_UNDEF ||
            symbol.st_name >= names->sh_size || address < symbol.st_value ||
            address - symbol.st_value >= symbol.st_size || (found && symbol.st_value <= best))
            continue;
        name = (const char *)image->bytes + names->sh_offset + symbol.st_name;
        if (*name && memchr(name, 0, names->sh_size - symbol.st_name)) {
            found = name;
            best = symbol.st_value;
        }
    }
    return found;
}

static const char *function_at(const struct image *image, uint64_t offset)
{
    const char *found = NULL;
    uint64_t address;
    ElfW(Ehdr) head;

    memcpy(&head, image->bytes, sizeof head);
    if (!address_of(image, &head, offset, &address))
        return NULL;
    for (unsigned i = 0; i < head.e_shnum; i++) {
        ElfW(Shdr) section, names;

        if (!get(image, head.e_shoff, head.e_shentsize, i, &section, sizeof section))
            break;
        if ((section.sh_type != SHT_SYMTAB && (section.sh_type != SHT_DYNSYM || found)) ||
            !get(image, head.e_shoff, head.e_shentsize, section.sh_link, &names, sizeof names))
            continue;
        found = find_symbol(image, &section, &names, address);
        if (found && section.sh_type == SHT_SYMTAB)
            break; /* it has all that the other has */
    }
    return found;
}

/* ---- A place -------------------------------------------------------------------------------- */

typedef char *demangle_fn(const char *symbol, char *buffer, size_t *size, int *ret_status);

/* Of the C++ library, where there is one. */
static demangle_fn *find_demangle(void)
{
    static demangle_fn *demangle;
    static bool tried;
    void *library;

    if (!tried) {
        library = dlopen("libstdc++.so.6", RTLD_LAZY);
        demangle = library ? (demangle_fn *)dlsym(library, "__cxa_demangle") : NULL;
        tried = true;
    }
    return demangle;
}

/* Symbols of C++ are codes that few can read. */
static void put_function(const char *symbol, char ret_function[TRACE_FRAME_SIZE])
{
    bool coded = strncmp(symbol, "_Z", 2) == 0 && strnlen(symbol, SYMBOL_MOST) < SYMBOL_MOST;
    demangle_fn *demangle = coded ? find_demangle() : NULL;
    char *readable = demangle ? demangle(symbol, NULL, NULL, NULL) : NULL;

    snprintf(ret_function, TRACE_FRAME_SIZE, "%s", readable ? readable : symbol);
    free(readable);
}

static void look_up(struct trace_modules *modules, uint64_t address, struct trace_place *ret_place)
{
    const struct module *module = NULL;
    const char *slash, *function = NULL;
    struct image *image;

    *ret_place = (struct trace_place){.offset = address};
    /* What was mapped last is what was there, should two have been. */
    for (size_t i = modules->count; i-- > 0 && !module;)
        if (address >= modules->modules[i].start && address < modules->modules[i].end)
            module = &modules->modules[i];
    if (!module)
        return;
    image = &modules->images[module->image];
    if (!image->tried && image->path[0] == '/')
        open_image(image);
    ret_place->offset = address - module->start + module->offset;
    slash = strrchr(image->path, '/');
    snprintf(ret_place->file, sizeof ret_place->file, "%s", slash ? slash + 1 : image->path);
    /* The call is before the address to which it returns, which may be another function's. */
    if (image->bytes && ret_place->offset > 0)
        function = function_at(image, ret_place->offset - 1);
    if (function)
        put_function(function, ret_place->function);
}

void trace_place(struct trace_modules *modules, uint64_t address, struct trace_place *ret_place)
{
    struct found *found = &modules->found[(address ^ address >> 12) % FOUND];

    if (!found->is || found->address != address)
        look_up(modules, address, &found->place);
    found->is = true;
    found->address = address;
    *ret_place = found->place;
}

void trace_frame_text(struct trace_modules *modules, uint64_t address,
                      char ret_text[TRACE_FRAME_SIZE])
{
    struct trace_place place;

    trace_place(modules, address, &place);
    if (!place.file[0])
        snprintf(ret_text, TRACE_FRAME_SIZE, "0x%" PRIx64, place.offset);
    else if (place.function[0])
        snprintf(ret_text, TRACE_FRAME_SIZE, "%.300s (%.150s+0x%" PRIx64 ")", place.function,
                 place.file, place.offset);
    else
        snprintf(ret_text, TRACE_FRAME_SIZE, "%.400s+0x%" PRIx64, place.file, place.offset);
}
