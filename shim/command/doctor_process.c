/* gpushim doctor: processes that use CUDA, of all; or one process, and what keeps the library
 * out. */
#include <dirent.h>
#include <elf.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "core/share/alive.h"
#include "shim/command/ask.h"
#include "shim/command/doctor.h"
#include "shim/command/users.h"

#define FD_NEEDED 64   /* below it what a program and its sockets have leaves none */
#define FD_GOOD   1024 /* with fewer, a program that shares much makes descriptors again and again */

/* What a process has mapped that matters here. */
struct maps {
    int error; /* it may not be looked at */
    bool cuda;
    bool replaced; /* a file of the library: none has that name any more, or another has */
    struct doctor_copies copies;
};

/* ---- Looking at one ------------------------------------------------------------------------- */

static bool begins(const char *path, const char *name)
{
    return path[0] == '/' && strncmp(basename(path), name, strlen(name)) == 0;
}

static void read_maps(pid_t pid, struct maps *ret_maps)
{
    char name[40], *line = NULL;
    size_t size = 0;
    FILE *file;

    memset(ret_maps, 0, sizeof *ret_maps);
    snprintf(name, sizeof name, "/proc/%d/maps", (int)pid);
    file = fopen(name, "re");
    errno = file ? 0 : errno;
    while (file && getline(&line, &size, file) > 0) {
        unsigned long long inode;
        unsigned major, minor;
        char *deleted;
        int at = 0;

        line[strcspn(line, "\n")] = 0;
        if (sscanf(line, "%*x-%*x %*s %*x %x:%x %llu %n", &major, &minor, &inode, &at) != 3 || !at)
            continue;
        ret_maps->cuda |= begins(line + at, "libcuda.so");
        if (!begins(line + at, "libgpushim.so"))
            continue;
        deleted = strstr(line + at, " (deleted)");
        ret_maps->replaced |= deleted != NULL;
        if (deleted)
            *deleted = 0;
        doctor_add_copy(&ret_maps->copies, line + at, (uint64_t)major << 32 | minor, inode);
    }
    if (!file || ferror(file))
        ret_maps->error = errno ? errno : EACCES;
    if (file)
        fclose(file);
    free(line);
}

/* What it has of the library, in words behind "it", and the way out; OK: the one beside this
 * program, or another build that speaks the same protocol, and so shares with it. */
static enum doctor_state judge(const struct doctor *doctor, pid_t pid, const struct maps *maps,
                               char ret_found[DOCTOR_TEXT], char ret_remedy[DOCTOR_TEXT])
{
    const char *copy = maps->copies.of[0].path;
    char path[PATH_MAX], told[DOCTOR_TEXT];
    bool same;

    ret_remedy[0] = 0;
    if (maps->copies.count == 0) {
        snprintf(ret_found, DOCTOR_TEXT,
                 maps->cuda ? "uses CUDA without the library"
                            : "runs without the library; it has no libcuda");
        snprintf(ret_remedy, DOCTOR_TEXT,
                 "start it with gpushim run, or LD_PRELOAD=%.500s, if it is to have it",
                 doctor->library[0] ? doctor->library : LIBRARY);
        return maps->cuda ? DOCTOR_FAIL : DOCTOR_WARN;
    }
    if (maps->copies.count > 1) {
        snprintf(ret_found, DOCTOR_TEXT, "has two copies of the library: %.200s and %.200s", copy,
                 maps->copies.of[1].path);
        snprintf(ret_remedy, DOCTOR_TEXT, "name one of them in its LD_PRELOAD, and start it again");
        return DOCTOR_FAIL;
    }
    snprintf(path, sizeof path, "/proc/%d/root%.4000s", (int)pid, copy);
    same = doctor_tell_library(path, copy, told) && !maps->replaced;
    snprintf(ret_found, DOCTOR_TEXT, "has the library, %.200s%s", copy,
             maps->cuda ? " and libcuda" : "; no libcuda so far");
    if (same || !doctor->library[0]) /* a row says that there is none */
        return DOCTOR_OK;
    if (maps->replaced)
        snprintf(ret_found, DOCTOR_TEXT, "has %.400s, which was replaced since", copy);
    else
        snprintf(ret_found, DOCTOR_TEXT, "has another build, %.400s; here %d", told,
                 GS_WIRE_VERSION);
    snprintf(ret_remedy, DOCTOR_TEXT,
             "start it again with the library of the others: sharing takes the same protocol");
    return DOCTOR_WARN;
}

