/* Loading: which source counts, files of every kind, set-user-id programs, and what it costs. */
#include "help.h"
#include "place.h"
#include "tests/system.h"

#include <criterion/criterion.h>

static struct gs_config config;
static struct complaints complaints;

/* The linker sends the library's calls here (tests/unit/config/meson.build). open64 is open in a
 * build with 64-bit file offsets, as Meson's are. */
static unsigned opens, allocations, frees;
static bool no_memory;
int __real_open64(const char *path, int flags, ...);
int __wrap_open64(const char *path, int flags, ...);
void *__real_malloc(size_t size);
void *__wrap_malloc(size_t size);
void __real_free(void *p);
void __wrap_free(void *p);

int __wrap_open64(const char *path, int flags, ...)
{
    opens++;
    cr_assert_eq(flags & O_CREAT, 0);
    cr_assert_neq(flags & O_CLOEXEC, 0);
    return __real_open64(path, flags);
}

void *__wrap_malloc(size_t size)
{
    allocations++;
    if (no_memory) {
        errno = ENOMEM;
        return NULL;
    }
    return __real_malloc(size);
}

void __wrap_free(void *p)
{
    frees += p != NULL;
    __real_free(p);
}

TestSuite(config_load, .init = place_make, .fini = place_remove, .timeout = 60);

static void user_file_write(const char *text)
{
    cr_assert_eq(mkdir(place_path(".config"), 0755), 0);
    place_write(".config/gpushim.conf", text, 0644);
}

static void load(bool secure, char *const *environment)
{
    const struct gs_config_sources sources = {environment, place_system_files, secure};
    memset(&config, 0xa5, sizeof config);
    complaints.count = 0;
    gs_config_load(&config, &sources, complaints_add, &complaints);
    config_expect_valid(&config);
}
#define LOAD_FILES(...) load(false, ENVIRONMENT(__VA_ARGS__))

Test(config_load, environment_goes_before_user_before_system_before_default)
{
    user_file_write("[debug]\nsmall_limit = 2K\nepoch_bytes = 2K\n");
    place_write("system", "[debug]\nsmall_limit = 3K\nepoch_bytes = 3K\n[pool]\ncache_limit = 3K\n",
                0644);
    LOAD_FILES("GPUSHIM_DEBUG_SMALL_LIMIT=1K", place_home);
    complaints_expect_none(&complaints);
    cr_assert_eq(config.debug.small_limit, 1024);
    cr_assert_eq(config.debug.epoch_bytes, 2048);
    cr_assert_eq(config.pool.cache_limit.bytes, 3072);
    cr_assert_eq(config.debug.max_clients, 1024);
}

Test(config_load, the_xdg_folder_goes_before_home_unless_it_is_relative)
{
    cr_assert_eq(mkdir(place_path("xdg"), 0755), 0);
    place_write("xdg/gpushim.conf", "log = info\n", 0644);
    user_file_write("log = debug\n");
    LOAD_FILES(place_home, place_xdg);
    cr_assert_eq(config.general.log, GS_CONFIG_LOG_INFO);
    LOAD_FILES(place_home, "XDG_CONFIG_HOME=xdg");
    cr_assert_eq(config.general.log, GS_CONFIG_LOG_DEBUG);
    LOAD_FILES("HOME=", "XDG_CONFIG_HOME=");
    cr_assert_eq(config.general.log, GS_CONFIG_LOG_WARNING);
    complaints_expect_none(&complaints);
}

Test(config_load, the_named_file_is_read_in_place_of_both_others)
{
    user_file_write("log = debug\n");
    place_write("system", "log = info\n[pool]\nfree = native\n", 0644);
    place_write("named", "log = error\n", 0644);
    LOAD_FILES(place_home, place_named);
    complaints_expect_none(&complaints);
    cr_assert_eq(config.general.log, GS_CONFIG_LOG_ERROR);
    cr_assert_eq(config.pool.free, GS_CONFIG_POOL_FREE_DEFERRED);
    opens = 0;
    LOAD_FILES(place_home, "GPUSHIM_CONFIG=");
    complaints_expect_none(&complaints);
    cr_assert_eq(config.general.log, GS_CONFIG_LOG_WARNING);
    cr_assert_eq(opens, 0, "an empty name is no file at all");
}

