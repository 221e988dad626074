/* Values: from the text in a file or a variable to the field of struct gs_config, with every check
 * that the option's row asks for. Whole numbers only, so that the program's locale (its decimal
 * comma) has no say. */
#include "config/internal.h"

#include <string.h>

/* Not KB and MB: people mean 1000 and 1024 by them. */
static const struct gs_unit byte_units[] = {
    {"B", 1},
    {"", 1},
    {"KiB", UINT64_C(1) << 10},
    {"K", UINT64_C(1) << 10},
    {"MiB", UINT64_C(1) << 20},
    {"M", UINT64_C(1) << 20},
    {"GiB", UINT64_C(1) << 30},
    {"G", UINT64_C(1) << 30},
    {"TiB", UINT64_C(1) << 40},
    {"T", UINT64_C(1) << 40},
    {NULL, 0},
};

static const struct gs_unit time_units[] = {
    {"ns", 1},
    {"us", UINT64_C(1000)},
    {"ms", UINT64_C(1000000)},
    {"s", UINT64_C(1000000000)},
    {"min", UINT64_C(60000000000)},
    {NULL, 0},
};

static const struct gs_unit no_units[] = {{"", 1}, {NULL, 0}};

const struct gs_unit *gs_units_of(enum gs_option_type type)
{
    return type == GS_OPTION_BYTES ? byte_units : type == GS_OPTION_TIME ? time_units : no_units;
}

static const struct gs_unit *unit_find(const struct gs_unit *units, struct gs_text name)
{
    for (; units->name; units++) {
        if (gs_text_equal_caseless(name, units->name))
            return units;
    }
    return NULL;
}

static const char *not_a_number(enum gs_option_type type)
{
    return type == GS_OPTION_BYTES  ? "is not a size"
           : type == GS_OPTION_TIME ? "is not a time"
                                    : "is not a whole number";
}

static const char *not_in_units(enum gs_option_type type)
{
    return type == GS_OPTION_BYTES  ? "does not end in a unit (B, K, M, G, T, KiB, MiB, GiB, TiB)"
           : type == GS_OPTION_TIME ? "does not end in a unit (ns, us, ms, s, min)"
                                    : not_a_number(type);
}

/* Digits, then a unit; or `unlimited`, which is beyond every limit but itself. The options' own
 * limits come here too: they are text of the same form. */
static const char *number_parse(enum gs_option_type type, struct gs_text text, uint64_t *ret)
{
    uint64_t number = 0;
    bool overflow = false;
    size_t digits = 0;
    if (gs_text_equal_caseless(text, "unlimited")) {
        *ret = GS_CONFIG_UNLIMITED;
        return NULL;
    }
    for (; digits < text.size && text.at[digits] >= '0' && text.at[digits] <= '9'; digits++) {
        overflow |= __builtin_mul_overflow(number, 10, &number);
        overflow |= __builtin_add_overflow(number, (uint64_t)(text.at[digits] - '0'), &number);
    }
    if (digits == 0)
        return not_a_number(type);
    struct gs_text name = gs_text_trim((struct gs_text){text.at + digits, text.size - digits});
    const struct gs_unit *unit = unit_find(gs_units_of(type), name);
    bool bare_zero = name.size == 0 && number == 0 && !overflow;
    if (!unit && !bare_zero)
        return not_in_units(type);
    if (unit)
        overflow |= __builtin_mul_overflow(number, unit->factor, &number);
    if (overflow)
        return "is too large";
    *ret = number;
    return NULL;
}

static const char *ranged_parse(const struct gs_option *option, struct gs_text text, uint64_t *ret)
{
    uint64_t low = 0, high = 0, number = 0;
    number_parse(option->type, gs_text_of(option->low), &low);
    number_parse(option->type, gs_text_of(option->high), &high);
    const char *wrong = number_parse(option->type, text, &number);
    if (wrong)
        return wrong;
    if (number < low)
        return "is too small";
    if (number > high)
        return "is too large";
    *ret = number;
    return NULL;
}

