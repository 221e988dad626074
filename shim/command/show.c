/* Sizes, ages and tables for people (show.h). */

#include <locale.h>
#include <stdarg.h>
#include <sys/ioctl.h>
#include <wchar.h>

#include "core/base/printable.h"
#include "shim/command/command.h"

#define LINE_MOST    4096
#define COLUMNS_MOST 16
#define LAST_LEAST   18 /* columns that others go for */

struct shown show_size(uint64_t bytes)
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double number = (double)bytes;
    struct shown shown;
    unsigned unit = 0;

    while (number >= 999.95 &&
           (number /= 1024, ++unit) < 6) /* 1000.0 MiB would take one column more */
        continue;
    snprintf(shown.text, sizeof shown.text, unit ? "%.1f %s" : "%.0f %s", number, units[unit]);
    return shown;
}

struct shown show_age(uint64_t ns)
{
    static const struct {
        unsigned most, seconds;
        const char *unit;
    } steps[] = {{120, 1, "s"}, {120 * 60, 60, "min"}, {48 * 3600, 3600, "h"}, {-1U, 86400, "d"}};
    const uint64_t seconds = ns / 1000000000;
    struct shown shown;
    unsigned i = 0;

    while (i < 3 && seconds >= steps[i].most)
        i++;
    snprintf(shown.text, sizeof shown.text, "%llu %s",
             (unsigned long long)(seconds / steps[i].seconds), steps[i].unit);
    return shown;
}

struct shown show_utc(time_t seconds)
{
    struct shown shown = {""};
    struct tm utc;

    if (gmtime_r(&seconds, &utc))
        strftime(shown.text, sizeof shown.text, "%Y-%m-%dT%H:%M:%SZ", &utc);
    return shown;
}

struct shown show_uuid(const char *kind, const unsigned char uuid[16])
{
    struct shown shown;
    char *end = shown.text + sprintf(shown.text, "%.8s", kind);

    for (unsigned i = 0; i < 16; i++)
        end += sprintf(end, i == 0 || i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x",
                       uuid[i]);
    return shown;
}

/* ---- Width ----------------------------------------------------------------------------------- */

size_t show_width(uint32_t code)
{
    static locale_t locale;
    locale_t before;
    int width;

    if (code < 0x300)
        return 1;
    if (!locale && !(locale = newlocale(LC_CTYPE_MASK, "C.UTF-8", NULL)))
        return 1;
    before = uselocale(locale);
    width = wcwidth((wchar_t)code);
    uselocale(before);
    return width < 0 ? 1 : (size_t)width;
}

/* The bytes of what takes so many columns at most. */
static size_t fits(const char *text, size_t columns, size_t *ret_columns)
{
    const size_t length = strlen(text);
    size_t at = 0, size;
    uint32_t code;

    *ret_columns = 0;
    while (at < length && (size = gs_character(text + at, length - at, &code)) > 0) {
        const size_t width = show_width(code);

        if (*ret_columns + width > columns)
            break;
        *ret_columns += width;
        at += size;
    }
    return at;
}

/* The columns that printable text takes on a terminal. */
static size_t columns_of(const char *text)
{
    size_t columns;

    fits(text, SIZE_MAX, &columns);
    return columns;
}

/* The bytes of its first line; a blank, or a newline, comes behind them. */
static size_t first_line(const char *text, size_t columns)
{
    size_t taken, length = strcspn(text, "\n");
    const size_t most = fits(text, columns, &taken);

    if (length <= most)
        return length;
    for (length = most; length > 0 && text[length] != ' ';)
        length--;
    return length ? length : most;
}

unsigned show_wrapped(const char *first, const char *text, size_t columns, bool says)
{
    const size_t indent = strlen(first);
    unsigned lines = 0;

    do {
        const size_t length = first_line(text, columns - indent);

        if (says)
            command_say("%*s%.*s", lines ? (int)indent : -(int)indent, lines ? "" : first,
                        (int)length, text);
        lines++;
        text += length;
        text += *text == ' ' || *text == '\n';
    } while (*text);
    return lines;
}

size_t show_cut(const char *text, size_t columns, char *ret, size_t size)
{
    const char *dots = columns >= 3 ? "..." : "";
    size_t bytes, width;

    bytes = fits(text, columns, &width);
    if (!text[bytes])
        dots = "";
    else
        bytes = fits(text, columns - strlen(dots), &width);
    snprintf(ret, size, "%.*s%s", (int)bytes, text, dots);
    return width + strlen(dots);
}

