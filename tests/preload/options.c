/*
 * Each option of the configuration comes to what it is for: shim/start.c between the environment
 * and a core that only notes what it is given.
 */
#include "shim/start.h" /* before any cuda.h */
#include "check.h"
#include "config/config.h"
#include "core/api/core.h"
#include "core/share/directory.h"
#include "shim/log.h"
#include "shim/lookup/leave.h"
#include "shim/say.h"
#include "shim/sleep.h"
#include "shim/oom_report.h"
#include "shim/lookup/driver.h"
#include "core/process/record.h"
#include "shim/stack.h"
#include "shim/state.h"
#include "tests/system.h"

/* What came to the core and to those beside it. */
static struct given {
    struct gs_core_options core;
    enum gs_pin_keep keep;
    enum gs_log_level level;
    char log_path[128], record_path[128], report_path[128];
    unsigned frames;
    bool bounded;
    uint64_t sleeps_after_ns;
    bool wakes_by_use;
    bool started;
} given;

gs_status gs_core_create(const struct gs_driver *driver, const struct gs_core_options *options,
                         struct gs_core **ret_core)
{
    given.core = *options;
    given.started = true;
    *ret_core = (struct gs_core *)&given;
    return GS_OK;
}

const struct gs_map *gs_core_map(const struct gs_core *core)
{
    return NULL;
}

struct gs_single *gs_core_single(struct gs_core *core)
{
    return NULL;
}

void gs_core_forking(struct gs_core *core)
{
}

void gs_core_forked(struct gs_core *core)
{
}

void gs_core_at_exit(struct gs_core *core)
{
}

bool gs_trace_on, gs_pin_apart;

const char *gs_trace_start(const char *path, bool frames, const struct gs_log *log)
{
    snprintf(given.record_path, sizeof given.record_path, "%s", path);
    return NULL;
}

void gs_trace_at_exit(void)
{
}

void gs_record_at_exit(struct gs_core *core)
{
}

void gs_stack_want(unsigned frames)
{
    given.frames = frames;
}

void *gs_driver_symbol(const char *name)
{
    return (void *)&given;
}

int gs_log_level;

const char *gs_log_configure(enum gs_log_level level, const char *path)
{
    given.level = level;
    snprintf(given.log_path, sizeof given.log_path, "%s", path ? path : "");
    return NULL;
}

void gs_say_configured(const struct gs_config *config)
{
}

void gs_shim_told_to_sleep(struct gs_sleep_order *order)
{
}

void gs_shim_sleeps_by_itself(uint64_t after_ns, bool wakes_by_use)
{
    given.sleeps_after_ns = after_ns;
    given.wakes_by_use = wakes_by_use;
}

void gs_say_exit(void)
{
}

void gs_shim_leaves(void)
{
}

void gs_oom_report_to(const char *path)
{
    snprintf(given.report_path, sizeof given.report_path, "%s", path);
}

void gs_oom_report(const char *line)
{
}

void gs_log(enum gs_log_level level, const char *format, ...)
{
}

void gs_log_text(enum gs_log_level level, const void *place, const char *text)
{
    fprintf(stderr, "said: %s\n", text);
    exit(1);
}

/* An option, a value that is not its default, and where that is to be seen, as it is to be seen
 * there. */
struct option {
    const char *name, *value;
    size_t place, size;
    union {
        unsigned char bytes[16];
        uint64_t number;
        bool on;
    } seen;
    const char *text; /* in place of it */
};

#define AT(field) offsetof(struct given, field), sizeof((struct given *)0)->field

#define NUMBER(section_key, word, field, is) {section_key, word, AT(field), {.number = is}, NULL}
#define TEXT(section_key, word, field)       {section_key, word, AT(field), {{0}}, word}
#define MS                                   UINT64_C(1000000)
#define MIB                                  (UINT64_C(1) << 20)

