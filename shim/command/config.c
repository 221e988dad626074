/* gpushim config: every option as a program of this user's has it, where that comes from, and what is
 * wrong with any of it. The text is itself a configuration file. */

#include "config/explain.h"
#include "shim/command/command.h"

/* How much of a file's name a comment shows: lines of a file have a longest length. */
#define SHOWN_SIZE  256
#define ORIGIN_SIZE (SHOWN_SIZE + 64)
#define REMARK_SIZE (ORIGIN_SIZE + 192)

/* What was found. */
struct finding {
    struct gs_config config;
    struct gs_config_origins origins;
    const char *check; /* the file that is looked at alone; NULL: all that a program would load */
    size_t complaints;
    struct json *json; /* NULL: text, and complaints go to standard error */
};

/* ---- What is wrong -------------------------------------------------------------------------- */

static void complain(void *arg, const char *line)
{
    struct finding *finding = arg;

    finding->complaints++;
    if (finding->json)
        json_text(finding->json, NULL, line);
    else
        command_complain("%s", line);
}

/* The library does not look at these; that is what is wrong with them. */
static void complain_of_misspelt(struct finding *finding)
{
    char right[GS_OPTION_NAME_SIZE], name[128], line[GS_CONFIG_LINE_SIZE];

    for (char **entry = environ; *entry; entry++) {
        if (!gs_config_misspelt(*entry, right))
            continue;
        snprintf(name, sizeof name, "%s", *entry);
        name[strcspn(name, "=")] = 0;
        snprintf(
            line, sizeof line,
            "environment: %s is ignored: the library's variables begin with GPUSHIM_; did you mean %s?",
            name, right);
        complain(finding, line);
    }
}

/* ---- Telling, as text or JSON ---------------------------------------------------------------- */

/* What stands behind the value, as a comment of the line; "" where there is nothing to say. */
static void remark_on(const struct finding *finding, const struct gs_config_origin *origin,
                      const struct gs_config_row *row, char ret[REMARK_SIZE])
{
    const char *standard = *row->standard ? row->standard : "nothing";
    char from[ORIGIN_SIZE] = "";

    if (origin->kind == GS_CONFIG_ENVIRONMENT)
        snprintf(from, sizeof from, "environment %s", row->variable);
    else if (origin->kind == GS_CONFIG_FILE)
        snprintf(from, sizeof from, "%.*s:%u", SHOWN_SIZE,
                 finding->origins.files[origin->file].path, origin->line);
    if (!row->fits_file)
        snprintf(ret, REMARK_SIZE,
                 "a file cannot say this, only %s: a # behind a blank begins a comment",
                 row->variable);
    else if (origin->refused)
        snprintf(ret, REMARK_SIZE, "default, for what %s says is not allowed", from);
    else if (!row->is_default)
        snprintf(ret, REMARK_SIZE, "changed by %s, default: %s", from, standard);
    else
        snprintf(ret, REMARK_SIZE, "%s", from);
}

static void write_origin(struct json *json, const struct finding *finding,
                         const struct gs_config_origin *origin, const char *variable)
{
    static const char *const kinds[] = {"default", "environment", "file"};
    bool in_file = origin->kind == GS_CONFIG_FILE;

    json_open(json, "origin", '{');
    json_text(json, "kind", kinds[origin->refused ? GS_CONFIG_DEFAULT : origin->kind]);
    json_bool(json, "refused", origin->refused); /* what stands at this place, which follows */
    json_text(json, "file", in_file ? finding->origins.files[origin->file].path : NULL);
    json_known(json, "line", in_file ? origin->line : 0);
    json_text(json, "variable", origin->kind == GS_CONFIG_ENVIRONMENT ? variable : NULL);
    json_close(json, '}');
}

