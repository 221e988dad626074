/* gpushim: runs a command (command.h), and what commands share. */
#include "core/base/printable.h"
#include "shim/command/command.h"
#include "shim/command/run.h"
#include "shim/share_options.h"
#include "shim/standard_files.h"

#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <sys/stat.h>

#define LINE_SIZE (4 * PATH_MAX)

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

size_t command_read(const char *path, char *ret_text, size_t size)
{
    FILE *file = fopen(path, "re");
    size_t got = file ? fread(ret_text, 1, size - 1, file) : 0;

    if (file)
        fclose(file);
    if (got > 0 && ret_text[got - 1] == '\n')
        got--;
    ret_text[got] = 0;
    return got;
}

size_t command_read_of(long pid, const char *name, char *ret_text, size_t size)
{
    char path[64];

    snprintf(path, sizeof path, "/proc/%ld/%s", pid, name);
    return command_read(path, ret_text, size);
}

void *command_need(void *memory)
{
    if (memory)
        return memory;
    command_complain("there is no memory left");
    exit(COMMAND_WRONG);
}

void *command_room(void *items, size_t count, size_t *room, size_t size)
{
    if (count < *room)
        return items;
    *room = *room ? 2 * *room : 64;
    return command_need(reallocarray(items, *room, size));
}

bool command_is_same_file(const char *one, const char *other)
{
    struct stat a, b;

    return fstatat(AT_FDCWD, one, &a, 0) == 0 && fstatat(AT_FDCWD, other, &b, 0) == 0 &&
           a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

static void complain_of_options(void *arg, const char *line)
{
    command_complain("%s", line);
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

const char *command_share_options(struct gs_share_options **ret)
{
    static struct gs_share_options options;

    options = (struct gs_share_options){.enable = true, .is_broker = true};
    *ret = &options;
    return share_options_fill(&options, command_config())
               ? NULL
               : "share.dir is too long for a socket; choose a shorter path";
}

int command_version(const struct call *call)
{
    char path[PATH_MAX];
    struct json *json;

    library_find(path);
    json = call_json(call, false);
    json_text(json, "library", path[0] ? path : NULL);
    json_end(json);
    if (!json)
        command_say("gpushim %s", GS_VERSION);
    if (!json && path[0])
        command_say("library %s", path);
    return COMMAND_WELL;
}

static int run_command(const struct command *command, int argc, char **argv)
{
    struct call call;
    int status = call_read(command, argc, argv, &call);

    if (status == CALL_GOES_ON)
        status = command->run(&call);
    call_end(&call);
    return status;
}

static int run(int argc, char **argv)
{
    const char *called = argc > 0 ? basename(argv[0]) : "";
    const struct command *command;
    const size_t length = strlen(called);

    if (length >= 6 && strcmp(called + length - 6, "broker") == 0) {
        command_program = "gpushim-broker";
        return run_command(command_find("broker"), argc, argv);
    }
    if (argc < 2)
        return command_complain("COMMAND is missing (gpushim help)"), COMMAND_USAGE;
    if (strcmp(argv[1], "--complete") == 0)
        return call_complete(argc - 2, argv + 2);
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0)
        argv[1] = (char *)"version";
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)
        argv[1] = (char *)"help";
    command = command_find(argv[1]);
    return command ? run_command(command, argc - 1, argv + 1) : COMMAND_USAGE;
}

int main(int argc, char **argv)
{
    int status;

    hold_standard_files();
    status = run(argc, argv);
    if (fflush(stdout) == 0 && !ferror(stdout))
        return status;
    command_complain("what it has to say cannot be written: %s", strerror(errno));
    return status ? status : COMMAND_WRONG;
}
