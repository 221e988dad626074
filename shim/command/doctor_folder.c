/* gpushim doctor: the folder of the sockets, who answers there, and the broker. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "core/share/alive.h"
#include "core/share/directory.h"
#include "shim/broker_place.h"
#include "shim/command/ask.h"
#include "shim/command/doctor.h"

#define WHY_SIZE      128
#define MIB           (1 << 20)
#define SPACE_WANTED  MIB /* a socket takes an inode and, on some file systems, a block */
#define INODES_WANTED 64

static const struct {
    unsigned long magic;
    const char *name;
    bool between_kernels; /* several machines may see it, whose processes cannot share */
} file_systems[] = {
    {0x01021994, "tmpfs", false},   {0xef53, "ext4", false},          {0x58465342, "xfs", false},
    {0x9123683e, "btrfs", false},   {0x794c7630, "overlayfs", false}, {0x2fc12fc1, "zfs", false},
    {0x6969, "NFS", true},          {0x0bd00bd0, "Lustre", true},     {0xff534d42, "SMB", true},
    {0xfe534d42, "SMB", true},      {0x00c36400, "Ceph", true},       {0x47504653, "GPFS", true},
    {0x01021997, "9p", true},       {0x65735546, "FUSE", true},       {0x19830326, "BeeGFS", true},
    {0x6a656a63, "virtiofs", true},
};

/* ---- The folder ----------------------------------------------------------------------------- */

/* Of one that is open: its path as it was found. */
static void path_of(int directory, char ret_path[PATH_MAX])
{
    char link[40];
    ssize_t length;

    snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
    length = readlink(link, ret_path, PATH_MAX - 1);
    ret_path[length > 0 ? length : 0] = 0;
}

/* What is free where it lies. */
static void say_space(struct doctor *doctor, int directory, const char *path)
{
    struct stat owner = {0};
    struct statfs info;
    const char *name = "another file system";
    bool between = false;
    unsigned long long bytes;

    if (fstatfs(directory, &info) != 0 || fstat(directory, &owner) != 0)
        return;
    for (size_t i = 0; i < sizeof file_systems / sizeof *file_systems; i++)
        if (file_systems[i].magic == ((unsigned long)info.f_type & 0xffffffff)) {
            name = file_systems[i].name;
            between = file_systems[i].between_kernels;
        }
    bytes = (unsigned long long)info.f_bavail * (unsigned long long)info.f_bsize;
    /* Where a file system does not count its inodes it says 0 of 0. */
    if (bytes < SPACE_WANTED || (info.f_files > 0 && info.f_ffree < INODES_WANTED))
        doctor_say(doctor, DOCTOR_FAIL, "folder",
                   "free some space there, or name another folder in GPUSHIM_SHARE_DIR",
                   "%s is full: %llu MiB and %llu inodes free on %s", path, bytes / MIB,
                   (unsigned long long)info.f_ffree, name);
    else if (between)
        doctor_say(
            doctor, DOCTOR_WARN, "folder",
            "name a folder on a local file system (tmpfs) in GPUSHIM_SHARE_DIR",
            "%s is on %s, which several machines may see: each shares within itself, and what "
            "killed processes of another left goes after a day",
            path, name);
    else
        doctor_say(doctor, DOCTOR_OK, "folder", "",
                   "%s: user %u's, mode %04o, on %s, %llu MiB and %llu inodes free", path,
                   (unsigned)owner.st_uid, (unsigned)owner.st_mode & 07777, name, bytes / MIB,
                   (unsigned long long)info.f_ffree);
}

struct sockets {
    unsigned folders, all, dead;
};

static void count_sockets(struct doctor *doctor, int directory, struct sockets *sockets)
{
    DIR *names = fdopendir(gs_fd_copy(directory));
    const struct dirent *entry;

    sockets->folders++;
    while (names && (entry = readdir(names))) {
        if (!ask_is_socket(entry->d_name))
            continue;
        sockets->all++;
        sockets->dead += gs_directory_is_dead(directory, &doctor->options, entry->d_name);
    }
    if (names)
        closedir(names);
}

static void say_sockets(struct doctor *doctor, const struct sockets *sockets, const char *where)
{
    if (sockets->dead)
        doctor_say(doctor, DOCTOR_WARN, "folder",
                   "nothing: the next process that shares there removes them (those of another "
                   "container after an hour)",
                   "%u sockets in %s, %u of processes that have ended", sockets->all, where,
                   sockets->dead);
    else
        doctor_say(doctor, DOCTOR_OK, "folder", "", "%u sockets in %s", sockets->all, where);
}

