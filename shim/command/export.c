/*
 * gpushim export: what every process has of the GPUs' memory, for Prometheus: once on standard
 * output, once into a file for node_exporter's textfile collector, or served to whoever asks.
 */
#include <stdio.h>
#include <string.h>

#include "shim/command/command.h"
#include "shim/command/export.h"
#include "shim/command/output.h"

static const char usage[] =
    "usage: gpushim export --prometheus [--listen ADDRESS:PORT | --textfile FILE]\n"
    "What every process with the library has of each GPU's memory, for Prometheus. Without more, "
    "once on\n"
    "standard output. With --textfile once into FILE, which is exchanged as a whole: for "
    "node_exporter's\n"
    "textfile collector, which wants it to end in .prom. With --listen served over HTTP at "
    "/metrics, until\n"
    "SIGTERM or SIGINT; :9465 is 127.0.0.1:9465, and others than this machine only reach an "
    "address that\n"
    "they can, as 0.0.0.0:9465 or [::]:9465.\n";

static bool write_all(FILE *file, const void *arg)
{
    return export_write(file);
}

static int write_file(const char *path)
{
    static const char head[] = "# HELP gpushim_";
    static const struct output output = {
        .head = head, .head_size = sizeof head - 1, .mode = 0644, .write = write_all};
    struct gs_share_options options;

    if (!command_share_options(&options)) /* export_write would say that, and fail */
        return COMMAND_WRONG;
    return output_write(&output, path, NULL) ? COMMAND_WELL : COMMAND_WRONG;
}

struct asked {
    bool prometheus;
    const char *listen, *textfile;
};

/* The value of an option that takes one, after it or behind a =. NULL: it is not this option. */
static const char *value_of(const char *option, int argc, char **argv, int *i)
{
    size_t length = strlen(option);

    if (strncmp(argv[*i], option, length) != 0)
        return NULL;
    if (argv[*i][length] == '=')
        return argv[*i] + length + 1;
    if (argv[*i][length])
        return NULL;
    return *i + 1 < argc ? argv[++*i] : "";
}

/* Takes the options out of the arguments. */
static struct asked take_options(int *argc, char **argv)
{
    struct asked asked = {0};
    int count = 1;

    for (int i = 1; i < *argc; i++) {
        const char *value;

        if (strcmp(argv[i], "--prometheus") == 0)
            asked.prometheus = true;
        else if ((value = value_of("--listen", *argc, argv, &i)))
            asked.listen = value;
        else if ((value = value_of("--textfile", *argc, argv, &i)))
            asked.textfile = value;
        else
            argv[count++] = argv[i];
    }
    *argc = count;
    return asked;
}

int command_export(int argc, char **argv)
{
    struct asked asked = take_options(&argc, argv);
    bool as_json;
    int status;

    if (!command_arguments(&argc, argv, 0, usage, &as_json, &status))
        return status;
    if (as_json)
        command_complain(
            "export has one form, Prometheus'; gpushim stats --json has the figures as JSON");
    else if (!asked.prometheus)
        command_complain("export wants to know for what: --prometheus");
    else if (asked.listen && asked.textfile)
        command_complain("--listen and --textfile are two ways: choose one");
    else if (asked.textfile && !*asked.textfile)
        command_complain("--textfile takes the path of a file");
    else if (asked.listen)
        return export_serve(asked.listen);
    else if (asked.textfile)
        return write_file(asked.textfile);
    else
        return export_write(stdout) ? COMMAND_WELL : COMMAND_WRONG;
    return command_usage(usage);
}