static void tell_options(const struct finding *finding)
{
    static struct gs_config_row row;
    struct json *json = finding->json;
    const char *section = "";

    json_open(json, "options", '[');
    for (size_t i = 0; gs_config_row(&finding->config, i, &row); i++) {
        char line[GS_OPTION_NAME_SIZE + GS_VALUE_SIZE], remark[REMARK_SIZE];

        json_open(json, NULL, '{');
        json_text(json, "section", row.section);
        json_text(json, "key", row.key);
        json_text(json, "name", row.name);
        json_text(json, "variable", row.variable);
        json_text(json, "type", row.type);
        json_text(json, "allowed", row.allowed);
        json_text(json, "value", row.value);
        json_text(json, "default", row.standard);
        json_bool(json, "is_default", row.is_default);
        json_bool(json, "can_be_set", row.live); /* while a program runs */
        write_origin(json, finding, &finding->origins.options[i], row.variable);
        json_text(json, "help", row.help);
        json_close(json, '}');
        if (json)
            continue;
        if (strcmp(section, row.section) != 0)
            putchar('\n'), command_say("[%s]", row.section);
        section = row.section;
        snprintf(line, sizeof line, "%s%s =%s%s", row.fits_file ? "" : "#", row.key,
                 *row.value ? " " : "", row.value);
        remark_on(finding, &finding->origins.options[i], &row, remark);
        if (*remark)
            command_say("%-32s  # %s", line, remark);
        else
            command_say("%s", line);
    }
    json_close(json, ']');
}

/* Which files were looked for, and why not others. */
static void tell_files(const struct finding *finding)
{
    const struct gs_config_origins *origins = &finding->origins;
    const char *named = getenv("GPUSHIM_CONFIG");
    struct json *json = finding->json;

    if (!json)
        printf(
            "# The options of libgpushim as this user's programs have them in this environment.\n%s\n",
            !named   ? "# Files, the strongest first:"
            : *named ? "# GPUSHIM_CONFIG names the file that is read in place of all others:"
                     : "# No file is read: GPUSHIM_CONFIG is there and empty.");
    json_open(json, "files", '[');
    for (const struct gs_config_file *file = origins->files;
         file < origins->files + origins->file_count; file++) {
        json_open(json, NULL, '{');
        json_text(json, "path", file->path);
        json_bool(json, "read", file->read);
        json_text(json, "why_not", file->read ? NULL : file->why_not);
        json_close(json, '}');
        if (!json)
            command_say("#   %s: %s", file->path, file->read ? "read" : file->why_not);
    }
    json_close(json, ']');
}

static void print_check(const struct finding *finding)
{
    size_t options = 0;
    char count[24] = "no";

    for (size_t i = 0; i < GS_CONFIG_OPTIONS_MAX; i++)
        options += finding->origins.options[i].kind == GS_CONFIG_FILE &&
                   !finding->origins.options[i].refused;
    if (finding->complaints)
        snprintf(count, sizeof count, "%zu", finding->complaints);
    command_say("%s: %zu option%s, %s mistake%s", finding->check, options, options == 1 ? "" : "s",
                count, finding->complaints > 1 ? "s" : "");
}

int command_config_list(const struct call *call)
{
    static struct finding finding;
    const struct gs_config_sources sources = {.environment = environ,
                                              .system_files = gs_config_system_files};

    finding.check = call_value(call, "check");
    finding.json = call_json(call, false);
    json_open(finding.json, "complaints", '[');
    if (finding.check)
        gs_config_check(&finding.config, finding.check, &finding.origins, complain, &finding);
    else
        gs_config_explain(&finding.config, &sources, &finding.origins, complain, &finding),
            complain_of_misspelt(&finding);
    json_close(finding.json, ']');
    if (finding.json) {
        tell_options(&finding);
        tell_files(&finding);
        json_end(finding.json);
    } else if (finding.check) {
        print_check(&finding);
    } else {
        tell_files(&finding);
        tell_options(&finding);
    }
    return !finding.complaints ? COMMAND_WELL : COMMAND_WRONG;
}
