/*
 * gpushim export: what every process has of the GPUs' memory, for Prometheus: once on standard
 * output, once into a file for node_exporter's textfile collector, or served to whoever asks.
 */
#include <stdio.h>
#include <string.h>

#include "shim/command/command.h"
#include "shim/command/export.h"
#include "shim/command/output.h"

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

int command_export(const struct call *call)
{
    const char *listen = call_value(call, "listen"), *textfile = call_value(call, "textfile");

    if (!call_has(call, "prometheus"))
        return call_wrong(call, "export: for what is missing: --prometheus; gpushim stats --json has the figures as JSON");
    if (listen && textfile)
        return call_wrong(call, "--listen and --textfile are two ways: choose one");
    if (textfile && !*textfile)
        return call_wrong(call, "--textfile takes the path of a file");
    if (listen)
        return export_serve(call, listen);
    if (textfile)
        return write_file(textfile);
    return export_write(stdout) ? COMMAND_WELL : COMMAND_WRONG;
}
