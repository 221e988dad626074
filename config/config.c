/* A load: the environment, then the files, each deciding the options that nothing before it has
 * named, and the complaints gathered on the way. The environment comes first because it says which
 * files count and because the strongest source has the word. */
#include "config/internal.h"

#include "core/base/printable.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *const gs_config_system_files[] = {GS_CONFIG_SYSTEM_FILES, NULL};

/* How much of a file's name a complaint shows. */
#define PLACE_SIZE 160

void gs_loader_init(struct gs_loader *ret, struct gs_config *config)
{
    ret->config = config;
    ret->decided = ret->seen = 0;
    ret->left_out = 0;
    ret->used = 0;
    ret->origins = NULL;
    ret->at_once = NULL;
    memset(config, 0, sizeof *config);
    for (size_t i = 0; i < gs_option_count; i++)
        gs_value_parse(config, &gs_options[i], gs_text_of(gs_options[i].standard));
}

/* What the next source says counts only for options this one did not name. */
static void next_source(struct gs_loader *loader)
{
    loader->decided |= loader->seen;
    loader->seen = 0;
}

void gs_complain(struct gs_loader *loader, struct gs_place place, const char *format, ...)
{
    char line[GS_CONFIG_LINE_SIZE];
    char file[PLACE_SIZE];
    int used = 0;
    int error = errno; /* for %m */
    if (place.file)
        gs_printable(place.file, strlen(place.file), file, sizeof file);
    if (!place.file)
        used = snprintf(line, sizeof line, "environment: ");
    else if (place.line == 0)
        used = snprintf(line, sizeof line, "%s: ", file);
    else
        used = snprintf(line, sizeof line, "%s:%u: ", file, place.line);
    errno = error;
    va_list list;
    va_start(list, format);
    vsnprintf(line + used, sizeof line - (size_t)used, format, list);
    va_end(list);

    if (loader->at_once) {
        loader->at_once(loader->arg, line);
        return;
    }
    size_t size = strlen(line) + 1;
    if (size > sizeof loader->lines - loader->used) {
        loader->left_out++;
        return;
    }
    memcpy(loader->lines + loader->used, line, size);
    loader->used += size;
}

static void deliver(const struct gs_loader *loader, gs_config_complain_fn *complain, void *arg)
{
    if (!complain)
        return;
    for (size_t at = 0; at < loader->used; at += strlen(loader->lines + at) + 1)
        complain(arg, loader->lines + at);
    if (loader->left_out) {
        char line[GS_CONFIG_LINE_SIZE];
        snprintf(line, sizeof line,
                 "configuration: %u more mistakes are not listed; correct these and run again",
                 loader->left_out);
        complain(arg, line);
    }
}

static void origin_note(struct gs_config_origins *origins, const struct gs_option *option,
                        struct gs_place place, bool refused)
{
    origins->options[option - gs_options] = (struct gs_config_origin){
        .kind = place.file ? GS_CONFIG_FILE : GS_CONFIG_ENVIRONMENT,
        .refused = refused,
        .file = place.file ? (unsigned)origins->file_count - 1 : 0,
        .line = place.line,
    };
}

void gs_loader_set(struct gs_loader *loader, const struct gs_option *option, struct gs_place place,
                   const char *name, struct gs_text value)
{
    uint64_t bit = UINT64_C(1) << (option - gs_options);
    char quoted[GS_QUOTE_SIZE];
    if (loader->seen & bit) {
        gs_complain(loader, place, "%s = %s comes a second time; the first one counts", name,
                    gs_quote(value, quoted));
        return;
    }
    loader->seen |= bit;
    if (loader->decided & bit)
        return;
    const char *wrong = gs_value_parse(loader->config, option, value);
    if (loader->origins)
        origin_note(loader->origins, option, place, wrong != NULL);
    if (wrong) {
        char allowed[GS_OPTION_ALLOWED_SIZE];
        gs_option_allowed(option, allowed);
        gs_complain(loader, place, "%s = %s %s; allowed: %s; the default \"%s\" is used", name,
                    gs_quote(value, quoted), wrong, allowed, option->standard);
    }
}

static void variable_complain(struct gs_loader *loader, struct gs_text name, struct gs_text value)
{
    char quoted_name[GS_QUOTE_SIZE], quoted[GS_QUOTE_SIZE], variable[GS_OPTION_NAME_SIZE];
    const size_t prefix = strlen("GPUSHIM_");
    const struct gs_option *meant =
        gs_option_meant((struct gs_text){name.at + prefix, name.size - prefix}, NULL);
    if (meant)
        gs_option_variable(meant, variable);
    gs_complain(loader, (struct gs_place){0}, "%s = %s is ignored: no option has this name%s%s%s",
                gs_quote(name, quoted_name), gs_quote(value, quoted),
                meant ? "; did you mean " : "", meant ? variable : "", meant ? "?" : "");
}

