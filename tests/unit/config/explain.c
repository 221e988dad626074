/* A configuration in words: values back to text, where each came from, and names that were meant to
 * be an option's. */
#include "help.h"
#include "place.h"
#include "tests/system.h"

#include <criterion/criterion.h>

static struct gs_config config, again;
static struct complaints complaints;
static struct gs_config_origins origins;
static struct gs_config_row row;

/* ---- Values --------------------------------------------------------------------------------- */

/* What the option's text is when it is set to this one. Reading it again gives the same. */
static const char *formatted(const struct gs_option *option, const char *text)
{
    static char first[GS_VALUE_SIZE];
    char second[GS_VALUE_SIZE];
    gs_config_parse(&config, "none", "", 0, NULL, NULL);
    again = config;
    const char *wrong = gs_value_parse(&config, option, gs_text_of(text));
    cr_assert_null(wrong, "%s.%s: %s %s", option->section, option->key, text, wrong);
    memset(first, 'x', sizeof first);
    gs_value_format(&config, option, first);
    cr_assert_not_null(memchr(first, '\0', sizeof first));
    wrong = gs_value_parse(&again, option, gs_text_of(first));
    cr_assert_null(wrong, "%s.%s: %s became %s", option->section, option->key, text, first);
    config_expect_equal(&config, &again);
    gs_value_format(&again, option, second);
    cr_assert_str_eq(first, second);
    return first;
}

Test(config_explain, defaults_are_told_in_the_words_of_their_rows, .timeout = 60)
{
    for (size_t i = 0; i < gs_option_count; i++) {
        char text[GS_VALUE_SIZE];
        cr_assert_str_eq(formatted(&gs_options[i], gs_options[i].standard), gs_options[i].standard);
        cr_assert(gs_value_format(&config, &gs_options[i], text));
    }
}

