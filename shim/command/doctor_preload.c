/* gpushim doctor: the library's file, and what LD_PRELOAD makes of it. */
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shim/command/doctor.h"

#define ALL_PROGRAMS "/etc/ld.so.preload"

#ifdef __x86_64__
#define MACHINE EM_X86_64
#else
#define MACHINE EM_AARCH64
#endif

/* ---- Files ---------------------------------------------------------------------------------- */

const char *doctor_look_at_elf(const char *path, struct run_file *ret_file)
{
    run_file_read(path, ret_file);
    if (ret_file->kind == RUN_UNREADABLE)
        return ret_file->error == EACCES ? "may not be read by this user" : "cannot be read";
    if (ret_file->kind != RUN_ELF)
        return "is no ELF file";
    if (ret_file->machine.elf_class != ELFCLASS64)
        return "is of 32 bits";
    return ret_file->machine.machine != MACHINE ? "is made for another architecture" : NULL;
}

/* ---- LD_PRELOAD ----------------------------------------------------------------------------- */

static bool is_library(const char *path)
{
    return strncmp(basename(path), "libgpushim", strlen("libgpushim")) == 0;
}

void doctor_add_copy(struct doctor_copies *copies, const char *path, uint64_t device, uint64_t inode)
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
    /* The dynamic linker says so on standard error and goes on without it. */
    const enum doctor_state bad = is_library(name) ? DOCTOR_FAIL : DOCTOR_WARN;
    char path[PATH_MAX], remedy[DOCTOR_TEXT];
    struct run_file file;
    const char *wrong;
    struct stat info;

    snprintf(path, sizeof path, "%s%s%s", proc,
             !proc[0]         ? ""
             : name[0] == '/' ? "/root"
                              : "/cwd/",
             name);
    if (is_library(name))
        snprintf(remedy, sizeof remedy, "name %.500s instead, or start programs with gpushim run",
                 doctor->library[0] ? doctor->library : "the library's own path");
    else
        snprintf(remedy, sizeof remedy, "take it out");
    if (strchr(name, '$') || !strchr(name, '/')) {
        doctor_say(doctor, DOCTOR_WARN, subject, "name the whole path of the file",
                   "%.200s: which file that is only the dynamic linker knows", name);
    } else if (fstatat(AT_FDCWD, path, &info, 0) != 0) {
        doctor_say(doctor, bad, subject, remedy, "%.300s is not there: %s; programs run without it",
                   name, strerror(errno));
    } else {
        wrong = doctor_look_at_elf(path, &file);
        if (wrong)
            doctor_say(doctor, bad, subject, remedy, "%.300s %s: programs run without it", name,
                       wrong);
        else if (is_library(name))
            doctor_add_copy(copies, name, info.st_dev, info.st_ino);
    }
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
    snprintf(ret_text, DOCTOR_TEXT, "%.400s, version %s, %s", name, version[0] ? version : "unknown", speaks);
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
    wrong = doctor_look_at_elf(doctor->library, &file);
    same = doctor_tell_library(doctor->library, doctor->library, told);
    if (wrong)
        doctor_say(doctor, DOCTOR_FAIL, "library", remedy, "%s %s", doctor->library, wrong);
    else if (!same)
        doctor_say(doctor, DOCTOR_FAIL, "library", remedy, "%.500s; this program speaks %d", told, GS_WIRE_VERSION);
    else
        doctor_say(doctor, DOCTOR_OK, "library", "", "%s", told);
}