static const struct option options[] = {
    NUMBER("ENABLE", "off", started, false),
    NUMBER("LOG", "debug", level, GS_LOG_DEBUG),
    TEXT("LOG_TARGET", "/somewhere/else", log_path),
    TEXT("RECORD", "/some/recording", record_path),
    NUMBER("RECORD_STACKS", "7", frames, 7),
    NUMBER("POOL_FREE", "native", core.free_native, true),
    NUMBER("DEBUG_SINGLE_STREAM", "off", core.single_stream, false),
    NUMBER("DEBUG_POOL_CROSS", "off", core.cross, false),
    NUMBER("DEBUG_SMALL_LIMIT", "64K", core.small_limit, 65536),
    NUMBER("DEBUG_EPOCH_BYTES", "3M", core.epoch_bytes, 3 * MIB),
    NUMBER("DEBUG_RETIRED_LIMIT", "37", core.retiring_percent, 37),
    NUMBER("POOL_DECAY", "77ms", core.decay_ns, 77 * MS),
    NUMBER("POOL_CACHE_LIMIT", "5M", core.cache_limit, 5 * MIB),
    NUMBER("POOL_CACHE_LIMIT", "41 %", core.cache_percent, 41),
    NUMBER("POOL_LIMIT", "11M", core.limit.bytes, 11 * MIB),
    NUMBER("POOL_LIMIT", "43 %", core.limit.percent, 43),
    NUMBER("POOL_LIMIT", "43 %", bounded, true),
    TEXT("POOL_OOM_REPORT", "/some/report", report_path),
    NUMBER("DEBUG_RECLAIM_FROM_PEERS", "off", core.neighbours, false),
    NUMBER("SHARE_ENABLE", "off", core.share.enable, false),
    TEXT("SHARE_DIR", "/some/folder", core.share.dir),
    NUMBER("DEBUG_GRACE", "78ms", core.share.grace_ns, 78 * MS),
    NUMBER("DEBUG_SETTLE", "79ms", core.share.settle_ns, 79 * MS),
    NUMBER("DEBUG_TIMEOUT", "80ms", core.share.timeout_ns, 80 * MS),
    NUMBER("SHARE_UIDS", "4711", core.share.uids[0], 4711),
    NUMBER("SHARE_GIDS", "4712", core.share.gids[0], 4712),
    NUMBER("SHARE_STRATEGY", "broker", core.share.broker, true),
    NUMBER("SHARE_REACH", "cluster", core.share.cluster, true),
    TEXT("SHARE_BROKER", "/some/broker", core.share.broker_program),
    NUMBER("SHARE_KEEP", "81ms", core.share.keep_ns, 81 * MS),
    NUMBER("DEBUG_BROKER_BLOCKS", "17", core.share.published_max, 17),
    NUMBER("DEBUG_IDLE", "82ms", core.share.idle_ns, 82 * MS),
    NUMBER("DEBUG_IDLE_BLOCKS", "18", core.share.idle_blocks, 18),
    NUMBER("DEBUG_ACCESS", "read-only", core.share.read_only, true),
    NUMBER("SHARE_ISOLATE", "refuse", core.share.isolate, true),
    NUMBER("DEBUG_USER_VMM", "off", core.user_vmm, false),
    NUMBER("DEBUG_LIMBO_WARNING", "7M", core.share.limbo_warning, 7 * MIB),
    NUMBER("DEBUG_LIMBO_WARNING_BLOCKS", "19", core.share.limbo_warning_blocks, 19),
    NUMBER("DEBUG_LIMBO_LIMIT", "9M", core.share.limbo_limit, 9 * MIB),
    NUMBER("DEBUG_LIMBO_WARNING_AGE", "83ms", core.share.limbo_warning_ns, 83 * MS),
    NUMBER("DEBUG_MAX_CLIENTS", "20", core.share.max_clients, 20),
    NUMBER("SLEEP_AFTER", "84ms", sleeps_after_ns, 84 * MS),
    NUMBER("SLEEP_WAKE", "use", wakes_by_use, true),
    NUMBER("REGISTRATIONS_KEEP", "all", keep, GS_PIN_KEEP_ALL),
    NUMBER("DEBUG_REGISTRATIONS_COUNT", "21", core.registrations.count, 21),
    NUMBER("DEBUG_REGISTRATIONS_BYTES", "9M", core.registrations.bytes, 9 * MIB),
};
#define OPTIONS (sizeof options / sizeof options[0])

/* Those of the table: each has its line above. */
static const char *const names[] = {
#define NAME(section, key, type, standard, help) #section "_" #key,
#define NAMES(section, list, help)               list(NAME)
    GS_CONFIG_SECTIONS(NAMES)};
#define NAMES_COUNT (sizeof names / sizeof names[0])

/* What is given with an option set, or with none. */
static struct given start_with(const struct option *option)
{
    char name[64];

    memset(&given, 0, sizeof given);
    gs_pin_keep = GS_PIN_KEEP_NONE;
    gs_bounded = false;
    if (option) {
        snprintf(name, sizeof name, "GPUSHIM_%s", option->name);
        setenv(name, option->value, 1);
    }
    gs_shim_start();
    given.keep = gs_pin_keep;
    given.bounded = gs_bounded;
    if (option)
        unsetenv(name);
    return given;
}

static bool is_there(const struct given *got, const struct option *option)
{
    const char *place = (const char *)got + option->place;

    return option->text ? strcmp(place, option->text) == 0
                        : memcmp(place, option->seen.bytes, option->size) == 0;
}

/* An option of the table by the name of its variable: those of `general` have no section in it. */
static bool has_line(const char *name)
{
    char upper[64];
    size_t i;

    if (strncmp(name, "general_", 8) == 0)
        name += 8;
    for (i = 0; name[i] && i < sizeof upper - 1; i++)
        upper[i] = (char)(name[i] >= 'a' && name[i] <= 'z' ? name[i] - 'a' + 'A' : name[i]);
    upper[i] = 0;
    for (i = 0; i < OPTIONS; i++)
        if (strcmp(options[i].name, upper) == 0)
            return true;
    return fprintf(stderr, "no line for the option %s\n", upper), false;
}

int main(void)
{
    struct given standard;
    char file[] = "/tmp/gpushim-options-XXXXXX"; /* says nothing */

    CHECK(mkstemp(file) >= 0, "no file");
    clearenv(); /* of what else the test's surroundings set */
    setenv("GPUSHIM_CONFIG", file, 1);
    standard = start_with(NULL);
    CHECK(standard.started, "it does not start");
    CHECK(standard.core.share.grace_least_ns == 1000 * MS,
          "a handle on its way waits for a second");
    for (size_t i = 0; i < NAMES_COUNT; i++)
        if (!has_line(names[i]))
            return 1;
    for (size_t i = 0; i < OPTIONS; i++) {
        struct given got = start_with(&options[i]);

        if (is_there(&standard, &options[i]) || !is_there(&got, &options[i])) {
            fprintf(stderr, "%s=%s is not seen, or is the default\n", options[i].name,
                    options[i].value);
            return 1;
        }
    }
    unlink(file);
    return 0;
}
