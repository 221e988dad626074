/*
 * Names and functions by ELF: of a file, which may have any bytes (shim/command/trace_read.h,
 * run_file.c); and of a loaded object, which the dynamic linker has accepted
 * (shim/lookup/elf_symbols.h): its tables are well formed, whatever symbols are in them, and what
 * is found is what a walk through all of them finds.
 */
#include "fuzz.h"

#include <elf.h>
#include <link.h>

#include "command.h"
#include "core/base/regular.h"
#include "shim/command/run.h"
#include "shim/command/trace_read.h"
#include "shim/lookup/elf_symbols.h"

/* ---- A file --------------------------------------------------------------------------------- */

static void read_file(const uint8_t *data, size_t size)
{
    char path[64];
    const char *name;
    struct functions *functions;
    struct run_file file;
    int fd = fuzz_file(data, size, path);

    run_file_read(path, &file);
    CHECK(file.kind != RUN_UNREADABLE);
    CHECK(memchr(file.interpreter, 0, sizeof file.interpreter));
    functions = functions_make(path);
    close(fd);
    for (uint64_t place = 0; place < 2 * size; place += 1 + size / 64)
        if ((name = functions_find(functions, place)))
            CHECK(name[0]);
    functions_free(functions);
}

/* ---- A loaded object ------------------------------------------------------------------------ */

#define SYMBOLS_MAX 24
#define HIDDEN      0x8000

static const char *const names[] = {"cuInit", "cuInit_v2", "dlsym", "a", ""};
#define NAMES (sizeof names / sizeof *names)

struct object {
    ElfW(Sym) symbols[1 + SYMBOLS_MAX];
    ElfW(Half) versions[1 + SYMBOLS_MAX];
    char strings[64];
    uint32_t places[NAMES]; /* of the names in them */
    unsigned count;         /* with the first, which is none */
};

static uint32_t hash_of(const char *name)
{
    uint32_t hash = 5381;

    for (; *name; name++)
        hash = hash * 33 + (unsigned char)*name;
    return hash;
}

static const char *name_of(const struct object *object, unsigned i)
{
    return object->strings + object->symbols[i].st_name;
}

static void make_object(struct fuzz_input *input, struct object *object, uint32_t buckets)
{
    static const unsigned char types[] = {STT_NOTYPE, STT_OBJECT, STT_FUNC, STT_SECTION};
    uint32_t used = 1;

    *object = (struct object){.count = 1};
    for (size_t i = 0; i < NAMES; i++) {
        object->places[i] = used;
        strcpy(object->strings + used, names[i]);
        used += (uint32_t)strlen(names[i]) + 1;
    }
    for (unsigned want = fuzz_byte(input) % (SYMBOLS_MAX + 1); object->count <= want;) {
        uint8_t kind = fuzz_byte(input), more = fuzz_byte(input);

        object->versions[object->count] = (ElfW(Half))((more & 1 ? HIDDEN : 0) | 2);
        object->symbols[object->count] =
            (ElfW(Sym)){.st_name = object->places[kind % NAMES],
                        .st_info = ELF64_ST_INFO(more >> 1 & 3, types[more >> 3 & 3]),
                        .st_shndx = more & 32 ? SHN_UNDEF : 1,
                        .st_value = more & 64 ? 0 : object->count * 16u};
        object->count++;
    }
    /* The chain of a bucket is in one piece. */
    for (unsigned i = 1; i < object->count; i++)
        for (unsigned j = i; j > 1 && hash_of(name_of(object, j)) % buckets <
                                          hash_of(name_of(object, j - 1)) % buckets;
             j--) {
            ElfW(Sym) symbol = object->symbols[j];
            ElfW(Half) version = object->versions[j];

            object->symbols[j] = object->symbols[j - 1];
            object->versions[j] = object->versions[j - 1];
            object->symbols[j - 1] = symbol;
            object->versions[j - 1] = version;
        }
}

/* Of its exact size: a byte too far is noticed. */
static uint32_t *make_gnu_hash(const struct object *object, uint32_t buckets, uint32_t bloom_words,
                               uint32_t first)
{
    const size_t words = 4 + 2u * bloom_words + buckets + (object->count - first);
    uint32_t *table = calloc(words, sizeof *table), *bucket, *chain;

    CHECK(table);
    table[0] = buckets;
    table[1] = first;
    table[2] = bloom_words;
    bucket = table + 4 + 2 * bloom_words;
    chain = bucket + buckets;
    for (unsigned i = first; i < object->count; i++) {
        const uint32_t hash = hash_of(name_of(object, i)), at = hash % buckets;
        const bool is_last =
            i + 1 == object->count || hash_of(name_of(object, i + 1)) % buckets != at;

        if (!bucket[at])
            bucket[at] = i;
        chain[i - first] = (hash & ~1u) | is_last;
    }
    return table;
}

static bool is_defined(const struct object *object, unsigned i, const char *name)
{
    const ElfW(Sym) *symbol = &object->symbols[i];
    const unsigned type = ELF64_ST_TYPE(symbol->st_info);

    return symbol->st_shndx != SHN_UNDEF && symbol->st_value != 0 &&
           ELF64_ST_BIND(symbol->st_info) != STB_LOCAL &&
           (type == STT_FUNC || type == STT_OBJECT || type == STT_NOTYPE) &&
           strcmp(name_of(object, i), name) == 0;
}

static void look_up(const struct object *object, const ElfW(Dyn) * dynamic, bool has_versions)
{
    for (size_t n = 0; n < NAMES; n++) {
        const uintptr_t found = (uintptr_t)gs_elf_symbol(0, dynamic, names[n]);
        bool any = false, any_default = false, is_one = false, is_default = false;

        for (unsigned i = 1; i < object->count; i++) {
            const bool by_default = !has_versions || !(object->versions[i] & HIDDEN);
            const bool this = found && object->symbols[i].st_value == found;

            if (!is_defined(object, i, names[n]))
                continue;
            any = true;
            any_default |= by_default;
            is_one |= this;
            is_default |= this && by_default;
        }
        CHECK((found != 0) == any && is_one == any && is_default == any_default);
    }
}

static void read_object(struct fuzz_input *input)
{
    const uint8_t kind = fuzz_byte(input);
    const uint32_t buckets = 1 + kind % 4;
    struct object object;
    ElfW(Dyn) dynamic[8] = {{0}};
    uint32_t *gnu, sysv[2];
    unsigned n = 0;

    make_object(input, &object, buckets);
    gnu = make_gnu_hash(&object, buckets, kind >> 2 & 3, 1);
    sysv[0] = 1;
    sysv[1] = object.count;
    if (kind & 16)
        dynamic[n++] = (ElfW(Dyn)){DT_GNU_HASH, {.d_ptr = (ElfW(Addr))gnu}};
    if (kind & 32 || !(kind & 16))
        dynamic[n++] = (ElfW(Dyn)){DT_HASH, {.d_ptr = (ElfW(Addr))sysv}};
    if (kind & 64)
        dynamic[n++] = (ElfW(Dyn)){DT_VERSYM, {.d_ptr = (ElfW(Addr))object.versions}};
    dynamic[n++] = (ElfW(Dyn)){DT_SYMTAB, {.d_ptr = (ElfW(Addr))object.symbols}};
    dynamic[n++] = (ElfW(Dyn)){DT_STRTAB, {.d_ptr = (ElfW(Addr))object.strings}};
    look_up(&object, dynamic, kind & 64);
    free(gnu);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input input = {data, size};

    if (size > 0 && data[0] == 0x7f)
        read_file(data, size);
    else
        read_object(&input);
    return 0;
}
