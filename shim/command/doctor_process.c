/* gpushim doctor: processes that use CUDA, of all; or one process, and what keeps the library out.
 */
#include <ctype.h>
#include <dirent.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/fd.h"
#include "core/base/regular.h"
#include "core/share/alive.h"
#include "shim/command/doctor.h"
#include "shim/command/doctor_elf.h"
#include "shim/command/library.h"

#define COPIES_MAX 4
#define ROWS_MAX   64
#define COMMAND    96

struct copy {
    char path[PATH_MAX];
    uint64_t device, inode; /* as the kernel tells them of a mapping */
    bool replaced;          /* no file has that name any more, or another has */
};

/* What a process has mapped that matters here. */
struct maps {
    int error; /* it may not be looked at */
    bool cuda;
    unsigned count;
    struct copy copies[COPIES_MAX];
};

/* False, and said: no process can be looked at. */
static bool has_proc(struct doctor *doctor)
{
    bool is = access("/proc/self/maps", R_OK) == 0;

    if (!is)
        doctor_say(doctor, DOCTOR_WARN, "processes", "mount it: mount -t proc proc /proc",
                   "there is no /proc here: no process can be looked at");
    return is;
}

/* ---- Looking at one ------------------------------------------------------------------------- */

static bool begins(const char *path, const char *name)
{
    const char *slash = strrchr(path, '/');

    return slash && strncmp(slash + 1, name, strlen(name)) == 0;
}

static void add_copy(struct maps *maps, const char *path, uint64_t device, uint64_t inode)
{
    static const char gone[] = " (deleted)";
    struct copy *copy = &maps->copies[maps->count];
    size_t length;

    for (unsigned i = 0; i < maps->count; i++)
        if (maps->copies[i].device == device && maps->copies[i].inode == inode)
            return;
    if (maps->count == COPIES_MAX)
        return;
    maps->count++;
    copy->device = device;
    copy->inode = inode;
    snprintf(copy->path, sizeof copy->path, "%s", path);
    length = strlen(copy->path);
    copy->replaced =
        length > sizeof gone && strcmp(copy->path + length - sizeof gone + 1, gone) == 0;
    if (copy->replaced)
        copy->path[length - sizeof gone + 1] = 0;
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
        int at = 0;

        line[strcspn(line, "\n")] = 0;
        if (sscanf(line, "%*x-%*x %*s %*x %x:%x %llu %n", &major, &minor, &inode, &at) != 3 || !at)
            continue;
        ret_maps->cuda |= begins(line + at, "libcuda.so");
        if (begins(line + at, "libgpushim.so"))
            add_copy(ret_maps, line + at, (uint64_t)major << 32 | minor, inode);
    }
    if (!file || ferror(file))
        ret_maps->error = errno ? errno : EACCES;
    if (file)
        fclose(file);
    free(line);
}

/* Its command line, or what the kernel calls it. */
static void read_command(pid_t pid, char ret_text[COMMAND])
{
    char path[40];
    FILE *file;
    size_t got;

    snprintf(path, sizeof path, "/proc/%d/cmdline", (int)pid);
    file = fopen(path, "re");
    got = file ? fread(ret_text, 1, COMMAND - 1, file) : 0;
    if (file)
        fclose(file);
    while (got > 0 && ret_text[got - 1] == 0)
        got--;
    ret_text[got] = 0;
    for (size_t i = 0; i < got; i++)
        if (ret_text[i] == 0)
            ret_text[i] = ' ';
    snprintf(path, sizeof path, "/proc/%d/comm", (int)pid);
    if (got == 0)
        command_read(path, ret_text, COMMAND);
}

