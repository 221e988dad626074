/*
 * gpushim cdi generate: a specification by which container engines give a container the library as
 * they give it a device (CDI, the Container Device Interface). It mounts the library and this
 * program as they lie on the host, and sets LD_PRELOAD; the image needs neither.
 *
 * Inside all lies where the program finds its library (library.c):
 *
 *   /opt/gpushim/lib/libgpushim.so     LD_PRELOAD
 *   /opt/gpushim/bin/gpushim           as entry point (`gpushim run`) where the image has an LD_PRELOAD
 *   /opt/gpushim/bin/gpushim-broker    the same program; GPUSHIM_SHARE_BROKER
 *   /opt/gpushim/share                 the host's folder for sockets; GPUSHIM_SHARE_DIR
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shim/command/command.h"
#include "shim/command/json.h"
#include "shim/command/library.h"
#include "shim/command/output.h"

#define KIND    "libgpushim.dev/shim"
#define VERSION "0.5.0" /* what is here needs no newer, and engines since 2022 read it */
#define HEAD    "{\"cdiVersion\": \"" VERSION "\", \"kind\": \"" KIND "\""
#define INSIDE  "/opt/gpushim"

struct spec {
    char library[PATH_MAX], program[PATH_MAX];
    char folder[PATH_MAX]; /* the host's, for sockets; "": each container has its own */
    const char *output;    /* NULL: standard output */
};

/* ---- The specification ---------------------------------------------------------------------- */

static void write_mount(struct json *json, const char *host, const char *inside, const char *mode)
{
    /* No noexec: what is mapped from the library is code. */
    const char *const options[] = {mode, "nosuid", "nodev", "bind"};

    json_open(json, NULL, '{');
    json_text(json, "hostPath", host);
    json_text(json, "containerPath", inside);
    json_open(json, "options", '[');
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        json_text(json, NULL, options[i]);
    json_close(json, ']');
    json_close(json, '}');
}

/* What a device sets counts more than what the image or who starts the container sets. So each has
 * a twin that leaves their LD_PRELOAD alone; `gpushim run` puts the library in front of it. */
static void write_device(struct json *json, const struct spec *spec, bool preload)
{
    json_open(json, NULL, '{');
    json_text(json, "name", preload ? "all" : "all-run");
    json_open(json, "containerEdits", '{');
    json_open(json, "env", '[');
    if (preload)
        json_text(json, NULL, "LD_PRELOAD=" INSIDE "/lib/" LIBRARY);
    json_text(json, NULL, "GPUSHIM_SHARE_BROKER=" INSIDE "/bin/gpushim-broker");
    if (spec->folder[0])
        json_text(json, NULL, "GPUSHIM_SHARE_DIR=" INSIDE "/share");
    json_close(json, ']');
    if (spec->folder[0]) {
        json_open(json, "mounts", '[');
        write_mount(json, spec->folder, INSIDE "/share", "rw");
        json_close(json, ']');
    }
    json_close(json, '}');
    json_close(json, '}');
}

/* False: it could not be written. */
static bool write_spec(FILE *file, const void *arg)
{
    const struct spec *spec = arg;
    struct json json = {.file = file};

    json_open(&json, NULL, '{');
    json_text(&json, "cdiVersion", VERSION);
    json_text(&json, "kind", KIND);
    json_open(&json, "devices", '[');
    write_device(&json, spec, true);
    write_device(&json, spec, false);
    json_close(&json, ']');
    /* What any device brings, once also where a container has two. */
    json_open(&json, "containerEdits", '{');
    json_open(&json, "mounts", '[');
    write_mount(&json, spec->library, INSIDE "/lib/" LIBRARY, "ro");
    write_mount(&json, spec->program, INSIDE "/bin/gpushim", "ro");
    write_mount(&json, spec->program, INSIDE "/bin/gpushim-broker", "ro");
    json_close(&json, ']');
    json_close(&json, '}');
    return json_end(&json);
}

/* ---- What it names -------------------------------------------------------------------------- */

static bool can_be_named(const char *path)
{
    if (json_takes(path))
        return true;
    command_complain(
        "the path '%s' is no UTF-8, and a CDI specification cannot name it; use another", path);
    return false;
}

