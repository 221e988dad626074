/*
 * Starting the shim in a process: the configuration is read, and core is made over the driver's own
 * functions. Nothing of the driver is called here (state.h says why).
 */
#include "start.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#include "config/config.h"
#include "core/base/clock.h"
#include "core/base/path.h"
#include "core/process/record.h"
#include "shim/broker_place.h"
#include "shim/lookup/elf_symbols.h"
#include "shim/lookup/leave.h"
#include "shim/registration/pinning.h"
#include "shim/share_options.h"
#include "log.h"
#include "oom_report.h"
#include "say.h"
#include "sleep.h"
#include "shim/lookup/driver.h"
#include "stack.h"
#include "state.h"

#define GRACE_LEAST_NS GS_NS_PER_S /* for a handle on its way, however little memory there is */

static void core_line(enum gs_log_level level, const void *place, const char *text)
{
    if (level == GS_LOG_REPORT)
        gs_oom_report(text);
    else
        gs_log_text(level, place, text);
}

/* The words of `log` in config/options.h stand in the order of the levels. */
static void configure_log(const struct gs_config *config)
{
    const char *target = config->general.log_target.text;
    bool to_stderr = strcmp(target, "stderr") == 0;
    char path[GS_CONFIG_PATH_SIZE + 16];
    const char *wrong;

    gs_path_of_process(target, path, sizeof path);
    wrong = gs_log_configure((enum gs_log_level)config->general.log, to_stderr ? NULL : path);
    if (wrong)
        gs_log(GS_LOG_WARNING, "the log cannot be written to %s (%s): it goes to standard error",
               path, wrong);
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

/* The operations of core/gpu/driver.h; the name of a required one that is missing, or NULL. */
static const char *fill_driver(struct gs_driver *driver)
{
    const char *missing = NULL;

#define GS_OP_FILL(field, symbol, required)                               \
    driver->field = (__typeof__(driver->field))gs_driver_symbol(#symbol); \
    if (required && !driver->field)                                       \
        missing = #symbol;
    GS_DRIVER_OPS(GS_OP_FILL)
#undef GS_OP_FILL
    return missing;
}

static void fill_broker(struct gs_share_options *options, const struct gs_config *config)
{
    const char *program = config->share.broker.text;
    char installed[GS_CONFIG_PATH_SIZE];

    options->broker = config->share.strategy == GS_CONFIG_SHARE_STRATEGY_BROKER;
    options->cluster = config->share.reach == GS_CONFIG_SHARE_REACH_CLUSTER;
    if (options->cluster && !options->broker)
        gs_log(GS_LOG_INFO, "this process's memory stays on its machine: share.reach = cluster "
                            "needs a broker (share.strategy = broker)");
    if (options->broker && strcmp(program, "installed") == 0) {
        gs_broker_find(gs_elf_path(), installed, sizeof installed);
        program = installed;
    }
    if (strlen(program) < sizeof options->broker_program)
        memcpy(options->broker_program, program, strlen(program) + 1);
    else if (options->broker)
        gs_log(GS_LOG_WARNING, "share.broker is longer than %zu characters: none is started",
               sizeof options->broker_program - 1);
}

static void fill_share(struct gs_share_options *options, const struct gs_config *config)
{
    share_options_fill(options, config);
    options->enable = config->share.enable;
    options->grace_ns = config->debug.grace;
    options->grace_least_ns = GRACE_LEAST_NS;
    options->idle_ns = config->debug.idle;
    options->idle_blocks = (uint32_t)config->debug.idle_blocks;
    options->export_ahead = true;
    fill_broker(options, config);
    options->read_only = config->debug.access == GS_CONFIG_SHARE_ACCESS_READ_ONLY;
    options->isolate = config->share.isolate != GS_CONFIG_SHARE_ISOLATE_OFF;
    options->limbo_warning =
        config->debug.limbo_warning == UINT64_MAX ? 0 : config->debug.limbo_warning;
    options->limbo_warning_blocks = config->debug.limbo_warning_blocks;
    options->limbo_warning_ns = config->debug.limbo_warning_age;
    options->limbo_limit = config->debug.limbo_limit == UINT64_MAX ? 0 : config->debug.limbo_limit;
}

static size_t to_size(uint64_t bytes)
{
    return bytes > SIZE_MAX ? SIZE_MAX : (size_t)bytes;
}

/* By quick_exit, where libc has it: weak, since other libcs have another name for it. */
extern int __cxa_at_quick_exit(void (*)(void *), void *) __attribute__((weak));
extern void *__dso_handle __attribute__((visibility("hidden")));

static struct gs_limit limit_of(const struct gs_config *config)
{
    return (struct gs_limit){.bytes = to_size(config->pool.limit.bytes),
                             .percent = (unsigned)config->pool.limit.percent};
}

void gs_shim_at_exit(void)
{
    if (gs_state_is_on()) {
        gs_say_exit();
        gs_core_at_exit(gs_core);
        if (gs_tracing())
            gs_record_at_exit(gs_core);
    }
    gs_trace_at_exit();
}

static void at_quick_exit_too(void *unused)
{
    gs_shim_leaves();
}

/* Core's calls may come from here on. */
static void start_recording(const struct gs_config *config)
{
    static const struct gs_log log = {.line = core_line};
    const char *path = config->general.record.text;
    const char *wrong;

    gs_stack_want((unsigned)config->general.record_stacks);
    if (strcmp(path, "none") == 0)
        return;
    wrong = gs_trace_start(path, config->general.record_stacks > 0, &log);
    if (wrong)
        gs_log(GS_LOG_WARNING, "nothing is recorded to %s: %s", path, wrong);
}

static void fill_report(struct gs_core_options *options, const struct gs_config *config)
{
    char path[GS_CONFIG_PATH_SIZE + 16];

    if (!config->pool.oom_report.text[0])
        return;
    gs_path_of_process(config->pool.oom_report.text, path, sizeof path);
    gs_oom_report_to(path);
    options->reports = true;
}

/* The kernel's modules through which cards register GPU memory by its address. */
static bool has_peer_memory(void)
{
    return faccessat(AT_FDCWD, "/sys/module/nvidia_peermem", F_OK, 0) == 0 ||
           faccessat(AT_FDCWD, "/sys/module/nv_peer_mem", F_OK, 0) == 0;
}

static bool start_core(const struct gs_config *config)
{
    struct gs_core_options options = {
        .free_native = config->pool.free == GS_CONFIG_POOL_FREE_NATIVE,
        .single_stream = config->debug.single_stream,
        .cross = config->debug.pool_cross && !__atomic_load_n(&gs_pin_apart, __ATOMIC_RELAXED),
        .by_address = has_peer_memory(),
        .whole_pieces = config->share.isolate != GS_CONFIG_SHARE_ISOLATE_OFF,
        .small_limit = config->share.isolate == GS_CONFIG_SHARE_ISOLATE_ALONE
                           ? 0
                           : to_size(config->debug.small_limit),
        .epoch_bytes = to_size(config->debug.epoch_bytes),
        .cache_limit =
            config->pool.cache_limit.percent ? SIZE_MAX : to_size(config->pool.cache_limit.bytes),
        .cache_percent = (unsigned)config->pool.cache_limit.percent,
        .limit = limit_of(config),
        .neighbours = config->debug.reclaim_from_peers,
        .user_vmm = config->debug.user_vmm,
        .registrations = {.count = config->debug.registrations_count,
                          .bytes = config->debug.registrations_bytes},
        .retiring_percent = (unsigned)config->debug.retired_limit,
        .decay_ns = config->pool.decay,
        .sleeps = gs_shim_told_to_sleep,
        .log = {.line = core_line, .level = &gs_log_level},
    };
    struct gs_driver driver;
    const char *missing = fill_driver(&driver);
    gs_status status;

    if (missing) {
        gs_log(GS_LOG_WARNING,
               "this libcuda has no %s: the library steps aside; it needs a driver of CUDA 11 or "
               "later",
               missing);
        return false;
    }
    fill_share(&options.share, config);
    fill_report(&options, config);
    gs_bounded = options.limit.bytes > 0 || options.limit.percent > 0;
    gs_pin_keep = (enum gs_pin_keep)config->registrations.keep; /* words in that order */
    status = gs_core_create(&driver, &options, &gs_core);
    if (status != GS_OK) {
        gs_log(GS_LOG_ERROR, "%s to start with: every call goes to the driver",
               status == GS_NO_RANDOM ? "no random bytes" : "no host memory");
        return false;
    }
    gs_map = gs_core_map(gs_core);
    gs_single = gs_core_single(gs_core);
    gs_shim_sleeps_by_itself(config->sleep.after, config->sleep.wake == GS_CONFIG_SLEEP_WAKE_USE);
    start_recording(config);
    atexit(gs_shim_at_exit);
    if (__cxa_at_quick_exit)
        __cxa_at_quick_exit(at_quick_exit_too, &__dso_handle);
    return true;
}

void gs_shim_forking(void)
{
    gs_core_forking(gs_core);
}

void gs_shim_forked(void)
{
    gs_core_forked(gs_core);
}

static struct gs_config_sources sources_of_process(void)
{
    return (struct gs_config_sources){
        .environment = environ,
        .system_files = gs_config_system_files,
        .secure = getauxval(AT_SECURE) != 0,
    };
}

/* The configuration, and a log that goes by it; NULL without host memory. */
static struct loading *load(void)
{
    const struct gs_config_sources sources = sources_of_process();
    /* Large, and wanted once: not on the stack of a thread that may have little. */
    struct loading *loading = calloc(1, sizeof *loading);

    if (!loading)
        return NULL;
    gs_config_load(&loading->config, &sources, complain, loading);
    if (!loading->log_configured)
        configure_log(&loading->config);
    return loading;
}

/* What is wrong with it is said when the shim starts, if it ever does. */
void gs_shim_limit(struct gs_limit *ret_limit)
{
    const struct gs_config_sources sources = sources_of_process();
    struct gs_config *config = calloc(1, sizeof *config);

    *ret_limit = (struct gs_limit){0};
    if (!config)
        return;
    gs_config_load(config, &sources, NULL, NULL);
    if (config->general.enable)
        *ret_limit = limit_of(config);
    free(config);
}

bool gs_shim_start(void)
{
    struct loading *loading = load();
    bool enabled;

    if (!loading)
        return false;
    gs_say_configured(&loading->config);
    enabled = loading->config.general.enable && start_core(&loading->config);
    free(loading);
    return enabled;
}

void gs_shim_too_late(void)
{
    struct loading *loading = load();
    const char *path = gs_elf_path();

    if (loading && loading->config.general.enable)
        gs_log(GS_LOG_WARNING,
               "loaded when the program had begun (by dlopen, or from Python by ctypes), the "
               "library does nothing: start the program with LD_PRELOAD=%s",
               path[0] ? path : "libgpushim.so");
    free(loading);
}
