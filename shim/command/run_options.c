/*
 * The options that `gpushim run` is given: each becomes its variable in the environment, after
 * config's own table and parser have taken it. So a slip of the pen is a mistake here, where
 * somebody sees it, and not a line in the program's log.
 */
#include <stdlib.h>
#include <string.h>

#include "config/internal.h"
#include "shim/command/command.h"
#include "shim/command/run.h"

static uint64_t were_set; /* by index in gs_options */

static void complain_of_name(const char *before, struct gs_text text)
{
    const struct gs_option *meant = gs_option_meant(text, NULL);
    char quoted[GS_QUOTE_SIZE], name[GS_OPTION_NAME_SIZE];

    gs_quote(text, quoted);
    if (!meant) {
        command_complain("%sno option has the name %s; 'gpushim config' lists them", before, quoted);
        return;
    }
    gs_option_name(meant, name);
    command_complain("%sno option has the name %s; did you mean %s?", before, quoted, name);
}

/* Of the checked value. */
static bool set(const struct gs_option *option, const char *value)
{
    char variable[GS_OPTION_NAME_SIZE];

    gs_option_variable(option, variable);
    if (setenv(variable, value, 1) != 0)
        return command_complain("%s: %m", variable), false;
    were_set |= UINT64_C(1) << (option - gs_options);
    return true;
}

static bool check(const char *before, const struct gs_option *option, const char *value,
                  struct gs_config *ret)
{
    const struct gs_text text = gs_text_of(value);
    const char *wrong = gs_value_parse(ret, option, text);
    char name[GS_OPTION_NAME_SIZE], allowed[GS_OPTION_ALLOWED_SIZE], quoted[GS_QUOTE_SIZE];

    if (!wrong)
        return true;
    gs_option_name(option, name);
    gs_option_allowed(option, allowed);
    command_complain("%s%s = %s %s; allowed: %s", before, name, gs_quote(text, quoted), wrong,
                     allowed);
    return false;
}

/* The option of that name ("pool.decay", "log", or "general.log", as files know it), or one that had it before, which is
 * said; what it was called then is in *ret_old. */
static const struct gs_option *find(const char *before, struct gs_text name, const struct gs_old_name **ret_old)
{
    const struct gs_option *option = gs_option_find(name, gs_option_name, ret_old);

    if (!option)
        option = gs_option_find(name, gs_option_whole_name, ret_old);
    if (!option)
        complain_of_name(before, name);
    else if (*ret_old)
        command_complain("%s%.*s is called %s now, and is taken for that", before, (int)name.size, name.at, (*ret_old)->now);
    return option;
}

const struct gs_option *run_option_read(const char *before, const char *text, struct gs_config *ret, const char **ret_value)
{
    static char changed[GS_QUOTE_SIZE];
    const char *equals = strchr(text, '=');
    const struct gs_text name = gs_text_trim((struct gs_text){text, equals ? (size_t)(equals - text) : strlen(text)});
    const struct gs_old_name *old;
    const struct gs_option *option = find(before, name, &old);
    char quoted[GS_QUOTE_SIZE];

    if (option && !equals)
        command_complain("%s%s has no value; write %s=VALUE", before, gs_quote(name, quoted), text);
    if (!option || !equals)
        return NULL;
    *ret_value = equals + 1;
    if (old && *old->unit) /* else it stays as it is, with an end */
        *ret_value = gs_old_value(old, gs_text_of(equals + 1), changed).at;
    return check(before, option, *ret_value, ret) ? option : NULL;
}

bool run_option_set(const char *text)
{
    static struct gs_config config;
    const char *value;
    const struct gs_option *option = run_option_read("-o: ", text, &config, &value);

    return option && set(option, value);
}

void run_option_print(void)
{
    for (size_t i = 0; i < gs_option_count; i++) {
        char variable[GS_OPTION_NAME_SIZE];

        if (!(were_set >> i & 1))
            continue;
        gs_option_variable(&gs_options[i], variable);
        command_say("%s=%s", variable, getenv(variable));
    }
}
