/*
 * gpushim set: changes an option of a process that runs. The value is read here by config's own
 * parser, and goes as a number to the process's socket in the folder (core/share/order.c), which
 * says what it was. What can be changed is what config/options.h calls LIVE.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "config/internal.h"
#include "shim/command/command.h"
#include "shim/command/order.h"
#include "shim/command/run.h"

struct setting {
    struct order order; /* first: what tells it is given this */
    const struct gs_option *option;
    const struct gs_config *config; /* with the value */
    struct who who;
    char silent[128]; /* why it is not set; "": it is */
    uint64_t before, after;
};

/* ---- A value as a number, and back ----------------------------------------------------------- */

static uint64_t number_of(const struct gs_option *option, const struct gs_config *config)
{
    const void *field = (const char *)config + option->offset;
    const struct gs_config_amount *amount = field;
    unsigned word = 0;
    uint64_t number = 0;

    if (option->type == GS_OPTION_ENUM)
        memcpy(&word, field, sizeof word);
    else if (option->type == GS_OPTION_BOOL)
        word = *(const bool *)field;
    else if (option->type == GS_OPTION_AMOUNT)
        number = amount->percent ? GS_CONFIG_PERCENT + amount->percent : amount->bytes;
    else
        memcpy(&number, field, sizeof number);
    return word + number;
}

/* Of what a process says, which may be anything. */
static void text_of(const struct gs_option *option, uint64_t number, char ret[GS_VALUE_SIZE])
{
    static struct gs_config config;
    void *field = (char *)&config + option->offset;
    unsigned word = 0, words = 0;

    while (option->type == GS_OPTION_ENUM && option->words[words])
        words++;
    if (option->type == GS_OPTION_BOOL) {
        *(bool *)field = number != 0;
    } else if (option->type == GS_OPTION_ENUM) {
        word = number < words ? (unsigned)number : 0;
        memcpy(field, &word, sizeof word);
    } else if (option->type == GS_OPTION_AMOUNT) {
        const bool by_percent = number >= GS_CONFIG_PERCENT && number <= GS_CONFIG_PERCENT + 100;

        *(struct gs_config_amount *)field = (struct gs_config_amount){.bytes = by_percent ? 0 : number,
                                                                      .percent = by_percent ? number - GS_CONFIG_PERCENT : 0};
    } else {
        memcpy(field, &number, sizeof number);
    }
    gs_value_format(&config, option, ret);
}

/* ---- The process ------------------------------------------------------------------------------
 */

static void set_it(struct setting *setting, int fd)
{
    union gs_wire_message message, answer = {.head = {0}};
    char name[GS_OPTION_NAME_SIZE];
    int error;

    gs_option_name(setting->option, name);
    gs_wire_start(&message, GS_WIRE_SET, 1);
    message.set.value = number_of(setting->option, setting->config);
    memcpy(message.set.name, name, strnlen(name, sizeof message.set.name - 1));
    error = ask_for(fd, &message, GS_WIRE_SET_TO, &answer);
    if (error || answer.head.type != GS_WIRE_SET_TO)
        ask_order_silence(setting->silent, sizeof setting->silent, error, &answer);
    else if (answer.set_to.outcome == GS_SET_UNKNOWN)
        snprintf(setting->silent, sizeof setting->silent, "does not change %s while it runs", name);
    else if (answer.set_to.outcome != GS_SET_DONE)
        snprintf(setting->silent, sizeof setting->silent, "does not take this value for %s", name);
    setting->before = answer.set_to.before;
    setting->after = answer.set_to.after;
}

static void tell_it(struct order *order, const struct who *who, int fd, const char *silent)
{
    struct setting *setting = (struct setting *)order;

    setting->who = *who;
    snprintf(setting->silent, sizeof setting->silent, "%s", silent);
    if (!silent[0])
        set_it(setting, fd);
}

/* ---- The command ------------------------------------------------------------------------------
 */

static void write_it(const struct setting *setting, const char *name, const char *before,
                     const char *after)
{
    struct json json = {.file = stdout};
    bool done = !setting->silent[0];

    json_begin(&json, false);
    who_write(&json, &setting->who);
    json_text(&json, "option", name);
    json_text(&json, "before", done ? before : NULL);
    json_text(&json, "after", done ? after : NULL);
    json_text(&json, "silent", done ? NULL : setting->silent);
    json_end(&json);
}

static int print(const struct setting *setting, bool as_json)
{
    char name[GS_OPTION_NAME_SIZE], before[GS_VALUE_SIZE], after[GS_VALUE_SIZE];

    if (!setting->order.found)
        return COMMAND_WRONG;
    gs_option_name(setting->option, name);
    text_of(setting->option, setting->before, before);
    text_of(setting->option, setting->after, after);
    if (as_json)
        write_it(setting, name, before, after);
    else if (!setting->silent[0])
        command_say("pid %ld (%s): %s %s -> %s", setting->who.pid, setting->who.name, name, before,
               after);
    if (setting->silent[0] && !as_json)
        command_complain("process %ld %s", setting->who.pid, setting->silent);
    return setting->silent[0] ? COMMAND_WRONG : COMMAND_WELL;
}

void set_list(void)
{
    for (size_t i = 0; i < gs_option_count; i++) {
        char name[GS_OPTION_NAME_SIZE], allowed[GS_OPTION_ALLOWED_SIZE];

        if (!gs_options[i].live)
            continue;
        gs_option_name(&gs_options[i], name);
        gs_option_allowed(&gs_options[i], allowed);
        printf("  %-27s %s\n", name, allowed);
    }
}

static bool can_change(const struct gs_option *option)
{
    char name[GS_OPTION_NAME_SIZE];

    if (option->live)
        return true;
    gs_option_name(option, name);
    command_complain("%s cannot change while a program runs (gpushim help set: what can)", name);
    return false;
}

int command_set(const struct call *call)
{
    static struct gs_config config;
    struct gs_share_options options;
    struct setting setting = {.order = {.options = &options, .tell = tell_it}, .config = &config};
    const char *value;

    if ((setting.order.only = call_pid(call, call->argv[0])) <= 0)
        return COMMAND_USAGE;
    setting.option = run_option_read("", call->argv[1], &config, &value);
    if (!setting.option || !can_change(setting.option) || !command_share_options(&options))
        return COMMAND_WRONG;
    order_each(&setting.order);
    return print(&setting, call_has(call, "json"));
}
