/* Return addresses in words (trace_stack.h), by the modules of the trace and the files that lie there by
 * now. */
#include "shim/command/trace_stack.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/fd.h"
#include "core/base/regular.h"
#include "shim/command/command.h"
#include "shim/command/functions.h"
#include "shim/command/spans.h"

#define MODULES_MOST (1u << 28) /* lines of a file of many GiB */
#define MAPS_LINE  (PATH_MAX + 128)
#define IMAGES_MAX 512 /* files that are open at once; functions of more are not named */

/* A file that was mapped; no functions: it is not there, or is no ELF file. */
struct image {
    dev_t device;
    ino_t inode;
    struct functions *functions;
};

struct module {
    uint64_t start, offset;
    const char *path; /* in the trace's text */
    size_t length;
    bool tried;
    const struct image *image; /* NULL: none */
};

/* What was found for an address, which comes again and again. */
struct found {
    bool is;
    uint64_t address;
    struct trace_place place;
};

#define FOUND 4096

struct trace_modules {
    const struct trace *trace;
    struct found *found; /* FOUND of them, each at its address's place */
    struct module *modules;
    size_t count;
    struct spans spans; /* their places in `modules`, by address */
    struct image images[IMAGES_MAX];
    size_t image_count;
};

/* ---- /proc/PID/maps ------------------------------------------------------------------------- */

/* "7f00-7f10 r-xp 00001000 fe:01 42   /path": lines that are none are passed over. */
static void add_module(struct trace_modules *modules, struct span *spans, const char *line,
                       size_t length)
{
    struct module module = {0};
    struct span span;
    char text[MAPS_LINE];
    int path = 0;

    if (length >= sizeof text || modules->count == MODULES_MOST)
        return;
    memcpy(text, line, length);
    text[length] = 0;
    if (sscanf(text, "%" SCNx64 "-%" SCNx64 " %*15s %" SCNx64 " %*15s %*20s %n", &span.start,
               &span.end, &module.offset, &path) < 3 ||
        path == 0 || !text[path] || span.start >= span.end)
        return;
    module.start = span.start;
    module.path = line + path;
    module.length = length - (size_t)path;
    span.what = (uint32_t)modules->count;
    spans[modules->count] = span;
    modules->modules[modules->count++] = module;
}

/* What was mapped last is what was there, should two have been. */
static void read_maps(struct trace_modules *modules, const char *text)
{
    struct span *spans;
    size_t lines = 1;

    for (const char *at = text; (at = strchr(at, '\n')); at++)
        lines++;
    spans = command_need(malloc(lines * sizeof *spans));
    modules->modules = command_need(malloc(lines * sizeof *modules->modules));
    for (const char *at = text, *end; *at; at = *end ? end + 1 : end) {
        end = strchrnul(at, '\n');
        add_module(modules, spans, at, (size_t)(end - at));
    }
    spans_make(&modules->spans, spans, modules->count);
    free(spans);
}

struct trace_modules *trace_modules_make(const struct trace *trace)
{
    struct trace_modules *modules = command_need(calloc(1, sizeof *modules));

    modules->trace = trace;
    modules->found = command_need(calloc(FOUND, sizeof *modules->found));
    read_maps(modules, trace->modules);
    return modules;
}

void trace_modules_free(struct trace_modules *modules)
{
    if (!modules)
        return;
    for (size_t i = 0; i < modules->image_count; i++)
        functions_free(modules->images[i].functions);
    spans_free(&modules->spans);
    free(modules->found);
    free(modules->modules);
    free(modules);
}

/* ---- Files ---------------------------------------------------------------------------------- */

