/* gpushim stats and gpushim top (figures.h). */
#include <poll.h>

#include "core/base/printable.h"
#include "core/base/text.h"
#include "shim/command/figures.h"

#define COMMAND_SHOWN 100               /* columns of a command line */
#define EVERY_NS      (2 * GS_NS_PER_S) /* top, where nobody says how often */

static uint64_t calls_of(const struct row *row)
{
    return row->figures.hits + row->figures.misses;
}

/* Who counts fewer than before is another program since, which began anew. */
static void rate(struct row *row, const struct row *old)
{
    const double seconds = (double)(row->seen_ns - old->seen_ns) / (double)GS_NS_PER_S;

    if (!row->has_figures || !old->has_figures || row->who.pid != old->who.pid ||
        row->who.told != old->who.told || row->device != old->device || seconds <= 0 ||
        calls_of(row) < calls_of(old) || row->figures.slow < old->figures.slow)
        return;
    row->rate = (double)(calls_of(row) - calls_of(old)) / seconds;
    row->slow_rate = (double)(row->figures.slow - old->figures.slow) / seconds;
}

/* What each did a second since it was seen before. */
static void find_rates(struct table *table, const struct table *before)
{
    for (size_t i = 0; i < table->count; i++)
        for (size_t k = 0; k < before->count; k++)
            rate(&table->rows[i], &before->rows[k]);
}

static const struct sheet_column columns[] = {{"PID", true, 0},     {"USER", false, 4},
                                              {"GPU", true, 0},     {"RESERVED", true, 0},
                                              {"LIVE", true, 0},    {"CACHED", true, 0},
                                              {"RETIRED", true, 6}, {"LIMBO", true, 0},
                                              {"OPENED", true, 5},  {"CALLS", true, 7},
                                              {"SLOW", true, 8},    {"WAITS", true, 9},
                                              {"COMMAND", false, 0}};

static void put_rate(struct sheet *sheet, double rate, uint64_t total)
{
    if (rate >= 0)
        sheet_put(sheet, "%.0f/s", rate);
    else
        sheet_put(sheet, "%llu", (unsigned long long)total);
}

static void put_figures(struct sheet *sheet, const struct row *row)
{
    const struct gs_figures *figures = &row->figures;
    const uint64_t sizes[] = {figures->reserved, figures->live, figures->cached + figures->ordered,
                              figures->retired, figures->limbo};

    sheet_put(sheet, "%u", row->device);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        sheet_put(sheet, "%s", sizes[i] ? show_size(sizes[i]).text : "0");
    if (row->is_first && row->answers) /* it is of no one GPU */
        sheet_put(sheet, "%s",
                  row->report.opened.bytes ? show_size(row->report.opened.bytes).text : "0");
    else
        sheet_put(sheet, "-");
    put_rate(sheet, row->rate, calls_of(row));
    put_rate(sheet, row->slow_rate, figures->slow);
    sheet_put(sheet, "%llu", (unsigned long long)figures->waits);
}

/* What is not known is no 0. */
static void put_row(struct sheet *sheet, const struct row *row)
{
    const struct who *who = &row->who;
    char command[sizeof who->command + 4], name[11 * sizeof who->name];
    bool is_named;

    if (!row->has_figures) {
        sheet_line(sheet, who->pid ? "%ld %s%s%s: %s%s" : "(%ld) %s%s%s: %s%s",
                   who->pid ? who->pid : (long)who->told, who->name, who->place[0] ? " in " : "",
                   who->place, row->silent, who->stopped ? " (stopped)" : "");
        return;
    }
    sheet_put(sheet, who->pid ? "%ld" : "(%ld)", who->pid ? who->pid : (long)who->told);
    sheet_put(sheet, "%s", who->user[0] ? who->user : "?");
    put_figures(sheet, row);
    show_cut(who->command, COMMAND_SHOWN, command, sizeof command);
    gs_printable(who->name, strlen(who->name), name, sizeof name);
    is_named = strncmp(command, name, strlen(name)) != 0; /* otherwise than its program */
    sheet_put(sheet, "%s%s%s%s%s%s%s%s%s", command, is_named ? " [" : "", is_named ? name : "",
              is_named ? "]" : "", who->place[0] ? " in " : "", who->place,
              row->who.stopped ? " (stopped)" : "", row->silent[0] ? ": " : "", row->silent);
}

