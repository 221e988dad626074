/* See help.h. */
#include "help.h"

#include <criterion/criterion.h>
#include <string.h>

/* Read by LeakSanitizer in sanitized builds: Criterion's runner leaks a little of its own. */
__attribute__((visibility("default"))) const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libcriterion\n";
}

void complaints_add(void *arg, const char *line)
{
    struct complaints *complaints = arg;
    cr_assert_lt(strlen(line), GS_CONFIG_LINE_SIZE);
    for (const char *c = line; *c; c++)
        cr_assert(*c >= 0x20 && *c < 0x7f, "byte %d in: %s", *c, line);
    cr_assert_lt(complaints->count, sizeof complaints->lines / sizeof *complaints->lines,
                 "a flood of complaints");
    strcpy(complaints->lines[complaints->count++], line);
}

void complaints_expect_one(const struct complaints *complaints, const char *const *parts)
{
    cr_assert_eq(complaints->count, 1, "%zu complaints, first: %s", complaints->count,
                 complaints->count ? complaints->lines[0] : "none");
    for (; *parts; parts++)
        cr_assert_not_null(strstr(complaints->lines[0], *parts), "no %s in: %s", *parts,
                           complaints->lines[0]);
}

void complaints_expect_none(const struct complaints *complaints)
{
    cr_assert_eq(complaints->count, 0, "%zu complaints, first: %s", complaints->count,
                 complaints->lines[0]);
}

void load_environment(char *const *environment, struct gs_config *ret,
                      struct complaints *ret_complaints)
{
    const struct gs_config_sources sources = {.environment = environment};
    memset(ret, 0xa5, sizeof *ret);
    ret_complaints->count = 0;
    gs_config_load(ret, &sources, complaints_add, ret_complaints);
}

void parse_text(const char *text, size_t size, struct gs_config *ret,
                struct complaints *ret_complaints)
{
    memset(ret, 0xa5, sizeof *ret);
    ret_complaints->count = 0;
    gs_config_parse(ret, "test.conf", text, size, complaints_add, ret_complaints);
}

static const void *field_of(const struct gs_config *config, const struct gs_option *option)
{
    return (const char *)config + option->offset;
}

uint64_t field_number(const struct gs_config *config, const struct gs_option *option)
{
    return *(const uint64_t *)field_of(config, option);
}

/* A limit or a value as the option's parser reads it. */
static uint64_t number_of(const struct gs_option *option, const char *text)
{
    static struct gs_config scratch;
    const char *wrong = gs_value_parse(&scratch, option, gs_text_of(text));
    cr_assert_null(wrong, "%s.%s: %s %s", option->section, option->key, text, wrong);
    return field_number(&scratch, option);
}

static void path_expect_valid(const struct gs_option *option, const struct gs_config_path *path)
{
    cr_assert_not_null(memchr(path->text, '\0', sizeof path->text));
    cr_assert(path->text[0] == '/' || strcmp(path->text, option->word) == 0, "%s", path->text);
    for (const char *c = path->text; *c; c++)
        cr_assert((unsigned char)*c >= 0x20 && *c != 0x7f);
}

static void ids_expect_valid(const struct gs_config_ids *ids)
{
    cr_assert_leq(ids->count, GS_CONFIG_IDS_MAX);
    for (size_t i = 0; i < ids->count; i++)
        cr_assert_leq(ids->ids[i], UINT64_C(4294967294));
}

static void amount_expect_valid(const struct gs_option *option,
                                const struct gs_config_amount *amount)
{
    cr_assert_leq(amount->percent, 100);
    cr_assert(amount->percent == 0 || amount->bytes == 0);
    if (amount->bytes) {
        struct gs_option bytes = *option;
        bytes.type = GS_OPTION_BYTES;
        cr_assert_geq(amount->bytes, number_of(&bytes, option->low));
        cr_assert_leq(amount->bytes, number_of(&bytes, option->high));
    }
}

void config_expect_valid(const struct gs_config *config)
{
    for (size_t i = 0; i < gs_option_count; i++) {
        const struct gs_option *option = &gs_options[i];
        const void *field = field_of(config, option);
        size_t words = 0;
        switch (option->type) {
        case GS_OPTION_BOOL:
            cr_assert_leq(*(const unsigned char *)field, 1);
            break;
        case GS_OPTION_ENUM:
            while (option->words[words])
                words++;
            cr_assert_lt(*(const unsigned *)field, words);
            break;
        case GS_OPTION_BYTES:
        case GS_OPTION_TIME:
        case GS_OPTION_NUMBER:
            cr_assert_geq(field_number(config, option), number_of(option, option->low));
            cr_assert_leq(field_number(config, option), number_of(option, option->high));
            break;
        case GS_OPTION_AMOUNT:
            amount_expect_valid(option, field);
            break;
        case GS_OPTION_PATH:
            path_expect_valid(option, field);
            break;
        case GS_OPTION_IDS:
            ids_expect_valid(field);
            break;
        }
    }
}

void config_expect_equal(const struct gs_config *a, const struct gs_config *b)
{
    for (size_t i = 0; i < gs_option_count; i++) {
        const struct gs_option *option = &gs_options[i];
        const void *left = field_of(a, option), *right = field_of(b, option);
        bool equal = false;
        switch (option->type) {
        case GS_OPTION_BOOL:
            equal = *(const bool *)left == *(const bool *)right;
            break;
        case GS_OPTION_ENUM:
            equal = *(const unsigned *)left == *(const unsigned *)right;
            break;
        case GS_OPTION_BYTES:
        case GS_OPTION_TIME:
        case GS_OPTION_NUMBER:
            equal = field_number(a, option) == field_number(b, option);
            break;
        case GS_OPTION_AMOUNT:
            equal = memcmp(left, right, sizeof(struct gs_config_amount)) == 0;
            break;
        case GS_OPTION_PATH:
            equal = strcmp(left, right) == 0;
            break;
        case GS_OPTION_IDS:
            equal = memcmp(left, right, sizeof(struct gs_config_ids)) == 0;
            break;
        }
        cr_assert(equal, "%s.%s differs", option->section, option->key);
    }
}

const struct gs_option *option_named(const char *name)
{
    for (size_t i = 0; i < gs_option_count; i++) {
        char found[GS_OPTION_NAME_SIZE];
        gs_option_name(&gs_options[i], found);
        if (strcmp(found, name) == 0)
            return &gs_options[i];
    }
    cr_assert_fail("no option %s", name);
    return NULL;
}
