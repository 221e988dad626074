/* gpushim doctor: the subjects, and how rows are put out (doctor.h). */
#include "shim/command/doctor.h"
#include "shim/command/library.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#include "shim/command/doctor_row.h"
#include "shim/command/json.h"

static void (*const subjects[])(struct doctor *) = {
    doctor_driver, doctor_mps,    doctor_folder,  doctor_broker,  doctor_sockets,
    doctor_limits, doctor_kernel, doctor_library, doctor_preload, doctor_processes,
};

void doctor_put(struct doctor *doctor, const struct doctor_row *row)
{
    static const char *const states[] = {"ok", "warn", "FAIL"};

    doctor->failed |= row->state == DOCTOR_FAIL;
    if (doctor->to_parent >= 0) {
        while (write(doctor->to_parent, row, sizeof *row) < 0 && errno == EINTR)
            ;
    } else if (doctor->json) {
        json_open(doctor->json, NULL, '{');
        json_text(doctor->json, "subject", row->subject);
        json_text(doctor->json, "state", states[row->state]);
        json_text(doctor->json, "found", row->found);
        json_text(doctor->json, "remedy", row->remedy[0] ? row->remedy : NULL);
        json_close(doctor->json, '}');
    } else {
        command_say("%-4s  %-17s %s", states[row->state], row->subject, row->found);
        if (row->remedy[0])
            command_say("%27s%s", "-> ", row->remedy);
        fflush(stdout);
    }
}

void doctor_say(struct doctor *doctor, enum doctor_state state, const char *subject,
                const char *remedy, const char *format, ...)
{
    struct doctor_row row = {.state = state};
    va_list arguments;

    snprintf(row.subject, sizeof row.subject, "%s", subject);
    snprintf(row.remedy, sizeof row.remedy, "%s", remedy);
    va_start(arguments, format);
    vsnprintf(row.found, sizeof row.found, format, arguments);
    va_end(arguments);
    doctor_put(doctor, &row);
}

void doctor_beside(const char *const *names, char ret_path[PATH_MAX])
{
    char own[PATH_MAX], path[PATH_MAX + 64];

    library_own_folder(own);
    for (; *names; names++) {
        snprintf(path, sizeof path, "%s/%.60s", own, *names);
        if (access(path, R_OK) == 0 && realpath(path, ret_path))
            return;
    }
    ret_path[0] = 0;
}

int command_doctor(const struct call *call)
{
    struct json json = {.file = stdout};
    struct doctor doctor = {.to_parent = -1};
    long pid = 0;
    const bool as_json = call_has(call, "json");

    if (call->argc && (pid = call_pid(call, call->argv[0])) <= 0)
        return COMMAND_USAGE;
    doctor.config = command_config();
    if (!command_share_options(
            &doctor.options)) /* then the library has none either (shim/start.c) */
        memcpy(doctor.options.dir, "too long", sizeof "too long");
    library_find(doctor.library);
    doctor.json = as_json ? &json : NULL;
    if (as_json)
        json_open(&json, NULL, '[');
    if (pid)
        doctor_process(&doctor, (pid_t)pid);
    for (size_t i = 0; !pid && i < sizeof subjects / sizeof *subjects; i++)
        subjects[i](&doctor);
    if (call_has(call, "cluster"))
        doctor_cluster(&doctor);
    if (as_json)
        json_close(&json, ']');
    if (as_json ? !json_end(&json) : ferror(stdout))
        return COMMAND_WRONG;
    return doctor.failed ? COMMAND_WRONG : COMMAND_WELL;
}
