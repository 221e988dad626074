/*
 * What frames that are no addresses stand for (core/record/trace_format.h). Each name is written
 * once, by who first comes with it: what it is known by is its hash, whose place in a table without
 * a lock is its number.
 */
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/record/trace.h"
#include "core/record/trace_file.h"

#define TABLE_SIZE (GS_TRACE_NAMES_MOST * sizeof(uint64_t))
#define LOOKS      64 /* at places in a row; a table that is as full has no more room */
#define FUNCTION   200
#define FILE_NAME  700 /* the end of a longer one */

static uint64_t *table; /* atomic: hashes, 0 where there is none; made when the first name comes */

static uint64_t hashed(uint64_t hash, const void *bytes, size_t size)
{
    const unsigned char *byte = bytes;

    while (size-- > 0)
        hash = (hash ^ *byte++) * UINT64_C(0x100000001b3);
    return hash;
}

static uint64_t hash_of(const char *function, const char *file, unsigned line)
{
    uint64_t hash = hashed(UINT64_C(0xcbf29ce484222325), function, strlen(function) + 1);

    hash = hashed(hash, file, strlen(file));
    hash = hashed(hash, &line, sizeof line);
    return hash ? hash : 1;
}

static uint64_t *the_table(void)
{
    uint64_t *made, *none = NULL;

    if (__atomic_load_n(&table, __ATOMIC_ACQUIRE))
        return table;
    made = mmap(NULL, TABLE_SIZE, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (made == MAP_FAILED)
        return NULL;
    if (!__atomic_compare_exchange_n(&table, &none, made, false, __ATOMIC_ACQ_REL,
                                     __ATOMIC_ACQUIRE))
        munmap(made, TABLE_SIZE);
    return table;
}

/* A line is one line, and a tab ends the function. */
static void make_plain(char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < ' ')
            *text = '?';
}

static void write_name(unsigned number, const char *function, const char *file, unsigned line)
{
    struct {
        struct gs_trace_block block;
        char text[FUNCTION + FILE_NAME + 64];
    } all = {.block = {.magic = GS_TRACE_BLOCK_MAGIC,
                       .kind = GS_TRACE_NAMES,
                       .thread = (uint32_t)syscall(SYS_gettid)}};
    const size_t length = strlen(file);
    char name[FUNCTION], end[FILE_NAME];
    int size;

    snprintf(name, sizeof name, "%.*s", FUNCTION - 1, function);
    snprintf(end, sizeof end, "%.*s", FILE_NAME - 1,
             length < FILE_NAME ? file : file + length - (FILE_NAME - 1));
    make_plain(name);
    make_plain(end);
    size = snprintf(all.text, sizeof all.text, "%u %u %s\t%s\n", number, line, name, end);
    all.block.size = (uint32_t)(sizeof all.block + (size_t)size);
    gs_trace_put_now(&all.block);
}

uint64_t gs_trace_name(const char *function, const char *file, unsigned line)
{
    const uint64_t hash = hash_of(function, file, line);
    uint64_t *places = the_table(), there;
    unsigned number;

    for (unsigned i = 0; places && i < LOOKS; i++) {
        number = 1 + (unsigned)((hash + i) % (GS_TRACE_NAMES_MOST - 1));
        there = __atomic_load_n(&places[number], __ATOMIC_RELAXED);
        if (there == hash)
            return GS_TRACE_NAMED | number;
        if (there == 0 && __atomic_compare_exchange_n(&places[number], &there, hash, false,
                                                      __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
            write_name(number, function, file, line);
            return GS_TRACE_NAMED | number;
        }
        if (there == hash)
            return GS_TRACE_NAMED | number;
    }
    return GS_TRACE_NAMED;
}

void gs_trace_names_forget(void)
{
    if (table)
        madvise(table, TABLE_SIZE, MADV_DONTNEED); /* is zero when it is looked at next */
}