/* Below its first row: for whom it keeps what is freed, that it sleeps, and what it has of others
 * who have ended, which nobody but it tells. */
static void put_more(struct sheet *sheet, const struct row *row)
{
    for (unsigned i = 0; i < row->holder_count && i < LIMBO_HOLDERS; i++) {
        const struct limbo_holder *holder = &row->holders[i];

        sheet_line(sheet, "%8s limbo: %s for %s%s", "", show_size(holder->bytes).text,
                   who_shown(&holder->who).text, holder->who.stopped ? ", which is stopped" : "");
    }
    if (row->holder_count > LIMBO_HOLDERS)
        sheet_line(sheet, "%8s limbo: and for %u more (gpushim who)", "",
                   row->holder_count - LIMBO_HOLDERS);
    if (row->answers && row->report.asleep.ns)
        sheet_line(sheet, "%8s asleep: %s off the GPU for %s (gpushim wake)", "",
                   show_size(row->report.asleep.bytes).text, show_age(row->report.asleep.ns).text);
    if (row->answers && row->report.opened.ended_bytes)
        sheet_line(sheet, "%8s opened: %s of processes that have ended (gpushim who)", "",
                   show_size(row->report.opened.ended_bytes).text);
}

void stats_sheet(const struct table *table, struct sheet *ret)
{
    *ret = (struct sheet){.columns = columns, .count = sizeof columns / sizeof *columns};
    for (size_t i = 0; i < table->count; i++) {
        put_row(ret, &table->rows[i]);
        if (table->rows[i].is_first)
            put_more(ret, &table->rows[i]);
    }
}

static void write_holders(struct json *json, const struct row *row)
{
    json_open(json, "limbo_holders", '[');
    for (unsigned i = 0; i < row->holder_count && i < LIMBO_HOLDERS; i++) {
        json_open(json, NULL, '{');
        who_write(json, &row->holders[i].who);
        json_number(json, "bytes", row->holders[i].bytes);
        json_close(json, '}');
    }
    json_close(json, ']');
    json_number(json, "limbo_holders_in_all", row->holder_count);
}

static void write_figures(struct json *json, const struct row *row, bool of_gpu)
{
    for (const struct figure *figure = figures_told; figure < figures_told + figures_told_count;
         figure++)
        if (figure->json && figure->of_gpu == of_gpu)
            json_number(json, figure->json,
                        figures_number(row, figure) /
                            (strstr(figure->json, "_seconds") ? GS_NS_PER_S : 1));
}

static void write_row(struct json *json, const struct row *row)
{
    char uuid[33];

    json_open(json, NULL, '{');
    who_write(json, &row->who);
    json_text(json, "state",
              row->who.stopped        ? "stopped"
              : row->report.asleep.ns ? "asleep"
                                      : "running");
    json_text(json, "silent", row->silent[0] ? row->silent : NULL);
    if (row->has_figures) {
        gs_text_hex(row->figures.uuid, sizeof row->figures.uuid, uuid);
        json_number(json, "device", row->device);
        json_text(json, "uuid", uuid);
        write_figures(json, row, true);
    }
    if (row->is_first && row->answers)
        write_figures(json, row, false);
    if (row->is_first && row->holder_count)
        write_holders(json, row);
    json_close(json, '}');
}

static void tell_table(const struct table *table, const struct call *call)
{
    struct json *json = call_json(call, true);
    struct sheet sheet = {.used = 0};

    for (size_t i = 0; json && i < table->count; i++)
        write_row(json, &table->rows[i]);
    json_end(json);
    if (!json)
        stats_sheet(table, &sheet);
    sheet_say(&sheet);
    sheet_free(&sheet);
    if (!json && !table->count && !call->argc) /* of one alone the caller complains */
        command_say("no process with the library that this user may see");
}

