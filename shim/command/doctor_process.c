/* gpushim doctor: the library's file, and what LD_PRELOAD makes of it; processes that use CUDA, of
 * all; or one process, and what keeps the library out. */
#include <dirent.h>
#include <signal.h>

#include "core/share/alive.h"
#include "shim/command/ask.h"
#include "shim/command/doctor.h"

#define ALL_PROGRAMS "/etc/ld.so.preload"

/* ---- LD_PRELOAD ----------------------------------------------------------------------------- */

static bool begins(const char *path, const char *name)
{
    return strncmp(basename(path), name, strlen(name)) == 0;
}

/* Whether it is the library. */
static bool look_at_one(struct doctor *doctor, const char *subject, const char *name,
                        const char *proc)
{
    const bool ours = begins(name, "libgpushim");
    char path[PATH_MAX], remedy[DOCTOR_TEXT] = "take it out", gone[96];
    const char *wrong;
    struct run_file file;

    if (strchr(name, '$') || !strchr(name, '/')) {
        doctor_say(doctor, DOCTOR_WARN, subject, "name the whole path of the file",
                   "%.200s: which file that is only the dynamic linker knows", name);
        return ours;
    }
    snprintf(path, sizeof path, "%s%s%s", proc,
             !proc[0]         ? ""
             : name[0] == '/' ? "/root"
                              : "/cwd/",
             name);
    if (ours)
        snprintf(remedy, sizeof remedy, "name %.500s instead, or start programs with gpushim run",
                 doctor->library[0] ? doctor->library : "the library's own path");
    run_file_read(path, &file);
    wrong = run_file_wrong(&file);
    if (file.error == ENOENT || file.error == ENOTDIR) {
        snprintf(gone, sizeof gone, "is not there: %s", strerror(file.error));
        wrong = gone;
    }
    if (wrong) /* the dynamic linker says so on standard error and goes on without it */
        doctor_say(doctor, ours ? DOCTOR_FAIL : DOCTOR_WARN, subject, remedy,
                   "%.300s %s; programs run without it", name, wrong);
    else if (ours)
        doctor_say(doctor, DOCTOR_OK, subject, "", "has the library, %s", name);
    return ours;
}

/* Looks at the value of LD_PRELOAD, or at the file that has the same for all programs; `proc` is
 * the folder /proc/PID of whom it is about, "" of a process that is started here. */
static void look_at_preload(struct doctor *doctor, const char *subject, const char *value,
                            const char *proc)
{
    char *text = command_need(strdup(value)), *save = NULL;
    bool has = false;

    for (char *name = strtok_r(text, " :\t\n", &save); name; name = strtok_r(NULL, " :\t\n", &save))
        has |= look_at_one(doctor, subject, name, proc);
    if (!has)
        doctor_say(doctor, DOCTOR_OK, subject, "", "does not have the library");
    free(text);
}

void doctor_preload(struct doctor *doctor)
{
    const char *value = getenv("LD_PRELOAD");
    char text[4096];

    if (value && value[0])
        look_at_preload(doctor, "LD_PRELOAD", value, "");
    else
        doctor_say(doctor, DOCTOR_OK, "LD_PRELOAD", "", "not set here");
    command_read(ALL_PROGRAMS, text, sizeof text);
    if (text[0])
        look_at_preload(doctor, "ld.so.preload", text, "");
}

void doctor_library(struct doctor *doctor)
{
    static const char remedy[] =
        "install the command and the library from the same package or build";
    struct run_file file;
    const char *wrong;

    if (!doctor->library[0]) {
        doctor_say(
            doctor, DOCTOR_FAIL, "library", remedy,
            "there is no libgpushim.so beside this program, nor where it is installed with it");
        return;
    }
    run_file_read(doctor->library, &file);
    wrong = run_file_wrong(&file);
    doctor_say(doctor, wrong ? DOCTOR_FAIL : DOCTOR_OK, "library", remedy, "%s%s%s",
               doctor->library, wrong ? " " : "", wrong ? wrong : "");
}