/* ---- All that use CUDA ---------------------------------------------------------------------- */

void doctor_processes(struct doctor *doctor)
{
    static struct maps maps;
    DIR *all = opendir("/proc");
    const struct dirent *entry;
    unsigned with = 0, hidden = 0;

    while (all && (entry = readdir(all))) {
        char subject[32], found[DOCTOR_TEXT], remedy[DOCTOR_TEXT];
        const pid_t pid = (pid_t)atol(entry->d_name);
        enum doctor_state state;
        struct who who;

        if (pid <= 0 || pid == getpid())
            continue;
        read_maps(pid, &maps);
        hidden += maps.error == EACCES || maps.error == EPERM;
        if (maps.error || !maps.cuda)
            continue;
        state = judge(doctor, pid, &maps, found, remedy);
        with += state == DOCTOR_OK;
        if (state == DOCTOR_OK)
            continue;
        who_fill(&who, pid, 0, "");
        snprintf(subject, sizeof subject, "process %d", (int)pid);
        doctor_say(doctor, maps.copies.count ? state : DOCTOR_WARN, subject, remedy, "(%s) %s",
                   who.command, found);
    }
    doctor_say(doctor, all ? DOCTOR_OK : DOCTOR_WARN, "processes",
               all ? "" : "mount /proc: mount -t proc proc /proc",
               "%u use CUDA with this library; %u may not be looked at by this user", with, hidden);
    if (all)
        closedir(all);
}

/* ---- Descriptors ---------------------------------------------------------------------------- */

static void say_descriptors(struct doctor *doctor, uint64_t limit, const char *where)
{
    const unsigned long long most = limit;

    if (limit < FD_NEEDED)
        doctor_say(doctor, DOCTOR_FAIL, "descriptors", "raise it: ulimit -n 32768",
                   "%s may have %llu open: too few to share with several processes", where, most);
    else if (limit < FD_GOOD)
        doctor_say(
            doctor, DOCTOR_WARN, "descriptors",
            "raise it: ulimit -n 32768 (LimitNOFILE= of systemd, --ulimit nofile= of containers)",
            "%s may have %llu open: an eighth is kept for shared pieces, and opening more than that again and "
            "again is slow",
            where, most);
    else
        doctor_say(doctor, DOCTOR_OK, "descriptors", "",
                   "%s may have %llu open; an eighth is kept for shared pieces, "
                   "the most (4096) from 32768 on",
                   where, most);
}

void doctor_limits(struct doctor *doctor)
{
    say_descriptors(doctor, gs_fd_limit(), "a process here");
}

/* ---- One process ---------------------------------------------------------------------------- */

struct subject {
    struct doctor *doctor;
    pid_t pid;
    struct who who;
};

static void path_in(const struct subject *subject, const char *name, char ret_path[64])
{
    snprintf(ret_path, 64, "/proc/%d/%s", (int)subject->pid, name);
}

/* False: there is nothing more to be said about it. */
static bool say_who(const struct subject *subject)
{
    struct doctor *doctor = subject->doctor;
    const bool there = kill(subject->pid, 0) == 0 || errno != ESRCH;

    if (!there)
        doctor_say(doctor, DOCTOR_FAIL, "process",
                   "look for its number with gpushim who or ps, where this command runs: another "
                   "container counts otherwise",
                   "there is no process %d", (int)subject->pid);
    else if (!gs_alive_runs(subject->pid))
        doctor_say(doctor, DOCTOR_FAIL, "process", "let its parent wait for it",
                   "%d (%s) has ended", (int)subject->pid, subject->who.command);
    else if (subject->who.stopped)
        doctor_say(doctor, DOCTOR_WARN, "process", "let it go on: kill -CONT, or end the debugger",
                   "%d (%s) is stopped: it gives nothing back meanwhile", (int)subject->pid,
                   subject->who.command);
    else
        doctor_say(doctor, DOCTOR_OK, "process", "", "%d (%s)%s%s", (int)subject->pid,
                   subject->who.command, subject->who.place[0] ? " in " : "", subject->who.place);
    return there && gs_alive_runs(subject->pid);
}

