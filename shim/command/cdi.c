/*
 * gpushim cdi generate: a specification by which container engines give a container the library as
 * they give it a device (CDI, the Container Device Interface). It mounts the library and this
 * program as they lie on the host, and sets LD_PRELOAD; the image needs neither.
 *
 * Inside all lies where the program finds its library (run.c):
 *
 *   /opt/gpushim/lib/libgpushim.so     LD_PRELOAD
 *   /opt/gpushim/bin/gpushim           as entry point (`gpushim run`) where the image has an LD_PRELOAD
 *   /opt/gpushim/bin/gpushim-broker    the same program; GPUSHIM_SHARE_BROKER
 *   /opt/gpushim/share                 the host's folder for sockets; GPUSHIM_SHARE_DIR
 */
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>

#include "shim/command/command.h"
#include "shim/command/run.h"

#define KIND    "libgpushim.dev/shim"
#define VERSION "0.5.0" /* what is here needs no newer, and engines since 2022 read it */
#define HEAD    "{\"cdiVersion\": \"" VERSION "\", \"kind\": \"" KIND "\""
#define INSIDE  "/opt/gpushim"

struct spec {
    char library[PATH_MAX], program[PATH_MAX];
    char folder[PATH_MAX]; /* the host's, for sockets; "": each container has its own */
};

static void put_mount(FILE *file, const char *host, const char *inside, const char *mode)
{
    struct json json = {.file = file};

    fputs("{\"hostPath\": ", file);
    json_text(&json, NULL, host);
    /* No noexec: what is mapped from the library is code. */
    fprintf(file,
            ", \"containerPath\": \"" INSIDE
            "%s\", \"options\": [\"%s\", \"nosuid\", \"nodev\", \"bind\"]}",
            inside, mode);
}

/* What a device sets counts more than what the image or who starts the container sets. So each has
 * a twin that leaves their LD_PRELOAD alone; `gpushim run` puts the library in front of it. */
static void put_device(FILE *file, const struct spec *spec, const char *name, const char *preload)
{
    fprintf(file,
            "{\"name\": \"%s\", \"containerEdits\": {\"env\": [%s\"GPUSHIM_SHARE_BROKER=" INSIDE
            "/bin/gpushim-broker\"",
            name, preload);
    if (spec->folder[0]) {
        fputs(", \"GPUSHIM_SHARE_DIR=" INSIDE "/share\"], \"mounts\": [", file);
        put_mount(file, spec->folder, "/share", "rw");
    }
    fputs("]}}", file);
}

/* False: it could not be written. */
static bool write_spec(FILE *file, const void *arg)
{
    const struct spec *spec = arg;

    fputs(HEAD ", \"devices\": [", file);
    put_device(file, spec, "all", "\"LD_PRELOAD=" INSIDE "/lib/" LIBRARY "\", ");
    fputs(", ", file);
    put_device(file, spec, "all-run", "");
    /* What any device brings, once also where a container has two. */
    fputs("], \"containerEdits\": {\"mounts\": [", file);
    put_mount(file, spec->library, "/lib/" LIBRARY, "ro");
    fputs(", ", file);
    put_mount(file, spec->program, "/bin/gpushim", "ro");
    fputs(", ", file);
    put_mount(file, spec->program, "/bin/gpushim-broker", "ro");
    fputs("]}}\n", file);
    return fflush(file) == 0 && !ferror(file);
}

static bool can_be_named(const char *path)
{
    if (!json_takes(path))
        command_complain(
            "the path '%s' is no UTF-8, and a CDI specification cannot name it; use another", path);
    return json_takes(path);
}

static bool find_files(struct spec *spec)
{
    if (!realpath("/proc/self/exe", spec->program)) {
        command_complain("/proc/self/exe, where this program lies, cannot be read: %s; mount /proc",
                         strerror(errno));
        return false;
    }
    library_find(spec->library);
    if (!spec->library[0])
        library_complain();
    return spec->library[0] && can_be_named(spec->library) && can_be_named(spec->program);
}

static bool find_folder(const char *name, char ret_path[PATH_MAX])
{
    struct stat status;

    if (!realpath(name, ret_path))
        command_complain("--share-dir: '%s' cannot be used: %s%s", name, strerror(errno),
                         errno == ENOENT
                             ? "; make it first, for containers of any user with install -d -m 1777"
                             : "");
    else if (fstatat(AT_FDCWD, ret_path, &status, 0) != 0 || !S_ISDIR(status.st_mode))
        command_complain("--share-dir: '%s' is no folder; name one", name);
    else
        return can_be_named(ret_path);
    return false;
}

int command_cdi(const struct call *call)
{
    static const struct output output = {.head = HEAD,
                                         .head_size = sizeof HEAD - 1,
                                         .mode = 0644,
                                         .write = write_spec};
    static struct spec spec;
    const char *path = call_value(call, "output"), *folder = call_value(call, "share-dir"),
               *dot = path ? strrchr(path, '.') : NULL;

    if (strcmp(call->argv[0], "generate") != 0)
        return call_wrong(call, "cdi does not know '%s'", call->argv[0]);
    if (path && (!dot || (strcmp(dot, ".json") != 0 && strcmp(dot, ".yaml") != 0)))
        return call_wrong(
            call,
            "--output: '%s' does not end in .json (or .yaml), and container engines read no other files",
            path);
    if ((folder && !find_folder(folder, spec.folder)) || !find_files(&spec))
        return COMMAND_WRONG;
    if (!path)
        return write_spec(stdout, &spec) ? COMMAND_WELL : COMMAND_WRONG;
    if (!output_write(&output, path, &spec))
        return COMMAND_WRONG;
    return command_say(
        "%s: --device " KIND
        "=all, or =all-run for gpushim run as entry point; podman and docker look in "
        "/etc/cdi and /var/run/cdi",
        path);
}