/* A file that several modules are of is read once. */
static const struct image *open_image(struct trace_modules *modules, const struct module *module)
{
    struct image *image = &modules->images[modules->image_count];
    char path[PATH_MAX];
    struct stat info;
    int fd = -1;

    if (module->path[0] == '/' && module->length < sizeof path) {
        memcpy(path, module->path, module->length);
        path[module->length] = 0;
        fd = gs_regular_open(AT_FDCWD, path, 0, &info);
    }
    for (size_t i = 0; fd >= 0 && i < modules->image_count; i++)
        if (modules->images[i].device == info.st_dev && modules->images[i].inode == info.st_ino) {
            close(fd);
            return &modules->images[i];
        }
    if (fd < 0 || modules->image_count == IMAGES_MAX) {
        gs_fd_drop(fd);
        return NULL;
    }
    *image = (struct image){info.st_dev, info.st_ino, functions_make(fd, (uint64_t)info.st_size)};
    if (!image->functions)
        close(fd);
    modules->image_count++;
    return image;
}

/* ---- A place -------------------------------------------------------------------------------- */

/* Symbols of C++ are codes that few can read. */
static void put_function(const char *symbol, char ret_function[TRACE_FRAME_SIZE])
{
    if (strncmp(symbol, "_Z", 2) != 0 || !demangle(symbol, ret_function, TRACE_FRAME_SIZE))
        snprintf(ret_function, TRACE_FRAME_SIZE, "%.*s", TRACE_FRAME_SIZE - 1, symbol);
}

/* Text of others: up to the line's end, or the tab. */
static void put_name(const char *text, char ret[TRACE_FRAME_SIZE])
{
    size_t length = strcspn(text, "\t\n");

    snprintf(ret, TRACE_FRAME_SIZE, "%.*s", (int)(length < TRACE_FRAME_SIZE ? length : TRACE_FRAME_SIZE - 1), text);
}

static void look_up_name(const struct trace *trace, uint64_t number, struct trace_place *ret_place)
{
    const struct trace_name *name = number < GS_TRACE_NAMES_MOST && trace->names ? &trace->names[number] : NULL;

    *ret_place = (struct trace_place){.is_named = true, .function = "?"};
    if (!name || !name->function)
        return;
    put_name(name->function, ret_place->function);
    put_name(name->file, ret_place->file);
    ret_place->line = name->line;
}

static void look_up(struct trace_modules *modules, uint64_t address, struct trace_place *ret_place)
{
    char function[FUNCTIONS_NAME];
    struct module *module;
    const char *slash, *name;
    uint32_t at;

    *ret_place = (struct trace_place){.offset = address};
    if (address & GS_TRACE_NAMED) {
        look_up_name(modules->trace, address & ~GS_TRACE_NAMED, ret_place);
        return;
    }
    if (!spans_find(&modules->spans, address, &at))
        return;
    module = &modules->modules[at];
    if (!module->tried)
        module->image = open_image(modules, module);
    module->tried = true;
    ret_place->offset = address - module->start + module->offset;
    slash = memrchr(module->path, '/', module->length);
    name = slash ? slash + 1 : module->path;
    snprintf(ret_place->file, sizeof ret_place->file, "%.*s",
             (int)(module->path + module->length - name), name);
    /* The call is before the address to which it returns, which may be another function's. */
    if (module->image && module->image->functions && ret_place->offset > 0 &&
        functions_find(module->image->functions, ret_place->offset - 1, function))
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
    if (place.is_named && place.file[0])
        snprintf(ret_text, TRACE_FRAME_SIZE, "%.150s (%.300s:%u)", place.function, place.file, place.line);
    else if (place.is_named)
        snprintf(ret_text, TRACE_FRAME_SIZE, "label %.400s", place.function);
    else if (!place.file[0])
        snprintf(ret_text, TRACE_FRAME_SIZE, "0x%" PRIx64, place.offset);
    else if (place.function[0])
        snprintf(ret_text, TRACE_FRAME_SIZE, "%.300s (%.150s+0x%" PRIx64 ")", place.function,
                 place.file, place.offset);
    else
        snprintf(ret_text, TRACE_FRAME_SIZE, "%.400s+0x%" PRIx64, place.file, place.offset);
}