static bool is_same_bytes(const char *one, const char *other)
{
    struct stat a = {0}, b = {0};
    int x = gs_regular_open(AT_FDCWD, one, 0, &a), y = gs_regular_open(AT_FDCWD, other, 0, &b);
    bool same = x >= 0 && y >= 0 && a.st_size == b.st_size;
    char some[4096], others[4096];

    for (off_t at = 0; same && at < a.st_size; at += (off_t)sizeof some) {
        size_t got = gs_regular_read(x, some, sizeof some, (uint64_t)at);

        same = gs_regular_read(y, others, sizeof others, (uint64_t)at) == got &&
               memcmp(some, others, got) == 0;
    }
    gs_fd_drop(x);
    gs_fd_drop(y);
    return same;
}

/* Whether a process's library is the one beside this program, the same bytes (in a container), or another
 * build that speaks the same protocol, and so shares with it; else in words, and its version, what it is. */
static bool is_like_ours(const struct doctor *doctor, pid_t pid, const struct copy *copy,
                    char ret_why[DOCTOR_TEXT])
{
    char path[PATH_MAX], version[LIBRARY_VERSION], speaks[32] = "an unknown protocol";
    unsigned protocol;

    snprintf(path, sizeof path, "/proc/%d/root%.4000s", (int)pid, copy->path);
    if (!doctor->library[0])
        return true; /* a row says that there is none */
    if (copy->replaced) {
        snprintf(ret_why, DOCTOR_TEXT, "%.400s, which was replaced since", copy->path);
        return false;
    }
    if (is_same_bytes(path, doctor->library))
        return true;
    protocol = library_protocol_of(path);
    if (protocol == GS_WIRE_VERSION)
        return true;
    if (protocol)
        snprintf(speaks, sizeof speaks, "protocol %u", protocol);
    library_version_of(path, version);
    snprintf(ret_why, DOCTOR_TEXT, "another build, %.400s, version %s, which speaks %s, here %d", copy->path,
             version[0] ? version : "unknown", speaks, GS_WIRE_VERSION);
    return false;
}

/* ---- All that use CUDA ---------------------------------------------------------------------- */

struct survey {
    unsigned with, hidden, rows;
};

/* The row of a process that has libcuda; none where all is well with it. */
static void say_one(struct doctor *doctor, struct survey *survey, pid_t pid,
                    const struct maps *maps)
{
    char command[COMMAND], subject[32], why[DOCTOR_TEXT], remedy[DOCTOR_TEXT];

    if (maps->count == 1 && is_like_ours(doctor, pid, &maps->copies[0], why)) {
        survey->with++;
        return;
    }
    if (survey->rows++ >= ROWS_MAX)
        return;
    read_command(pid, command);
    snprintf(subject, sizeof subject, "process %d", (int)pid);
    if (maps->count > 1) {
        doctor_say(doctor, DOCTOR_FAIL, subject,
                   "name one of them in its LD_PRELOAD, and start it again",
                   "(%s) has two copies of the library: %.200s and %.200s", command,
                   maps->copies[0].path, maps->copies[1].path);
    } else if (maps->count == 1) {
        doctor_say(doctor, DOCTOR_WARN, subject,
                   "start it again with the library of the others: sharing takes the same protocol",
                   "(%s) has %s", command, why);
    } else {
        snprintf(remedy, sizeof remedy,
                 "start it with gpushim run, or LD_PRELOAD=%.500s, if it is to have it",
                 doctor->library[0] ? doctor->library : "libgpushim.so");
        doctor_say(doctor, DOCTOR_WARN, subject, remedy, "(%s) uses CUDA without the library",
                   command);
    }
}

