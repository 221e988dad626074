/* Loading: which source counts, files of every kind, set-user-id programs, and what it costs. */
#include "help.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static struct gs_config config;
static struct complaints complaints;

/* The linker sends the library's calls here (tests/unit/config/meson.build). open64 is open in a build
 * with 64-bit file offsets, as Meson's are. */
static unsigned opens, statxs, allocations, frees;
static bool no_memory;
int __real_open64(const char *path, int flags, ...);
int __wrap_open64(const char *path, int flags, ...);
int __real_statx(int fd, const char *path, int flags, unsigned mask, struct statx *ret);
int __wrap_statx(int fd, const char *path, int flags, unsigned mask, struct statx *ret);
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

int __wrap_statx(int fd, const char *path, int flags, unsigned mask, struct statx *ret)
{
    statxs++;
    return __real_statx(fd, path, flags, mask, ret);
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

/* A folder of this test's own, with what the tests put there. */
static char dir[64];
static char named_entry[128], home_entry[128], xdg_entry[128], system_file[128], etc_file[128];
static const char *const system_files[] = {system_file, etc_file, NULL};

static void dir_make(void)
{
    strcpy(dir, "/tmp/gs-config-XXXXXX");
    cr_assert_not_null(mkdtemp(dir));
    cr_assert_eq(chmod(dir, 0755), 0);
    snprintf(named_entry, sizeof named_entry, "GPUSHIM_CONFIG=%s/named", dir);
    snprintf(home_entry, sizeof home_entry, "HOME=%s", dir);
    snprintf(xdg_entry, sizeof xdg_entry, "XDG_CONFIG_HOME=%s/xdg", dir);
    snprintf(system_file, sizeof system_file, "%s/system", dir);
    snprintf(etc_file, sizeof etc_file, "%s/etc", dir);
}

static void dir_remove(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    cr_assert_eq(system(command), 0);
}

TestSuite(config_load, .init = dir_make, .fini = dir_remove, .timeout = 60);

static const char *path_of(const char *name)
{
    static char path[192];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static void file_write(const char *name, const char *text)
{
    FILE *file = fopen(path_of(name), "wb");
    cr_assert_not_null(file);
    fputs(text, file);
    cr_assert_eq(fchmod(fileno(file), 0644), 0);
    cr_assert_eq(fclose(file), 0);
}

static void user_file_write(const char *text)
{
    cr_assert_eq(mkdir(path_of(".config"), 0755), 0);
    file_write(".config/gpushim.conf", text);
}

static void load(bool secure, char *const *environment)
{
    const struct gs_config_sources sources = {environment, system_files, secure};
    memset(&config, 0xa5, sizeof config);
    complaints.count = 0;
    gs_config_load(&config, &sources, complaints_add, &complaints);
    config_expect_valid(&config);
}
#define LOAD_FILES(...) load(false, ENVIRONMENT(__VA_ARGS__))

Test(config_load, environment_goes_before_user_before_system_before_default)
{
    user_file_write("[pool]\nsmall_limit = 2K\nepoch_bytes = 2K\n");
    file_write("system", "[pool]\nsmall_limit = 3K\nepoch_bytes = 3K\ncache_limit = 3K\n");
    LOAD_FILES("GPUSHIM_POOL_SMALL_LIMIT=1K", home_entry);
    complaints_expect_none(&complaints);
    cr_assert_eq(config.pool.small_limit, 1024);
    cr_assert_eq(config.pool.epoch_bytes, 2048);
    cr_assert_eq(config.pool.cache_limit, 3072);
    cr_assert_eq(config.share.max_clients, 1024);
}

Test(config_load, the_xdg_folder_goes_before_home_unless_it_is_relative)
{
    cr_assert_eq(mkdir(path_of("xdg"), 0755), 0);
    file_write("xdg/gpushim.conf", "log = info\n");
    user_file_write("log = debug\n");
    LOAD_FILES(home_entry, xdg_entry);
    cr_assert_eq(config.general.log, GS_CONFIG_LOG_INFO);
    LOAD_FILES(home_entry, "XDG_CONFIG_HOME=xdg");
    cr_assert_eq(config.general.log, GS_CONFIG_LOG_DEBUG);
    LOAD_FILES("HOME=", "XDG_CONFIG_HOME=");
    cr_assert_eq(config.general.log, GS_CONFIG_LOG_WARNING);
    complaints_expect_none(&complaints);
}

Test(config_load, the_named_file_is_read_in_place_of_both_others)
{
    user_file_write("log = debug\n");
    file_write("system", "log = info\n[pool]\nfree = native\n");
    file_write("named", "log = error\n");
    LOAD_FILES(home_entry, named_entry);
    complaints_expect_none(&complaints);
    cr_assert_eq(config.general.log, GS_CONFIG_LOG_ERROR);
    cr_assert_eq(config.pool.free, GS_CONFIG_POOL_FREE_DEFERRED);
    opens = 0;
    LOAD_FILES(home_entry, "GPUSHIM_CONFIG=");
    complaints_expect_none(&complaints);
    cr_assert_eq(config.general.log, GS_CONFIG_LOG_WARNING);
    cr_assert_eq(opens, 0, "an empty name is no file at all");
}

Test(config_load, a_named_file_that_is_absent_is_reported)
{
    LOAD_FILES(home_entry, named_entry);
    EXPECT_ONE(&complaints, dir, "/named: ", "No such file", "correct GPUSHIM_CONFIG");
}

Test(config_load, a_bad_value_gives_the_default_not_a_weaker_source)
{
    user_file_write("log = debug\n[share]\ngrace = never\n");
    file_write("system", "log = info\n[share]\ngrace = 2 s\ntimeout = 2 s\n");
    LOAD_FILES("GPUSHIM_LOG=loud", home_entry);
    cr_assert_eq(complaints.count, 2);
    cr_assert_not_null(strstr(complaints.lines[0], "environment: GPUSHIM_LOG = \"loud\""));
    cr_assert_not_null(strstr(complaints.lines[1], ".config/gpushim.conf:3: share.grace"));
    cr_assert_eq(config.general.log, GS_CONFIG_LOG_WARNING);
    cr_assert_eq(config.share.grace, 1000000000);
    cr_assert_eq(config.share.timeout, 2000000000);
}

Test(config_load, a_bad_value_that_a_stronger_source_overrides_is_passed_over)
{
    file_write("system", "log = loud\n");
    LOAD_FILES("GPUSHIM_LOG=info");
    complaints_expect_none(&complaints);
    cr_assert_eq(config.general.log, GS_CONFIG_LOG_INFO);
}

Test(config_load, unknown_variables_are_reported_with_the_nearest)
{
    static const char *const cases[][2] = {
        {"GPUSHIM_ENABLED=0", "did you mean GPUSHIM_ENABLE?"},
        {"GPUSHIM_SHARE_MAXCLIENTS=1", "did you mean GPUSHIM_SHARE_MAX_CLIENTS?"},
        {"GPUSHIM_LGO=debug", "did you mean GPUSHIM_LOG?"},
        {"GPUSHIM_log=debug", "did you mean GPUSHIM_LOG?"},
        {"GPUSHIM_GRACE=1s", "did you mean GPUSHIM_SHARE_GRACE?"},
        {"GPUSHIM_COLOUR=red", "\"GPUSHIM_COLOUR\" = \"red\" is ignored: no option has this name"},
        {"GPUSHIM_=", "\"GPUSHIM_\" = \"\" is ignored"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        LOAD_FILES(cases[i][0]);
        EXPECT_ONE(&complaints, "environment: ", cases[i][1]);
    }
    LOAD_FILES("GPUSHIM_COLOUR=red");
    cr_assert_null(strstr(complaints.lines[0], "did you mean"));
    LOAD_FILES("GPUSHIM", "GPUSHIM_LOG", "XGPUSHIM_LOG=x", "gpushim_log=x", "=", "", "PATH=/bin");
    complaints_expect_none(&complaints);
}

Test(config_load, a_secure_program_takes_only_the_systems_file)
{
    user_file_write("log = debug\n");
    file_write("named", "log = error\n");
    file_write("system", "[share]\ngrace = 2 s\n");
    load(true, ENVIRONMENT("GPUSHIM_LOG=info", "GPUSHIM_LOG_TARGET=/etc/passwd", "GPUSHIM_X=1",
                           home_entry, named_entry));
    complaints_expect_none(&complaints);
    cr_assert_eq(config.general.log, GS_CONFIG_LOG_WARNING);
    cr_assert_str_eq(config.general.log_target.text, "stderr");
    cr_assert_eq(config.share.grace, 2000000000);
}

Test(config_load, what_is_no_regular_file_is_refused_without_waiting)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    cr_assert_eq(mkfifo(path_of("named"), 0644), 0);
    LOAD_FILES(named_entry);
    EXPECT_ONE(&complaints, "/named: ", "not a regular file");
    cr_assert_eq(unlink(path_of("named")), 0);
    cr_assert_eq(mkdir(path_of("named"), 0755), 0);
    LOAD_FILES(named_entry);
    EXPECT_ONE(&complaints, "/named: ", "not a regular file");
    cr_assert_eq(rmdir(path_of("named")), 0);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    strcpy(address.sun_path, path_of("named"));
    cr_assert_eq(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    LOAD_FILES(named_entry);
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
    file_write("named", text);
    LOAD_FILES(named_entry);
    complaints_expect_none(&complaints);
    cr_assert_eq(config.general.log, GS_CONFIG_LOG_INFO);
    text[GS_CONFIG_FILE_SIZE] = '\n';
    file_write("named", text);
    LOAD_FILES(named_entry);
    EXPECT_ONE(&complaints, "/named: ", "longer than 65536 bytes");
    cr_assert_eq(config.general.log, GS_CONFIG_LOG_WARNING);
}

Test(config_load, no_memory_costs_the_file_alone)
{
    file_write("named", "log = info\n");
    no_memory = true;
    LOAD_FILES(named_entry, "GPUSHIM_POOL_FREE=native");
    no_memory = false;
    EXPECT_ONE(&complaints, "/named: ", "Cannot allocate memory");
    cr_assert_eq(config.general.log, GS_CONFIG_LOG_WARNING);
    cr_assert_eq(config.pool.free, GS_CONFIG_POOL_FREE_NATIVE);
}

Test(config_load, an_unreadable_file_is_reported_an_unsearchable_folder_is_not)
{
    user_file_write("log = debug\n");
    cr_assert_eq(chmod(path_of(".config/gpushim.conf"), 0), 0);
    /* Permissions mean nothing to root. */
    bool root = geteuid() == 0;
    if (root)
        cr_assert_eq(seteuid(65534), 0);
    LOAD_FILES(home_entry);
    EXPECT_ONE(&complaints, "/.config/gpushim.conf: ", "Permission denied");
    if (root)
        cr_assert_eq(seteuid(0), 0);
    cr_assert_eq(chmod(path_of(".config"), 0), 0);
    if (root)
        cr_assert_eq(seteuid(65534), 0);
    LOAD_FILES(home_entry);
    complaints_expect_none(&complaints);
    if (root)
        cr_assert_eq(seteuid(0), 0);
    cr_assert_eq(chmod(path_of(".config"), 0755), 0);
}

Test(config_load, etc_is_read_too_after_the_builds_own_file)
{
    file_write("system", "[pool]\nsmall_limit = 3K\n");
    file_write("etc", "[pool]\nsmall_limit = 4K\nepoch_bytes = 4K\n");
    LOAD_FILES(home_entry);
    complaints_expect_none(&complaints);
    cr_assert_eq(config.pool.small_limit, 3072);
    cr_assert_eq(config.pool.epoch_bytes, 4096);
    load(true, ENVIRONMENT(home_entry));
    cr_assert_eq(config.pool.small_limit, 3072);
    cr_assert_eq(config.pool.epoch_bytes, 4096);
}

Test(config_load, the_files_that_were_read_are_named)
{
    char expected[400];

    LOAD_FILES(home_entry);
    cr_assert_str_empty(config.read_files);
    user_file_write("log = debug\n");
    file_write("system", "log = info\n");
    file_write("etc", "");
    LOAD_FILES(home_entry);
    snprintf(expected, sizeof expected, "%s/.config/gpushim.conf, %s, %s", dir, system_file,
             etc_file);
    cr_assert_str_eq(config.read_files, expected);
    cr_assert_eq(chmod(system_file, 0666), 0);
    LOAD_FILES("GPUSHIM_LOG=info");
    cr_assert_str_eq(config.read_files, etc_file);
}

Test(config_load, a_file_that_others_may_write_to_is_refused)
{
    static const mode_t writable[] = {0664, 0646, 0666, 0620};
    for (size_t i = 0; i < sizeof writable / sizeof *writable; i++) {
        char mode[20];
        snprintf(mode, sizeof mode, "(mode %03o)", (unsigned)writable[i]);
        file_write("named", "log = info\n");
        cr_assert_eq(chmod(path_of("named"), writable[i]), 0);
        LOAD_FILES(named_entry);
        EXPECT_ONE(&complaints, "/named: ", "others may write to it", mode);
        cr_assert_eq(config.general.log, GS_CONFIG_LOG_WARNING);
    }
    file_write("named", "log = info\n");
    cr_assert_eq(chmod(path_of("named"), 0600), 0);
    LOAD_FILES(named_entry);
    complaints_expect_none(&complaints);
    cr_assert_eq(config.general.log, GS_CONFIG_LOG_INFO);
}

/* A file of another user's, and a link of one's own to it. */
Test(config_load, a_file_of_another_user_is_refused)
{
    char target[192];
    if (geteuid() != 0)
        cr_skip_test("only root can make files of another user");
    file_write("theirs", "log = info\n");
    strcpy(target, path_of("theirs"));
    cr_assert_eq(chown(target, 1234, 1234), 0);
    cr_assert_eq(symlink(target, path_of("named")), 0);
    LOAD_FILES(named_entry);
    EXPECT_ONE(&complaints, "/named: ", "it belongs to uid 1234");
    cr_assert_eq(config.general.log, GS_CONFIG_LOG_WARNING);
    user_file_write("log = info\n");
    cr_assert_eq(chown(path_of(".config/gpushim.conf"), 1234, 1234), 0);
    LOAD_FILES(home_entry);
    EXPECT_ONE(&complaints, "/.config/gpushim.conf: ", "it belongs to uid 1234");
    /* To its owner it counts, and root's counts to everybody. */
    cr_assert_eq(chmod(dir, 0755), 0);
    file_write("system", "[pool]\nfree = native\n");
    cr_assert_eq(seteuid(1234), 0);
    LOAD_FILES(home_entry);
    cr_assert_eq(seteuid(0), 0);
    complaints_expect_none(&complaints);
    cr_assert_eq(config.general.log, GS_CONFIG_LOG_INFO);
    cr_assert_eq(config.pool.free, GS_CONFIG_POOL_FREE_NATIVE);
}

Test(config_load, a_full_descriptor_table_is_reported)
{
    int last = -1;
    for (int fd = dup(0); fd >= 0; fd = dup(0))
        last = fd;
    cr_assert_geq(last, 0);
    LOAD_FILES(home_entry);
    cr_assert_eq(complaints.count, 3);
    cr_assert_not_null(strstr(complaints.lines[0], "Too many open files"));
    /* Criterion and rm need some again. */
    for (int fd = last; fd > last - 100; fd--)
        close(fd);
}

Test(config_load, with_no_file_and_no_variable_it_costs_an_open_each)
{
    opens = statxs = allocations = 0;
    load(false, ENVIRONMENT("PATH=/bin", home_entry, xdg_entry, "TERM=dumb"));
    complaints_expect_none(&complaints);
    cr_assert_eq(opens, 3);
    cr_assert_eq(statxs, 0);
    cr_assert_eq(allocations, 0);
}

Test(config_load, errno_descriptors_and_memory_are_as_before)
{
    file_write("system", "log = loud\nnonsense\n");
    int before = dup(0);
    close(before);
    allocations = frees = 0;
    errno = 12345;
    LOAD_FILES(home_entry, "GPUSHIM_X=1");
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
    file_write("system", "log_target = /tmp/gs.log\n");
    const struct gs_config_sources sources = {
        ENVIRONMENT("GPUSHIM_POOL_FREE=x", "GPUSHIM_LOG=error"), system_files, false};
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
