/* Values: each type's good and bad texts, and what must hold for every row of options.h. */
#include "help.h"
#include "tests/system.h"

#include <criterion/criterion.h>

static struct gs_config config, defaults;
static struct complaints complaints;

Test(config_value, every_row_holds_together, .timeout = 60)
{
    LOAD(&config, &complaints, NULL);
    config_expect_valid(&config);
    for (size_t i = 0; i < gs_option_count; i++) {
        const struct gs_option *option = &gs_options[i];
        char name[GS_OPTION_NAME_SIZE], variable[GS_OPTION_NAME_SIZE];
        char allowed[GS_OPTION_ALLOWED_SIZE];
        gs_option_name(option, name);
        gs_option_variable(option, variable);
        gs_option_allowed(option, allowed);
        cr_assert_null(gs_value_parse(&config, option, gs_text_of(option->standard)), "%s", name);
        cr_assert_lt(strlen(name), sizeof name - 1);
        cr_assert_lt(strlen(variable), sizeof variable - 1);
        cr_assert_lt(strlen(allowed), sizeof allowed - 1, "%s: cut: %s", name, allowed);
        size_t length = strlen(option->help);
        cr_assert(length > 1 && option->help[length - 1] == '.', "%s: not a sentence", name);
        cr_assert_null(strstr(option->help, ". "), "%s: more than one sentence", name);
        cr_assert_null(strpbrk(option->help, "|\n"), "%s: does not fit a table", name);
        for (size_t j = 0; j < i; j++) {
            char other[GS_OPTION_NAME_SIZE];
            gs_option_variable(&gs_options[j], other);
            cr_assert_str_neq(variable, other);
        }
    }
}

Test(config_value, every_row_is_read_from_its_variable_and_its_file_key, .timeout = 60)
{
    for (size_t i = 0; i < gs_option_count; i++) {
        const struct gs_option *option = &gs_options[i];
        char variable[GS_OPTION_NAME_SIZE], text[256];
        gs_option_variable(option, variable);
        snprintf(text, sizeof text, "%s=?", variable);
        LOAD(&defaults, &complaints, text);
        EXPECT_ONE(&complaints, "environment: ", variable, " = \"?\" ", option->standard);
        snprintf(text, sizeof text, "[%s]\n%s = ?\n", option->section, option->key);
        parse_text(text, strlen(text), &config, &complaints);
        EXPECT_ONE(&complaints, "test.conf:2: ", option->key, " = \"?\" ", option->standard);
        config_expect_equal(&config, &defaults);
    }
}

Test(config_value, limits_of_every_row_are_allowed_and_what_is_beyond_is_not, .timeout = 60)
{
    for (size_t i = 0; i < gs_option_count; i++) {
        const struct gs_option *option = &gs_options[i];
        const char *unit = option->type == GS_OPTION_TIME ? "ns" : "";
        char text[64];
        if (option->type != GS_OPTION_BYTES && option->type != GS_OPTION_TIME &&
            option->type != GS_OPTION_NUMBER)
            continue;
        cr_assert_null(gs_value_parse(&config, option, gs_text_of(option->low)));
        uint64_t low = field_number(&config, option);
        cr_assert_null(gs_value_parse(&config, option, gs_text_of(option->high)));
        uint64_t high = field_number(&config, option);
        if (low > 0) {
            snprintf(text, sizeof text, "%ju%s", (uintmax_t)low - 1, unit);
            cr_assert_str_eq(gs_value_parse(&config, option, gs_text_of(text)), "is too small");
        }
        if (high < GS_CONFIG_UNLIMITED) {
            snprintf(text, sizeof text, "%ju%s", (uintmax_t)high + 1, unit);
            cr_assert_str_eq(gs_value_parse(&config, option, gs_text_of(text)), "is too large");
        }
        cr_assert_str_eq(gs_value_parse(&config, option, gs_text_of("18446744073709551616G")),
                         option->type == GS_OPTION_BYTES  ? "is too large"
                         : option->type == GS_OPTION_TIME ? "does not end in a unit (ns, us, ms, "
                                                            "s, min)"
                                                          : "is not a whole number");
        cr_assert_eq(field_number(&config, option), high, "a refused value left a trace");
    }
}

