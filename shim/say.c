/*
 * The line at the start, and the figures at an end that runs no exit handlers; say.h.
 */
#include "say.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "config/explain.h"
#include "core/record/trace.h"
#include "core/process/stats.h"
#include "core/share/directory.h"
#include "core/share/wire.h"
#include "log.h"
#include "shim/lookup/driver.h"
#include "shim/lookup/leave.h"
#include "start.h"

#define DRIVER_FILE "/proc/driver/nvidia/version" /* "... Kernel Module  570.124.06  ..." */
#define NAME_SIZE   96

static struct {
    pid_t process; /* whose it is: not a child's */
    bool wanted;
    char options[256]; /* those that are set */
    char place[160];   /* where it shares, and how */
    char files[GS_CONFIG_READ_SIZE + 32];
} configured;

static atomic_flag started = ATOMIC_FLAG_INIT, ended = ATOMIC_FLAG_INIT;

/* Adds to a text; what does not fit ends in "...". */
__attribute__((format(printf, 3, 4))) static void add(char *text, size_t size, const char *format,
                                                      ...)
{
    size_t used = strlen(text);
    va_list arguments;
    int length;

    va_start(arguments, format);
    length = vsnprintf(text + used, size - used, format, arguments);
    va_end(arguments);
    if (length >= 0 && (size_t)length >= size - used)
        memcpy(text + size - 4, "...", 4);
}

#define ADD(text, ...) add(text, sizeof(text), __VA_ARGS__)

static void keep_options(const struct gs_config *config)
{
    static struct gs_config_row row; /* large; one thread loads */

    configured.options[0] = 0;
    for (size_t i = 0; gs_config_row(config, i, &row); i++)
        if (!row.is_default)
            ADD(configured.options, "%s%s = %s",
                configured.options[0] ? ", " : "; options set: ", row.name, row.value);
}

/* Where share.dir names none it is the first that can be had, which is made when it is needed. */
static void keep_place(const struct gs_config *config)
{
    static const struct gs_share_options anywhere;
    const char *dir = config->share.dir.text;
    bool broker = config->share.strategy == GS_CONFIG_SHARE_STRATEGY_BROKER;
    char path[GS_FOLDER_SIZE] = "";

    configured.place[0] = 0;
    if (!config->share.enable) {
        ADD(configured.place, "shares nothing");
        return;
    }
    for (unsigned n = 0; !dir[0] && gs_directory_likely(&anywhere, n, path); n++)
        if (gs_directory_is_good(&anywhere, path))
            dir = path;
    ADD(configured.place, "shares in %s, %s", dir[0] ? dir : "a folder still to be made",
        broker ? "broker" : "embedded");
}

/* A process that is switched off has no more to say: nothing of the driver is known then. */
void gs_say_configured(const struct gs_config *config)
{
    configured.process = getpid();
    configured.wanted = gs_log_shows(GS_LOG_INFO);
    if (!configured.wanted)
        return;
    configured.files[0] = 0;
    ADD(configured.files, "%s%s",
        config->read_files[0] ? "configuration read from " : "no configuration file was read",
        config->read_files);
    keep_options(config);
    keep_place(config);
    if (!config->general.enable && !atomic_flag_test_and_set(&started))
        gs_log(GS_LOG_INFO, "libgpushim %s is switched off in %s%s; %s", GS_VERSION,
               program_invocation_short_name, configured.options, configured.files);
}

/* ---- The driver, and its GPUs ---------------------------------------------------------------- */

/* The version of the kernel's half, or "". */
static void add_kernel_version(char *text, size_t size)
{
    int fd = open(DRIVER_FILE, O_RDONLY | O_CLOEXEC);
    char file[512];
    ssize_t got = fd < 0 ? 0 : read(fd, file, sizeof file - 1);
    const char *at;

    if (fd >= 0)
        close(fd);
    file[got > 0 ? got : 0] = 0;
    at = strstr(file, "Module");
    while (at && (at = strchr(at, ' '))) {
        size_t length;

        at += strspn(at, " ");
        length = strspn(at, "0123456789.");
        if (length > 3 && memchr(at, '.', length)) {
            add(text, size, " %.*s", (int)length, at);
            return;
        }
    }
}

/* Of each kind the number, where several follow each other. */
static void add_gpus(char *text, size_t size)
{
    CUresult (*count_of)(int *) = gs_driver_symbol("cuDeviceGetCount");
    CUresult (*name_of)(char *, int, CUdevice) = gs_driver_symbol("cuDeviceGetName");
    CUresult (*total_of)(size_t *, CUdevice) = gs_driver_symbol("cuDeviceTotalMem_v2");
    char before[NAME_SIZE] = "";
    int count = 0, alike = 0;

    if (!count_of || !name_of || !total_of || count_of(&count) != CUDA_SUCCESS)
        return;
    for (int device = 0; device < count; device++) {
        char name[64] = "?", kind[NAME_SIZE];
        size_t total = 0;

        name_of(name, sizeof name, device);
        total_of(&total, device);
        snprintf(kind, sizeof kind, "%s of %zu MiB", name, total >> 20);
        if (alike && strcmp(kind, before) != 0) {
            add(text, size, ", %d x %s", alike, before);
            alike = 0;
        }
        memcpy(before, kind, sizeof before);
        alike++;
    }
    if (alike)
        add(text, size, ", %d x %s", alike, before);
}

static void add_driver(char *text, size_t size)
{
    CUresult (*version_of)(int *) = gs_driver_symbol("cuDriverGetVersion");
    int version = 0;

    add(text, size, "; driver");
    add_kernel_version(text, size);
    if (version_of && version_of(&version) == CUDA_SUCCESS)
        add(text, size, " for CUDA %d.%d", version / 1000, version % 1000 / 10);
    add_gpus(text, size);
}

/* ---- The start ------------------------------------------------------------------------------- */

static void say_start(const char *driver)
{
    gs_log(GS_LOG_INFO, "libgpushim %s starts in %s%s; %s%s; %s", GS_VERSION,
           program_invocation_short_name, driver, configured.place, configured.options,
           configured.files);
}

void gs_say_started(void)
{
    char driver[320] = "";

    if (!configured.wanted || atomic_flag_test_and_set(&started))
        return;
    add_driver(driver, sizeof driver);
    say_start(driver);
}

/* ---- The end --------------------------------------------------------------------------------- */

void gs_say_exit(void)
{
    if (configured.wanted && !atomic_flag_test_and_set(&started))
        say_start("; no context was made");
    atomic_flag_test_and_set(&ended);
}

/*
 * By _exit, which programs call in handlers of signals, and in children that share this memory
 * (vfork) and are not this process. Nothing here waits for a lock, and the log waits for its target
 * as it does anywhere.
 */
void gs_shim_leaves(void)
{
    if (!gs_state_is_on() || getpid() != configured.process)
        return;
    gs_trace_at_exit(); /* made for a thread that was interrupted anywhere */
    if (gs_log_shows(GS_LOG_INFO) && !atomic_flag_test_and_set(&ended))
        gs_stats_log(gs_core);
}
