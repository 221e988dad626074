/*
 * Where the reports of allocations that were refused go besides the log (the option
 * pool.oom_report): each is appended to a file as a line of JSON.
 */
#ifndef GPUSHIM_SHIM_OOM_REPORT_H
#define GPUSHIM_SHIM_OOM_REPORT_H

/* Before gs_oom_report is called. */
void gs_oom_report_to(const char *path);
/* With its newline. */
void gs_oom_report(const char *line);

#endif