void doctor_processes(struct doctor *doctor)
{
    struct maps *maps = malloc(sizeof *maps);
    DIR *all = opendir("/proc");
    struct survey survey = {0};
    const struct dirent *entry;

    if (!has_proc(doctor)) {
        if (all)
            closedir(all);
        free(maps);
        return;
    }
    while (maps && all && (entry = readdir(all))) {
        pid_t pid = (pid_t)atol(entry->d_name);

        if (pid <= 0 || pid == getpid())
            continue;
        read_maps(pid, maps);
        survey.hidden += maps->error == EACCES || maps->error == EPERM;
        if (!maps->error && maps->cuda)
            say_one(doctor, &survey, pid, maps);
    }
    if (survey.rows > ROWS_MAX)
        doctor_say(doctor, DOCTOR_WARN, "processes", "ask for one: gpushim doctor PID",
                   "%u more that use CUDA are like these", survey.rows - ROWS_MAX);
    if (survey.hidden)
        doctor_say(doctor, DOCTOR_OK, "processes", "",
                   "%u use CUDA with this library; %u more may not be looked at by this user",
                   survey.with, survey.hidden);
    else
        doctor_say(doctor, DOCTOR_OK, "processes", "", "%u use CUDA with this library",
                   survey.with);
    if (all)
        closedir(all);
    free(maps);
}

/* ---- One process ---------------------------------------------------------------------------- */

struct subject {
    struct doctor *doctor;
    pid_t pid;
    char proc[24]; /* its folder */
};

static void path_in(const struct subject *subject, const char *name, char ret_path[64])
{
    snprintf(ret_path, 64, "%s/%s", subject->proc, name);
}

/* The value of a variable that it was started with; false: it had none. */
static bool variable(const struct subject *subject, const char *name, char ret_value[PATH_MAX])
{
    char path[64], *each = NULL;
    size_t size = 0, length = strlen(name);
    FILE *file;
    bool found = false;

    path_in(subject, "environ", path);
    file = fopen(path, "re");
    while (file && !found && getdelim(&each, &size, 0, file) > 0)
        if (strncmp(each, name, length) == 0 && each[length] == '=') {
            snprintf(ret_value, PATH_MAX, "%s", each + length + 1);
            found = true;
        }
    if (file)
        fclose(file);
    free(each);
    return found;
}

/* False: there is nothing more to be said about it. */
static bool say_who(const struct subject *subject)
{
    struct doctor *doctor = subject->doctor;
    char command[COMMAND];

    if (!has_proc(doctor))
        return false;
    if (kill(subject->pid, 0) != 0 && errno == ESRCH) {
        doctor_say(doctor, DOCTOR_FAIL, "process",
                   "look for its number with gpushim who or ps, where this command runs: another "
                   "container counts otherwise",
                   "there is no process %d", (int)subject->pid);
        return false;
    }
    read_command(subject->pid, command);
    if (!gs_alive_runs(subject->pid)) {
        doctor_say(doctor, DOCTOR_FAIL, "process", "let its parent wait for it",
                   "%d (%s) has ended", (int)subject->pid, command);
        return false;
    }
    if (gs_alive_is_stopped(subject->pid))
        doctor_say(doctor, DOCTOR_WARN, "process", "let it go on: kill -CONT, or end the debugger",
                   "%d (%s) is stopped: it gives nothing back meanwhile", (int)subject->pid,
                   command);
    else
        doctor_say(doctor, DOCTOR_OK, "process", "", "%d (%s)", (int)subject->pid, command);
    return true;
}

/* Whether AT_SECURE is set, where the dynamic linker takes no LD_PRELOAD with a path; a negative errno: it may not be
 * looked at. */
static int is_secure(const struct subject *subject)
{
    Elf64_auxv_t each;
    int secure = 0;
    char path[64];
    FILE *file;

    path_in(subject, "auxv", path);
    file = fopen(path, "re");
    if (!file)
        return -errno;
    while (fread(&each, sizeof each, 1, file) == 1 && each.a_type != AT_NULL)
        secure |= each.a_type == AT_SECURE && each.a_un.a_val != 0;
    fclose(file);
    return secure;
}