struct good {
    const char *option;
    const char *text;
    uint64_t number;
};

Test(config_value, sizes_times_and_numbers_mean_what_they_say, .timeout = 60)
{
    static const struct good goods[] = {
        {"pool.cache_limit", "0", 0},
        {"pool.cache_limit", "1234", 1234},
        {"pool.cache_limit", "12B", 12},
        {"pool.cache_limit", "3K", 3072},
        {"pool.cache_limit", "3 KiB", 3072},
        {"pool.cache_limit", "2m", 2097152},
        {"pool.cache_limit", "64\tmib", 67108864},
        {"pool.cache_limit", "5G", UINT64_C(5368709120)},
        {"pool.cache_limit", "5GiB", UINT64_C(5368709120)},
        {"pool.cache_limit", "2T", UINT64_C(2199023255552)},
        {"pool.cache_limit", "2 TiB", UINT64_C(2199023255552)},
        {"pool.cache_limit", "16777215T", UINT64_C(16777215) << 40},
        {"pool.cache_limit", "18446744073709551615", UINT64_MAX},
        {"pool.cache_limit", "Unlimited", UINT64_MAX},
        {"pool.cache_limit", "  7  ", 7},
        {"pool.cache_limit", "0000000000000000000000000000000007", 7},
        {"debug.grace", "0", 0},
        {"debug.grace", "15ns", 15},
        {"debug.grace", "15 us", 15000},
        {"debug.grace", "15ms", 15000000},
        {"debug.grace", "15 S", UINT64_C(15000000000)},
        {"debug.grace", "15min", UINT64_C(900000000000)},
        {"debug.max_clients", "1", 1},
        {"debug.max_clients", "65536", 65536},
    };
    for (size_t i = 0; i < sizeof goods / sizeof *goods; i++) {
        const struct gs_option *option = option_named(goods[i].option);
        const char *wrong = gs_value_parse(&config, option, gs_text_of(goods[i].text));
        cr_assert_null(wrong, "%s: %s", goods[i].text, wrong);
        cr_assert_eq(field_number(&config, option), goods[i].number, "%s", goods[i].text);
    }
}

Test(config_value, words_are_read_in_any_case, .timeout = 60)
{
    static const char *const yes[] = {"1", "on", "ON", "yes", "Yes", "true", "TRUE"};
    static const char *const no[] = {"0", "off", "Off", "no", "NO", "false", "False"};
    const struct gs_option *option = option_named("share.enable");
    for (size_t i = 0; i < sizeof yes / sizeof *yes; i++) {
        config.share.enable = false;
        cr_assert_null(gs_value_parse(&config, option, gs_text_of(yes[i])));
        cr_assert(config.share.enable, "%s", yes[i]);
        cr_assert_null(gs_value_parse(&config, option, gs_text_of(no[i])));
        cr_assert_not(config.share.enable, "%s", no[i]);
    }
    LOAD(&config, &complaints, "GPUSHIM_LOG=Debug", "GPUSHIM_POOL_FREE= native ");
    complaints_expect_none(&complaints);
    cr_assert_eq(config.general.log, GS_CONFIG_LOG_DEBUG);
    cr_assert_eq(config.pool.free, GS_CONFIG_POOL_FREE_NATIVE);
}

Test(config_value, paths_and_ids_are_kept_as_given, .timeout = 60)
{
    LOAD(&config, &complaints, "GPUSHIM_LOG_TARGET=/tmp/a b-%p.log", "GPUSHIM_SHARE_DIR=/r\xc3\xa9",
         "GPUSHIM_SHARE_UIDS= 0, 1000 1001,,4294967294 ");
    complaints_expect_none(&complaints);
    cr_assert_str_eq(config.general.log_target.text, "/tmp/a b-%p.log");
    cr_assert_str_eq(config.share.dir.text, "/r\xc3\xa9");
    cr_assert_eq(config.share.uids.count, 4);
    cr_assert_eq(config.share.uids.ids[0], 0);
    cr_assert_eq(config.share.uids.ids[1], 1000);
    cr_assert_eq(config.share.uids.ids[2], 1001);
    cr_assert_eq(config.share.uids.ids[3], 4294967294);
}