/* What a process has mapped that matters here. */
struct maps {
    int error; /* it may not be looked at */
    bool cuda;
    char library[PATH_MAX], another[PATH_MAX]; /* of the same name; "": none */
};

static void read_maps(long pid, struct maps *ret_maps)
{
    char name[40], *line = NULL;
    size_t size = 0;
    FILE *file;

    memset(ret_maps, 0, sizeof *ret_maps);
    snprintf(name, sizeof name, "/proc/%ld/maps", pid);
    file = fopen(name, "re");
    errno = file ? 0 : errno;
    while (file && getline(&line, &size, file) > 0) {
        const char *path = strchr(line, '/');

        line[strcspn(line, "\n")] = 0;
        ret_maps->cuda |= path && begins(path, "libcuda.so");
        if (!path || !begins(path, LIBRARY))
            continue;
        if (!ret_maps->library[0])
            snprintf(ret_maps->library, PATH_MAX, "%s", path);
        else if (strcmp(ret_maps->library, path) != 0)
            snprintf(ret_maps->another, PATH_MAX, "%s", path);
    }
    if (!file || ferror(file))
        ret_maps->error = errno ? errno : EACCES;
    if (file)
        fclose(file);
    free(line);
}

bool who_has_library(long pid)
{
    static struct maps maps;

    read_maps(pid, &maps);
    return maps.library[0];
}

/* What it has of the library, behind `name`, and the way out. */
static struct doctor_row judge(const struct doctor *doctor, const struct maps *maps,
                               const char *name)
{
    struct doctor_row row = {.state = DOCTOR_OK};

    if (!maps->library[0]) {
        row.state = maps->cuda ? DOCTOR_FAIL : DOCTOR_WARN;
        snprintf(row.found, sizeof row.found, "%s %s", name,
                 maps->cuda ? "uses CUDA without the library"
                            : "runs without the library; it has no libcuda");
        snprintf(row.remedy, sizeof row.remedy,
                 "start it with gpushim run, or LD_PRELOAD=%.400s, if it is to have it; nothing is "
                 "preloaded into what is setuid or has capabilities",
                 doctor->library[0] ? doctor->library : LIBRARY);
    } else if (maps->another[0]) {
        row.state = DOCTOR_FAIL;
        snprintf(row.found, sizeof row.found, "%s has two copies of the library: %.150s and %.150s",
                 name, maps->library, maps->another);
        strcpy(row.remedy, "name one of them in its LD_PRELOAD, and start it again");
    } else {
        snprintf(row.found, sizeof row.found, "%s has the library, %.300s%s", name, maps->library,
                 maps->cuda ? " and libcuda" : "; no libcuda so far");
        if (strstr(basename(maps->library), " (deleted)")) {
            row.state = DOCTOR_WARN;
            strcpy(row.remedy, "its file was replaced: start it again with the new one");
        }
    }
    return row;
}

void doctor_processes(struct doctor *doctor)
{
    static struct maps maps;
    DIR *all = opendir("/proc");
    const struct dirent *entry;
    unsigned with = 0, hidden = 0;

    while (all && (entry = readdir(all))) {
        const long pid = atol(entry->d_name);
        struct doctor_row row;
        char name[264];
        struct who who;

        if (pid <= 0 || pid == getpid())
            continue;
        read_maps(pid, &maps);
        hidden += maps.error == EACCES || maps.error == EPERM;
        if (maps.error || !maps.cuda)
            continue;
        who_fill(&who, pid, 0, "");
        snprintf(name, sizeof name, "(%s)", who.command);
        row = judge(doctor, &maps, name);
        snprintf(row.subject, sizeof row.subject, "process %ld", pid);
        with += row.state == DOCTOR_OK;
        if (!maps.library[0])
            row.state = DOCTOR_WARN;
        if (row.state != DOCTOR_OK)
            doctor_put(doctor, &row);
    }
    doctor_say(doctor, all ? DOCTOR_OK : DOCTOR_WARN, "processes",
               all ? "" : "mount /proc: mount -t proc proc /proc",
               "%u use CUDA with this library; %u may not be looked at by this user", with, hidden);
    if (all)
        closedir(all);
}

/* ---- One process ---------------------------------------------------------------------------- */