static void say_setuid(const struct subject *subject)
{
    char path[64], text[4096], *at;
    unsigned real = 0, effective = 0;
    int secure = is_secure(subject);

    path_in(subject, "status", path);
    command_read(path, text, sizeof text);
    at = strstr(text, "\nUid:");
    if (at && sscanf(at, "\nUid: %u %u", &real, &effective) == 2 && real != effective)
        doctor_say(subject->doctor, DOCTOR_FAIL, "setuid",
                   "run it as its user, without the setuid bit, or without the library",
                   "it runs as user %u for user %u: the dynamic linker preloads nothing into it",
                   effective, real);
    else if (secure < 0)
        doctor_say(subject->doctor, DOCTOR_WARN, "setuid", "ask as root, with the capability SYS_PTRACE",
                   "whether it was started with more rights than its caller may not be looked at: %s",
                   strerror(-secure));
    else if (secure)
        doctor_say(subject->doctor, DOCTOR_FAIL, "setuid",
                   "take the capabilities (setcap -r) or the setuid bit from its file, or run it "
                   "without the library",
                   "it was started with more rights than its caller: the dynamic linker preloads "
                   "nothing into it");
    else
        doctor_say(subject->doctor, DOCTOR_OK, "setuid", "", "no (user %u)", effective);
}

static void say_program(const struct subject *subject)
{
    char link[64], path[PATH_MAX];
    struct doctor_elf elf;
    ssize_t length;

    path_in(subject, "exe", link);
    length = readlink(link, path, sizeof path - 1);
    if (length < 0) {
        doctor_say(subject->doctor, DOCTOR_WARN, "program", "ask as its user, or as root",
                   "it may not be looked at: %s", strerror(errno));
        return;
    }
    path[length] = 0;
    doctor_look_at_elf(link, &elf);
    if (elf.wrong)
        doctor_say(subject->doctor, DOCTOR_FAIL, "program", "run a build of this architecture",
                   "%s %s: the library cannot be loaded into it", path, elf.wrong);
    else if (!elf.loader[0])
        doctor_say(subject->doctor, DOCTOR_FAIL, "program",
                   "link it with libc.so, or run it without",
                   "%s is statically linked: nothing can be preloaded into it", path);
    else if (strstr(elf.loader, "musl"))
        doctor_say(subject->doctor, DOCTOR_FAIL, "program",
                   "run a build for glibc, or run it without",
                   "%s is of musl's libc: it runs unchanged, without the library", path);
    else
        doctor_say(subject->doctor, DOCTOR_OK, "program", "", "%s, by %s", path, elf.loader);
}

static void say_libraries(const struct subject *subject)
{
    struct doctor *doctor = subject->doctor;
    struct maps *maps = malloc(sizeof *maps);
    char why[DOCTOR_TEXT], remedy[DOCTOR_TEXT];

    if (!maps)
        return;
    read_maps(subject->pid, maps);
    snprintf(remedy, sizeof remedy, "start it with gpushim run, or LD_PRELOAD=%.500s",
             doctor->library[0] ? doctor->library : "libgpushim.so");
    if (maps->error)
        doctor_say(doctor, DOCTOR_WARN, "libraries", "ask as its user, or as root",
                   "what it has loaded may not be looked at: %s", strerror(maps->error));
    else if (maps->count > 1)
        doctor_say(doctor, DOCTOR_FAIL, "libraries",
                   "name one of them in its LD_PRELOAD, and start it again",
                   "it has two copies of the library: %.200s and %.200s", maps->copies[0].path,
                   maps->copies[1].path);
    else if (maps->count == 0)
        doctor_say(doctor, maps->cuda ? DOCTOR_FAIL : DOCTOR_WARN, "libraries", remedy,
                   "it runs without the library%s",
                   maps->cuda ? ", and uses CUDA" : "; it has no libcuda");
    else if (!is_like_ours(doctor, subject->pid, &maps->copies[0], why))
        doctor_say(doctor, DOCTOR_WARN, "libraries",
                   "start it again with the library of the others: sharing takes the same protocol",
                   "it has %s", why);
    else
        doctor_say(doctor, DOCTOR_OK, "libraries", "", "it has the library, %s%s",
                   maps->copies[0].path, maps->cuda ? " and libcuda" : "; no libcuda so far");
    free(maps);
}