struct bad {
    const char *option;
    const char *text;
    const char *wrong;
};

Test(config_value, bad_values_say_what_is_wrong_and_give_the_default, .timeout = 60)
{
    static const struct bad bads[] = {
        {"enable", "", "neither on nor off"},
        {"enable", "2", "neither on nor off"},
        {"enable", "onn", "neither on nor off"},
        {"log", "", "none of the words"},
        {"log", "warn", "none of the words"},
        {"log", "3", "none of the words"},
        {"log_target", "", "not an absolute path"},
        {"log_target", "stdout", "not an absolute path"},
        {"log_target", "STDERR", "not an absolute path"},
        {"log_target", "log.txt", "not an absolute path"},
        {"log_target", "~/log", "not an absolute path"},
        {"log_target", "\"/tmp/x\"", "not an absolute path"},
        {"log_target", "/tmp/a\nb", "control character"},
        {"log_target", "/tmp/\x7f", "control character"},
        {"log_target", "/dev/stdout", "the program's own output"},
        {"log_target", "/proc/self/fd/1", "the program's own output"},
        {"share.dir", "run", "not an absolute path"},
        {"pool.cache_limit", "off", "not a size"},
        {"pool.cache_limit", "101 %", "too large"},
        {"debug.small_limit", "", "not a size"},
        {"debug.small_limit", "-1", "not a size"},
        {"debug.small_limit", "+1", "not a size"},
        {"debug.small_limit", "M", "not a size"},
        {"debug.small_limit", "0x10", "does not end in a unit"},
        {"debug.small_limit", "1.5M", "does not end in a unit"},
        {"debug.small_limit", "1KB", "does not end in a unit"},
        {"debug.small_limit", "1M1", "does not end in a unit"},
        {"debug.small_limit", "1 M x", "does not end in a unit"},
        {"debug.small_limit", "1s", "does not end in a unit"},
        {"debug.small_limit", "2097153", "too large"},
        {"debug.small_limit", "3M", "too large"},
        {"debug.small_limit", "unlimited", "too large"},
        {"pool.cache_limit", "18446744073709551616", "too large"},
        {"pool.cache_limit", "16777216T", "too large"},
        {"pool.cache_limit", "99999999999999999999999999999999999999", "too large"},
        {"pool.limit", "0", "too small"},
        {"pool.limit", "2097151", "too small"},
        {"pool.limit", "unlimited", "too large"},
        {"pool.limit", "on", "not a size"},
        {"pool.limit", "0 %", "too small"},
        {"pool.limit", "101%", "too large"},
        {"pool.limit", "%", "not a whole number"},
        {"pool.limit", "50 %%", "not a whole number"},
        {"pool.limit", "1G%", "not a whole number"},
        {"debug.grace", "5", "does not end in a unit (ns"},
        {"debug.grace", "1 h", "does not end in a unit (ns"},
        {"debug.grace", "1s1", "does not end in a unit (ns"},
        {"debug.grace", "soon", "not a time"},
        {"debug.grace", "61min", "too large"},
        {"debug.grace", "99999999999999999999 min", "too large"},
        {"debug.timeout", "0", "too small"},
        {"debug.max_clients", "0", "too small"},
        {"debug.max_clients", "65537", "too large"},
        {"debug.max_clients", "10K", "not a whole number"},
        {"debug.max_clients", "many", "not a whole number"},
        {"share.uids", "alice", "something else than such numbers"},
        {"share.uids", "1000,-1", "something else than such numbers"},
        {"share.uids", "4294967295", "something else than such numbers"},
        {"share.uids", "1;2", "something else than such numbers"},
        {"share.uids", "unlimited", "something else than such numbers"},
    };
    LOAD(&defaults, &complaints, NULL);
    for (size_t i = 0; i < sizeof bads / sizeof *bads; i++) {
        const struct gs_option *option = option_named(bads[i].option);
        char variable[GS_OPTION_NAME_SIZE], allowed[GS_OPTION_ALLOWED_SIZE];
        char quoted[GS_QUOTE_SIZE], entry[256], standard[128];
        gs_option_variable(option, variable);
        gs_option_allowed(option, allowed);
        gs_quote(gs_text_of(bads[i].text), quoted);
        snprintf(entry, sizeof entry, "%s=%s", variable, bads[i].text);
        snprintf(standard, sizeof standard, "; the default \"%s\" is used", option->standard);
        LOAD(&config, &complaints, entry);
        EXPECT_ONE(&complaints, "environment: ", variable, quoted, bads[i].wrong, allowed,
                   standard);
        config_expect_equal(&config, &defaults);
    }
}

