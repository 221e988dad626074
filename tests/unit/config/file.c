/* Files' texts: what is read, what is refused, and that no text does harm. */
#include "help.h"
#include "tests/system.h"

#include <criterion/criterion.h>

static struct gs_config config, defaults;
static struct complaints complaints;

/* A text in a string literal, NUL bytes in it included. */
#define PARSE(literal) parse_text(literal, sizeof literal - 1, &config, &complaints)

Test(config_file, keys_count_under_their_section, .timeout = 60)
{
    PARSE("log = info\n"
          "[pool]\n"
          "free=native\n"
          "  cache_limit\t=\t64K  \n"
          "[ share ]\n"
          "enable = no\n"
          "dir = /run/my dir\n"
          "[general]\n"
          "log_target = /tmp/x=y");
    complaints_expect_none(&complaints);
    cr_assert_eq(config.general.log, GS_CONFIG_LOG_INFO);
    cr_assert_eq(config.pool.free, GS_CONFIG_POOL_FREE_NATIVE);
    cr_assert_eq(config.pool.cache_limit.bytes, 65536);
    cr_assert(config.general.enable);
    cr_assert_not(config.share.enable);
    cr_assert_str_eq(config.share.dir.text, "/run/my dir");
    cr_assert_str_eq(config.general.log_target.text, "/tmp/x=y");
}

Test(config_file, comments_blank_lines_and_crlf_are_no_mistakes, .timeout = 60)
{
    PARSE("# first\r\n"
          "\r\n"
          "   # indented = 1\r\n"
          "[share] # the section\r\n"
          "dir = /a#b\t# the rest is none\r\n"
          "[debug]\r\n"
          "grace = 2 s\r\n"
          "timeout = 3 s#4\r\n");
    EXPECT_ONE(&complaints, "test.conf:8: debug.timeout = \"3 s#4\" does not end in a unit");
    cr_assert_str_eq(config.share.dir.text, "/a#b");
    cr_assert_eq(config.debug.grace, 2000000000);
}

Test(config_file, a_second_mention_is_reported_and_the_first_counts, .timeout = 60)
{
    PARSE("[pool]\nfree = native\nfree = deferred\n");
    EXPECT_ONE(&complaints, "test.conf:3: pool.free = \"deferred\"", "the first one counts");
    cr_assert_eq(config.pool.free, GS_CONFIG_POOL_FREE_NATIVE);
}

/* What each option was called before, in a file and in the environment, is as what it is called
 * now, and one line says so. */
Test(config_file, old_names_are_understood_and_say_so, .timeout = 60)
{
    for (size_t i = 0; i < gs_old_name_count; i++) {
        const struct gs_old_name *old = &gs_old_names[i];
        const struct gs_old_name *none;
        const struct gs_option *option =
            gs_option_find(gs_text_of(old->now), gs_option_name, &none);
        cr_assert_not_null(option, "%s is nothing now", old->key);
        const char *value = option->type == GS_OPTION_BOOL   ? "off"
                            : option->type == GS_OPTION_ENUM ? option->words[1]
                            : option->type == GS_OPTION_TIME ? "7 s"
                                                             : "7";
        char text[256], was[GS_OPTION_NAME_SIZE], now[GS_OPTION_NAME_SIZE];
        snprintf(text, sizeof text, "[%s]\n%s = %s%s\n", option->section, option->key, value,
                 old->unit);
        parse_text(text, strlen(text), &defaults, &complaints);
        complaints_expect_none(&complaints);
        snprintf(text, sizeof text, "[%s]\n%s = %s\n", old->section, old->key, value);
        parse_text(text, strlen(text), &config, &complaints);
        EXPECT_ONE(&complaints, "test.conf:2: ", old->key, " is called ", option->key,
                   option->section, " now");
        config_expect_equal(&config, &defaults);
        gs_option_variable(&(struct gs_option){.section = old->section, .key = old->key}, was);
        gs_option_variable(option, now);
        snprintf(text, sizeof text, "%s=%s", was, value);
        LOAD(&config, &complaints, text);
        EXPECT_ONE(&complaints, "environment: ", was, " is called ", now, " now");
        config_expect_equal(&config, &defaults);
    }
    /* No limit, and what is none. */
    PARSE("[pool]\ncache_share = 0\n");
    cr_assert_eq(config.pool.cache_limit.bytes, UINT64_MAX);
    cr_assert_eq(complaints.count, 1, "of the name alone");
    PARSE("[pool]\ncache_share = 101\n");
    cr_assert_eq(complaints.count, 2);
    cr_assert_not_null(strstr(complaints.lines[1], "pool.cache_limit = \"101 %\" is too large"));
}