/* What it was told otherwise than this command. */
static void say_variables(const struct subject *subject)
{
    struct doctor *doctor = subject->doctor;
    char value[PATH_MAX];

    if (variable(subject, "LD_PRELOAD", value) && value[0])
        doctor_look_at_preload(doctor, "LD_PRELOAD", value, subject->proc);
    if (variable(subject, "GPUSHIM_ENABLE", value) &&
        (strcmp(value, "0") == 0 || strcasecmp(value, "off") == 0 || strcasecmp(value, "no") == 0 ||
         strcasecmp(value, "false") == 0))
        doctor_say(doctor, DOCTOR_WARN, "GPUSHIM_ENABLE", "unset it, and start it again",
                   "it is '%.20s': the library does nothing in it", value);
    if (!variable(subject, "GPUSHIM_SHARE_DIR", value))
        return;
    if (strcmp(value, doctor->options.dir) == 0)
        doctor_say(doctor, DOCTOR_OK, "GPUSHIM_SHARE_DIR", "", "%s, as here", value);
    else
        doctor_say(doctor, DOCTOR_WARN, "GPUSHIM_SHARE_DIR",
                   "give the same folder to all that are to share, and to this command",
                   "it is %.200s, here %.200s", value,
                   doctor->options.dir[0] ? doctor->options.dir : "none is set");
}

static void say_container(const struct subject *subject)
{
    char path[64], own[1024], others[1024], namespaces[2][64];
    ssize_t lengths[2];
    char *name;

    path_in(subject, "cgroup", path);
    command_read("/proc/self/cgroup", own, sizeof own);
    command_read(path, others, sizeof others);
    lengths[0] = readlink("/proc/self/ns/mnt", namespaces[0], sizeof namespaces[0]);
    path_in(subject, "ns/mnt", path);
    lengths[1] = readlink(path, namespaces[1], sizeof namespaces[1]);
    others[strcspn(others, "\n")] = 0;
    own[strcspn(own, "\n")] = 0;
    name = strrchr(others, '/');
    if (lengths[0] > 0 && lengths[1] > 0 &&
        (lengths[0] != lengths[1] || memcmp(namespaces[0], namespaces[1], (size_t)lengths[0]) != 0))
        doctor_say(
            subject->doctor, DOCTOR_OK, "container", "",
            "it has mounts of its own (%s): it shares with this one through a folder that is "
            "mounted in both, GPUSHIM_SHARE_DIR",
            name ? name + 1 : "no control group is seen");
    else if (strcmp(own, others) != 0)
        doctor_say(subject->doctor, DOCTOR_OK, "container", "",
                   "another control group (%s), the same mounts", name ? name + 1 : others);
    else
        doctor_say(subject->doctor, DOCTOR_OK, "container", "", "the same as this command's");
}

static void say_limit(const struct subject *subject)
{
    static const char name[] = "Max open files";
    char path[64], text[4096], *at;
    uint64_t limit;

    path_in(subject, "limits", path);
    command_read(path, text, sizeof text);
    at = strstr(text, name);
    if (!at)
        return;
    at += strlen(name);
    at += strspn(at, " ");
    limit = isdigit((unsigned char)*at) ? strtoull(at, NULL, 10) : UINT64_MAX;
    doctor_look_at_descriptors(subject->doctor, limit, "it");
}

void doctor_process(struct doctor *doctor, pid_t pid)
{
    struct subject subject = {.doctor = doctor, .pid = pid};

    snprintf(subject.proc, sizeof subject.proc, "/proc/%d", (int)pid);
    if (!say_who(&subject))
        return;
    say_setuid(&subject);
    say_program(&subject);
    say_variables(&subject);
    say_libraries(&subject);
    say_container(&subject);
    say_limit(&subject);
    doctor_look_for_socket(doctor, pid);
}
