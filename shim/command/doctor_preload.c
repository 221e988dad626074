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

/* Whether it is the library. */
static bool look_at_one(struct doctor *doctor, const char *subject, const char *name,
                        const char *proc)
{
    const bool ours = is_library(name);
    char path[PATH_MAX], remedy[DOCTOR_TEXT] = "take it out", gone[96];
    const char *wrong;
    struct run_file file;
    struct stat info;

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
    if (fstatat(AT_FDCWD, path, &info, 0) != 0) {
        snprintf(gone, sizeof gone, "is not there: %s", strerror(errno));
        wrong = gone;
    }
    if (wrong) /* the dynamic linker says so on standard error and goes on without it */
        doctor_say(doctor, ours ? DOCTOR_FAIL : DOCTOR_WARN, subject, remedy,
                   "%.300s %s; programs run without it", name, wrong);
    else if (ours)
        doctor_say(doctor, DOCTOR_OK, subject, "", "has the library, %s", name);
    return ours;
}

void doctor_look_at_preload(struct doctor *doctor, const char *subject, const char *value,
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
        doctor_look_at_preload(doctor, "LD_PRELOAD", value, "");
    else
        doctor_say(doctor, DOCTOR_OK, "LD_PRELOAD", "", "not set here");
    command_read(ALL_PROGRAMS, text, sizeof text);
    if (text[0])
        doctor_look_at_preload(doctor, "ld.so.preload", text, "");
}

/* ---- The library ---------------------------------------------------------------------------- */

void doctor_library(struct doctor *doctor)
{
    static const char remedy[] =
        "install the command and the library from the same package or build";
    char version[LIBRARY_VERSION];
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
    library_version_of(doctor->library, version);
    if (wrong)
        doctor_say(doctor, DOCTOR_FAIL, "library", remedy, "%s %s", doctor->library, wrong);
    else if (strcmp(version, GS_VERSION) != 0)
        doctor_say(doctor, DOCTOR_WARN, "library", remedy,
                   "%s is of version %s, this program of " GS_VERSION, doctor->library,
                   version[0] ? version : "unknown");
    else
        doctor_say(doctor, DOCTOR_OK, "library", "", "%s, version %s", doctor->library, version);
}
