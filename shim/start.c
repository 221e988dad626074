/*
 * Starting the shim in a process: the configuration is read, and core is made over the driver's own
 * functions. Nothing of the driver is called here (state.h says why).
 */
#include "start.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config/config.h"
#include "log.h"
#include "lookup.h"
#include "state.h"

struct gs_core *gs_core;
const struct gs_map *gs_map;

static void core_line(enum gs_log_level level, const void *place, const char *text)
{
    gs_log_text(level, place, text);
}

/* The words of `log` in config/options.h stand in the order of the levels. */
static void configure_log(const struct gs_config *config)
{
    const char *target = config->general.log_target.text;
    bool to_stderr = strcmp(target, "stderr") == 0;
    char path[GS_CONFIG_PATH_SIZE + 16];
    const char *mark = strstr(target, "%p");
    int error;

    if (mark)
        snprintf(path, sizeof path, "%.*s%d%s", (int)(mark - target), target, (int)getpid(),
                 mark + 2);
    else
        snprintf(path, sizeof path, "%s", target);
    error = gs_log_configure((enum gs_log_level)config->general.log, to_stderr ? NULL : path);
    if (error)
        gs_log(GS_LOG_WARNING, "the log cannot be written to %s (%s): it goes to standard error",
               path, strerror(error));
}

/* Complaints come when the configuration is complete, so they already go by its log options. */
struct loading {
    struct gs_config config;
    bool log_configured;
};

static void complain(void *arg, const char *line)
{
    struct loading *loading = arg;

    if (!loading->log_configured)
        configure_log(&loading->config);
    loading->log_configured = true;
    gs_log_text(GS_LOG_WARNING, NULL, line);
}

/* The operations of core/driver.h; the name of a required one that is missing, or NULL. */
static const char *fill_driver(struct gs_driver *driver)
{
    const char *missing = NULL;

#define GS_OP_FILL(field, symbol, required)                                                        \
    driver->field = (__typeof__(driver->field))gs_lookup_driver_symbol(#symbol);                   \
    if (required && !driver->field)                                                                \
        missing = #symbol;
    GS_DRIVER_OPS(GS_OP_FILL)
#undef GS_OP_FILL
    return missing;
}

/* The folder of the sockets, the same for all processes of a user whatever their environment. */
static void default_dir(char *dir, size_t size)
{
    unsigned long uid = geteuid();
    struct stat run;

    snprintf(dir, size, "/run/user/%lu", uid);
    if (lstat(dir, &run) == 0 && S_ISDIR(run.st_mode) && run.st_uid == geteuid())
        snprintf(dir, size, "/run/user/%lu/gpushim", uid);
    else
        snprintf(dir, size, "/tmp/gpushim-%lu", uid);
}

static void fill_share(struct gs_share_options *options, const struct gs_config *config)
{
    const char *dir = config->share.dir.text;

    options->enable = config->share.enable;
    options->grace_ns = config->share.grace;
    options->settle_ns = config->share.settle;
    options->timeout_ns = config->share.timeout;
    options->max_clients = (uint32_t)config->share.max_clients;
    for (size_t i = 0; i < config->share.uids.count; i++)
        options->uids[options->uid_count++] = (uid_t)config->share.uids.ids[i];
    if (!dir[0]) {
        default_dir(options->dir, sizeof options->dir);
    } else if (strlen(dir) < sizeof options->dir) {
        memcpy(options->dir, dir, strlen(dir) + 1);
    } else {
        options->enable = false;
        gs_log(GS_LOG_WARNING,
               "share.dir is longer than %zu characters, too long for a socket: memory is not "
               "shared; choose a shorter path",
               sizeof options->dir - 1);
    }
}

static size_t to_size(uint64_t bytes)
{
    return bytes > SIZE_MAX ? SIZE_MAX : (size_t)bytes;
}

static void at_exit(void)
{
    if (gs_state == GS_STATE_READY)
        gs_core_at_exit(gs_core);
}

static bool start_core(const struct gs_config *config)
{
    struct gs_core_options options = {
        .free_native = config->pool.free == GS_CONFIG_POOL_FREE_NATIVE,
        .small_limit = to_size(config->pool.small_limit),
        .epoch_bytes = to_size(config->pool.epoch_bytes),
        .cache_limit = to_size(config->pool.cache_limit),
        .retiring_percent = (unsigned)config->pool.retiring_limit,
        .decay_ns = config->pool.decay,
        .log = {.line = core_line},
    };
    struct gs_driver driver;
    const char *missing = fill_driver(&driver);

    if (missing) {
        gs_log(GS_LOG_WARNING,
               "this libcuda has no %s: the library steps aside; it needs a driver of CUDA 11 or "
               "later",
               missing);
        return false;
    }
    fill_share(&options.share, config);
    if (gs_core_create(&driver, &options, &gs_core) != GS_OK) {
        gs_log(GS_LOG_ERROR, "no host memory to start with: every call goes to the driver");
        return false;
    }
    gs_map = gs_core_map(gs_core);
    atexit(at_exit);
    return true;
}

bool gs_shim_start(void)
{
    struct gs_config_sources sources = {
        .environment = environ,
        .system_file = gs_config_system_file,
        .secure = getauxval(AT_SECURE) != 0,
    };
    /* Large, and wanted once: not on the stack of a thread that may have little. */
    struct loading *loading = calloc(1, sizeof *loading);
    bool enabled;

    if (!loading)
        return false;
    gs_config_load(&loading->config, &sources, complain, loading);
    if (!loading->log_configured)
        configure_log(&loading->config);
    enabled = loading->config.general.enable && start_core(&loading->config);
    free(loading);
    return enabled;
}
