/* A configuration in words (explain.h). */
#include "config/internal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static void explained_init(struct gs_loader *ret, struct gs_config *config,
                           struct gs_config_origins *origins, gs_config_complain_fn *complain,
                           void *arg)
{
    gs_loader_init(ret, config);
    memset(origins, 0, sizeof *origins);
    ret->origins = origins;
    ret->at_once = complain;
    ret->arg = arg;
}

void gs_config_explain(struct gs_config *ret, const struct gs_config_sources *sources,
                       struct gs_config_origins *ret_origins, gs_config_complain_fn *complain,
                       void *arg)
{
    struct gs_loader loader;
    int saved = errno;
    explained_init(&loader, ret, ret_origins, complain, arg);
    gs_loader_load(&loader, sources);
    errno = saved;
}

void gs_config_check(struct gs_config *ret, const char *path, struct gs_config_origins *ret_origins,
                     gs_config_complain_fn *complain, void *arg)
{
    struct gs_loader loader;
    int saved = errno;
    explained_init(&loader, ret, ret_origins, complain, arg);
    gs_file_load(&loader, path, "");
    errno = saved;
}

static const char *const type_names[] = {
    [GS_OPTION_BOOL] = "bool",     [GS_OPTION_ENUM] = "enum", [GS_OPTION_BYTES] = "bytes",
    [GS_OPTION_AMOUNT] = "amount", [GS_OPTION_TIME] = "time", [GS_OPTION_NUMBER] = "number",
    [GS_OPTION_PATH] = "path",     [GS_OPTION_IDS] = "ids",
};

bool gs_config_row(const struct gs_config *config, size_t index, struct gs_config_row *ret)
{
    if (index >= gs_option_count)
        return false;
    const struct gs_option *option = &gs_options[index];
    ret->section = option->section;
    ret->key = option->key;
    ret->standard = option->standard;
    ret->help = option->help;
    ret->type = type_names[option->type];
    gs_option_name(option, ret->name);
    gs_option_variable(option, ret->variable);
    gs_option_allowed(option, ret->allowed);
    ret->is_default = gs_value_format(config, option, ret->value);
    ret->live = option->live;
    ret->fits_file =
        !strstr(ret->value, " #"); /* there, that begins a comment; no value has tabs */
    return true;
}

/* A name as it is compared: capital letters, no underscores. 0: it is too long for an option's. */
static size_t squeeze(struct gs_text name, char ret[GS_OPTION_NAME_SIZE])
{
    size_t used = 0;
    for (size_t i = 0; i < name.size; i++) {
        char c = name.at[i];
        if (c == '_')
            continue;
        if (used + 1 >= GS_OPTION_NAME_SIZE)
            return 0;
        ret[used++] = c >= 'a' && c <= 'z' ? (char)(c - 'a' + 'A') : c;
    }
    ret[used] = '\0';
    return used;
}

/* How far two names are from each other whatever their underscores are; SIZE_MAX: too far. */
static size_t squeezed_distance(struct gs_text squeezed, const char *name)
{
    char other[GS_OPTION_NAME_SIZE];
    squeeze(gs_text_of(name), other);
    return gs_text_distance(squeezed, other);
}

/* The nearest of the names that may follow GPUSHIM_, which goes to ret; how far it is. */
static size_t name_nearest(struct gs_text rest, char ret[GS_OPTION_NAME_SIZE])
{
    size_t best = SIZE_MAX;
    for (size_t i = 0; i < gs_option_count; i++) {
        char variable[GS_OPTION_NAME_SIZE];
        gs_option_variable(&gs_options[i], variable);
        size_t distance = squeezed_distance(rest, variable + strlen("GPUSHIM_"));
        size_t of_key = squeezed_distance(rest, gs_options[i].key);
        if (of_key == 0 && distance > 1) /* its section was left out */
            distance = 1;
        if (distance < best) {
            best = distance;
            memcpy(ret, variable, sizeof variable);
        }
    }
    for (const char *const *name = gs_reserved_names; *name; name++) {
        size_t distance = squeezed_distance(rest, *name);
        if (distance < best) {
            best = distance;
            snprintf(ret, GS_OPTION_NAME_SIZE, "GPUSHIM_%s", *name);
        }
    }
    return best;
}

bool gs_config_misspelt(const char *entry, char ret[GS_OPTION_NAME_SIZE])
{
    static const char prefix[] = "GPUSHIM";
    const size_t length = strlen(prefix);
    char squeezed[GS_OPTION_NAME_SIZE], nearest[GS_OPTION_NAME_SIZE];
    const char *equals = strchr(entry, '=');
    struct gs_text name = {entry, equals ? (size_t)(equals - entry) : strlen(entry)};
    size_t best = SIZE_MAX;
    if (strncmp(entry, "GPUSHIM_", strlen("GPUSHIM_")) == 0)
        return false;
    struct gs_text text = {squeezed, squeeze(name, squeezed)};
    if (text.size > 3 && memcmp(squeezed, "LIB", 3) == 0)
        text = (struct gs_text){text.at + 3, text.size - 3};
    /* The prefix may have a letter too few, too many or of another kind. */
    for (size_t size = length - 1; size <= length + 1 && size < text.size; size++) {
        size_t slips = gs_text_distance((struct gs_text){text.at, size}, prefix);
        if (slips > 1)
            continue;
        size_t distance = name_nearest((struct gs_text){text.at + size, text.size - size}, nearest);
        if (distance != SIZE_MAX && distance + slips < best) {
            best = distance + slips;
            memcpy(ret, nearest, sizeof nearest);
        }
    }
    return best != SIZE_MAX;
}
