/* gpushim set: changes an option of a process that runs (LIVE in config/options.h). The value is read
 * here by config's own parser, and goes there as a number (core/share/order.c). */

#include "config/internal.h"
#include "shim/command/order.h"
#include "shim/command/run.h"

struct setting {
    struct order order; /* first: what tells it is given this */
    const struct gs_option *option;
    const struct gs_config *config; /* with the value */
};

static uint64_t number_of(const struct gs_option *option, const struct gs_config *config)
{
    const void *field = (const char *)config + option->offset;
    const struct gs_config_amount *amount = field;
    unsigned word = 0;
    uint64_t number = 0;

    if (option->type == GS_OPTION_ENUM)
        memcpy(&word, field, sizeof word);
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
    if (option->type == GS_OPTION_ENUM) {
        word = number < words ? (unsigned)number : 0;
        memcpy(field, &word, sizeof word);
    } else if (option->type == GS_OPTION_AMOUNT) {
        const bool by_percent = number >= GS_CONFIG_PERCENT && number <= GS_CONFIG_PERCENT + 100;

        *(struct gs_config_amount *)field =
            (struct gs_config_amount){.bytes = by_percent ? 0 : number,
                                      .percent = by_percent ? number - GS_CONFIG_PERCENT : 0};
    } else {
        memcpy(field, &number, sizeof number);
    }
    gs_value_format(&config, option, ret);
}

static void tell_it(struct order *order, const struct who *who, int fd, const char *silent)
{
    const struct setting *setting = (const struct setting *)order;
    union gs_wire_message message;
    struct gs_wire_done done = {.more = 0};
    char reason[128] = "", name[GS_OPTION_NAME_SIZE], before[GS_VALUE_SIZE], after[GS_VALUE_SIZE];

    gs_option_name(setting->option, name);
    gs_wire_start(&message, GS_WIRE_ORDER, 1);
    message.order.kind = GS_ORDER_SET;
    message.order.value = number_of(setting->option, setting->config);
    snprintf(message.order.name, sizeof message.order.name, "%s", name);
    if (!silent[0] && order_ask(fd, &message, &done, reason, sizeof reason)) {
        if (done.outcome == GS_SET_UNKNOWN)
            snprintf(reason, sizeof reason, "does not change %s while it runs", name);
        else if (done.outcome != GS_SET_DONE)
            snprintf(reason, sizeof reason, "does not take this value for %s", name);
    }
    if (!order_begins(order, who, silent[0] ? silent : reason))
        return;
    text_of(setting->option, done.set.before, before);
    text_of(setting->option, done.set.after, after);
    json_text(order->json, "option", name);
    json_text(order->json, "before", before);
    json_text(order->json, "after", after);
    order_ends(order, who, "%s %s -> %s", name, before, after);
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

int command_set(const struct call *call)
{
    static struct gs_config config;
    struct setting setting = {.order = {.tell = tell_it}, .config = &config};
    char name[GS_OPTION_NAME_SIZE];
    const char *value;

    setting.option = run_option_read("", call->argv[1], &config, &value);
    if (!setting.option)
        return COMMAND_USAGE;
    if (setting.option->live)
        return order_run(&setting.order, call);
    gs_option_name(setting.option, name);
    command_complain("%s cannot change while a program runs (gpushim help set: what can)", name);
    return COMMAND_USAGE;
}
