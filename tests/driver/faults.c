/*
 * The gate that each call passes, and what a test orders at it: fail, be slow, die, lack a feature.
 * While nothing is out of the ordinary, sd_gate is 0 and a call costs one addition more.
 */
#include "internal.h"

#define MAX_RULES 64

_Atomic unsigned sd_gate = SD_GATE_UNINITIALISED;

enum action { FAIL, DELAY, KILL };

/* Protected by sd_lock. */
static struct rule {
    char name[64];
    enum action action;
    unsigned nth;        /* 0: every call */
    bool onwards;        /* the nth and all later ones */
    unsigned long value; /* the error, or microseconds */
    unsigned long seen;
} rules[MAX_RULES];
static unsigned rule_count;
static const char *last_failed = ""; /* the call */

static _Atomic unsigned features_off;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static const struct {
    const char *name;
    enum sd_feature feature;
} feature_names[] = {{"vmm", SD_WITH_VMM},
                     {"posix_fd", SD_WITH_POSIX_FD},
                     {"rdma", SD_WITH_RDMA},
                     {"ctx_record_event", SD_WITH_CTX_RECORD_EVENT},
                     {"async", SD_WITH_ASYNC},
                     {"peer", SD_WITH_PEER},
                     {"sync_memops", SD_WITH_SYNC_MEMOPS},
                     {"dma_buf", SD_WITH_DMA_BUF}};

/* Calls that a missing feature takes along; a trailing '*' matches any rest. */
static const struct {
    enum sd_feature feature;
    const char *call;
} feature_calls[] = {
    {SD_WITH_VMM, "cuMemAddress*"},
    {SD_WITH_VMM, "cuMemCreate"},
    {SD_WITH_VMM, "cuMemRelease"},
    {SD_WITH_VMM, "cuMemMap"},
    {SD_WITH_VMM, "cuMemUnmap"},
    {SD_WITH_VMM, "cuMemSetAccess"},
    {SD_WITH_VMM, "cuMemGetAccess"},
    {SD_WITH_VMM, "cuMemExportToShareableHandle"},
    {SD_WITH_VMM, "cuMemImportFromShareableHandle"},
    {SD_WITH_VMM, "cuMemGetAllocation*"},
    {SD_WITH_VMM, "cuMemRetainAllocationHandle"},
    {SD_WITH_DMA_BUF, "cuMemGetHandleForAddressRange"},
    {SD_WITH_CTX_RECORD_EVENT, "cuCtxRecordEvent"},
    {SD_WITH_CTX_RECORD_EVENT, "cuCtxWaitEvent"},
    {SD_WITH_ASYNC, "cuMemAllocAsync"},
    {SD_WITH_ASYNC, "cuMemAllocFromPoolAsync"},
    {SD_WITH_ASYNC, "cuMemFreeAsync"},
    {SD_WITH_ASYNC, "cuMemPool*"},
    {SD_WITH_ASYNC, "cuDeviceGetDefaultMemPool"},
    {SD_WITH_ASYNC, "cuDeviceGetMemPool"},
    {SD_WITH_ASYNC, "cuDeviceSetMemPool"},
    {SD_WITH_ASYNC, "cuMemGetDefaultMemPool"},
    {SD_WITH_ASYNC, "cuMemGetMemPool"},
    {SD_WITH_ASYNC, "cuMemSetMemPool"},
};

#define COUNT(array) (sizeof(array) / sizeof *(array))

static bool call_matches(const char *pattern, const char *name)
{
    size_t n = strlen(pattern);

    return pattern[n - 1] == '*' ? !strncmp(pattern, name, n - 1) : !strcmp(pattern, name);
}

bool sd_feature(enum sd_feature feature)
{
    return !(atomic_load_explicit(&features_off, memory_order_relaxed) & feature);
}

static bool row_off(unsigned row)
{
    unsigned off = atomic_load_explicit(&features_off, memory_order_relaxed);

    for (size_t i = 0; off && i < COUNT(feature_calls); i++)
        if ((off & feature_calls[i].feature) &&
            call_matches(feature_calls[i].call, sd_rows[row].name))
            return true;
    return false;
}

