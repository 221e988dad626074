/* Reading what a process recorded (trace_read.h). */
#include "shim/command/trace_read.h"

#include <fcntl.h>
#include <limits.h>
#include <search.h>

#include "core/base/fd.h"
#include "core/base/regular.h"
#include "shim/command/command.h"

/* No block that a recorder writes is as large, no time as late (36 years), no memory as much. */
#define MOST_BLOCK (UINT32_C(64) << 20)
#define MOST_TIME  (UINT64_C(1) << 60)
#define MOST_BYTES (UINT64_C(1) << 50)

struct reader {
    const char *path;
    struct trace *trace;
    const unsigned char *bytes;
    size_t size, at; /* of the file; of the block that is looked at */
    size_t room;     /* for events */
    size_t end;      /* behind it there are zeros alone */
    FILE *modules;   /* trace->modules, when it is closed */
    void *threads;   /* their numbers: a tree (tsearch) of pointers that are these */
};

/* ---- The file ------------------------------------------------------------------------------- */

/* All of it in memory: who wrote it may go on writing, or cut it. False with errno. */
static bool load(struct reader *reader)
{
    const uint64_t most = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    struct stat info;
    int fd = gs_regular_open(AT_FDCWD, reader->path, 0, &info);
    unsigned char *bytes = NULL;

    if (fd < 0)
        return false;
    if ((uint64_t)info.st_size < most)
        bytes = malloc((size_t)info.st_size + 1);
    else
        errno = EFBIG; /* a hole is as easily made as a recording is long */
    if (bytes) {
        reader->size = gs_regular_read(fd, bytes, (size_t)info.st_size, 0);
        reader->trace->is_private = (info.st_mode & 0444) != 0444;
    }
    gs_fd_drop(fd);
    reader->bytes = reader->trace->bytes = bytes;
    return bytes;
}

static bool damaged(const struct reader *reader, const char *what)
{
    command_complain("'%s' is damaged: the block at byte %zu %s; record again, or bring the file "
                     "over again",
                     reader->path, reader->at, what);
    return false;
}

/* False, and said. */
static bool __attribute__((format(printf, 2, 0))) refuse(const struct reader *reader,
                                                         const char *format, unsigned number)
{
    char what[160];

    snprintf(what, sizeof what, format, number);
    command_complain("'%s' %s", reader->path, what);
    return false;
}

static bool read_header(struct reader *reader)
{
    struct gs_trace_header *header = &reader->trace->header;

    if (reader->size < sizeof header->magic || memcmp(reader->bytes, GS_TRACE_MAGIC, 8) != 0)
        return refuse(reader, "is no trace; gpushim record writes them", 0);
    if (reader->size < sizeof *header)
        return refuse(reader, "ends within its first %u bytes: nothing was recorded",
                      sizeof *header);
    memcpy(header, reader->bytes, sizeof *header);
    if (header->version != GS_TRACE_VERSION)
        return refuse(reader,
                      "is of another version, %u; use the gpushim of the version that recorded it",
                      header->version);
    if (header->header_size < sizeof *header || header->header_size > reader->size)
        return refuse(
            reader,
            "is damaged: it says that its first block is at byte %u; record again, or bring the file over again",
            header->header_size);
    header->program[sizeof header->program - 1] = 0;
    reader->at = header->header_size;
    return true;
}

/* ---- Events --------------------------------------------------------------------------------- */

static bool can_be(const struct gs_trace_event *raw)
{
    const uint64_t most = MOST_BYTES;

    if (raw->outcome > GS_TRACE_REFUSED || raw->time_ns > MOST_TIME)
        return false;
    if (raw->op == GS_TRACE_FIGURES)
        return raw->figures.live <= most && raw->figures.cached <= most &&
               raw->figures.retired <= most && raw->figures.limbo <= most;
    return raw->op >= GS_TRACE_ALLOC && raw->op < GS_TRACE_FIGURES &&
           (raw->call.result != 0 || raw->outcome == GS_TRACE_REFUSED ||
            (raw->call.size <= most && raw->call.address <= UINT64_MAX - most));
}

static void fill(struct trace_event *event, const struct gs_trace_event *raw, uint32_t thread)
{
    *event = (struct trace_event){.at_ns = raw->time_ns,
                                  .time_ns = raw->time_ns,
                                  .took_ns = raw->took_ns,
                                  .thread = thread,
                                  .op = raw->op,
                                  .device = raw->device,
                                  .outcome = raw->outcome,
                                  .frame_count = raw->frames};
    if (raw->op == GS_TRACE_FIGURES) {
        event->figures.live = raw->figures.live;
        event->figures.cached = raw->figures.cached;
        event->figures.retired = raw->figures.retired;
        event->figures.limbo = raw->figures.limbo;
        return;
    }
    event->address = raw->call.address;
    event->size = raw->call.size;
    event->stream = raw->call.stream;
    event->result = raw->call.result;
    if (trace_is_alloc(event) || raw->op == GS_TRACE_PIECE_MADE || raw->op == GS_TRACE_OPENED)
        event->at_ns += raw->took_ns;
}

