/* Values back to text: what gs_value_parse reads as the same value. Like it without the program's
 * locale. */
#include "config/internal.h"

#include <stdio.h>
#include <string.h>

/* In the largest unit of which it is a whole number; one of the units is 1. */
static void in_units(uint64_t number, const struct gs_unit *unit, char ret[GS_VALUE_SIZE])
{
    const struct gs_unit *largest = unit;
    for (; unit->name; unit++) {
        if (number % unit->factor == 0 && unit->factor > largest->factor)
            largest = unit;
    }
    if (number == 0)
        snprintf(ret, GS_VALUE_SIZE, "0");
    else
        snprintf(ret, GS_VALUE_SIZE, "%llu %s", (unsigned long long)(number / largest->factor),
                 largest->name);
}

static void number_format(enum gs_option_type type, uint64_t number, char ret[GS_VALUE_SIZE])
{
    if (type == GS_OPTION_BYTES && number == GS_CONFIG_UNLIMITED)
        snprintf(ret, GS_VALUE_SIZE, "unlimited");
    else if (type == GS_OPTION_BYTES || type == GS_OPTION_TIME)
        in_units(number, gs_units_of(type), ret);
    else
        snprintf(ret, GS_VALUE_SIZE, "%llu", (unsigned long long)number);
}

static void amount_format(const struct gs_option *option, const struct gs_config_amount *amount,
                          char ret[GS_VALUE_SIZE])
{
    if (amount->percent)
        snprintf(ret, GS_VALUE_SIZE, "%llu %%", (unsigned long long)amount->percent);
    else if (amount->bytes || strcmp(option->low, "0") == 0)
        number_format(GS_OPTION_BYTES, amount->bytes, ret);
    else
        snprintf(ret, GS_VALUE_SIZE, "off");
}

static void ids_format(const struct gs_config_ids *ids, char ret[GS_VALUE_SIZE])
{
    size_t used = 0;
    ret[0] = '\0';
    for (size_t i = 0; i < ids->count; i++)
        used += (size_t)snprintf(ret + used, GS_VALUE_SIZE - used, "%s%llu", i ? ", " : "",
                                 (unsigned long long)ids->ids[i]);
}

static void field_format(const struct gs_config *config, const struct gs_option *option,
                         char ret[GS_VALUE_SIZE])
{
    const void *field = (const char *)config + option->offset;
    unsigned word = 0;
    uint64_t number = 0;
    switch (option->type) {
    case GS_OPTION_BOOL:
        snprintf(ret, GS_VALUE_SIZE, "%s", *(const bool *)field ? "on" : "off");
        break;
    case GS_OPTION_ENUM:
        memcpy(&word, field, sizeof word);
        snprintf(ret, GS_VALUE_SIZE, "%s", option->words[word]);
        break;
    case GS_OPTION_BYTES:
    case GS_OPTION_TIME:
    case GS_OPTION_NUMBER:
        memcpy(&number, field, sizeof number);
        number_format(option->type, number, ret);
        break;
    case GS_OPTION_AMOUNT:
        amount_format(option, field, ret);
        break;
    case GS_OPTION_PATH:
        snprintf(ret, GS_VALUE_SIZE, "%s", ((const struct gs_config_path *)field)->text);
        break;
    case GS_OPTION_IDS:
        ids_format(field, ret);
        break;
    }
}

bool gs_value_format(const struct gs_config *config, const struct gs_option *option,
                     char ret[GS_VALUE_SIZE])
{
    struct gs_config defaults;
    char standard[GS_VALUE_SIZE];
    gs_value_parse(&defaults, option, gs_text_of(option->standard));
    field_format(&defaults, option, standard);
    field_format(config, option, ret);
    bool is_default = strcmp(ret, standard) == 0;
    if (is_default) /* in the words of the documents: 60 s, not 1 min */
        snprintf(ret, GS_VALUE_SIZE, "%s", option->standard);
    return is_default;
}