void show_terminal(unsigned otherwise, unsigned *ret_columns, unsigned *ret_lines)
{
    struct winsize size = {0};
    const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0;

    *ret_columns = known && size.ws_col ? size.ws_col : otherwise;
    *ret_lines = known && size.ws_row ? size.ws_row : 24;
}

/* ---- Tables ---------------------------------------------------------------------------------- */

void sheet_put(struct sheet *sheet, const char *format, ...)
{
    char text[LINE_MOST], shown[LINE_MOST];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    gs_printable(text, strlen(text), shown, sizeof shown);
    *COMMAND_NEXT(sheet->cells, sheet->used, sheet->room) = command_need(strdup(shown));
}

void sheet_end_row(struct sheet *sheet)
{
    *COMMAND_NEXT(sheet->cells, sheet->used, sheet->room) = NULL;
}

/* The widths, and 0 of those that have gone; without that of the last one, which gets what is
 * left. */
static void measure(const struct sheet *sheet, unsigned width, size_t ret[COLUMNS_MOST])
{
    const unsigned last = sheet->count - 1;
    size_t all = 0;

    for (unsigned i = 0; i < sheet->count; i++)
        ret[i] = columns_of(sheet->columns[i].head);
    for (size_t at = 0; at < sheet->used; at += sheet->cells[at] ? sheet->count : 2)
        for (unsigned i = 0; sheet->cells[at] && i < last; i++)
            ret[i] = columns_of(sheet->cells[at + i]) > ret[i] ? columns_of(sheet->cells[at + i])
                                                               : ret[i];
    for (unsigned i = 0; i < last; i++)
        all += ret[i] + 1;
    while (width && all + LAST_LEAST > width) {
        unsigned first = last;

        for (unsigned i = 0; i < last; i++)
            if (ret[i] && sheet->columns[i].goes &&
                (first == last || sheet->columns[i].goes > sheet->columns[first].goes))
                first = i;
        if (first == last)
            break;
        all -= ret[first] + 1;
        ret[first] = 0;
    }
    ret[last] = width == 0 ? SIZE_MAX : all < width ? width - all : 0;
}

static void print_row(const struct sheet *sheet, const size_t *widths, char *const *cells,
                      char ret[2 * LINE_MOST])
{
    size_t length = 0;

    for (unsigned i = 0; i < sheet->count; i++) {
        const char *text = cells ? cells[i] : sheet->columns[i].head;
        const bool is_last = i == sheet->count - 1;
        const size_t blanks = widths[i] && !is_last ? widths[i] - columns_of(text) : 0;
        const bool right = sheet->columns[i].right;

        if (!widths[i])
            continue;
        if (is_last) {
            show_cut(text, widths[i], ret + length, 2 * LINE_MOST - length);
            length += strlen(ret + length);
        } else if (length + blanks + strlen(text) + 2 < LINE_MOST) {
            length += (size_t)sprintf(ret + length, "%*s%s%*s ", right ? (int)blanks : 0, "", text,
                                      right ? 0 : (int)blanks, "");
        }
    }
    while (length && ret[length - 1] == ' ')
        length--;
    ret[length] = 0;
}

void sheet_print(const struct sheet *sheet, unsigned width,
                 void (*line)(void *arg, const char *text), void *arg)
{
    size_t widths[COLUMNS_MOST], at = 0;
    char text[2 * LINE_MOST];

    if (!sheet->used)
        return;
    measure(sheet, width, widths);
    print_row(sheet, widths, NULL, text);
    line(arg, text);
    while (at < sheet->used) {
        char *const *cells = sheet->cells + at;

        if (*cells)
            print_row(sheet, widths, cells, text);
        line(arg, *cells ? text : cells[1]);
        at += *cells ? sheet->count : 2;
    }
}

static void say(void *arg, const char *text)
{
    command_say("%s", text);
}

void sheet_say(const struct sheet *sheet)
{
    unsigned columns, lines;

    show_terminal(0, &columns, &lines);
    sheet_print(sheet, columns, say, NULL);
}

void sheet_free(struct sheet *sheet)
{
    for (size_t i = 0; i < sheet->used; i++)
        free(sheet->cells[i]);
    free(sheet->cells);
}