static void add_event(struct reader *reader, const struct gs_trace_event *raw,
                      const unsigned char *frames, uint32_t thread)
{
    struct trace *trace = reader->trace;
    uint64_t end = raw->time_ns + raw->took_ns;
    struct trace_event *event = COMMAND_NEXT(trace->events, trace->count, reader->room);

    fill(event, raw, thread);
    event->frames = frames;
    trace->has_device[raw->device] = true;
    if (end > trace->duration_ns)
        trace->duration_ns = end;
}

static int by_number(const void *a, const void *b)
{
    return COMMAND_ORDER((uintptr_t)a, (uintptr_t)b);
}

static void note_thread(struct reader *reader, uint32_t thread)
{
    void *number = (void *)((uintptr_t)thread + 1); /* NULL is none */

    reader->trace->threads += !tfind(number, &reader->threads, by_number);
    command_need(tsearch(number, &reader->threads, by_number));
}

static bool read_events(struct reader *reader, const unsigned char *at, size_t left,
                        uint32_t thread)
{
    struct gs_trace_event raw;

    if (left > 0)
        note_thread(reader, thread);
    while (left > 0) {
        size_t size;

        if (left < sizeof raw)
            return damaged(reader, "ends within an event");
        memcpy(&raw, at, sizeof raw);
        size = sizeof raw + raw.frames * sizeof(uint64_t);
        if (size > left)
            return damaged(reader, "ends within a call stack");
        if (!can_be(&raw) ||
            reader->trace->count == UINT32_MAX - 1) /* trace_blocks.c has places of 32 bits */
            return damaged(reader, "has an event that cannot be");
        add_event(reader, &raw, at + sizeof raw, thread);
        at += size, left -= size;
    }
    return true;
}

/* By when they took effect; those of one moment as in the file. A piece that is made for an
 * allocation comes so before it, though the allocation's event is written first: it begins first.
 */
static int by_time(const void *a, const void *b)
{
    const struct trace_event *x = a, *y = b;

    return COMMAND_ORDER(x->at_ns, y->at_ns)
               ?: COMMAND_ORDER(x->frames, y->frames); /* their order in the file */
}

/* ---- Blocks --------------------------------------------------------------------------------- */

static bool read_devices(struct reader *reader, const unsigned char *at, size_t left)
{
    struct gs_trace_device device;

    for (; left >= sizeof device; at += sizeof device, left -= sizeof device) {
        memcpy(&device, at, sizeof device);
        if (device.device > 255 || device.bytes > MOST_BYTES)
            return damaged(reader, "has a GPU that cannot be");
        device.name[sizeof device.name - 1] = 0;
        reader->trace->devices[device.device] = device;
        reader->trace->has_device[device.device] = true;
    }
    return left == 0 || damaged(reader, "ends within a GPU");
}

/* "7 41 forward<tab>/srv/train.py": what is no such line is passed over. */
static void read_name(struct trace_name *names, const char *line, const char *end)
{
    struct trace_name name = {0};
    unsigned long number, script_line;
    const char *tab;
    char *at;

    if (line == end || *line < '0' || *line > '9')
        return;
    number = strtoul(line, &at, 10);
    if (*at != ' ' || at[1] < '0' || at[1] > '9')
        return;
    script_line = strtoul(at, &at, 10);
    tab = *at == ' ' && at < end ? memchr(at, '\t', (size_t)(end - at)) : NULL;
    if (!tab || number >= GS_TRACE_NAMES_MOST || script_line > UINT_MAX)
        return;
    name = (struct trace_name){.function = at + 1, .file = tab + 1, .line = (unsigned)script_line};
    names[number] = name;
}

static bool read_names(struct reader *reader, const unsigned char *bytes, size_t left)
{
    const char *at = (const char *)bytes, *end;

    if (!reader->trace->names)
        reader->trace->names =
            command_need(calloc(GS_TRACE_NAMES_MOST, sizeof *reader->trace->names));
    for (; left > 0 && (end = memchr(at, '\n', left)); left -= (size_t)(end + 1 - at), at = end + 1)
        read_name(reader->trace->names, at, end);
    return left == 0 || damaged(reader, "ends within a name");
}

