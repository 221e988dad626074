/* The report of an allocation that was refused, for programs (core/process/shortage.h). */
#include "core/process/shortage.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>

#include "core/share/alive.h"

struct json {
    char *bytes;
    size_t length, size;
    bool cut;
};

__attribute__((format(printf, 2, 3))) static void add(struct json *json, const char *format, ...)
{
    size_t room = json->size - json->length;
    va_list arguments;
    int length;

    va_start(arguments, format);
    length = vsnprintf(json->bytes + json->length, room, format, arguments);
    va_end(arguments);
    if (length < 0 || (size_t)length >= room)
        json->cut = true;
    else
        json->length += (size_t)length;
}

/* A name of a program is printable, and may have these in it. */
static void add_name(struct json *json, const char *name)
{
    add(json, ",\"name\":\"");
    for (; *name; name++)
        add(json, *name == '"' || *name == '\\' ? "\\%c" : "%c", *name);
    add(json, "\"");
}

static void add_pid(struct json *json, pid_t pid)
{
    if (pid > 0)
        add(json, "{\"pid\":%d", (int)pid);
    else
        add(json, "{\"pid\":null");
}

static void add_number(struct json *json, const char *key, bool known, uint64_t number)
{
    if (known)
        add(json, ",\"%s\":%llu", key, (unsigned long long)number);
    else
        add(json, ",\"%s\":null", key);
}

static void add_what(struct json *json, const struct gs_shortage *shortage)
{
    struct timespec now = {0};

    clock_gettime(CLOCK_REALTIME, &now);
    add(json, "{\"time\":%lld.%03ld,\"pid\":%d,\"device\":%d,\"uuid\":\"GPU-",
        (long long)now.tv_sec, now.tv_nsec / 1000000, (int)gs_alive_own_pid(),
        (int)shortage->device);
    for (unsigned i = 0; i < sizeof shortage->uuid; i++)
        add(json, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", shortage->uuid[i]);
    add(json, "\",\"refused_by\":\"%s\"", shortage->by_limit ? "pool.limit" : "driver");
    add_number(json, "asked_bytes", shortage->wanted > 0, shortage->wanted);
    add_number(json, "limit_bytes", shortage->limit != SIZE_MAX, shortage->limit);
    add_number(json, "total_bytes", shortage->has_info, shortage->total);
    add_number(json, "free_bytes", shortage->has_info, shortage->free);
    add_number(json, "outside_bytes", shortage->has_info, shortage->outside);
}

static void add_own(struct json *json, const struct gs_shortage *shortage)
{
    const struct gs_stats *stats = &shortage->stats;

    add(json, ",\"process\":{\"reserved_bytes\":%zu", stats->reserved);
    add_number(json, "live_bytes", true, stats->live);
    add_number(json, "cached_bytes", true, stats->cached);
    add_number(json, "retired_bytes", true, stats->retired);
    add_number(json, "ordered_bytes", true, stats->ordered);
    add_number(json, "limbo_bytes", true, stats->limbo);
    add_number(json, "going_bytes", true, shortage->going);
    add_number(json, "largest_free_bytes", true, shortage->largest);
    add(json, "}");
}

static void add_holders(struct json *json, const struct gs_share_held *held)
{
    add(json, ",\"holders\":{\"count\":%u", held->holders);
    add_number(json, "held_bytes", true, held->bytes);
    add_number(json, "mapped_bytes", true, held->mapped);
    add(json, ",\"most\":[");
    for (unsigned i = 0; i < held->holders && i < GS_SHARE_HOLDERS; i++) {
        const struct gs_share_holder *holder = &held->most[i];

        add(json, "%s", i ? "," : "");
        add_pid(json, holder->pid);
        add_name(json, holder->name);
        add(json, ",\"stopped\":%s", holder->stopped ? "true" : "false");
        add_number(json, "held_bytes", true, holder->bytes);
        add_number(json, "held_ns", true, holder->held_ns);
        add_number(json, "mapped_bytes", true, holder->mapped);
        add(json, "}");
    }
    add(json, "]}");
}

static void add_others(struct json *json, const struct gs_shortage *shortage)
{
    const struct gs_share_others *others = &shortage->others;

    add(json, ",\"others\":{\"asked\":%s",
        shortage->asked == GS_OTHERS_ASKED ? "true" : "false");
    add_number(json, "answered", true, others->answered);
    add_number(json, "silent", true, others->silent);
    add_number(json, "reserved_bytes", true, others->reserved);
    add_number(json, "cached_bytes", true, others->cached);
    add(json, ",\"most\":[");
    for (unsigned i = 0; i < others->answered && i < GS_SHARE_HOLDERS; i++) {
        add(json, "%s", i ? "," : "");
        add_pid(json, others->most[i].pid);
        add_name(json, others->most[i].name);
        add_number(json, "reserved_bytes", true, others->most[i].reserved);
        add_number(json, "live_bytes", true, others->most[i].live);
        add_number(json, "cached_bytes", true, others->most[i].cached);
        add(json, "}");
    }
    add(json, "]}");
}

size_t gs_shortage_json(const struct gs_shortage *shortage, char *ret_line, size_t size)
{
    struct json json = {.bytes = ret_line, .size = size};

    add_what(&json, shortage);
    add_own(&json, shortage);
    add_holders(&json, &shortage->held);
    add_others(&json, shortage);
    add(&json, ",\"help\":[");
    for (unsigned i = 0; i < GS_SHORTAGE_HELPS && shortage->help[i]; i++)
        add(&json, "%s\"%s\"", i ? "," : "", shortage->help[i]);
    add(&json, "]}\n");
    return json.cut ? 0 : json.length;
}
