/*
 * Reads traces of allocations: see trace.h.
 */
#include "trace.h"
#include "bench.h"

#include <lzma.h>
#include <uthash.h>

#define PIECE               (2ull << 20) /* what a driver's physical memory comes in */
#define SMALL               (1ull << 20) /* below this blocks are packed */
#define ALIGN_UP(value, to) (((value) + (to) - 1) / (to) * (to))

/* ---- the file's bytes ---- */

struct source {
    const char *path;
    FILE *file;
    bool packed;
    lzma_stream lzma;
    uint8_t in[1 << 14];
    char out[1 << 14];
    size_t at, filled;
};

static void source_open(struct source *source, const char *path)
{
    size_t length = strlen(path);

    source->path = path;
    source->file = fopen(path, "re");
    if (!source->file)
        bench_die("cannot read %s: %s", path, strerror(errno));
    source->packed = length > 3 && strcmp(path + length - 3, ".xz") == 0;
    source->lzma = (lzma_stream)LZMA_STREAM_INIT;
    if (source->packed && lzma_stream_decoder(&source->lzma, UINT64_MAX, 0) != LZMA_OK)
        bench_die("cannot start unpacking %s: no host memory", path);
}

static void source_close(struct source *source)
{
    lzma_end(&source->lzma);
    fclose(source->file);
}

static size_t read_file(struct source *source, void *buffer, size_t size)
{
    size_t got = fread(buffer, 1, size, source->file);

    if (got == 0 && ferror(source->file))
        bench_die("cannot read %s: %s", source->path, strerror(errno));
    return got;
}

/* Fills out again. Nothing in it: the file is at its end. */
static void source_fill(struct source *source)
{
    lzma_stream *lzma = &source->lzma;
    lzma_ret result = LZMA_OK;

    source->at = 0;
    if (!source->packed) {
        source->filled = read_file(source, source->out, sizeof source->out);
        return;
    }
    lzma->next_out = (uint8_t *)source->out;
    lzma->avail_out = sizeof source->out;
    while (result == LZMA_OK && lzma->avail_out == sizeof source->out) {
        if (lzma->avail_in == 0) {
            lzma->next_in = source->in;
            lzma->avail_in = read_file(source, source->in, sizeof source->in);
        }
        result = lzma_code(lzma, lzma->avail_in ? LZMA_RUN : LZMA_FINISH);
    }
    source->filled = sizeof source->out - lzma->avail_out;
    if (result != LZMA_OK && result != LZMA_STREAM_END)
        bench_die("%s is damaged or no .xz file (liblzma's error %d)", source->path, (int)result);
}

/* The next line without its end. Returns false at the end of the file. */
static bool source_line(struct source *source, char *line, size_t size)
{
    size_t length = 0;

    for (;;) {
        if (source->at == source->filled) {
            source_fill(source);
            if (source->filled == 0)
                break;
        }
        char c = source->out[source->at++];
        if (c == '\n')
            break;
        if (length + 1 < size)
            line[length++] = c;
    }
    line[length] = '\0';
    return length > 0 || source->filled > 0;
}

/* ---- what it says ---- */

struct live {
    uint64_t address, size;
    uint32_t slot;
    UT_hash_handle hh;
};

struct parser {
    struct trace *trace;
    struct live *live;
    uint32_t *free_slots;
    size_t free_count, capacity;
    uint64_t large, large_rounded, small, small_rounded; /* live bytes */
};

static void count_live(struct parser *parser, uint64_t size, bool alloc)
{
    struct trace *trace = parser->trace;
    uint64_t unit = size < SMALL ? 512 : PIECE;
    uint64_t rounded = ALIGN_UP(size, unit);
    uint64_t *bytes = size < SMALL ? &parser->small : &parser->large;
    uint64_t *whole = size < SMALL ? &parser->small_rounded : &parser->large_rounded;

    *bytes += alloc ? size : 0 - size;
    *whole += alloc ? rounded : 0 - rounded;
    uint64_t live = parser->small + parser->large;
    uint64_t held = ALIGN_UP(parser->small_rounded, PIECE) + parser->large_rounded;
    if (live > trace->live_peak)
        trace->live_peak = live;
    if (held > trace->live_peak_rounded)
        trace->live_peak_rounded = held;
}

static void grow(struct parser *parser)
{
    struct trace *trace = parser->trace;

    if (trace->count < parser->capacity)
        return;
    parser->capacity = parser->capacity ? 2 * parser->capacity : 4096;
    trace->ops = realloc(trace->ops, parser->capacity * sizeof *trace->ops);
    /* No more slots are ever free than there are operations. */
    parser->free_slots = realloc(parser->free_slots, parser->capacity * sizeof *parser->free_slots);
    if (!trace->ops || !parser->free_slots)
        bench_die("no host memory for a trace of %zu operations", parser->capacity);
}

/* Returns what is wrong with the line, or NULL. */
static const char *add_line(struct parser *parser, const char *line)
{
    struct trace *trace = parser->trace;
    unsigned long long size, address;
    struct live *live;
    int used = 0;
    char op;

    if (sscanf(line, "%c %llu %llx%n", &op, &size, &address, &used) != 3 || line[used])
        return "is not 'op bytes address'";
    if (op != 'a' && op != 'f')
        return "has an operation other than a and f";
    HASH_FIND(hh, parser->live, &address, sizeof parser->live->address, live);
    if (op == 'a' && live)
        return "allocates an address that is live";
    if (op == 'f' && !live)
        return "frees an address that is not live";
    if (op == 'a' && (size == 0 || size > 1ull << 50))
        return "has a size that no device has";
    grow(parser);
    struct trace_op *at = &trace->ops[trace->count++];
    *at = (struct trace_op){.alloc = op == 'a'};
    if (at->alloc) {
        live = bench_array(1, sizeof *live);
        live->address = address;
        live->size = size;
        live->slot = parser->free_count ? parser->free_slots[--parser->free_count] : trace->slots++;
        HASH_ADD(hh, parser->live, address, sizeof live->address, live);
    }
    at->size = live->size;
    at->slot = live->slot;
    count_live(parser, live->size, at->alloc);
    if (!at->alloc) {
        parser->free_slots[parser->free_count++] = live->slot;
        HASH_DELETE(hh, parser->live, live);
        free(live);
    }
    return NULL;
}

void trace_read(struct trace *trace, const char *path)
{
    struct source *source = bench_array(1, sizeof *source);
    struct parser parser = {.trace = trace};
    struct live *live, *next;
    char line[128];

    memset(trace, 0, sizeof *trace);
    source_open(source, path);
    for (size_t number = 1; source_line(source, line, sizeof line); number++) {
        const char *wrong = add_line(&parser, line);
        if (wrong)
            bench_die("%s: line %zu %s", path, number, wrong);
    }
    if (trace->count == 0)
        bench_die("%s is empty", path);
    HASH_ITER(hh, parser.live, live, next) {
        HASH_DELETE(hh, parser.live, live);
        free(live);
    }
    trace->live_end = parser.small + parser.large;
    free(parser.free_slots);
    source_close(source);
    free(source);
}

void trace_free(struct trace *trace)
{
    free(trace->ops);
}
