/* Reports of allocations that were refused, in a file (oom_report.h). */
#include "oom_report.h"

#include <stdio.h>
#include <string.h>

#include "core/base/cancel.h"
#include "log.h"

static char file[4096];

void gs_oom_report_to(const char *path)
{
    snprintf(file, sizeof file, "%s", path);
}

/* Opened each time: there is one report a second at most, and programs close what they do not
 * know. */
void gs_oom_report(const char *line)
{
    const char *wrong;
    GS_UNCANCELLED;

    wrong = gs_log_append(file, line, strlen(line));
    if (wrong)
        gs_log(GS_LOG_WARNING, "the report of pool.oom_report cannot be written to %s (%s)", file,
               wrong);
}