/* Every place that is looked at, in one row; and why one is none where something lies there. */
static void say_places(struct doctor *doctor)
{
    char reason[GS_REASON_SIZE], path[GS_FOLDER_SIZE], all[DOCTOR_TEXT] = "";
    size_t length = 0;

    for (unsigned n = 0; gs_directory_place(&doctor->options, n, path); n++) {
        int directory = gs_directory_open_place(&doctor->options, n, false, reason);
        int error = directory < 0 ? errno : 0;
        bool absent = error == ENOENT || access(path, F_OK) != 0;

        gs_fd_drop(directory);
        length +=
            (size_t)snprintf(all + length, sizeof all - length, "%s%s (%s)", n ? ", " : "", path,
                             !error   ? "there"
                             : absent ? "not there"
                                      : "not to be used");
        if (error && !absent)
            doctor_say(
                doctor, DOCTOR_WARN, "folder",
                "give it to the user who runs the programs, with mode 0700, or name another in "
                "GPUSHIM_SHARE_DIR",
                "cannot be used: %s", reason);
    }
    doctor_say(doctor, DOCTOR_OK, "folder", "", "looked for at %s", all);
}

void doctor_folder(struct doctor *doctor)
{
    char reason[GS_REASON_SIZE], path[GS_FOLDER_SIZE], name[32];
    struct sockets sockets = {0}, others = {0};
    unsigned place = 0;
    int directory;

    if (!doctor->config->share.enable)
        doctor_say(doctor, DOCTOR_WARN, "folder", "set share.enable = on to share with others",
                   "sharing is switched off (share.enable)");
    say_places(doctor);
    snprintf(name, sizeof name, "doctor.%d", (int)getpid());
    if (gs_directory_try(&doctor->options, name, path, reason)) /* as the library's first use does */
        doctor_say(doctor, DOCTOR_OK, "folder", "", "a process here puts its socket up in %s",
                   path[0] ? path : "a folder of its own there");
    else
        doctor_say(
            doctor, DOCTOR_FAIL, "folder",
            "name a folder of this user's, mode 0700, in GPUSHIM_SHARE_DIR, the same for all "
            "that are to share",
            "no socket can be put up: %s", reason);
    while ((directory = gs_directory_next(&doctor->options, &place, reason)) >= 0) {
        gs_directory_path(&doctor->options, directory, path);
        if (path[0])
            say_space(doctor, directory, path);
        count_sockets(doctor, directory, path[0] ? &sockets : &others);
        close(directory);
    }
    if (sockets.folders)
        say_sockets(doctor, &sockets, "it");
    if (others.folders)
        say_sockets(doctor, &others, "folders of others beside it");
}

/* ---- Who answers there ---------------------------------------------------------------------- */

/* What `name` answers; false: nobody listens there. *ret_pid is who does, 0: of another namespace.
 */
static bool ask_at(struct doctor *doctor, int directory, const char *name, bool *ret_well,
                   char ret_why[WHY_SIZE], union gs_wire_message *ret_answer, pid_t *ret_pid)
{
    int error, fd = ask_connect(directory, &doctor->options, name);

    if (fd < 0)
        return false;
    *ret_pid = (pid_t)ask_pid_of_listener(fd);
    error = ask(fd, UINT32_MAX, 0, ret_answer, NULL);
    close(fd);
    *ret_well = !error && ret_answer->head.type == GS_WIRE_REPORT;
    if (!*ret_well)
        ask_silence(ret_why, WHY_SIZE, error, ret_answer);
    return true;
}

static void say_silent(struct doctor *doctor, const char *subject, pid_t pid, const char *name,
                       const char *why)
{
    bool stopped = pid > 0 && gs_alive_is_stopped(pid);
    char who[64];

    if (pid > 0)
        snprintf(who, sizeof who, "process %d", (int)pid);
    else
        snprintf(who, sizeof who, "the process of socket %.40s", name);
    doctor_say(doctor, DOCTOR_WARN, subject,
               stopped ? "let it go on (kill -CONT), or end it"
                       : "run the same version of the library in all processes that share",
               "%s %s%s", who, why, stopped ? ": it is stopped" : "");
}