/* Containers run as any user. That is said, and no reason to write nothing. */
static void warn_of_mode(const char *path, mode_t needed)
{
    struct stat status;

    if (fstatat(AT_FDCWD, path, &status, 0) == 0 && (status.st_mode & needed) != needed)
        command_complain("warning: containers that run as another user may not use %s; "
                         "chmod a+%s %s",
                         path, needed & S_IXOTH ? "rx" : "r", path);
}

static bool find_files(struct spec *spec)
{
    ssize_t length = readlink("/proc/self/exe", spec->program, sizeof spec->program - 1);

    if (length <= 0) {
        command_complain("/proc/self/exe, where this program lies, cannot be read: %s; mount /proc",
                         strerror(errno));
        return false;
    }
    spec->program[length] = 0;
    library_find(spec->library);
    if (spec->library[0]) {
        warn_of_mode(spec->library, S_IROTH);
        warn_of_mode(spec->program, S_IROTH | S_IXOTH);
        return can_be_named(spec->library) && can_be_named(spec->program);
    }
    library_complain();
    return false;
}

/* 0, or the exit status, and said why. */
static int find_folder(const char *name, char ret_path[PATH_MAX])
{
    struct stat status;

    if (!realpath(name, ret_path))
        command_complain("--share-dir: '%s' cannot be used: %s%s", name, strerror(errno),
                         errno != ENOENT ? ""
                                         : "; make it first, for containers of any user with "
                                           "install -d -m 1777");
    else if (fstatat(AT_FDCWD, ret_path, &status, 0) != 0 || !S_ISDIR(status.st_mode))
        command_complain("--share-dir: '%s' is no folder; name one", name);
    else if (can_be_named(ret_path))
        return 0;
    return COMMAND_WRONG;
}

/* ---- Writing the file ----------------------------------------------------------------------- */

/* Engines read *.json and *.yaml in their folders, and nothing else. */
static bool is_read(const char *path)
{
    size_t length = strlen(path);

    return length > 5 &&
           (strcmp(path + length - 5, ".json") == 0 || strcmp(path + length - 5, ".yaml") == 0);
}

static void tell_places(const struct spec *spec, int folder_length)
{
    char folder[PATH_MAX], path[PATH_MAX];

    command_say("%s: --device " KIND "=all, or =all-run for gpushim run as entry point", spec->output);
    snprintf(folder, sizeof folder, "%.*s.", folder_length, spec->output);
    if (!realpath(folder, path) ||
        (strcmp(path, "/etc/cdi") != 0 && strcmp(path, "/run/cdi") != 0 &&
         strcmp(path, "/var/run/cdi") != 0))
        command_say(
            "podman and docker look in /etc/cdi and /var/run/cdi: copy it there, or name its "
            "folder to them (--cdi-spec-dir of podman and of dockerd)");
}

static int write_file(const struct spec *spec)
{
    static const struct output output = {
        .head = HEAD, .head_size = sizeof HEAD - 1, .mode = 0644, .write = write_spec};
    const char *slash = strrchr(spec->output, '/');

    if (!output_write(&output, spec->output, spec))
        return COMMAND_WRONG;
    tell_places(spec, slash ? (int)(slash - spec->output) + 1 : 0);
    return COMMAND_WELL;
}

/* ---- The command ---------------------------------------------------------------------------- */

/* 0, or the exit status, and said why. */
static int take_output(struct spec *spec, const char *path)
{
    if (!is_read(path)) {
        command_complain(
            "--output: '%s' does not end in .json (or .yaml), and container engines read "
            "no other files",
            path);
        return COMMAND_USAGE;
    }
    spec->output = path;
    return 0;
}

int command_cdi(const struct call *call)
{
    struct spec spec = {.output = NULL};
    int status = 0;

    if (strcmp(call->argv[0], "generate") != 0)
        return call_wrong(call, "cdi does not know '%s'", call->argv[0]);
    for (unsigned i = 0; !status && i < call->count; i++)
        if (!call->given[i].value[0])
            status = call_wrong(call, "--%s: %s is missing after it", call->given[i].option->name,
                                call->given[i].option->argument);
        else if (strcmp(call->given[i].option->name, "output") == 0)
            status = take_output(&spec, call->given[i].value);
        else
            status = find_folder(call->given[i].value, spec.folder);
    if (status)
        return status;
    if (!find_files(&spec))
        return COMMAND_WRONG;
    if (spec.output)
        return write_file(&spec);
    return write_spec(stdout, &spec) ? COMMAND_WELL : COMMAND_WRONG;
}
