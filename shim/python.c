/* Lines of Python (python.h). */
#include "python.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "core/record/trace.h"
#include "shim/lookup/elf_symbols.h"

#define OLDEST 9 /* 3.9 */
#define NONE   UINT8_MAX
#define TEXT   512
#define FRAMES 1000 /* looked at; those of C alone are passed over */

/* Where it lies, in bytes: in the thread's state the innermost frame, in a frame, in a code
 * object. */
struct layout {
    uint8_t innermost;
    uint8_t in_cframe; /* whose place `innermost` is; NONE: there is none */
    uint8_t back, code;
    uint8_t owner,
        owners;      /* who has the frame, from which number on it is none of Python's; NONE */
    uint8_t at;      /* in the instructions: the index of a byte, */
    uint8_t at_unit; /* or of so many; 0: it is their address */
    uint8_t file, name, instructions;
    uint8_t ascii, other; /* characters of a string */
};

static const struct layout layouts[] = {
    {24, NONE, 24, 32, NONE, 0, 104, 1, 104, 112, 0, 48, 72}, /* 3.9 */
    {24, NONE, 24, 32, NONE, 0, 96, 2, 104, 112, 0, 48, 72},  /* 3.10 */
    {56, 8, 48, 32, NONE, 0, 56, 0, 112, 128, 184, 48,
     72},                                               /* 3.11; names are qualified from here on */
    {56, 0, 8, 0, 70, 3, 56, 0, 112, 128, 192, 40, 56}, /* 3.12 */
    {72, NONE, 8, 0, 70, 3, 56, 0, 112, 128, 200, 40, 56}, /* 3.13 */
    {72, NONE, 8, 0, 74, 3, 56, 0, 112, 128, 208, 40, 56}, /* 3.14 */
};

#define OF_TYPE     8                  /* in every object */
#define LENGTH      16                 /* of a string, in characters */
#define STATE       32                 /* of a string: */
#define KIND(state) ((state) >> 2 & 7) /* bytes a character */
#define COMPACT     0x20u
#define ASCII       0x40u

static struct {
    void *(*thread_state)(void);
    int (*line)(void *code, int at);
    const void *code_type;
    const struct layout *layout;
} python; /* complete before `is_there` */
static _Atomic bool is_there;

/* ---- The interpreter ------------------------------------------------------------------------- */

/* "3.11.2 (main, ...) [GCC ...]", "3.13.0 experimental free-threading build (...": NULL for what is
 * not known. */
static const struct layout *layout_of(const char *version)
{
    unsigned minor;

    if (sscanf(version, "3.%u", &minor) != 1 || minor < OLDEST ||
        minor - OLDEST >= sizeof layouts / sizeof *layouts || strstr(version, "free-threading"))
        return NULL;
    return &layouts[minor - OLDEST];
}

static int visit(struct dl_phdr_info *info, size_t size, void *unused)
{
    const ElfW(Dyn) *dynamic = gs_elf_dynamic(info);
    const char *(*version)(void);

    version = (__typeof__(version))gs_elf_symbol(info->dlpi_addr, dynamic, "Py_GetVersion");
    if (!version)
        return 0;
    python.thread_state =
        (__typeof__(python.thread_state))gs_elf_symbol(info->dlpi_addr, dynamic,
                                                       "PyGILState_GetThisThreadState");
    python.line =
        (__typeof__(python.line))gs_elf_symbol(info->dlpi_addr, dynamic, "PyCode_Addr2Line");
    python.code_type = gs_elf_symbol(info->dlpi_addr, dynamic, "PyCode_Type");
    python.layout = layout_of(version());
    return 1;
}

void gs_python_load(void)
{
    if (sizeof(void *) != 8 || atomic_load(&is_there))
        return;
    if (gs_elf_each(visit, NULL) && python.thread_state && python.line && python.code_type &&
        python.layout)
        atomic_store(&is_there, true);
}

/* ---- Objects --------------------------------------------------------------------------------- */

static char *pointer_at(const void *object, size_t offset)
{
    char *pointer;

    memcpy(&pointer, (const char *)object + offset, sizeof pointer);
    return pointer;
}