/* A driver older than a call does not have its symbol; one that only lacks the hardware does. */
bool sd_row_hidden(unsigned row)
{
    return !sd_feature(SD_WITH_CTX_RECORD_EVENT) &&
           (!strcmp(sd_rows[row].name, "cuCtxRecordEvent") ||
            !strcmp(sd_rows[row].name, "cuCtxWaitEvent"));
}

static bool row_is(unsigned row, const char *name)
{
    return !strcmp(name, "*") || !strcmp(sd_rows[row].name, name) ||
           !strcmp(sd_rows[row].symbol, name);
}

static bool name_known(const char *name)
{
    for (unsigned i = 0; i < sd_row_count; i++)
        if (row_is(i, name))
            return true;
    return false;
}

static int rule_add(const struct rule *rule)
{
    int result = -1;

    if (!name_known(rule->name))
        return -1;
    pthread_mutex_lock(&sd_lock);
    if (rule_count < MAX_RULES) {
        rules[rule_count++] = *rule;
        atomic_fetch_or(&sd_gate, SD_GATE_RULES);
        result = 0;
    }
    pthread_mutex_unlock(&sd_lock);
    return result;
}

/* One NAME:WHICH:VALUE; false when it is none. */
static bool rule_parse(const char *text, struct rule *rule)
{
    char which[32], end;
    unsigned long value;

    memset(rule, 0, sizeof *rule);
    if (sscanf(text, " %63[A-Za-z0-9_*] : %31[^: ] : %lu %c", rule->name, which, &value, &end) != 3)
        return false;
    rule->value = value;
    if (!strcmp(which, "delay")) {
        rule->action = DELAY;
    } else if (!strcmp(which, "kill")) {
        rule->action = KILL;
        rule->nth = value;
    } else if (strcmp(which, "*")) {
        char *rest;
        rule->nth = strtoul(which, &rest, 10);
        rule->onwards = !strcmp(rest, "+");
        return rule->nth && (!*rest || rule->onwards);
    }
    return true;
}

/* A setting that a test got wrong ends the program: run on, it would prove something else. */
void sd_refuse(const char *variable, const char *value, const char *wanted)
{
    fprintf(stderr, "software CUDA driver: %s: \"%s\" is not understood; it wants %s\n", variable,
            value, wanted);
    _exit(125);
}

static void load_rules(const char *text)
{
    char *copy = strdup(text), *save = NULL;

    for (char *p = copy ? strtok_r(copy, ",;", &save) : NULL; p; p = strtok_r(NULL, ",;", &save)) {
        struct rule rule;
        if (!rule_parse(p, &rule) || rule_add(&rule) < 0)
            sd_refuse("SOFTCUDA_FAULTS", p,
                      "NAME:N:ERROR, NAME:N+:ERROR, NAME:*:ERROR, "
                      "NAME:delay:USEC or NAME:kill:N, NAME a driver call or *");
    }
    free(copy);
}

static int features_set(const char *features)
{
    char *copy = strdup(features), *save = NULL;
    unsigned off = 0;
    size_t i = 0;

    for (char *p = copy ? strtok_r(copy, ", ", &save) : NULL; p; p = strtok_r(NULL, ", ", &save)) {
        for (i = 0; i < COUNT(feature_names) && strcmp(p, feature_names[i].name); i++)
            ;
        if (i == COUNT(feature_names))
            break;
        off |= feature_names[i].feature;
    }
    free(copy);
    if (i == COUNT(feature_names))
        return -1;
    atomic_store(&features_off, off);
    if (off)
        atomic_fetch_or(&sd_gate, SD_GATE_FEATURES);
    else
        atomic_fetch_and(&sd_gate, ~SD_GATE_FEATURES);
    return 0;
}

/* A child of a process that started CUDA has none: its threads and locks stayed behind. */
static void forked(void)
{
    if (!(atomic_load(&sd_gate) & SD_GATE_UNINITIALISED))
        atomic_fetch_or(&sd_gate, SD_GATE_FORKED);
}

static void load_environment(void)
{
    const char *text = getenv("SOFTCUDA_WITHOUT");

    pthread_atfork(NULL, NULL, forked);
    if (text && features_set(text) < 0)
        sd_refuse("SOFTCUDA_WITHOUT", text,
                  "a list of vmm, posix_fd, rdma, ctx_record_event, async, peer, sync_memops");
    text = getenv("SOFTCUDA_FAULTS");
    if (text)
        load_rules(text);
}