/* False: there is nothing more to be said about it. */
static bool say_who(struct doctor *doctor, const struct who *who)
{
    const pid_t pid = (pid_t)who->pid;
    const bool there = kill(pid, 0) == 0 || errno != ESRCH;

    if (!there)
        doctor_say(doctor, DOCTOR_FAIL, "process",
                   "look for its number with gpushim who or ps, where this command runs: another "
                   "container counts otherwise",
                   "there is no process %d", pid);
    else if (!gs_alive_runs(pid))
        doctor_say(doctor, DOCTOR_FAIL, "process", "let its parent wait for it",
                   "%d (%s) has ended", pid, who->command);
    else if (who->stopped)
        doctor_say(doctor, DOCTOR_WARN, "process", "let it go on: kill -CONT, or end the debugger",
                   "%d (%s) is stopped: it gives nothing back meanwhile", pid, who->command);
    else
        doctor_say(doctor, DOCTOR_OK, "process", "", "%d (%s)%s%s", pid, who->command,
                   who->place[0] ? " in " : "", who->place);
    return there && gs_alive_runs(pid);
}

static void say_program(struct doctor *doctor, long pid)
{
    char link[64], path[PATH_MAX];
    struct run_file file;
    const char *wrong;
    ssize_t length;

    snprintf(link, sizeof link, "/proc/%ld/exe", pid);
    length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return; /* its libraries may not be looked at either, which is said */
    path[length] = 0;
    run_file_read(link, &file);
    wrong = run_program_wrong(path, &file);
    doctor_say(
        doctor, wrong ? DOCTOR_FAIL : DOCTOR_OK, "program",
        "run a build of this architecture, for glibc, linked with libc.so; or run it without",
        wrong ? "%s %s: the library cannot be loaded into it" : "%s, by %s", path,
        wrong ? wrong : file.interpreter);
}

/* False: it has not the library. */
static bool say_libraries(struct doctor *doctor, long pid)
{
    static struct maps maps;
    struct doctor_row row;

    read_maps(pid, &maps);
    row = judge(doctor, &maps, "it");
    strcpy(row.subject, "libraries");
    if (maps.error)
        doctor_say(doctor, DOCTOR_WARN, "libraries", "ask as its user, or as root",
                   "what it has loaded may not be looked at: %s", strerror(maps.error));
    else
        doctor_put(doctor, &row);
    return maps.error || maps.library[0];
}

/* What it was told otherwise than this command: by its environment, and by its files. */
static void say_options(struct doctor *doctor, long pid)
{
    static struct gs_config config;
    char **environment = quiet_environment(pid), proc[32];

    snprintf(proc, sizeof proc, "/proc/%ld", pid);
    for (char **entry = environment; entry && *entry; entry++)
        if (strncmp(*entry, "LD_PRELOAD=", 11) == 0 && (*entry)[11])
            look_at_preload(doctor, "LD_PRELOAD", *entry + 11, proc);
    if (environment && quiet_config(pid, environment, &config)) {
        const char *dir = config.share.dir.text, *here = doctor->options->dir;

        if (!config.general.enable)
            doctor_say(doctor, DOCTOR_WARN, "enable",
                       "take GPUSHIM_ENABLE, or enable in its files, away, and start it again",
                       "it is off: the library does nothing in it");
        if (strcmp(dir, here) != 0)
            doctor_say(doctor, DOCTOR_WARN, "share.dir",
                       "give the same folder to all that are to share, and to this command",
                       "it is %.200s, here %.200s", dir[0] ? dir : "not set",
                       here[0] ? here : "not set");
        else
            doctor_say(doctor, DOCTOR_OK, "share.dir", "", "%s, as here", dir[0] ? dir : "not set");
    }
    free(environment);
}

void doctor_process(struct doctor *doctor, long pid)
{
    struct who who;

    who_fill(&who, pid, 0, "");
    if (!say_who(doctor, &who))
        return;
    say_program(doctor, pid);
    say_options(doctor, pid);
    if (say_libraries(doctor, pid))
        doctor_look_for_socket(doctor, pid);
}