static int number_at(const void *object, size_t offset)
{
    int number;

    memcpy(&number, (const char *)object + offset, sizeof number);
    return number;
}

static size_t put_utf8(char *ret, uint32_t code)
{
    if (code < 0x80)
        return ret[0] = (char)code, 1;
    if (code < 0x800)
        return ret[0] = (char)(0xc0 | code >> 6), ret[1] = (char)(0x80 | (code & 0x3f)), 2;
    if (code < 0x10000)
        return ret[0] = (char)(0xe0 | code >> 12), ret[1] = (char)(0x80 | (code >> 6 & 0x3f)),
               ret[2] = (char)(0x80 | (code & 0x3f)), 3;
    return ret[0] = (char)(0xf0 | code >> 18), ret[1] = (char)(0x80 | (code >> 12 & 0x3f)),
           ret[2] = (char)(0x80 | (code >> 6 & 0x3f)), ret[3] = (char)(0x80 | (code & 0x3f)), 4;
}

/* As UTF-8, the end of what is longer. */
static void read_text(const char *string, char ret_text[TEXT])
{
    const struct layout *layout = python.layout;
    const unsigned state = string ? (unsigned)number_at(string, STATE) : 0, unit = KIND(state);
    const char *characters = string + (state & ASCII ? layout->ascii : layout->other);
    size_t length, used = 0, most, from;

    *ret_text = 0;
    if (!(state & COMPACT) || (unit != 1 && unit != 2 && unit != 4))
        return;
    memcpy(&length, string + LENGTH, sizeof length);
    most = state & ASCII ? TEXT - 4 : TEXT / 4 - 1; /* of four bytes each */
    from = length > most ? length - most : 0;
    for (size_t i = from; i < length && used + 4 < TEXT; i++) {
        uint32_t code = 0;

        memcpy(&code, characters + i * unit, unit); /* the machine's order is little-endian */
        used += put_utf8(ret_text + used, code);
    }
    ret_text[used] = 0;
}

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "read_text reads so");

/* ---- Frames ---------------------------------------------------------------------------------- */

/* Where in the code it is, in bytes. */
static int place_in(const char *frame, const char *code)
{
    const struct layout *layout = python.layout;

    if (layout->at_unit)
        return number_at(frame, layout->at) * layout->at_unit;
    return (int)(pointer_at(frame, layout->at) - (code + layout->instructions));
}

static uint64_t name_of(const char *frame, char *code)
{
    char function[TEXT], file[TEXT];
    int line = python.line(code, place_in(frame, code));

    read_text(pointer_at(code, python.layout->name), function);
    read_text(pointer_at(code, python.layout->file), file);
    return gs_trace_name(function, file, line > 0 ? (unsigned)line : 0);
}

/* The code of a frame of Python's own; NULL: it is none. The lowest bits may be a note of the
 * interpreter's. */
static char *code_of(const char *frame)
{
    const struct layout *layout = python.layout;
    char *code;

    if (layout->owner != NONE && (uint8_t)frame[layout->owner] >= layout->owners)
        return NULL;
    code = (char *)((uintptr_t)pointer_at(frame, layout->code) & ~(uintptr_t)3);
    return code && pointer_at(code, OF_TYPE) == python.code_type ? code : NULL;
}

unsigned gs_python_frames(uint64_t *ret_frames, unsigned most)
{
    const struct layout *layout = python.layout;
    const char *frame;
    unsigned found = 0;

    if (!atomic_load_explicit(&is_there, memory_order_acquire) || !(frame = python.thread_state()))
        return 0;
    frame = pointer_at(frame, layout->innermost);
    if (frame && layout->in_cframe != NONE)
        frame = pointer_at(frame, layout->in_cframe);
    for (unsigned i = 0; frame && found < most && i < FRAMES; i++) {
        char *code = code_of(frame);

        if (code)
            ret_frames[found++] = name_of(frame, code);
        frame = pointer_at(frame, layout->back);
    }
    return found;
}
