/* The rows of options.h as data, and the forms in which an option's name and limits are written. It
 * uses nothing of the system but the C library's stdio: the build machine compiles it too, for
 * document.c. */
#include "config/internal.h"

#include <stdio.h>

#define GS_WORD(constant, word) word,
#define GS_WORD_LIST(name, words) \
    static const char *const gs_words_##name[] = {words(GS_WORD) NULL};
GS_CONFIG_ENUMERATIONS(GS_WORD_LIST)

#define GS_TYPE_BOOL()              .type = GS_OPTION_BOOL
#define GS_TYPE_ENUM(name)          .type = GS_OPTION_ENUM, .words = gs_words_##name
#define GS_TYPE_BYTES(low_, high_)  .type = GS_OPTION_BYTES, .low = low_, .high = high_
#define GS_TYPE_AMOUNT(low_, high_) .type = GS_OPTION_AMOUNT, .low = low_, .high = high_
#define GS_TYPE_TIME(low_, high_)   .type = GS_OPTION_TIME, .low = low_, .high = high_
#define GS_TYPE_NUMBER(low_, high_) .type = GS_OPTION_NUMBER, .low = low_, .high = high_
#define GS_TYPE_IDS(low_, high_)    .type = GS_OPTION_IDS, .low = low_, .high = high_
#define GS_TYPE_PATH(word_)         .type = GS_OPTION_PATH, .word = word_
#define GS_TYPE_LIVE(type_)         .live = true, GS_TYPE_##type_

#define GS_ROW(section_, key_, type_, standard_, help_) \
    {.section = #section_,                              \
     .key = #key_,                                      \
     GS_TYPE_##type_,                                   \
     .standard = standard_,                             \
     .help = help_,                                     \
     .offset = offsetof(struct gs_config, section_.key_)},
#define GS_SECTION_ROWS(name, options, help) options(GS_ROW)
#define GS_SECTION(name_, options, help_)    {.name = #name_, .help = help_},
#define GS_RESERVED(name)                    name,

const struct gs_option gs_options[] = {GS_CONFIG_SECTIONS(GS_SECTION_ROWS)};
const size_t gs_option_count = sizeof gs_options / sizeof *gs_options;

const struct gs_section gs_sections[] = {GS_CONFIG_SECTIONS(GS_SECTION)};
const size_t gs_section_count = sizeof gs_sections / sizeof *gs_sections;

const char *const gs_reserved_names[] = {GS_CONFIG_RESERVED(GS_RESERVED) NULL};

#define GS_OLD(section_, key_, now_, unit_) \
    {.section = section_, .key = key_, .now = now_, .unit = unit_},
const struct gs_old_name gs_old_names[] = {GS_CONFIG_OLD_NAMES(GS_OLD)};
const size_t gs_old_name_count = sizeof gs_old_names / sizeof *gs_old_names;

/* gs_loader keeps one bit an option. */
_Static_assert(sizeof gs_options / sizeof *gs_options <= 64, "more options than bits");
_Static_assert(sizeof gs_options / sizeof *gs_options <= GS_CONFIG_OPTIONS_MAX, "no place for all");

void gs_option_whole_name(const struct gs_option *option, char ret[GS_OPTION_NAME_SIZE])
{
    snprintf(ret, GS_OPTION_NAME_SIZE, "%s.%s", option->section, option->key);
}

void gs_option_name(const struct gs_option *option, char ret[GS_OPTION_NAME_SIZE])
{
    if (gs_text_equal(gs_text_of(option->section), "general"))
        snprintf(ret, GS_OPTION_NAME_SIZE, "%s", option->key);
    else
        gs_option_whole_name(option, ret);
}

void gs_option_variable(const struct gs_option *option, char ret[GS_OPTION_NAME_SIZE])
{
    char name[GS_OPTION_NAME_SIZE];
    gs_option_name(option, name);
    int length = snprintf(ret, GS_OPTION_NAME_SIZE, "GPUSHIM_%s", name);
    for (int i = 0; i < length && ret[i]; i++) {
        if (ret[i] == '.')
            ret[i] = '_';
        else if (ret[i] >= 'a' && ret[i] <= 'z')
            ret[i] += 'A' - 'a';
    }
}

