/* Return addresses in words (trace_stack.h), by the modules of the trace and the files that lie there by
 * now. */
#include "shim/command/trace_stack.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shim/command/command.h"
#include "shim/command/functions.h"

#define MAPS_LINE  (PATH_MAX + 128)
#define IMAGES_MAX 512 /* files whose functions are named */
#define OVER_MAX   64  /* modules that begin below an address, of which one may reach over it */

struct module {
    uint64_t start, end, offset;
    const char *path; /* in the trace's text */
    int length;
    bool tried;
    const struct functions *functions;
};

struct trace_modules {
    const struct trace *trace;
    struct module *modules; /* by their beginnings */
    size_t count, room;
    struct image {
        const char *path; /* as a module's */
        int length;
        struct functions *functions;
    } images[IMAGES_MAX];
    size_t image_count;
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
    if (sscanf(text, "%" SCNx64 "-%" SCNx64 " %*15s %" SCNx64 " %*15s %*20s %n", &module.start, &module.end,
               &module.offset, &path) < 3 ||
        path == 0 || !text[path] || module.start >= module.end)
        return;
    module.path = line + path;
    module.length = (int)length - path;
    modules->modules = command_room(modules->modules, modules->count, &modules->room, sizeof module);
    modules->modules[modules->count++] = module;
}

/* As in the text those of one beginning, which is their order in time. */
static int by_start(const void *a, const void *b)
{
    const struct module *x = a, *y = b;

    if (x->start != y->start)
        return x->start < y->start ? -1 : 1;
    return x->path < y->path ? -1 : x->path > y->path;
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
    for (size_t i = 0; i < modules->image_count; i++)
        functions_free(modules->images[i].functions);
    free(modules->modules);
    free(modules);
}

/* What was mapped last is what was there, should two have been. */
static struct module *find_module(const struct trace_modules *modules, uint64_t address)
{
    size_t low = 0, high = modules->count;
    struct module *found = NULL;

    while (low < high) {
        const size_t middle = low + (high - low) / 2;

        if (modules->modules[middle].start <= address)
            low = middle + 1;
        else
            high = middle;
    }
    for (unsigned tried = 0; tried < OVER_MAX && low-- > 0; tried++) {
        struct module *module = &modules->modules[low];

        if (address < module->end && (!found || module->path > found->path))
            found = module;
    }
    return found;
}

/* A file that several modules are of is read once. */
static const struct functions *functions_of(struct trace_modules *modules, struct module *module)
{
    struct image *image = modules->images;
    char path[PATH_MAX];

    if (module->tried || module->path[0] != '/' || module->length >= PATH_MAX)
        return module->functions;
    module->tried = true;
    while (image < modules->images + modules->image_count &&
           (image->length != module->length || memcmp(image->path, module->path, (size_t)module->length) != 0))
        image++;
    if (image == modules->images + IMAGES_MAX)
        return NULL;
    if (image == modules->images + modules->image_count) {
        snprintf(path, sizeof path, "%.*s", module->length, module->path);
        *image = (struct image){module->path, module->length, functions_make(path)};
        modules->image_count += image->functions != NULL;
    }
    return module->functions = image->functions;
}

/* ---- A place -------------------------------------------------------------------------------- */

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

void trace_place(struct trace_modules *modules, uint64_t address, struct trace_place *ret_place)
{
    const struct functions *functions;
    const char *slash, *name;
    struct module *module;

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
    snprintf(ret_place->file, sizeof ret_place->file, "%.*s", (int)(module->path + module->length - name), name);
    /* The call is before the address to which it returns, which may be another function's. */
    functions = ret_place->offset > 0 ? functions_of(modules, module) : NULL;
    name = functions ? functions_find(functions, ret_place->offset - 1) : NULL;
    if (name)
        snprintf(ret_place->function, sizeof ret_place->function, "%s", name);
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