static bool read_block(struct reader *reader, const struct gs_trace_block *block)
{
    const unsigned char *at = reader->bytes + reader->at + sizeof *block;
    size_t left = block->size - sizeof *block;

    reader->trace->waited_ns += block->waited_ns;
    switch (block->kind) {
    case GS_TRACE_EVENTS:
        return read_events(reader, at, left, block->thread);
    case GS_TRACE_MODULES:
        fprintf(reader->modules, "%.*s\n", (int)left, (const char *)at);
        return true;
    case GS_TRACE_DEVICES:
        return read_devices(reader, at, left);
    case GS_TRACE_NAMES:
        return read_names(reader, at, left);
    case GS_TRACE_END:
        reader->trace->ended = true;
        return true;
    default:
        return damaged(reader, "is of no kind that there is");
    }
}

static bool read_blocks(struct reader *reader)
{
    struct gs_trace_block block;
    size_t left;

    /* A file that grew before its bytes were there ends in zeros. */
    for (reader->end = reader->size; reader->end > 0 && reader->bytes[reader->end - 1] == 0;)
        reader->end--;
    for (; (left = reader->size - reader->at) > 0; reader->at += block.size) {
        const unsigned char *at = reader->bytes + reader->at;

        reader->trace->cut = left < sizeof block || reader->at >= reader->end;
        if (reader->trace->cut)
            return true;
        memcpy(&block, at, sizeof block);
        if (block.magic != GS_TRACE_BLOCK_MAGIC)
            return damaged(reader, "does not begin as one");
        if (block.size < sizeof block || block.size > MOST_BLOCK)
            return damaged(reader, "is of a size that cannot be");
        if (block.waited_ns > MOST_TIME)
            return damaged(reader, "tells a wait that cannot be");
        reader->trace->cut = block.size > left;
        if (reader->trace->cut)
            return true;
        if (!read_block(reader, &block))
            return false;
    }
    return true;
}

bool trace_read(const char *path, struct trace *ret_trace)
{
    struct reader reader = {.path = path, .trace = ret_trace};
    size_t modules;
    bool read;

    memset(ret_trace, 0, sizeof *ret_trace);
    if (!load(&reader))
        return command_complain("'%s' cannot be read: %s", path,
                                errno == ESPIPE ? "it is no regular file; copy it to one"
                                                : strerror(errno)),
               false;
    reader.modules = command_need(open_memstream(&ret_trace->modules, &modules));
    read = read_header(&reader) && read_blocks(&reader);
    command_need(fclose(reader.modules) == 0 ? &reader : NULL);
    tdestroy(reader.threads, trace_keep);
    if (!read)
        trace_free(ret_trace);
    else if (ret_trace->count > 0)
        qsort(ret_trace->events, ret_trace->count, sizeof *ret_trace->events, by_time);
    return read;
}

void trace_keep(void *what)
{
}

void trace_free(struct trace *trace)
{
    free(trace->events);
    free(trace->modules);
    free(trace->names);
    free(trace->bytes);
}

/* ---- What an event is ----------------------------------------------------------------------- */

uint64_t trace_frame(const struct trace_event *event, unsigned n)
{
    uint64_t address;

    memcpy(&address, event->frames + n * sizeof address, sizeof address);
    return address;
}

bool trace_is_alloc(const struct trace_event *event)
{
    return event->op == GS_TRACE_ALLOC || event->op == GS_TRACE_ALLOC_ASYNC;
}

bool trace_is_free(const struct trace_event *event)
{
    return event->op == GS_TRACE_FREE || event->op == GS_TRACE_FREE_ASYNC;
}

bool trace_did(const struct trace_event *event)
{
    return event->result == 0 && event->outcome != GS_TRACE_REFUSED;
}

const char *trace_call_name(const struct trace_event *event)
{
    static const char *const names[] = {[GS_TRACE_ALLOC] = "cuMemAlloc",
                                        [GS_TRACE_FREE] = "cuMemFree",
                                        [GS_TRACE_ALLOC_ASYNC] = "cuMemAllocAsync",
                                        [GS_TRACE_FREE_ASYNC] = "cuMemFreeAsync"};

    return names[event->op];
}

const char *trace_outcome_name(const struct trace_event *event)
{
    static const char *const names[] = {[GS_TRACE_NONE] = "none",
                                        [GS_TRACE_CACHED] = "cached",
                                        [GS_TRACE_FURTHER] = "further",
                                        [GS_TRACE_NEW] = "new memory",
                                        [GS_TRACE_WAITED] = "after waiting",
                                        [GS_TRACE_DRIVER] = "the driver's",
                                        [GS_TRACE_REFUSED] = "refused"};

    return names[event->outcome];
}