Test(config_value, long_values_are_refused_and_cut, .timeout = 60)
{
    static char entry[100000];
    const struct gs_option *option = option_named("share.dir");
    struct gs_text path = {entry + strlen("GPUSHIM_SHARE_DIR="), GS_CONFIG_PATH_SIZE - 1};
    memset(entry, '/', sizeof entry - 1);
    memcpy(entry, "GPUSHIM_SHARE_DIR=", strlen("GPUSHIM_SHARE_DIR="));
    LOAD(&config, &complaints, entry);
    EXPECT_ONE(&complaints, "///...\"", "is too long");
    cr_assert_str_eq(config.share.dir.text, "");
    cr_assert_null(gs_value_parse(&config, option, path));
    cr_assert_eq(strlen(config.share.dir.text), GS_CONFIG_PATH_SIZE - 1);
    path.size++;
    cr_assert_str_eq(gs_value_parse(&config, option, path), "is too long");
    memset(entry + strlen("GPUSHIM_SHARE_DIR="), '9', sizeof entry - 1 - 18);
    LOAD(&config, &complaints, entry);
    EXPECT_ONE(&complaints, "999...\"", "is not an absolute path");
}

Test(config_value, a_list_holds_so_many_ids_and_no_more, .timeout = 60)
{
    char text[4 * GS_CONFIG_IDS_MAX + 8];
    const struct gs_option *option = option_named("share.uids");
    size_t used = 0;
    for (int i = 0; i < GS_CONFIG_IDS_MAX; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%d,", i);
    cr_assert_null(gs_value_parse(&config, option, gs_text_of(text)));
    cr_assert_eq(config.share.uids.count, GS_CONFIG_IDS_MAX);
    cr_assert_eq(config.share.uids.ids[GS_CONFIG_IDS_MAX - 1], GS_CONFIG_IDS_MAX - 1);
    strcat(text, "1");
    cr_assert_str_eq(gs_value_parse(&config, option, gs_text_of(text)), "has too many numbers");
}

Test(config_value, complaints_hold_no_control_characters, .timeout = 60)
{
    /* complaints_add looks at every byte. */
    LOAD(&config, &complaints, "GPUSHIM_LOG=\x1b[2J\r\nERROR\x9b\x01", "GPUSHIM_\x1b[31m=\x07");
    cr_assert_eq(complaints.count, 2);
    cr_assert_not_null(strstr(complaints.lines[0], "\"\\x1b[2J\\x0d\\x0aERROR\\x9b\\x01\""));
    cr_assert_not_null(strstr(complaints.lines[1], "\"GPUSHIM_\\x1b[31m\" = \"\\x07\""));
    complaints.count = 0;
    gs_config_parse(&config, "a\x1b[2J\n.conf", "?", 1, complaints_add, &complaints);
    EXPECT_ONE(&complaints, "a\\x1b[2J\\x0a.conf:1: ");
}