Test(config_explain, values_are_told_in_the_largest_unit_that_divides_them, .timeout = 60)
{
    static const char *const cases[][3] = {
        {"pool.cache_limit", "0", "0"},
        {"pool.cache_limit", "1", "1 B"},
        {"pool.cache_limit", "1536", "1536 B"},
        {"pool.cache_limit", "2048", "2 KiB"},
        {"pool.cache_limit", "1048577", "1048577 B"},
        {"pool.cache_limit", "3072K", "3 MiB"},
        {"pool.cache_limit", "1025M", "1025 MiB"},
        {"pool.cache_limit", "2048G", "2 TiB"},
        {"pool.cache_limit", "18446744073709551614", "18446744073709551614 B"},
        {"pool.cache_limit", "18446744073709551615", "unlimited"},
        {"debug.registrations_bytes", "18446744073709551615", "unlimited"},
        {"debug.small_limit", "2048K", "2 MiB"},
        {"pool.cache_limit", "7 %", "7 %"},
        {"pool.limit", "1%", "1 %"},
        {"pool.limit", "2 %", "2 %"},
        {"pool.limit", "80%", "80 %"},
        {"pool.limit", "100 %", "100 %"},
        {"pool.limit", "12G", "12 GiB"},
        {"pool.limit", "2097152", "2 MiB"},
        {"pool.limit", "OFF", "off"},
        {"pool.decay", "0", "0"},
        {"pool.decay", "1ns", "1 ns"},
        {"pool.decay", "1500000ns", "1500 us"},
        {"pool.decay", "90s", "90 s"},
        {"pool.decay", "60s", "1 min"},
        {"share.keep", "1min", "60 s"}, /* its default, as the documents have it */
        {"debug.max_clients", "007", "7"},
        {"enable", "FALSE", "off"},
        {"log", "Debug", "debug"},
        {"debug.access", "READ-ONLY", "read-only"},
        {"log_target", " /a b=#c ", "/a b=#c"},
        {"share.uids", " 7,8 9 ", "7, 8, 9"},
        {"share.uids", "", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        cr_assert_str_eq(formatted(option_named(cases[i][0]), cases[i][1]), cases[i][2]);
}

Test(config_explain, every_word_of_every_row_is_told_as_itself, .timeout = 60)
{
    for (size_t i = 0; i < gs_option_count; i++) {
        for (size_t j = 0; gs_options[i].words && gs_options[i].words[j]; j++)
            cr_assert_str_eq(formatted(&gs_options[i], gs_options[i].words[j]),
                             gs_options[i].words[j]);
    }
}

Test(config_explain, the_longest_values_are_told_whole, .timeout = 60)
{
    static char text[GS_VALUE_SIZE];
    size_t used = 0;
    for (int i = 0; i < GS_CONFIG_IDS_MAX; i++)
        used += (size_t)sprintf(text + used, "%s4294967294", i ? ", " : "");
    cr_assert_str_eq(formatted(option_named("share.gids"), text), text);
    memset(text, 'x', GS_CONFIG_PATH_SIZE - 1);
    text[0] = '/';
    text[GS_CONFIG_PATH_SIZE - 1] = '\0';
    cr_assert_str_eq(formatted(option_named("share.dir"), text), text);
}

Test(config_explain, rows_say_whether_they_are_the_default_and_fit_a_file, .timeout = 60)
{
    size_t count = 0, changed = 0, unfit = 0;
    LOAD(&config, &complaints, "GPUSHIM_SHARE_DIR=/a #b", "GPUSHIM_LOG_TARGET=/a#b",
         "GPUSHIM_POOL_DECAY=2000 ms");
    complaints_expect_none(&complaints);
    for (; gs_config_row(&config, count, &row); count++) {
        cr_assert_str_eq(row.section, gs_options[count].section);
        cr_assert_str_eq(row.help, gs_options[count].help);
        changed += !row.is_default;
        unfit += !row.fits_file;
        cr_assert_eq(row.fits_file, strcmp(row.name, "share.dir") != 0);
        if (strcmp(row.name, "pool.decay") == 0)
            cr_assert(row.is_default, "the same, in other words");
    }
    cr_assert_eq(count, gs_option_count);
    cr_assert_eq(changed, 2);
    cr_assert_eq(unfit, 1);
}

/* ---- Where they come from ------------------------------------------------------------------- */

static char home_entry[128];

static void origin_make(void)
{
    place_make();
    snprintf(home_entry, sizeof home_entry, "XDG_CONFIG_HOME=%s", place);
}

TestSuite(config_origin, .init = origin_make, .fini = place_remove, .timeout = 60);

/* Explains, and sees that a load without questions finds and says the same. */
static void explain(char *const *environment)
{
    static struct complaints loaded;
    const struct gs_config_sources sources = {environment, place_system_files, false};
    complaints.count = loaded.count = 0;
    memset(&origins, 0xa5, sizeof origins);
    errno = 12345;
    gs_config_explain(&config, &sources, &origins, complaints_add, &complaints);
    cr_assert_eq(errno, 12345);
    gs_config_load(&again, &sources, complaints_add, &loaded);
    config_expect_equal(&config, &again);
    cr_assert_str_eq(config.read_files, again.read_files);
    cr_assert_eq(complaints.count, loaded.count);
    for (size_t i = 0; i < loaded.count; i++)
        cr_assert_str_eq(complaints.lines[i], loaded.lines[i]);
}
#define EXPLAIN(...) explain(ENVIRONMENT(__VA_ARGS__))

static const struct gs_config_origin *origin_of(const char *name)
{
    return &origins.options[option_named(name) - gs_options];
}

static void origin_expect(const char *name, struct gs_config_origin expected)
{
    const struct gs_config_origin *is = origin_of(name);
    cr_assert_eq(is->kind, expected.kind, "%s", name);
    cr_assert_eq(is->refused, expected.refused, "%s", name);
    cr_assert_eq(is->file, expected.file, "%s", name);
    cr_assert_eq(is->line, expected.line, "%s", name);
}

Test(config_origin, each_option_tells_the_strongest_source_that_names_it)
{
    place_write("gpushim.conf", "# user\nlog = info\n[pool]\ndecay = 3 s\n", 0644);
    place_write("etc", "log = error\n\n\n[debug]\ngrace = never\n[pool]\ncache_limit = 5 %\n",
                0644);
    EXPLAIN(home_entry, "GPUSHIM_POOL_DECAY=1s", "GPUSHIM_DEBUG_IDLE=10 s");
    origin_expect("pool.decay", (struct gs_config_origin){.kind = GS_CONFIG_ENVIRONMENT});
    origin_expect("debug.idle", (struct gs_config_origin){.kind = GS_CONFIG_ENVIRONMENT});
    origin_expect("log", (struct gs_config_origin){GS_CONFIG_FILE, false, 0, 2});
    origin_expect("pool.cache_limit", (struct gs_config_origin){GS_CONFIG_FILE, false, 2, 7});
    origin_expect("debug.grace", (struct gs_config_origin){GS_CONFIG_FILE, true, 2, 5});
    origin_expect("enable", (struct gs_config_origin){.kind = GS_CONFIG_DEFAULT});
    EXPECT_ONE(&complaints, "etc:5: debug.grace");
}

static void count_complaints(void *arg, const char *line)
{
    ++*(unsigned *)arg;
}

Test(config_origin, a_check_reads_one_file_and_leaves_no_mistake_out)
{
    static char text[9 * 500 + 64];
    unsigned count = 0;
    size_t used = 0;
    for (int i = 0; i < 500; i++)
        used += (size_t)sprintf(text + used, "nonsense\n");
    strcpy(text + used, "log = info\nenable = perhaps\n");
    place_write("checked", text, 0644);
    place_write("etc", "log_target = /x\n", 0644);
    errno = 12345;
    gs_config_check(&config, place_path("checked"), &origins, count_complaints, &count);
    cr_assert_eq(errno, 12345);
    cr_assert_eq(count, 501);
    cr_assert_eq(config.general.log, GS_CONFIG_LOG_INFO);
    origin_expect("log", (struct gs_config_origin){GS_CONFIG_FILE, false, 0, 501});
    origin_expect("enable", (struct gs_config_origin){GS_CONFIG_FILE, true, 0, 502});
    origin_expect("log_target", (struct gs_config_origin){.kind = GS_CONFIG_DEFAULT});
    count = 0;
    errno = 12345;
    gs_config_check(&config, place_path("nothing"), &origins, count_complaints, &count);
    cr_assert_eq(errno, 12345);
    cr_assert_eq(count, 1);
    cr_assert_str_eq(origins.files[0].why_not, "No such file or directory");
}

/* ---- Names ---------------------------------------------------------------------------------- */

Test(config_explain, names_with_a_wrong_prefix_are_known_for_what_they_were_meant_to_be,
     .timeout = 60)
{
    static const char *const cases[][2] = {
        {"GPU_SHIM_LOG=debug", "GPUSHIM_LOG"},
        {"GPUSHIMLOG=debug", "GPUSHIM_LOG"},
        {"gpushim_log=debug", "GPUSHIM_LOG"},
        {"GpuShim_Log", "GPUSHIM_LOG"},
        {"LIBGPUSHIM_LGO=debug", "GPUSHIM_LOG"},
        {"LIB_GPU_SHIM_LOG=", "GPUSHIM_LOG"},
        {"GPUSHM_POOL_DECAY=1s", "GPUSHIM_POOL_DECAY"},
        {"GPUSIHM_POOL_DECAYS=1s", "GPUSHIM_POOL_DECAY"},
        {"GPUSHIMM_POOL_SMALLLIMIT=1", "GPUSHIM_DEBUG_SMALL_LIMIT"},
        {"CPUSHIM_SHARE_DIR=/x", "GPUSHIM_SHARE_DIR"},
        {"_GPUSHIM_SHARE_MAX_CLIENTS=1", "GPUSHIM_DEBUG_MAX_CLIENTS"},
        {"GPUSHM_GRACE=1s", "GPUSHIM_DEBUG_GRACE"},
        {"GPU_SHIM_CONFIG=/x", "GPUSHIM_CONFIG"},
        {"XGPUSHIM_LOG=debug", "GPUSHIM_LOG"},
        {"GPUUSHIM_LOG=debug", "GPUSHIM_LOG"},
    };
    static const char *const others[] = {
        "GPUSHIM_LGO=debug",
        "GPUSHIM_LOG=debug",
        "GPUSHIM_COLOUR=red",
        "GPUSHIM=1",
        "GPUSHIMS",
        "GPU_SHIM_COLOUR=red",
        "LIBGPUSHIM=/x",
        "LIB=x",
        "",
        "=",
        "LOG=debug",
        "GPU_LOG=x",
        "SHIM_LOG=x",
        "PATH=/gpushim_log",
        "CUDA_VISIBLE_DEVICES=0",
        "PUSH_LOG=1",
        "GPUSHM_0123456789012345678901234567890123456789012345678901234567890123456789=1",
    };
    char right[GS_OPTION_NAME_SIZE];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cr_assert(gs_config_misspelt(cases[i][0], right), "%s", cases[i][0]);
        cr_assert_str_eq(right, cases[i][1], "%s: %s", cases[i][0], right);
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        cr_assert_not(gs_config_misspelt(others[i], right), "%s: %s", others[i], right);
}