Test(config_file, unknown_names_are_reported_with_the_nearest, .timeout = 60)
{
    static const char *const cases[][3] = {
        {"enabled = 1", "test.conf:1: \"enabled\" = \"1\"", "did you mean enable under [general]?"},
        {"[debug]\nsmall_limt = 1", "test.conf:2: ", "did you mean small_limit under [debug]?"},
        {"[pool]\nSMALL_LIMIT = 1", "test.conf:2: ", "did you mean small_limit under [debug]?"},
        {"[share]\nsmall_limit = 1", "[share] has no", "did you mean small_limit under [debug]?"},
        {"pool.free = native", "[general] has no", "did you mean free under [pool]?"},
        {"[debug]\ngarce = 1s", "[debug] has no", "did you mean grace under [debug]?"},
        {"[pol]\nfree = native", "test.conf:1: the section \"pol\"", "did you mean [pool]?"},
    };
    PARSE("");
    defaults = config;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        parse_text(cases[i][0], strlen(cases[i][0]), &config, &complaints);
        EXPECT_ONE(&complaints, cases[i][1], cases[i][2]);
        config_expect_equal(&config, &defaults);
    }
    PARSE("colour = red\n");
    EXPECT_ONE(&complaints, "\"colour\" = \"red\" is ignored: [general] has no such key");
    cr_assert_null(strstr(complaints.lines[0], "did you mean"));
    PARSE("[network]\n");
    EXPECT_ONE(&complaints, "the section \"network\" is unknown");
    cr_assert_null(strstr(complaints.lines[0], "did you mean"));
}

Test(config_file, an_unknown_section_hides_its_keys_until_the_next, .timeout = 60)
{
    PARSE("[share\nenable = off\n");
    EXPECT_ONE(&complaints, "test.conf:1: the section \"[share\" does not");
    cr_assert(config.general.enable);
    PARSE("[network]\nenable = off\nnonsense\n[share\nenable = off\n[pool]\nfree = native\n");
    cr_assert_eq(complaints.count, 2);
    cr_assert_not_null(strstr(complaints.lines[1], "test.conf:4: the section \"[share\" does not"));
    cr_assert(config.general.enable);
    cr_assert(config.share.enable);
    cr_assert_eq(config.pool.free, GS_CONFIG_POOL_FREE_NATIVE);
}

Test(config_file, a_broken_line_costs_itself_alone, .timeout = 60)
{
    static char text[5000];
    PARSE("log = in\0fo\nenable = off\n");
    EXPECT_ONE(&complaints, "test.conf:1: ", "NUL");
    cr_assert_eq(config.general.log, GS_CONFIG_LOG_WARNING);
    cr_assert_not(config.general.enable);
    PARSE("log\nenable = off\n");
    EXPECT_ONE(&complaints, "test.conf:1: \"log\" is ignored: neither key = value nor [section]");
    cr_assert_not(config.general.enable);
    PARSE(" = off\nenable = off\n");
    EXPECT_ONE(&complaints, "test.conf:1: \"\" = \"off\" is ignored");
    cr_assert_not(config.general.enable);
    PARSE("log =\nenable = off\n");
    EXPECT_ONE(&complaints, "test.conf:1: log = \"\" is none of the words");
    cr_assert_not(config.general.enable);
    memset(text, 'x', 4000);
    strcpy(text + 4000, "\nenable = off");
    parse_text(text, strlen(text), &config, &complaints);
    EXPECT_ONE(&complaints, "test.conf:1: ", "longer than 2048 bytes");
    cr_assert_not(config.general.enable);
    for (size_t size = 2047; size <= 2049; size++) {
        size_t used = (size_t)sprintf(text, "log = info");
        memset(text + used, ' ', size - used);
        strcpy(text + size, "\nenable = off");
        parse_text(text, strlen(text), &config, &complaints);
        cr_assert_eq(complaints.count, size > 2048);
        cr_assert_eq(config.general.log == GS_CONFIG_LOG_INFO, size <= 2048);
        cr_assert_not(config.general.enable);
    }
    memset(text, ' ', 4000);
    strcpy(text + 2000, "[\n[]\n[\r\nenable = off");
    parse_text(text, strlen(text), &config, &complaints);
    cr_assert_eq(complaints.count, 3);
    cr_assert(config.general.enable);
}

Test(config_file, a_flood_of_mistakes_is_cut_and_counted, .timeout = 60)
{
    static char text[60000];
    size_t used = 0;
    while (used + 10 < sizeof text)
        used += (size_t)sprintf(text + used, "nonsense\n");
    parse_text(text, used, &config, &complaints);
    cr_assert_gt(complaints.count, 8);
    unsigned left_out = 0;
    cr_assert_eq(sscanf(complaints.lines[complaints.count - 1],
                        "configuration: %u more mistakes are not listed", &left_out),
                 1);
    cr_assert_eq(left_out + complaints.count - 1, used / strlen("nonsense\n"));
}

static char *sample_read(size_t *ret_size)
{
    static char text[GS_CONFIG_FILE_SIZE];
    FILE *file = fopen(SAMPLE, "rb");
    cr_assert_not_null(file, "%s", SAMPLE);
    *ret_size = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[*ret_size] = '\0';
    return text;
}

Test(config_file, the_sample_gives_the_defaults_as_it_is_and_with_every_line_in_use, .timeout = 60)
{
    size_t size = 0, options = 0;
    char *text = sample_read(&size);
    PARSE("");
    defaults = config;
    parse_text(text, size, &config, &complaints);
    complaints_expect_none(&complaints);
    config_expect_equal(&config, &defaults);

    /* Its options are the lines with a # and no blank after it. */
    for (char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (line[0] == '#' && line[1] >= 'a' && line[1] <= 'z') {
            line[0] = ' ';
            options++;
        }
    }
    cr_assert_eq(options, gs_option_count);
    parse_text(text, size, &config, &complaints);
    complaints_expect_none(&complaints);
    config_expect_equal(&config, &defaults);
}
