/* gpushim doctor: the subjects, and how rows are put out (doctor.h). */
#include "core/base/printable.h"
#include "shim/command/doctor.h"

#include <stdarg.h>

#define COLUMNS 100 /* of what is said without --all, */
#define LEAST   60  /* where a terminal has less, */
#define LINES   30  /* and how much that is */

static void (*const subjects[])(struct doctor *) = {
    doctor_driver, doctor_folder, doctor_sockets, doctor_library, doctor_preload, doctor_processes,
};

void doctor_put(struct doctor *doctor, const struct doctor_row *row)
{
    doctor->failed |= row->state == DOCTOR_FAIL;
    if (doctor->to_parent >= 0) {
        while (write(doctor->to_parent, row, sizeof *row) < 0 && errno == EINTR)
            ;
        return;
    }
    *COMMAND_NEXT(doctor->rows, doctor->count, doctor->room) = *row;
}

static const char *const states[] = {"ok", "warn", "FAIL"};

/* One that is ok has a line, which may be cut. The lines that it takes; they are said if `says`. */
static unsigned put_row(const struct doctor_row *row, size_t columns, bool says)
{
    char first[64], found[4 * DOCTOR_TEXT], more[4 * DOCTOR_TEXT];

    snprintf(first, sizeof first, "%-4s  %-17s ", states[row->state], row->subject);
    gs_printable(row->found, strlen(row->found), found, sizeof found);
    gs_printable(row->remedy, strlen(row->remedy), more, sizeof more);
    if (row->state == DOCTOR_OK) {
        show_cut(found, columns - strlen(first), more, sizeof more);
        return show_wrapped(first, more, columns, says);
    }
    return show_wrapped(first, found, columns, says) +
           (more[0] ? show_wrapped("                        -> ", more, columns, says) : 0);
}

/* What fails comes first, then what warns, as far as there is room. */
static void say_rows(const struct doctor *doctor, bool all, bool quiet, bool of_one)
{
    static const char *const sums[][DOCTOR_FAIL + 1] = {
        {"nothing stands in its way", "the library works here, but for what is said above",
         "the library does nothing here, or cannot share, until that is mended"},
        {"nothing stands in its way", "what is said above may keep it from working",
         "the library does nothing in it, or cannot share, until that is mended"}};
    unsigned left = all || quiet ? UINT_MAX : LINES - 2, many[DOCTOR_FAIL + 1] = {0}, untold = 0;
    unsigned columns, lines_there;

    show_terminal(COLUMNS, &columns, &lines_there);
    columns = all || quiet        ? UINT_MAX
              : columns < LEAST   ? LEAST
              : columns < COLUMNS ? columns
                                  : COLUMNS;
    for (int state = DOCTOR_FAIL; state >= (quiet ? DOCTOR_FAIL : DOCTOR_OK); state--)
        for (const struct doctor_row *row = doctor->rows; row < doctor->rows + doctor->count;
             row++) {
            const unsigned lines = (int)row->state == state ? put_row(row, columns, false) : 0;
            const bool fits = lines <= left;

            many[state] += lines > 0;
            untold += !fits;
            if (lines && fits)
                left -= put_row(row, columns, true);
        }
    if (untold)
        command_say("and %u more (gpushim doctor --all)", untold);
    if (!quiet)
        command_say("%u FAIL, %u warn, %u ok: %s", many[DOCTOR_FAIL], many[DOCTOR_WARN],
                    many[DOCTOR_OK],
                    sums[of_one][many[DOCTOR_FAIL]   ? DOCTOR_FAIL
                                 : many[DOCTOR_WARN] ? DOCTOR_WARN
                                                     : DOCTOR_OK]);
}

static void write_rows(const struct doctor *doctor, struct json *json, bool quiet)
{
    for (const struct doctor_row *row = doctor->rows; row < doctor->rows + doctor->count; row++) {
        if (quiet && row->state != DOCTOR_FAIL)
            continue;
        json_open(json, NULL, '{');
        json_text(json, "subject", row->subject);
        json_text(json, "state", states[row->state]);
        json_text(json, "found", row->found);
        json_text(json, "remedy", row->remedy[0] ? row->remedy : NULL);
        json_close(json, '}');
    }
    json_end(json);
}

void doctor_say(struct doctor *doctor, enum doctor_state state, const char *subject,
                const char *remedy, const char *format, ...)
{
    struct doctor_row row = {.state = state};
    va_list arguments;

    snprintf(row.subject, sizeof row.subject, "%s", subject);
    snprintf(row.remedy, sizeof row.remedy, "%s", state == DOCTOR_OK ? "" : remedy);
    va_start(arguments, format);
    vsnprintf(row.found, sizeof row.found, format, arguments);
    va_end(arguments);
    doctor_put(doctor, &row);
}

int command_doctor(const struct call *call)
{
    const bool quiet = call_has(call, "quiet");
    const long pid = call_pid(call, 0);
    struct doctor doctor = {.to_parent = -1, .config = command_config()};
    struct gs_share_options *options;
    const char *wrong = command_share_options(&options);
    struct json *json;

    if (wrong) /* the library does without a folder then */
        command_complain("%s", wrong);
    doctor.options = options;
    library_find(doctor.library);
    if (pid)
        doctor_process(&doctor, pid);
    for (size_t i = 0; !pid && i < sizeof subjects / sizeof *subjects; i++)
        subjects[i](&doctor);
    json = call_json(call, true);
    json ? write_rows(&doctor, json, quiet) : say_rows(&doctor, call_has(call, "all"), quiet, pid);
    free(doctor.rows);
    return !doctor.failed ? COMMAND_WELL : COMMAND_WRONG;
}
