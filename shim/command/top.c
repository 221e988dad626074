/*
 * The page of gpushim top: a bar for each GPU and the rows of gpushim stats, those that have most
 * on top, as much of it as fits. A few sequences that every terminal knows do; no library knows
 * more of what is needed here.
 */
#include <langinfo.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <termios.h>
#include <time.h>

#include "core/base/printable.h"
#include "shim/command/figures.h"

#define LINE_BYTES 8192
#define BAR_LEAST  10
#define BAR_MOST   100

struct page {
    unsigned columns, lines, printed;
    bool utf8, colour, has_head;
    unsigned left; /* lines that do not fit */
};

static struct {
    struct termios before;
    bool is_raw;     /* keys come at once */
    char order;      /* m, c, p or r */
    unsigned gpu;    /* of whose bar, from 1 on, processes are shown; 0: of all */
    bool types;      /* keys are of the text: */
    char filter[48]; /* what processes have that are shown; "": any */
} top = {.order = 'm'};

static volatile sig_atomic_t ended, resumed, stops;

/* ---- The terminal ---------------------------------------------------------------------------- */

/* Each ends poll: where the terminal's size has changed nothing else is to be done. */
static void on_signal(int number)
{
    if (number == SIGCONT)
        resumed = 1;
    else if (number == SIGTSTP)
        stops = 1;
    else if (number != SIGWINCH)
        ended = 1;
}

static void take_terminal(void)
{
    struct termios raw;

    if (isatty(STDIN_FILENO) && (top.is_raw || tcgetattr(STDIN_FILENO, &top.before) == 0)) {
        raw = top.before;
        raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
        raw.c_cc[VMIN] = 0;
        raw.c_cc[VTIME] = 0;
        top.is_raw = tcsetattr(STDIN_FILENO, TCSANOW, &raw) == 0;
    }
    printf("\033[?1049h\033[?25l"); /* a screen of its own, no cursor */
}

void top_end(void)
{
    if (top.is_raw)
        tcsetattr(STDIN_FILENO, TCSANOW, &top.before);
    printf("\033[?25h\033[?1049l");
    fflush(stdout);
}

void top_begin(void)
{
    static const int heard[] = {SIGINT, SIGTERM, SIGHUP, SIGCONT, SIGTSTP, SIGWINCH};

    setlocale(LC_CTYPE, "");
    for (size_t i = 0; i < sizeof heard / sizeof *heard; i++)
        sigaction(heard[i], &(struct sigaction){.sa_handler = on_signal}, NULL);
    take_terminal();
}

/* Who comes to the shell meanwhile has the terminal as it was. */
static void stop(void)
{
    top_end();
    signal(SIGTSTP, SIG_DFL);
    raise(SIGTSTP);
    top_begin();
}

/* ---- The page -------------------------------------------------------------------------------- */

/* In a locale without UTF-8 a ? stands for each column of a character that it may not have. */
static void put_text(const struct page *page, const char *text)
{
    const char *end = text + strlen(text);
    uint32_t code;

    for (size_t size; text < end; text += size) {
        size = gs_character(text, (size_t)(end - text), &code);
        size = size ? size : 1; /* it is not whole */
        if (page->utf8 || (unsigned char)*text < 0x80)
            fwrite(text, 1, size, stdout);
        else
            printf("%.*s", (int)show_width(code), "??");
    }
}

/* A new line, if there is one left; the last is for how many there are not. */
static bool next_line(struct page *page)
{
    if (page->printed + 1 >= page->lines) {
        page->left++;
        return false;
    }
    if (page->printed++)
        printf("\n");
    return true;
}

static void put_line(struct page *page, const char *text, const char *style)
{
    char shown[LINE_BYTES];

    if (!next_line(page))
        return;
    show_cut(text, page->columns, shown, sizeof shown);
    printf("%s", page->colour ? style : "");
    put_text(page, shown);
    printf("%s\033[K", page->colour && style[0] ? "\033[0m" : "");
}