Test(config_load, a_named_file_that_is_absent_is_reported)
{
    LOAD_FILES(place_home, place_named);
    EXPECT_ONE(&complaints, place, "/named: ", "No such file", "correct GPUSHIM_CONFIG");
}

Test(config_load, a_bad_value_gives_the_default_not_a_weaker_source)
{
    user_file_write("log = debug\n[debug]\ngrace = never\n");
    place_write("system", "log = info\n[debug]\ngrace = 2 s\ntimeout = 2 s\n", 0644);
    LOAD_FILES("GPUSHIM_LOG=loud", place_home);
    cr_assert_eq(complaints.count, 2);
    cr_assert_not_null(strstr(complaints.lines[0], "environment: GPUSHIM_LOG = \"loud\""));
    cr_assert_not_null(strstr(complaints.lines[1], ".config/gpushim.conf:3: debug.grace"));
    cr_assert_eq(config.general.log, GS_CONFIG_LOG_WARNING);
    cr_assert_eq(config.debug.grace, 60000000000);
    cr_assert_eq(config.debug.timeout, 2000000000);
}

Test(config_load, a_bad_value_that_a_stronger_source_overrides_is_passed_over)
{
    place_write("system", "log = loud\n", 0644);
    LOAD_FILES("GPUSHIM_LOG=info");
    complaints_expect_none(&complaints);
    cr_assert_eq(config.general.log, GS_CONFIG_LOG_INFO);
}

