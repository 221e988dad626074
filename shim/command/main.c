/*
 * gpushim: runs programs with the library, looks into what it does, and keeps what processes share.
 * command.h says how a command is made; a new one is a file and a row here.
 */
#include "core/base/printable.h"
#include "shim/command/command.h"
#include "shim/command/json.h"
#include "shim/command/library.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
} commands[] = {
    {"run", command_run, "starts a program with the library"},
    {"record", command_record, "the same, and records what becomes of its GPU memory"},
    {"top", command_top, "what every process has of the GPUs' memory, refreshed"},
    {"stats", command_stats, "the same once, or for programs"},
    {"who", command_who, "who shares GPU memory, and who holds it"},
    {"ls", command_ls, "the names under which GPU memory is published"},
    {"doctor", command_doctor, "what stands in the way of the library here, or in a process"},
    {"export", command_export, "the same figures for Prometheus, as a page or a file"},
    {"report", command_report, "what a recorded program's GPU memory came to, as text or a page"},
    {"trim", command_trim, "has processes give back what they keep and do not use"},
    {"collect", command_collect, "has processes give each other back what is closed and kept"},
    {"cluster", command_cluster, "what other machines have of this one, and it of theirs"},
    {"set", command_set, "changes an option of a process that runs"},
    {"config", command_config_list, "every option, its value, and where that comes from"},
    {"cdi", command_cdi, "gives containers the library, as engines give them devices"},
    {"broker", command_broker, "keeps shared GPU memory beyond the end of its processes"},
    {"version", command_version, "the version of this program and of the library beside it"},
};

#define LINE_SIZE (4 * PATH_MAX)
#define COMMANDS (sizeof commands / sizeof *commands)

const char *command_program = "gpushim";

/* What comes from others may stand in any of it. */
static int put_line(FILE *file, const char *before, const char *format, va_list arguments)
{
    char text[LINE_SIZE], line[LINE_SIZE];
    int length = vsnprintf(text, sizeof text, format, arguments);

    if (length < 0)
        return COMMAND_WRONG;
    gs_printable(text, strlen(text), line, sizeof line);
    return fprintf(file, "%s%s\n", before, line) < 0 ? COMMAND_WRONG : COMMAND_WELL;
}

void command_complain(const char *format, ...)
{
    char before[32];
    va_list arguments;

    snprintf(before, sizeof before, "%s: ", command_program);
    va_start(arguments, format);
    put_line(stderr, before, format, arguments);
    va_end(arguments);
}

int command_say(const char *format, ...)
{
    va_list arguments;
    int status;

    va_start(arguments, format);
    status = put_line(stdout, "", format, arguments);
    va_end(arguments);
    return status;
}

int command_help(const char *usage)
{
    return fputs(usage, stdout) < 0 ? COMMAND_WRONG : COMMAND_WELL;
}

int command_usage(const char *usage)
{
    fputs(usage, stderr);
    return COMMAND_USAGE;
}

bool command_arguments(int *argc, char **argv, int most, const char *usage, bool *ret_json,
                       int *ret_status)
{
    int count = 1;

    *ret_json = false;
    for (int i = 1; i < *argc; i++) {
        if (strcmp(argv[i], "--help") == 0) {
            *ret_status = command_help(usage);
            return false;
        }
        if (strcmp(argv[i], "--json") == 0) {
            *ret_json = true;
        } else if (argv[i][0] == '-' || count > most) {
            command_complain("%s does not know '%s'", argv[0], argv[i]);
            *ret_status = command_usage(usage);
            return false;
        } else {
            argv[count++] = argv[i];
        }
    }
    *argc = count;
    argv[count] = NULL;
    return true;
}

bool command_takes(int *argc, char **argv, const char *word)
{
    const int before = *argc;
    int count = 1;

    for (int i = 1; i < before; i++)
        if (strcmp(argv[i], word) != 0)
            argv[count++] = argv[i];
    *argc = count;
    argv[count] = NULL;
    return count < before;
}

void command_read(const char *path, char *ret_text, size_t size)
{
    FILE *file = fopen(path, "re");
    size_t got = file ? fread(ret_text, 1, size - 1, file) : 0;

    if (file)
        fclose(file);
    ret_text[got] = 0;
    if (got > 0 && ret_text[got - 1] == '\n')
        ret_text[got - 1] = 0;
}

