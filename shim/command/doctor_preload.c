/* gpushim doctor: the library's file, and what LD_PRELOAD makes of it. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shim/command/doctor.h"

#define ALL_PROGRAMS "/etc/ld.so.preload"

/* ---- LD_PRELOAD ----------------------------------------------------------------------------- */

static bool is_library(const char *path)
{
    return strncmp(basename(path), "libgpushim", strlen("libgpushim")) == 0;
}

void doctor_add_copy(struct doctor_copies *copies, const char *path, uint64_t device,
                     uint64_t inode)
{
    for (unsigned i = 0; i < copies->count; i++)
        if (copies->of[i].device == device && copies->of[i].inode == inode)
            return; /* the dynamic linker loads it once */
    if (copies->count == DOCTOR_COPIES)
        return;
    snprintf(copies->of[copies->count].path, PATH_MAX, "%s", path);
    copies->of[copies->count].device = device;
    copies->of[copies->count++].inode = inode;
}

static void look_at_one(struct doctor *doctor, const char *subject, const char *name,
                        const char *proc, struct doctor_copies *copies)
{
    const bool ours = is_library(name);
    char path[PATH_MAX], remedy[DOCTOR_TEXT] = "take it out", gone[96];
    const char *wrong;
    struct run_file file;
    struct stat info;

    if (strchr(name, '$') || !strchr(name, '/')) {
        doctor_say(doctor, DOCTOR_WARN, subject, "name the whole path of the file",
                   "%.200s: which file that is only the dynamic linker knows", name);
        return;
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
    if (fstatat(AT_FDCWD, path, &info, 0) != 0) {
        snprintf(gone, sizeof gone, "is not there: %s", strerror(errno));
        wrong = gone;
    }
    if (wrong) /* the dynamic linker says so on standard error and goes on without it */
        doctor_say(doctor, ours ? DOCTOR_FAIL : DOCTOR_WARN, subject, remedy,
                   "%.300s %s; programs run without it", name, wrong);
    else if (ours)
        doctor_add_copy(copies, name, info.st_dev, info.st_ino);
}

void doctor_look_at_preload(struct doctor *doctor, const char *subject, const char *value,
                            const char *proc)
{
    struct doctor_copies *copies = command_need(calloc(1, sizeof *copies));
    char *text = command_need(strdup(value)), *save = NULL;
    unsigned named = 0;

    for (char *name = strtok_r(text, " :\t\n", &save); name;
         name = strtok_r(NULL, " :\t\n", &save)) {
        look_at_one(doctor, subject, name, proc, copies);
        named += is_library(name);
    }
    if (copies->count > 1)
        doctor_say(doctor, DOCTOR_FAIL, subject, "name one of them alone",
                   "it has two copies of the library: %.200s and %.200s", copies->of[0].path,
                   copies->of[1].path);
    else if (copies->count == 1)
        doctor_say(doctor, DOCTOR_OK, subject, "", "has the library, %s", copies->of[0].path);
    else if (!named)
        doctor_say(doctor, DOCTOR_OK, subject, "", "does not have the library");
    free(copies);
    free(text);
}

void doctor_preload(struct doctor *doctor)
{
    const char *value = getenv("LD_PRELOAD");
    char text[4096];

    if (value && value[0])
        doctor_look_at_preload(doctor, "LD_PRELOAD", value, "");
    else
        doctor_say(doctor, DOCTOR_OK, "LD_PRELOAD", "", "not set here");
    command_read(ALL_PROGRAMS, text, sizeof text);
    if (text[0])
        doctor_look_at_preload(doctor, "ld.so.preload", text, "");
}

/* ---- The library ---------------------------------------------------------------------------- */

bool doctor_tell_library(const char *path, const char *name, char ret_text[DOCTOR_TEXT])
{
    char version[LIBRARY_VERSION], speaks[32] = "of an unknown protocol";
    const unsigned protocol = library_protocol_of(path);

    library_version_of(path, version);
    if (protocol)
        snprintf(speaks, sizeof speaks, "protocol %u", protocol);
    snprintf(ret_text, DOCTOR_TEXT, "%.400s, version %s, %s", name,
             version[0] ? version : "unknown", speaks);
    return protocol == GS_WIRE_VERSION;
}

void doctor_library(struct doctor *doctor)
{
    static const char remedy[] =
        "install the command and the library from the same package or build";
    char told[DOCTOR_TEXT];
    struct run_file file;
    const char *wrong;
    bool same;

    if (!doctor->library[0]) {
        doctor_say(
            doctor, DOCTOR_FAIL, "library", remedy,
            "there is no libgpushim.so beside this program, nor where it is installed with it");
        return;
    }
    run_file_read(doctor->library, &file);
    wrong = run_file_wrong(&file);
    same = doctor_tell_library(doctor->library, doctor->library, told);
    if (wrong)
        doctor_say(doctor, DOCTOR_FAIL, "library", remedy, "%s %s", doctor->library, wrong);
    else if (!same)
        doctor_say(doctor, DOCTOR_FAIL, "library", remedy, "%.500s; this program speaks %d", told,
                   GS_WIRE_VERSION);
    else
        doctor_say(doctor, DOCTOR_OK, "library", "", "%s", told);
}
