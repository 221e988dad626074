/* gpushim export: the figures in Prometheus' text format, by its conventions of names and units. */

#include <inttypes.h>

#include "core/base/printable.h"
#include "shim/command/figures.h"

/* `before`: a comma, or nothing. */
static void put_label(FILE *file, const char *before, const char *name, const char *value)
{
    char shown[1024];

    gs_printable(value, strlen(value), shown, sizeof shown);
    fprintf(file, "%s%s=\"", before, name);
    for (const char *c = shown; *c; c++)
        fprintf(file, *c == '"' || *c == '\\' ? "\\%c" : "%c", *c);
    fputc('"', file);
}

static void put_metric(FILE *file, const char *name, const char *type, const char *help)
{
    fprintf(file, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* Whether the pid alone does not say which process it is: it is not seen from here, so several may
 * call themselves the same, or one has two sockets. Then its socket does. */
static bool is_ambiguous(const struct table *table, const struct row *row)
{
    if (!row->has_socket || !row->who.pid)
        return row->has_socket;
    for (const struct row *other = table->rows; other < table->rows + table->count; other++)
        if (other->who.pid == row->who.pid && strcmp(other->socket, row->socket) != 0)
            return true;
    return false;
}

static void put_who(FILE *file, const struct table *table, const struct row *row)
{
    fprintf(file, "pid=\"%" PRIu64 "\",", row->who.pid ? (uint64_t)row->who.pid : row->who.told);
    put_label(file, "", "command", row->who.name);
    put_label(file, ",", "container", row->who.container);
    if (is_ambiguous(table, row))
        put_label(file, ",", "socket", row->socket);
}

static void put_figure(FILE *file, const struct table *table, const struct figure *figure)
{
    if (figure->help)
        put_metric(file, figure->metric, strstr(figure->metric, "_total") ? "counter" : "gauge",
                   figure->help);
    for (const struct row *row = table->rows; row < table->rows + table->count; row++) {
        const uint64_t number = figures_number(row, figure);

        if (figure->of_gpu ? !row->has_figures : !row->is_first || !row->answers)
            continue;
        fprintf(file, "%s{", figure->metric);
        if (figure->of_gpu)
            fprintf(file, "gpu=\"%s\",device=\"%u\",", show_uuid("GPU", row->figures.uuid).text,
                    row->device);
        put_who(file, table, row);
        fprintf(file, "%s%s} ", figure->label ? "," : "", figure->label ? figure->label : "");
        if (strstr(figure->metric, "_seconds"))
            fprintf(file, "%" PRIu64 ".%09" PRIu64 "\n", number / GS_NS_PER_S,
                    number % GS_NS_PER_S);
        else
            fprintf(file, "%" PRIu64 "\n", number);
    }
}

/* Yes, no, or that it has nothing to be asked by. */
static const char *answer_of(const struct row *row)
{
    return row->answers ? "yes" : row->has_socket ? "no" : "not_asked";
}

static void put_info(FILE *file, const struct table *table)
{
    put_metric(
        file, "gpushim_process_info", "gauge",
        "1 for each process with the library and each broker: its command line, user and container or pod, and whether it "
        "answers; not_asked: it has no socket here to be asked at.");
    for (const struct row *row = table->rows; row < table->rows + table->count; row++) {
        if (!row->is_first)
            continue;
        fputs("gpushim_process_info{", file);
        put_who(file, table, row);
        put_label(file, ",", "role", row->is_broker ? "broker" : "process");
        put_label(file, ",", "answers", answer_of(row));
        put_label(file, ",", "command_line", row->who.command);
        put_label(file, ",", "user", row->who.user);
        put_label(file, ",", "place", row->who.place);
        fputs("} 1\n", file);
    }
}

static void put_flag(FILE *file, const struct table *table, const char *metric, const char *help,
                     bool is_stopped)
{
    put_metric(file, metric, "gauge", help);
    for (const struct row *row = table->rows; row < table->rows + table->count; row++) {
        if (!row->is_first || !(is_stopped ? row->who.pid != 0 : row->has_socket))
            continue;
        fprintf(file, "%s{", metric);
        put_who(file, table, row);
        fprintf(file, "} %d\n", is_stopped ? row->who.stopped : row->answers);
    }
}

static void put_counts(FILE *file, const struct table *table)
{
    static const char *const answers[] = {"yes", "no", "not_asked"};

    put_metric(
        file, "gpushim_processes", "gauge",
        "How many processes with the library there are, by whether they answer; brokers are none.");
    for (unsigned i = 0; i < sizeof answers / sizeof *answers; i++) {
        unsigned count = 0;

        for (const struct row *row = table->rows; row < table->rows + table->count; row++)
            count += row->is_first && !row->is_broker && answer_of(row) == answers[i];
        fprintf(file, "gpushim_processes{answers=\"%s\"} %u\n", answers[i], count);
    }
}

/* What NVML tells of each GPU; none where there is no NVML. */
static void put_gpus(FILE *file, const struct table *table)
{
    static const struct {
        const char *metric, *help;
    } metrics[] = {{"gpushim_gpu_total_bytes", "Memory of the GPU, where NVML tells it."},
                   {"gpushim_gpu_free_bytes", "Memory of the GPU that nobody has."},
                   {"gpushim_gpu_outside_bytes",
                    "Memory of the GPU that is used, and by no process that is told of here."}};
    static struct gpu gpus[GPUS_MOST];
    const unsigned count = gpus_find(table, gpus);

    for (size_t m = 0; m < sizeof metrics / sizeof *metrics; m++) {
        put_metric(file, metrics[m].metric, "gauge", metrics[m].help);
        for (const struct gpu *gpu = gpus; gpu < gpus + count; gpu++) {
            const uint64_t all = gpu->own + gpu->others, used = gpu->memory.used;
            const uint64_t numbers[] = {gpu->memory.total, gpu->memory.left,
                                        used > all ? used - all : 0};

            if (gpu->is_known)
                fprintf(file, "%s{gpu=\"%s\"} %" PRIu64 "\n", metrics[m].metric,
                        show_uuid("GPU", gpu->uuid).text, numbers[m]);
        }
    }
}

static void put_about(FILE *file, uint64_t took_ns)
{
    put_metric(file, "gpushim_build_info", "gauge", "1, with the version of gpushim export.");
    fputs("gpushim_build_info{", file);
    put_label(file, "", "version", GS_VERSION);
    fputs("} 1\n", file);
    put_metric(file, "gpushim_export_seconds", "gauge", "How long it took to ask all processes.");
    fprintf(file, "gpushim_export_seconds %.6f\n", (double)took_ns / 1e9);
}

bool export_write(FILE *file, const void *unused)
{
    struct table table = {0};
    const uint64_t began = gs_now_ns();

    figures_find(&table, 0, true);
    put_about(file, gs_now_ns() - began);
    put_counts(file, &table);
    put_gpus(file, &table);
    put_info(file, &table);
    put_flag(file, &table, "gpushim_up",
             "Whether the process answers; of those that have a socket.", false);
    put_flag(
        file, &table, "gpushim_process_stopped",
        "Whether the process is stopped, by a signal or a debugger; of those that are seen here.",
        true);
    for (size_t i = 0; i < figures_told_count; i++)
        put_figure(file, &table, &figures_told[i]);
    free(table.rows);
    return !ferror(file);
}

int command_export(const struct call *call)
{
    const char *listen = call_value(call, "listen"), *textfile = call_value(call, "textfile"),
               *wrong;
    static const char head[] = "# HELP gpushim_";
    static const struct output output = {.head = head,
                                         .head_size = sizeof head - 1,
                                         .mode = 0644,
                                         .write = export_write};
    struct gs_share_options *options;

    if (!call_has(call, "prometheus"))
        return call_wrong(
            call,
            "export: for what is missing: --prometheus; gpushim stats --json has the figures as JSON");
    if (listen && textfile)
        return call_wrong(call, "--listen and --textfile are two ways: choose one");
    if (call_has(call, "host") && !listen)
        return call_wrong(call, "--host is for --listen: a name that it is asked by");
    if (textfile && !*textfile)
        return call_wrong(call, "--textfile takes the path of a file");
    if ((wrong = command_share_options(&options)))
        return command_complain("%s", wrong), COMMAND_WRONG;
    if (listen)
        return export_serve(call, listen);
    return (textfile ? output_write(&output, textfile, NULL) : export_write(stdout, NULL))
               ? COMMAND_WELL
               : COMMAND_WRONG;
}