/* One GPUSHIM_...=<value>. */
static void variable_load(struct gs_loader *loader, struct gs_text name, struct gs_text value)
{
    char variable[GS_OPTION_NAME_SIZE], changed[GS_QUOTE_SIZE];
    const struct gs_old_name *old;
    const struct gs_option *option = gs_option_find(name, gs_option_variable, &old);
    if (option) {
        gs_option_variable(option, variable);
        if (old)
            gs_complain(loader, (struct gs_place){0},
                        "%.*s is called %s now, and is taken for that", (int)name.size, name.at,
                        variable);
        gs_loader_set(loader, option, (struct gs_place){0}, variable,
                      old ? gs_old_value(old, value, changed) : value);
        return;
    }
    for (const char *const *reserved = gs_reserved_names; *reserved; reserved++) {
        if (gs_text_equal((struct gs_text){name.at + strlen("GPUSHIM_"),
                                           name.size - strlen("GPUSHIM_")},
                          *reserved))
            return;
    }
    variable_complain(loader, name, value);
}

/* What the environment says about where the files are. NULL: not set. */
struct places {
    const char *named; /* GPUSHIM_CONFIG */
    const char *config_home;
    const char *home;
};

/* The value if `entry` is `name` (its '=' included) and a value. */
static const char *value_of(const char *entry, const char *name)
{
    size_t length = strlen(name);
    return strncmp(entry, name, length) == 0 ? entry + length : NULL;
}

static void environment_load(struct gs_loader *loader, char *const *environment, struct places *ret)
{
    for (; *environment; environment++) {
        const char *entry = *environment;
        const char *rest = value_of(entry, "GPUSHIM_");
        const char *value = rest ? strchr(rest, '=') : NULL;
        if (value) {
            if (!ret->named)
                ret->named = value_of(rest, "CONFIG=");
            variable_load(loader, (struct gs_text){entry, (size_t)(value - entry)},
                          gs_text_of(value + 1));
        }
        if (!ret->home)
            ret->home = value_of(entry, "HOME=");
        if (!ret->config_home)
            ret->config_home = value_of(entry, "XDG_CONFIG_HOME=");
    }
    next_source(loader);
}

/* False: this user has no place for one. A relative folder is none, as the XDG rules have it. */
static bool user_file(const struct places *places, char ret[GS_CONFIG_NAME_SIZE])
{
    int length = -1;
    if (places->config_home && places->config_home[0] == '/')
        length = snprintf(ret, GS_CONFIG_NAME_SIZE, "%s/gpushim.conf", places->config_home);
    else if (places->home && places->home[0] == '/')
        length = snprintf(ret, GS_CONFIG_NAME_SIZE, "%s/.config/gpushim.conf", places->home);
    return length >= 0 && length < GS_CONFIG_NAME_SIZE;
}

static void files_load(struct gs_loader *loader, const struct places *places,
                       const char *const *system_files)
{
    char path[GS_CONFIG_NAME_SIZE];
    if (places->named) {
        if (*places->named)
            gs_file_load(loader, places->named, "; correct GPUSHIM_CONFIG or unset it");
        return;
    }
    if (user_file(places, path)) {
        gs_file_load(loader, path, NULL);
        next_source(loader);
    }
    for (; system_files && *system_files; system_files++) {
        gs_file_load(loader, *system_files, NULL);
        next_source(loader);
    }
}

void gs_loader_load(struct gs_loader *loader, const struct gs_config_sources *sources)
{
    struct places places = {0};
    if (sources->environment && !sources->secure)
        environment_load(loader, sources->environment, &places);
    files_load(loader, &places, sources->system_files);
}

void gs_config_load(struct gs_config *ret, const struct gs_config_sources *sources,
                    gs_config_complain_fn *complain, void *arg)
{
    struct gs_loader loader;
    int saved = errno;
    gs_loader_init(&loader, ret);
    gs_loader_load(&loader, sources);
    deliver(&loader, complain, arg);
    errno = saved;
}

void gs_config_parse(struct gs_config *ret, const char *name, const char *text, size_t size,
                     gs_config_complain_fn *complain, void *arg)
{
    struct gs_loader loader;
    int saved = errno;
    gs_loader_init(&loader, ret);
    gs_file_parse(&loader, name, (struct gs_text){text, size});
    deliver(&loader, complain, arg);
    errno = saved;
}