/* Whether AT_SECURE is set, where the dynamic linker takes no LD_PRELOAD with a path; not, where
 * that may not be looked at. */
static bool is_secure(const struct subject *subject)
{
    Elf64_auxv_t each;
    bool secure = false;
    char path[64];
    FILE *file;

    path_in(subject, "auxv", path);
    file = fopen(path, "re");
    while (file && fread(&each, sizeof each, 1, file) == 1 && each.a_type != AT_NULL)
        secure |= each.a_type == AT_SECURE && each.a_un.a_val != 0;
    if (file)
        fclose(file);
    return secure;
}

static void say_setuid(const struct subject *subject)
{
    if (is_secure(subject))
        doctor_say(
            subject->doctor, DOCTOR_FAIL, "setuid",
            "take the capabilities (setcap -r) or the setuid bit from its file, or run it as its user, or without the library",
            "it was started with more rights than its caller: the dynamic linker preloads nothing into it");
}

static void say_program(const struct subject *subject)
{
    char link[64], path[PATH_MAX];
    struct run_file file;
    const char *wrong;
    ssize_t length;

    path_in(subject, "exe", link);
    length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return; /* its libraries may not be looked at either, which is said */
    path[length] = 0;
    run_file_read(link, &file);
    wrong = run_program_wrong(path, &file);
    if (wrong)
        doctor_say(
            subject->doctor, DOCTOR_FAIL, "program",
            "run a build of this architecture, for glibc, linked with libc.so; or run it without",
            "%s %s: the library cannot be loaded into it", path, wrong);
    else
        doctor_say(subject->doctor, DOCTOR_OK, "program", "", "%s, by %s", path, file.interpreter);
}

static void say_libraries(const struct subject *subject)
{
    static struct maps maps;
    char found[DOCTOR_TEXT], remedy[DOCTOR_TEXT];
    enum doctor_state state;

    read_maps(subject->pid, &maps);
    if (maps.error) {
        doctor_say(subject->doctor, DOCTOR_WARN, "libraries", "ask as its user, or as root",
                   "what it has loaded may not be looked at: %s", strerror(maps.error));
    } else {
        state = judge(subject->doctor, subject->pid, &maps, found, remedy);
        doctor_say(subject->doctor, state, "libraries", remedy, "it %s", found);
    }
}

/* What it was told otherwise than this command: by its environment, and by its files. */
static void say_options(const struct subject *subject)
{
    struct doctor *doctor = subject->doctor;
    static struct gs_config config;
    char **environment = quiet_environment(subject->pid), proc[24];

    snprintf(proc, sizeof proc, "/proc/%d", (int)subject->pid);
    for (char **entry = environment; entry && *entry; entry++)
        if (strncmp(*entry, "LD_PRELOAD=", 11) == 0 && (*entry)[11])
            doctor_look_at_preload(doctor, "LD_PRELOAD", *entry + 11, proc);
    if (environment && quiet_config(subject->pid, environment, &config)) {
        const char *dir = config.share.dir.text, *here = doctor->options.dir;

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

void doctor_process(struct doctor *doctor, pid_t pid)
{
    struct subject subject = {.doctor = doctor, .pid = pid};
    struct rlimit files;

    who_fill(&subject.who, pid, 0, "");
    if (!say_who(&subject))
        return;
    say_setuid(&subject);
    say_program(&subject);
    say_options(&subject);
    say_libraries(&subject);
    if (prlimit(pid, RLIMIT_NOFILE, NULL, &files) == 0)
        say_descriptors(doctor, files.rlim_cur, "it");
    doctor_look_for_socket(doctor, pid);
}