/* One look, or one every `every_ns` until the program is ended, nobody reads any more, or the one
 * process that it is of has ended. */
static int watch(const struct call *call, uint64_t every_ns, bool is_page)
{
    const long only = call_pid(call, 0);
    struct table before, table = {0};
    struct gs_share_options *options;
    const char *wrong = command_share_options(&options);
    bool well, goes_on;

    if (!call_seconds(call, "watch", 0.1, &every_ns))
        return COMMAND_USAGE;
    if (wrong)
        return command_complain("%s", wrong), COMMAND_WRONG;
    if (is_page)
        top_begin();
    do {
        before = table;
        table = (struct table){0};
        figures_find(&table, only, false);
        find_rates(&table, &before);
        free(before.rows);
        is_page ? top_show(&table) : tell_table(&table, call);
        well = fflush(stdout) == 0 && !ferror(stdout);
        goes_on = well && every_ns && (!only || table.count);
        if (goes_on && !is_page)
            poll(NULL, 0, (int)(every_ns / GS_NS_PER_MS));
    } while (goes_on && (!is_page || top_wait(&table, every_ns)));
    if (is_page)
        top_end();
    if (well && only && !table.count) {
        ask_complain_of_absent(only, NULL);
        well = false;
    }
    free(table.rows);
    return well ? COMMAND_WELL : COMMAND_WRONG;
}

int command_stats(const struct call *call)
{
    return watch(call, 0, false);
}

int command_top(const struct call *call)
{
    const char *terminal = getenv("TERM");
    const bool is_page =
        isatty(STDOUT_FILENO) && terminal && *terminal && strcmp(terminal, "dumb") != 0;

    return watch(call, isatty(STDOUT_FILENO) ? EVERY_NS : 0, is_page);
}

/* ---- GPUs ------------------------------------------------------------------------------------ */

static struct gpu *gpu_of(const struct row *row, struct gpu *gpus, unsigned *count)
{
    for (unsigned i = 0; i < *count; i++)
        if (memcmp(gpus[i].uuid, row->figures.uuid, sizeof gpus[i].uuid) == 0)
            return &gpus[i];
    if (*count == GPUS_MOST)
        return NULL;
    gpus[*count] = (struct gpu){.device = row->device, .is_numbered = true};
    memcpy(gpus[*count].uuid, row->figures.uuid, sizeof gpus->uuid);
    return &gpus[(*count)++];
}

/* Those of others answer root alone. */
static bool is_own(const struct who *who)
{
    static char own[sizeof who->user];
    struct who self;

    if (!own[0]) {
        who_fill(&self, getpid(), 0, "");
        memcpy(own, self.user, sizeof own);
    }
    return geteuid() != 0 || strcmp(who->user, own) == 0;
}

static int by_device(const void *left, const void *right)
{
    const struct gpu *a = left, *b = right;

    return COMMAND_ORDER(a->device, b->device) ?: memcmp(a->uuid, b->uuid, sizeof a->uuid);
}

unsigned gpus_find(const struct table *table, struct gpu ret_gpus[GPUS_MOST])
{
    unsigned count = 0;
    bool is_mig;

    for (size_t i = 0; i < table->count; i++) {
        const struct row *row = &table->rows[i];
        struct gpu *gpu = row->has_figures ? gpu_of(row, ret_gpus, &count) : NULL;

        if (!gpu)
            continue;
        gpu->is_numbered &= gpu->device == row->device;
        *(is_own(&row->who) ? &gpu->own : &gpu->others) += row->figures.reserved;
    }
    for (struct gpu *gpu = ret_gpus; gpu < ret_gpus + count; gpu++)
        gpu->is_known = nvml_memory(gpu->uuid, &gpu->memory, &is_mig) && gpu->memory.total > 0;
    qsort(ret_gpus, count, sizeof *ret_gpus, by_device);
    return count;
}