static const char *amount_parse(const struct gs_option *option, struct gs_text text,
                                struct gs_config_amount *ret)
{
    static const struct gs_option percent = {.type = GS_OPTION_NUMBER, .low = "1", .high = "100"};
    struct gs_config_amount amount = {0};
    struct gs_option bytes = *option;
    const char *wrong = NULL;
    if (text.size > 0 && text.at[text.size - 1] == '%') {
        text.size--;
        wrong = ranged_parse(&percent, gs_text_trim(text), &amount.percent);
    } else if (strcmp(option->low, "0") == 0 || !gs_text_equal_caseless(text, "off")) {
        bytes.type = GS_OPTION_BYTES;
        wrong = ranged_parse(&bytes, text, &amount.bytes);
    }
    if (!wrong)
        *ret = amount;
    return wrong;
}

static const char *bool_parse(struct gs_text text, bool *ret)
{
    static const char *const words[][2] = {{"off", "on"},
                                           {"no", "yes"},
                                           {"false", "true"},
                                           {"0", "1"}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        for (int value = 0; value < 2; value++) {
            if (gs_text_equal_caseless(text, words[i][value])) {
                *ret = value;
                return NULL;
            }
        }
    }
    return "is neither on nor off";
}

static const char *enum_parse(const struct gs_option *option, struct gs_text text, unsigned *ret)
{
    for (unsigned i = 0; option->words[i]; i++) {
        if (gs_text_equal_caseless(text, option->words[i])) {
            *ret = i;
            return NULL;
        }
    }
    return "is none of the words";
}

/* Relative paths are refused because the program may change its directory before the first CUDA
 * call, and standard output because it is the program's. */
static const char *path_parse(const struct gs_option *option, struct gs_text text,
                              struct gs_config_path *ret)
{
    static const char *const outputs[] = {"/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"};
    if (!gs_text_equal(text, option->word) && (text.size == 0 || text.at[0] != '/'))
        return "is not an absolute path";
    if (text.size >= sizeof ret->text)
        return "is too long";
    for (size_t i = 0; i < text.size; i++) {
        unsigned char c = (unsigned char)text.at[i];
        if (c < 0x20 || c == 0x7f)
            return "has a control character in it";
    }
    for (size_t i = 0; i < sizeof outputs / sizeof *outputs; i++) {
        if (gs_text_equal(text, outputs[i]))
            return "is the program's own output";
    }
    memcpy(ret->text, text.at, text.size);
    ret->text[text.size] = '\0';
    return NULL;
}

static bool is_separator(char c)
{
    return c == ',' || c == ' ' || c == '\t';
}

static const char *ids_parse(const struct gs_option *option, struct gs_text text,
                             struct gs_config_ids *ret)
{
    struct gs_config_ids ids = {0};
    size_t at = 0;
    while (at < text.size) {
        size_t end = at;
        while (end < text.size && !is_separator(text.at[end]))
            end++;
        if (end > at) {
            if (ids.count == GS_CONFIG_IDS_MAX)
                return "has too many numbers";
            const char *wrong = ranged_parse(option, (struct gs_text){text.at + at, end - at},
                                             &ids.ids[ids.count++]);
            if (wrong)
                return "has something else than such numbers in it";
        }
        at = end + 1;
    }
    *ret = ids;
    return NULL;
}

/* gs_value_parse writes an enum field without knowing which enum it is. */
_Static_assert(sizeof(unsigned) == sizeof(enum gs_config_log), "an enum is as wide as unsigned");

const char *gs_value_parse(struct gs_config *config, const struct gs_option *option,
                           struct gs_text text)
{
    void *field = (char *)config + option->offset;
    unsigned word = 0;
    const char *wrong = NULL;
    text = gs_text_trim(text);
    switch (option->type) {
    case GS_OPTION_BOOL:
        return bool_parse(text, field);
    case GS_OPTION_ENUM:
        wrong = enum_parse(option, text, &word);
        if (!wrong)
            memcpy(field, &word, sizeof word);
        return wrong;
    case GS_OPTION_BYTES:
    case GS_OPTION_TIME:
    case GS_OPTION_NUMBER:
        return ranged_parse(option, text, field);
    case GS_OPTION_AMOUNT:
        return amount_parse(option, text, field);
    case GS_OPTION_PATH:
        return path_parse(option, text, field);
    case GS_OPTION_IDS:
        return ids_parse(option, text, field);
    }
    return "has no type";
}