static void complain_of_options(void *arg, const char *line)
{
    command_complain("%s", line);
}

long command_pid(const char *text)
{
    char *end;
    long pid = strtol(text, &end, 10);

    if (end != text && !*end && pid > 0)
        return pid;
    command_complain("'%s' is no process id", text);
    return -1;
}

const struct gs_config *command_config(void)
{
    static struct gs_config config;
    static bool read;
    const struct gs_config_sources sources = {.environment = environ,
                                              .system_files = gs_config_system_files};

    if (!read)
        gs_config_load(&config, &sources, complain_of_options, NULL);
    read = true;
    return &config;
}

bool command_share_options(struct gs_share_options *options)
{
    const struct gs_config *config = command_config();
    const char *dir = config->share.dir.text;

    *options = (struct gs_share_options){.enable = true,
                                         .is_broker = true,
                                         .listen_fd = -1,
                                         .settle_ns = config->share.settle,
                                         .timeout_ns = config->share.timeout,
                                         .keep_ns = config->share.keep,
                                         .published_max = (uint32_t)config->share.broker_blocks,
                                         .max_clients = (uint32_t)config->share.max_clients};
    for (size_t i = 0; i < config->share.uids.count; i++)
        options->uids[options->uid_count++] = (uid_t)config->share.uids.ids[i];
    for (size_t i = 0; i < config->share.gids.count; i++)
        options->gids[options->gid_count++] = (gid_t)config->share.gids.ids[i];
    if (snprintf(options->dir, sizeof options->dir, "%s", dir) >= (int)sizeof options->dir)
        return command_complain("share.dir is too long for a socket; choose a shorter path"), false;
    return true;
}

int command_version(int argc, char **argv)
{
    static const char usage[] =
        "usage: gpushim version [--json]\n"
        "The version of this program, and of the library that belongs to it.\n";
    char path[PATH_MAX], version[LIBRARY_VERSION] = "";
    struct json json = {.file = stdout};
    bool as_json;
    int status;

    if (!command_arguments(&argc, argv, 0, usage, &as_json, &status))
        return status;
    library_find(path);
    if (path[0])
        library_version_of(path, version);
    if (!as_json && command_say("gpushim %s", GS_VERSION) != COMMAND_WELL)
        return COMMAND_WRONG;
    if (!as_json && path[0])
        return command_say("libgpushim %s (%s)", version[0] ? version : "of no version that it tells",
                           path);
    if (!as_json)
        return COMMAND_WELL;
    json_open(&json, NULL, '{');
    json_text(&json, "version", GS_VERSION);
    json_text(&json, "library", path[0] ? path : NULL);
    json_text(&json, "library_version", version[0] ? version : NULL);
    json_close(&json, '}');
    return json_end(&json) ? COMMAND_WELL : COMMAND_WRONG;
}

static void print_commands(FILE *file)
{
    fputs("usage: gpushim COMMAND [--help | ...]\n\n", file);
    for (size_t i = 0; i < COMMANDS; i++)
        fprintf(file, "  %-9s %s\n", commands[i].name, commands[i].help);
    fputs("\nExit status: 0 it is well, 1 something is wrong, 2 it was called wrongly.\n", file);
}

static int run(int argc, char **argv)
{
    const char *called = argc > 0 ? strrchr(argv[0], '/') : NULL;
    size_t length;

    called = called ? called + 1 : argc > 0 ? argv[0] : "";
    length = strlen(called);
    if (length >= 6 && strcmp(called + length - 6, "broker") == 0) {
        command_program = "gpushim-broker";
        return command_broker(argc, argv);
    }
    if (argc > 1 && (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0))
        argv[1] = (char *)"version";
    if (argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "help") == 0)) {
        print_commands(stdout);
        return COMMAND_WELL;
    }
    for (size_t i = 0; argc > 1 && i < COMMANDS; i++)
        if (strcmp(argv[1], commands[i].name) == 0)
            return commands[i].run(argc - 1, argv + 1);
    if (argc > 1)
        command_complain("there is no command '%s'", argv[1]);
    print_commands(stderr);
    return COMMAND_USAGE;
}

int main(int argc, char **argv)
{
    int status = run(argc, argv);

    if (fflush(stdout) == 0 && !ferror(stdout))
        return status;
    command_complain("what it has to say cannot be written: %s", strerror(errno));
    return status ? status : COMMAND_WRONG;
}