/* Who is asked, and what came of it. */
struct asking {
    struct doctor *doctor;
    pid_t only; /* 0: all */
    bool seen;  /* it has a socket */
    unsigned answered;
};

static void ask_one(void *arg, int directory, const char *name)
{
    struct asking *asking = arg;
    union gs_wire_message answer;
    char why[WHY_SIZE];
    bool well;
    pid_t pid;

    if (!ask_at(asking->doctor, directory, name, &well, why, &answer, &pid) ||
        (asking->only && pid != asking->only))
        return;
    asking->seen = true;
    asking->answered += well;
    if (!well)
        say_silent(asking->doctor, ask_is_broker(name) ? "broker" : "sockets", pid, name, why);
}

void doctor_sockets(struct doctor *doctor)
{
    struct asking asking = {.doctor = doctor};
    char reason[GS_REASON_SIZE];

    ask_each(&doctor->options, ask_one, &asking, reason);
    doctor_say(doctor, DOCTOR_OK, "sockets", "",
               "%u processes answer in the protocol of this version (%d)", asking.answered,
               GS_WIRE_VERSION);
}

void doctor_look_for_socket(struct doctor *doctor, pid_t pid)
{
    struct asking asking = {.doctor = doctor, .only = pid};
    char reason[GS_REASON_SIZE];

    ask_each(&doctor->options, ask_one, &asking, reason);
    if (asking.answered)
        doctor_say(doctor, DOCTOR_OK, "socket", "", "it answers in the folder");
    else if (!asking.seen)
        doctor_say(
            doctor, DOCTOR_OK, "socket", "",
            "it has none in the folder that is seen here: it has shared nothing, and holds less "
            "than 64 MiB, or uses another folder (GPUSHIM_SHARE_DIR)");
}

/* ---- The broker ----------------------------------------------------------------------------- */

static bool find_broker(struct doctor *doctor, char ret_path[PATH_MAX])
{
    static const char *const names[] = {"gpushim-broker", NULL};
    const char *named = doctor->config->share.broker.text;

    if (strcmp(named, "installed") != 0) {
        snprintf(ret_path, PATH_MAX, "%s", named);
        return access(named, X_OK) == 0;
    }
    if (gs_broker_find(doctor->library, ret_path, PATH_MAX))
        return true;
    doctor_beside(names, ret_path);
    return false;
}

static void say_program(struct doctor *doctor)
{
    const bool wanted = doctor->config->share.strategy == GS_CONFIG_SHARE_STRATEGY_BROKER;
    char path[PATH_MAX], remedy[DOCTOR_TEXT];

    if (!wanted) {
        doctor_say(doctor, DOCTOR_OK, "broker", "",
                   "not asked for (share.strategy = embedded): what a process shares ends with it");
        return;
    }
    if (find_broker(doctor, path)) {
        doctor_say(doctor, DOCTOR_OK, "broker", "", "its program is %s", path);
        return;
    }
    snprintf(remedy, sizeof remedy, "set share.broker (GPUSHIM_SHARE_BROKER) to its path%s%.400s",
             path[0] ? ", such as " : "", path);
    doctor_say(doctor, DOCTOR_FAIL, "broker", remedy,
               "share.strategy is broker, and its program is neither where share.broker says nor "
               "installed as %s, nor with the library, nor beside it",
               GS_BROKER_PROGRAM);
}

void doctor_broker(struct doctor *doctor)
{
    char reason[GS_REASON_SIZE], name[GS_BROKER_NAME_SIZE], why[WHY_SIZE], path[PATH_MAX];
    union gs_wire_message answer;
    unsigned place = 0, found = 0;
    int directory;

    say_program(doctor);
    gs_broker_name(name);
    while ((directory = gs_directory_next(&doctor->options, &place, reason)) >= 0) {
        bool well;
        pid_t pid;

        path_of(directory, path);
        if (ask_at(doctor, directory, name, &well, why, &answer, &pid)) {
            found++;
            if (well) /* one that does not answer is a row of doctor_sockets */
                doctor_say(doctor, DOCTOR_OK, "broker", "",
                           "one answers in %s, process %d, in the protocol of this version (%d)",
                           path, (int)pid, GS_WIRE_VERSION);
        }
        close(directory);
    }
    if (!found && doctor->config->share.strategy == GS_CONFIG_SHARE_STRATEGY_BROKER)
        doctor_say(doctor, DOCTOR_OK, "broker", "",
                   "none runs yet: the first process that shares starts it");
}