static void put_bar(const struct page *page, const struct gpu *gpu, size_t width)
{
    const uint64_t used = gpu->memory.used > gpu->own ? gpu->memory.used : gpu->own;
    const struct {
        uint64_t bytes;
        const char *wide, *plain, *colour;
    } parts[] = {{gpu->own, "█", "#", "\033[32m"},
                 {used, "▒", "=", "\033[33m"},
                 {gpu->memory.total, "·", ".", ""}};
    size_t at = 0;

    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        const double share = (double)parts[i].bytes / (double)gpu->memory.total;
        const size_t end = share >= 1 ? width : (size_t)(share * (double)width + 0.5);

        printf("%s", page->colour ? parts[i].colour : "");
        for (; at < end; at++)
            fputs(page->utf8 ? parts[i].wide : parts[i].plain, stdout);
        printf("%s", page->colour && parts[i].colour[0] ? "\033[0m" : "");
    }
}

static void put_gpu(struct page *page, const struct gpu *gpu)
{
    const uint64_t used = gpu->memory.used, others = used > gpu->own ? used - gpu->own : 0;
    char name[32], text[256], shown[LINE_BYTES];
    size_t bar = 0, taken;

    if (gpu->is_numbered)
        snprintf(name, sizeof name, "GPU %u", gpu->device);
    else
        snprintf(name, sizeof name, "%.12s", show_uuid("GPU", gpu->uuid).text);
    if (gpu->is_known)
        snprintf(text, sizeof text, "] %s of %s: yours %s, others' %s", show_size(used).text,
                 show_size(gpu->memory.total).text, show_size(gpu->own).text,
                 show_size(others).text);
    else
        snprintf(text, sizeof text,
                 ": its size is not known (no NVML); yours %s, others' %s with the library",
                 show_size(gpu->own).text, show_size(gpu->others).text);
    if (!next_line(page))
        return;
    printf("%s", name);
    taken = strlen(name);
    if (gpu->is_known) {
        printf(" [");
        taken += 2;
        bar = page->columns > taken + strlen(text) + BAR_LEAST
                  ? page->columns - taken - strlen(text)
                  : BAR_LEAST;
        bar = bar < BAR_MOST ? bar : BAR_MOST;
        put_bar(page, gpu, bar);
    }
    show_cut(text, page->columns > taken + bar ? page->columns - taken - bar : 0, shown,
             sizeof shown);
    printf("%s\033[K", shown);
}

/* The head, and then the rows. */
static void put_next(void *arg, const char *text)
{
    struct page *page = arg;
    char padded[LINE_BYTES];

    if (page->has_head) {
        put_line(page, text, strncmp(text, "        ", 8) == 0 ? "\033[33m" : "");
        return;
    }
    page->has_head = true;
    snprintf(padded, sizeof padded, "%-*s", (int)page->columns, text);
    put_line(page, padded, "\033[7m");
}

static bool is_wanted(const struct row *row, const struct gpu *gpu)
{
    const struct who *who = &row->who;
    char pid[24];

    if (gpu && (!row->has_figures || memcmp(gpu->uuid, row->figures.uuid, sizeof gpu->uuid) != 0))
        return false;
    snprintf(pid, sizeof pid, "%ld", who->pid ? who->pid : (long)who->told);
    return strcasestr(who->command, top.filter) || strcasestr(who->name, top.filter) ||
           strcasestr(who->user, top.filter) || strcasestr(who->place, top.filter) ||
           strcmp(pid, top.filter) == 0;
}

/* The rows that are wanted; free ends them. */
static struct table choose(const struct table *table, const struct gpu *gpu)
{
    struct table chosen = {.rows = command_need(calloc(table->count + 1, sizeof *chosen.rows))};

    for (size_t i = 0; i < table->count; i++)
        if (is_wanted(&table->rows[i], gpu))
            chosen.rows[chosen.count++] = table->rows[i];
    return chosen;
}

static void put_head(struct page *page, const struct gpu *gpu)
{
    const char *order = top.order == 'm'   ? "memory"
                        : top.order == 'c' ? "command"
                        : top.order == 'p' ? "pid"
                                           : "rate";
    char text[LINE_BYTES], now[16] = "", of[24] = "", shown[4 * sizeof top.filter],
                           with[sizeof shown + 16] = "";
    const time_t seconds = time(NULL);
    struct tm local;

    if (localtime_r(&seconds, &local))
        strftime(now, sizeof now, "%H:%M:%S", &local);
    if (gpu)
        snprintf(of, sizeof of, " of GPU %u", gpu->device);
    gs_printable(top.filter, strlen(top.filter), shown,
                 sizeof shown); /* a character may not be whole yet */
    if (top.types || top.filter[0])
        snprintf(with, sizeof with, " with '%s%s", shown, top.types ? "_" : "'");
    snprintf(text, sizeof text,
             "gpushim top %s%s%s by %s; keys: m c p r sort, g GPU, / filter, q ends", now, of, with,
             order);
    put_line(page, text, "\033[1m");
}