const struct gs_option *gs_option_find(struct gs_text name, gs_option_form_fn *form,
                                       const struct gs_old_name **ret_old)
{
    char form_of[GS_OPTION_NAME_SIZE];
    const struct gs_old_name *none;
    *ret_old = NULL;
    for (size_t i = 0; i < gs_option_count; i++) {
        form(&gs_options[i], form_of);
        if (gs_text_equal(name, form_of))
            return &gs_options[i];
    }
    for (size_t i = 0; i < gs_old_name_count; i++) {
        const struct gs_old_name *old = &gs_old_names[i];
        form(&(struct gs_option){.section = old->section, .key = old->key}, form_of);
        if (!gs_text_equal(name, form_of))
            continue;
        *ret_old = old;
        return gs_option_find(gs_text_of(old->now), gs_option_name,
                              &none); /* a test has them all */
    }
    return NULL;
}

/* How far the option is from the name; 0: but for its section, or the form, it is that. */
static size_t distance_to(const struct gs_option *option, struct gs_text name, const char *section)
{
    char form_of[GS_OPTION_NAME_SIZE];
    size_t key = name.size, distance, of_key = SIZE_MAX;
    while (key > 0 && name.at[key - 1] != '.')
        key--;
    gs_option_variable(option, form_of);
    if (gs_text_equal_caseless(name, form_of) ||
        gs_text_equal_caseless((struct gs_text){name.at + key, name.size - key}, option->key))
        return 0;
    if (section && gs_text_equal(gs_text_of(section), option->section))
        of_key = gs_text_distance(name, option->key);
    gs_option_name(option, form_of);
    distance = gs_text_distance(name, form_of);
    return of_key < distance ? of_key : distance;
}

const struct gs_option *gs_option_meant(struct gs_text name, const char *section)
{
    const struct gs_option *nearest = NULL;
    size_t best = SIZE_MAX;
    for (size_t i = 0; i < gs_option_count; i++) {
        size_t distance = distance_to(&gs_options[i], name, section);
        if (distance < best) {
            best = distance;
            nearest = &gs_options[i];
        }
    }
    return nearest;
}

struct gs_text gs_old_value(const struct gs_old_name *old, struct gs_text value,
                            char ret[GS_QUOTE_SIZE])
{
    value = gs_text_trim(value);
    if (!*old->unit || value.size + 4 > GS_QUOTE_SIZE)
        return value;
    if (gs_text_equal(value, "0")) /* set no such limit */
        return gs_text_of("unlimited");
    snprintf(ret, GS_QUOTE_SIZE, "%.*s %s", (int)value.size, value.at, old->unit);
    return gs_text_of(ret);
}

static void words_allowed(const char *const *words, char ret[GS_OPTION_ALLOWED_SIZE])
{
    size_t used = 0;
    for (size_t i = 0; words[i] && used < GS_OPTION_ALLOWED_SIZE; i++) {
        const char *before = i == 0 ? "" : words[i + 1] ? ", " : " or ";
        used += snprintf(ret + used, GS_OPTION_ALLOWED_SIZE - used, "%s%s", before, words[i]);
    }
}

void gs_option_allowed(const struct gs_option *option, char ret[GS_OPTION_ALLOWED_SIZE])
{
    size_t size = GS_OPTION_ALLOWED_SIZE;
    switch (option->type) {
    case GS_OPTION_BOOL:
        snprintf(ret, size, "on or off");
        break;
    case GS_OPTION_ENUM:
        words_allowed(option->words, ret);
        break;
    case GS_OPTION_BYTES:
        snprintf(ret, size, "a size from %s to %s", option->low, option->high);
        break;
    case GS_OPTION_AMOUNT:
        snprintf(ret, size, "%s1 %% to 100 %% or a size from %s to %s",
                 gs_text_equal(gs_text_of(option->low), "0") ? "" : "off, ", option->low,
                 option->high);
        break;
    case GS_OPTION_TIME:
        snprintf(ret, size, "a time from %s to %s", option->low, option->high);
        break;
    case GS_OPTION_NUMBER:
        snprintf(ret, size, "a number from %s to %s", option->low, option->high);
        break;
    case GS_OPTION_PATH:
        snprintf(ret, size, "%s or an absolute path", *option->word ? option->word : "nothing");
        break;
    case GS_OPTION_IDS:
        snprintf(ret, size, "up to %d numbers from %s to %s", GS_CONFIG_IDS_MAX, option->low,
                 option->high);
        break;
    }
}