Test(config_load, unknown_variables_are_reported_with_the_nearest)
{
    static const char *const cases[][2] = {
        {"GPUSHIM_ENABLED=0", "did you mean GPUSHIM_ENABLE?"},
        {"GPUSHIM_DEBUG_MAXCLIENTS=1", "did you mean GPUSHIM_DEBUG_MAX_CLIENTS?"},
        {"GPUSHIM_LGO=debug", "did you mean GPUSHIM_LOG?"},
        {"GPUSHIM_SHRAE_RID=/a", "did you mean GPUSHIM_SHARE_DIR?"},
        {"GPUSHIM_log=debug", "did you mean GPUSHIM_LOG?"},
        {"GPUSHIM_GRACE=1s", "did you mean GPUSHIM_DEBUG_GRACE?"},
        {"GPUSHIM_COLOUR=red", "\"GPUSHIM_COLOUR\" = \"red\" is ignored: no option has this name"},
        {"GPUSHIM_=", "\"GPUSHIM_\" = \"\" is ignored"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        LOAD_FILES(cases[i][0]);
        EXPECT_ONE(&complaints, "environment: ", cases[i][1]);
    }
    LOAD_FILES("GPUSHIM_COLOUR=red");
    cr_assert_null(strstr(complaints.lines[0], "did you mean"));
    LOAD_FILES("GPUSHIM", "GPUSHIM_LOG", "GPUSHIM_BUILD=/b", "XGPUSHIM_LOG=x", "gpushim_log=x", "=",
               "", "PATH=/bin");
    complaints_expect_none(&complaints);
}

Test(config_load, a_secure_program_takes_only_the_systems_file)
{
    user_file_write("log = debug\n");
    place_write("named", "log = error\n", 0644);
    place_write("system", "[debug]\ngrace = 2 s\n", 0644);
    load(true, ENVIRONMENT("GPUSHIM_LOG=info", "GPUSHIM_LOG_TARGET=/etc/passwd", "GPUSHIM_X=1",
                           place_home, place_named));
    complaints_expect_none(&complaints);
    cr_assert_eq(config.general.log, GS_CONFIG_LOG_WARNING);
    cr_assert_str_eq(config.general.log_target.text, "stderr");
    cr_assert_eq(config.debug.grace, 2000000000);
}

Test(config_load, what_is_no_regular_file_is_refused_without_waiting)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    cr_assert_eq(mkfifo(place_path("named"), 0644), 0);
    LOAD_FILES(place_named);
    EXPECT_ONE(&complaints, "/named: ", "not a regular file");
    cr_assert_eq(unlink(place_path("named")), 0);
    cr_assert_eq(mkdir(place_path("named"), 0755), 0);
    LOAD_FILES(place_named);
    EXPECT_ONE(&complaints, "/named: ", "not a regular file");
    cr_assert_eq(rmdir(place_path("named")), 0);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    strcpy(address.sun_path, place_path("named"));
    cr_assert_eq(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    LOAD_FILES(place_named);
    EXPECT_ONE(&complaints, "/named: ", "ignored: ");
    close(fd);
    LOAD_FILES("GPUSHIM_CONFIG=/dev/zero");
    EXPECT_ONE(&complaints, "/dev/zero: ", "not a regular file");
}

Test(config_load, a_file_is_read_up_to_the_limit_and_refused_beyond)
{
    static char text[GS_CONFIG_FILE_SIZE + 2];
    memset(text, '\n', sizeof text - 1);
    memcpy(text, "log = info", strlen("log = info"));
    text[GS_CONFIG_FILE_SIZE] = '\0';
    place_write("named", text, 0644);
    LOAD_FILES(place_named);
    complaints_expect_none(&complaints);
    cr_assert_eq(config.general.log, GS_CONFIG_LOG_INFO);
    text[GS_CONFIG_FILE_SIZE] = '\n';
    place_write("named", text, 0644);
    LOAD_FILES(place_named);
    EXPECT_ONE(&complaints, "/named: ", "longer than 65536 bytes");
    cr_assert_eq(config.general.log, GS_CONFIG_LOG_WARNING);
}

Test(config_load, no_memory_costs_the_file_alone)
{
    place_write("named", "log = info\n", 0644);
    no_memory = true;
    LOAD_FILES(place_named, "GPUSHIM_POOL_FREE=native");
    no_memory = false;
    EXPECT_ONE(&complaints, "/named: ", "Cannot allocate memory");
    cr_assert_eq(config.general.log, GS_CONFIG_LOG_WARNING);
    cr_assert_eq(config.pool.free, GS_CONFIG_POOL_FREE_NATIVE);
}

Test(config_load, an_unreadable_file_is_reported_an_unsearchable_folder_is_not)
{
    user_file_write("log = debug\n");
    cr_assert_eq(chmod(place_path(".config/gpushim.conf"), 0), 0);
    /* Permissions mean nothing to root. */
    bool root = geteuid() == 0;
    if (root)
        cr_assert_eq(seteuid(65533), 0);
    LOAD_FILES(place_home);
    EXPECT_ONE(&complaints, "/.config/gpushim.conf: ", "Permission denied");
    if (root)
        cr_assert_eq(seteuid(0), 0);
    cr_assert_eq(chmod(place_path(".config"), 0), 0);
    if (root)
        cr_assert_eq(seteuid(65533), 0);
    LOAD_FILES(place_home);
    complaints_expect_none(&complaints);
    if (root)
        cr_assert_eq(seteuid(0), 0);
    cr_assert_eq(chmod(place_path(".config"), 0755), 0);
}

Test(config_load, etc_is_read_too_after_the_builds_own_file)
{
    place_write("system", "[debug]\nsmall_limit = 3K\n", 0644);
    place_write("etc", "[debug]\nsmall_limit = 4K\nepoch_bytes = 4K\n", 0644);
    LOAD_FILES(place_home);
    complaints_expect_none(&complaints);
    cr_assert_eq(config.debug.small_limit, 3072);
    cr_assert_eq(config.debug.epoch_bytes, 4096);
    load(true, ENVIRONMENT(place_home));
    cr_assert_eq(config.debug.small_limit, 3072);
    cr_assert_eq(config.debug.epoch_bytes, 4096);
}

Test(config_load, a_file_that_others_may_write_to_is_refused)
{
    static const mode_t writable[] = {0664, 0646, 0666, 0620};
    for (size_t i = 0; i < sizeof writable / sizeof *writable; i++) {
        char mode[20];
        snprintf(mode, sizeof mode, "(mode %03o)", (unsigned)writable[i]);
        place_write("named", "log = info\n", 0644);
        cr_assert_eq(chmod(place_path("named"), writable[i]), 0);
        LOAD_FILES(place_named);
        EXPECT_ONE(&complaints, "/named: ", "others may write to it", mode);
        cr_assert_eq(config.general.log, GS_CONFIG_LOG_WARNING);
    }
    place_write("named", "log = info\n", 0644);
    cr_assert_eq(chmod(place_path("named"), 0600), 0);
    LOAD_FILES(place_named);
    complaints_expect_none(&complaints);
    cr_assert_eq(config.general.log, GS_CONFIG_LOG_INFO);
}

/* A file of another user's, and a link of one's own to it. */
Test(config_load, a_file_of_another_user_is_refused)
{
    char target[192];
    if (geteuid() != 0)
        cr_skip_test("only root can make files of another user");
    place_write("theirs", "log = info\n", 0644);
    strcpy(target, place_path("theirs"));
    cr_assert_eq(chown(target, 1234, 1234), 0);
    cr_assert_eq(symlink(target, place_path("named")), 0);
    LOAD_FILES(place_named);
    EXPECT_ONE(&complaints, "/named: ", "it belongs to uid 1234");
    cr_assert_eq(config.general.log, GS_CONFIG_LOG_WARNING);
    user_file_write("log = info\n");
    cr_assert_eq(chown(place_path(".config/gpushim.conf"), 1234, 1234), 0);
    LOAD_FILES(place_home);
    EXPECT_ONE(&complaints, "/.config/gpushim.conf: ", "it belongs to uid 1234");
    /* To its owner it counts, and root's counts to everybody. */
    cr_assert_eq(chmod(place, 0755), 0);
    place_write("system", "[pool]\nfree = native\n", 0644);
    cr_assert_eq(seteuid(1234), 0);
    LOAD_FILES(place_home);
    cr_assert_eq(seteuid(0), 0);
    complaints_expect_none(&complaints);
    cr_assert_eq(config.general.log, GS_CONFIG_LOG_INFO);
    cr_assert_eq(config.pool.free, GS_CONFIG_POOL_FREE_NATIVE);
}

Test(config_load, errno_descriptors_and_memory_are_as_before)
{
    place_write("system", "log = loud\nnonsense\n", 0644);
    int before = dup(0);
    close(before);
    allocations = frees = 0;
    errno = 12345;
    LOAD_FILES(place_home, "GPUSHIM_X=1");
    cr_assert_eq(errno, 12345);
    cr_assert_eq(allocations, 1);
    cr_assert_eq(frees, 1);
    errno = 12345;
    gs_config_parse(&config, "x", "nonsense", 8, NULL, NULL);
    cr_assert_eq(errno, 12345);
    int after = dup(0);
    close(after);
    cr_assert_eq(before, after);
    cr_assert_eq(complaints.count, 3);
}

/* What the shim does: it logs complaints by the options that came with them. */
static void complain_when_complete(void *arg, const char *line)
{
    const struct gs_config *loaded = arg;
    cr_assert_eq(loaded->general.log, GS_CONFIG_LOG_ERROR);
    cr_assert_str_eq(loaded->general.log_target.text, "/tmp/gs.log");
    complaints.count++;
}

Test(config_load, complaints_come_when_the_options_are_complete)
{
    place_write("system", "log_target = /tmp/gs.log\n", 0644);
    const struct gs_config_sources sources = {ENVIRONMENT("GPUSHIM_POOL_FREE=x",
                                                          "GPUSHIM_LOG=error"),
                                              place_system_files, false};
    gs_config_load(&config, &sources, complain_when_complete, &config);
    cr_assert_eq(complaints.count, 1);
}

Test(config_load, the_systems_files_are_absolute_and_etc_is_among_them)
{
    bool etc = false;
    for (const char *const *file = gs_config_system_files; *file; file++) {
        cr_assert_eq((*file)[0], '/');
        cr_assert_not_null(strstr(*file, "/gpushim.conf"));
        cr_assert_not(etc, "%s comes after /etc", *file);
        etc = strcmp(*file, "/etc/gpushim.conf") == 0;
    }
    cr_assert(etc);
}
