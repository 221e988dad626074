/* gpushim report: what a trace says, as text and JSON (report.c), as a page (report_page.c), and as a
 * snapshot of PyTorch's (report_pickle.c). */
#ifndef GS_SHIM_COMMAND_REPORT_H
#define GS_SHIM_COMMAND_REPORT_H

#include "shim/command/json.h"
#include "shim/command/trace_read.h"

#define REPORT_TOP 10 /* of each list */

struct report {
    struct trace trace;
    struct trace_memory memory;
    struct trace_modules *modules;
    const struct trace_event *slowest[REPORT_TOP];
    size_t slowest_count;
};

/* False, and said. */
bool report_make(const char *path, struct report *ret_report);
void report_free(struct report *report);

/* Who allocated it, frame n, innermost first; where no stack was recorded, n 0 is its size. False:
 * there is no such frame. */
bool report_frame(const struct report *report, const struct trace_event *event, unsigned n,
                  char ret_text[TRACE_FRAME_SIZE]);

/* All of them, as a list; `key` as json_open has it. */
void report_write_stack(struct json *json, const char *key, const struct report *report,
                        const struct trace_event *event);

/* All there is to say, as members of an object, or as text. */
void report_tell(struct json *json, const struct report *report);

/* What it differs in from an earlier one, as text, or as an object of JSON. */
void report_against(const struct report *report, const struct report *before, struct json *json);

/* For output_write: false, and errno, where it fails. `arg` is the struct report. Each writes
 * what nothing else begins with. */
#define REPORT_PAGE_HEAD   "<!DOCTYPE html>\n<!-- Made by gpushim report -->\n"
#define REPORT_PICKLE_HEAD "\x80\x02}(X\x07\0\0\0made_byq\0X\x0e\0\0\0gpushim report"
bool report_page(FILE *file, const void *arg);
bool report_memory_viz(FILE *file, const void *arg);

#endif