static void pause_for(unsigned long microseconds)
{
    struct timespec left = {microseconds / 1000000, microseconds % 1000000 * 1000};

    while (nanosleep(&left, &left) < 0 && errno == EINTR)
        ;
}

static CUresult rules_apply(unsigned row)
{
    unsigned long delay = 0;
    CUresult error = CUDA_SUCCESS;

    pthread_mutex_lock(&sd_lock);
    for (unsigned i = 0; i < rule_count; i++) {
        struct rule *rule = &rules[i];
        if (!row_is(row, rule->name))
            continue;
        rule->seen++;
        if (rule->nth && rule->seen != rule->nth && !(rule->onwards && rule->seen > rule->nth))
            continue;
        if (rule->action == KILL)
            kill(getpid(), SIGKILL);
        if (rule->action == DELAY)
            delay += rule->value;
        if (rule->action == FAIL && !error) {
            error = (CUresult)rule->value;
            last_failed = sd_rows[row].name;
        }
    }
    pthread_mutex_unlock(&sd_lock);
    if (delay) /* a sleep of nothing is one of 50 us */
        pause_for(delay);
    return error;
}

CUresult sd_enter_slow(unsigned row)
{
    unsigned gate = atomic_load(&sd_gate);
    CUresult error = CUDA_SUCCESS;

    if (gate & SD_GATE_FORKED)
        return CUDA_ERROR_NOT_INITIALIZED;
    pthread_once(&once, load_environment);
    gate = atomic_load(&sd_gate);
    if ((gate & SD_GATE_CALLBACK) && sd_thread.in_callback)
        return CUDA_ERROR_NOT_PERMITTED;
    if (gate & SD_GATE_RULES)
        error = rules_apply(row);
    if (!error && (gate & SD_GATE_UNINITIALISED) && !(sd_rows[row].mode & SD_EARLY))
        error = CUDA_ERROR_NOT_INITIALIZED;
    if (!error && (gate & SD_GATE_FEATURES) && row_off(row))
        error = CUDA_ERROR_NOT_SUPPORTED;
    return error;
}

int softcuda_version(void)
{
    return 1;
}

static int order(const char *name, enum action action, unsigned nth, unsigned long value)
{
    struct rule rule = {.action = action, .nth = nth, .value = value};

    if (strlen(name) >= sizeof rule.name)
        return -1;
    strcpy(rule.name, name);
    pthread_once(&once, load_environment);
    return rule_add(&rule);
}

int softcuda_without(const char *features)
{
    pthread_once(&once, load_environment);
    return features_set(features);
}

int softcuda_fail(const char *name, unsigned nth, CUresult error)
{
    return order(name, FAIL, nth, error);
}

int softcuda_delay(const char *name, unsigned microseconds)
{
    return order(name, DELAY, 0, microseconds);
}

int softcuda_kill(const char *name, unsigned nth)
{
    return order(name, KILL, nth, 0);
}

const char *softcuda_last_failed(void)
{
    const char *name;

    pthread_mutex_lock(&sd_lock);
    name = last_failed;
    pthread_mutex_unlock(&sd_lock);
    return name;
}

unsigned long softcuda_calls(const char *name)
{
    unsigned long calls = 0;

    for (unsigned i = 0; i < sd_row_count; i++)
        if (row_is(i, name) && (!i || sd_rows[i].address != sd_rows[i - 1].address))
            calls += atomic_load_explicit(&sd_call_counts[i], memory_order_relaxed);
    return calls;
}

void softcuda_reset(void)
{
    pthread_mutex_lock(&sd_lock);
    rule_count = 0;
    atomic_fetch_and(&sd_gate, ~SD_GATE_RULES);
    for (unsigned i = 0; i < sd_row_count; i++)
        atomic_store_explicit(&sd_call_counts[i], 0, memory_order_relaxed);
    sd_engine_hold(false);
    pthread_mutex_unlock(&sd_lock);
}

void softcuda_hold(int held)
{
    pthread_mutex_lock(&sd_lock);
    sd_engine_hold(held);
    pthread_mutex_unlock(&sd_lock);
}