static void draw(const struct table *table)
{
    static struct gpu gpus[GPUS_MOST];
    const unsigned gpu_count = gpus_find(table, gpus);
    const struct gpu *gpu = top.gpu > 0 && top.gpu <= gpu_count ? &gpus[top.gpu - 1] : NULL;
    struct table chosen = choose(table, gpu);
    const char *no_colour = getenv("NO_COLOR");
    struct page page = {.utf8 = strcmp(nl_langinfo(CODESET), "UTF-8") == 0,
                        .colour = !no_colour || !*no_colour};
    struct sheet sheet;
    char more[32];

    if (!gpu)
        top.gpu = 0; /* behind the last come all again */
    show_terminal(80, &page.columns, &page.lines);
    printf("\033[H");
    put_head(&page, gpu);
    for (unsigned i = 0; i < gpu_count; i++)
        put_gpu(&page, &gpus[i]);
    stats_sheet(&chosen, &sheet);
    sheet_print(&sheet, page.columns, put_next, &page);
    sheet_free(&sheet);
    if (!chosen.count)
        put_line(&page,
                 table->count ? "no such process (/ and Escape: all)"
                              : "no process with the library that this user may see",
                 "");
    free(chosen.rows);
    if (page.left) {
        snprintf(more, sizeof more, "%u more line%s", page.left, page.left == 1 ? "" : "s");
        page.lines++; /* the last */
        put_line(&page, more, "");
    }
    printf("\033[J");
}

/* ---- Orders ---------------------------------------------------------------------------------- */

static int in_order(const void *left, const void *right)
{
    const struct row *a = left, *b = right;
    int order = COMMAND_ORDER(b->has_figures, a->has_figures);

    if (!order && top.order == 'c')
        order = strcmp(a->who.command, b->who.command);
    else if (!order && top.order == 'r')
        order = COMMAND_ORDER(b->rate, a->rate);
    else if (!order && top.order == 'm')
        order = COMMAND_ORDER(b->figures.reserved, a->figures.reserved);
    return order ?: COMMAND_ORDER(a->who.pid, b->who.pid) ?: COMMAND_ORDER(a->device, b->device);
}

void top_show(struct table *table)
{
    if (table->count)
        qsort(table->rows, table->count, sizeof *table->rows, in_order);
    draw(table);
}

static void type(char key)
{
    size_t length = strlen(top.filter);

    if (key == '\n' || key == '\r' || key == '\033')
        top.types = false;
    if (key == '\033')
        top.filter[0] = 0;
    else if (key == '\b' || key == '\177')
        while (length && ((unsigned char)top.filter[--length] & 0xc0) == 0x80)
            continue; /* of one character */
    if (key == '\b' || key == '\177')
        top.filter[length] = 0;
    else if ((unsigned char)key >= ' ' && key != '\177' && length + 1 < sizeof top.filter)
        memcpy(top.filter + length, (char[]){key, 0}, 2);
}

/* False: it ends the page. */
static bool press(char key)
{
    if (top.types)
        type(key);
    else if (key == 'g')
        top.gpu++;
    else if (key == '/')
        top.types = true, top.filter[0] = 0;
    else if (key && strchr("mcpr", key))
        top.order = key;
    return top.types || key != 'q';
}

bool top_wait(struct table *table, uint64_t every_ns)
{
    const uint64_t end = gs_now_ns() + every_ns;
    struct pollfd keys = {.fd = top.is_raw ? STDIN_FILENO : -1, .events = POLLIN};

    for (uint64_t now; !ended && (now = gs_now_ns()) < end;) {
        const int got = stops ? -1 : poll(&keys, 1, (int)((end - now) / 1000000) + 1);
        char key = 0;

        if (got > 0 && read(STDIN_FILENO, &key, 1) != 1)
            return false; /* the terminal is gone */
        if (key == ' ' && !top.types)
            return true;
        if (!press(key))
            return false;
        if (stops)
            stop();
        else if (resumed)
            take_terminal();
        stops = resumed = 0;
        if (key || got < 0) {
            top_show(table);
            if (fflush(stdout) != 0)
                return false;
        }
    }
    return !ended;
}
