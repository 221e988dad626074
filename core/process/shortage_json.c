/* The report of an allocation that was refused, for programs (core/process/shortage.h). */
#include "core/process/shortage.h"

#include <stdint.h>
#include <time.h>

#include "core/base/printable.h"
#include "core/base/text.h"
#include "core/share/alive.h"

static void add_name(struct gs_text *json, const char *name)
{
    char piece[GS_JSON_PIECE];

    gs_text_add(json, ",\"name\":\"");
    while (*name && gs_printable_json(&name, piece))
        gs_text_add(json, "%s", piece);
    gs_text_add(json, "\"");
}

static void add_pid(struct gs_text *json, pid_t pid)
{
    if (pid > 0)
        gs_text_add(json, "{\"pid\":%d", (int)pid);
    else
        gs_text_add(json, "{\"pid\":null");
}

static void add_number(struct gs_text *json, const char *key, bool known, uint64_t number)
{
    if (known)
        gs_text_add(json, ",\"%s\":%llu", key, (unsigned long long)number);
    else
        gs_text_add(json, ",\"%s\":null", key);
}

static void add_what(struct gs_text *json, const struct gs_shortage *shortage)
{
    struct timespec now = {0};

    clock_gettime(CLOCK_REALTIME, &now);
    gs_text_add(json, "{\"time\":%lld.%03ld,\"pid\":%d,\"device\":%d,\"uuid\":\"GPU-",
                (long long)now.tv_sec, now.tv_nsec / 1000000, (int)gs_alive_own_pid(),
                (int)shortage->device);
    for (unsigned i = 0; i < sizeof shortage->uuid; i++)
        gs_text_add(json, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                    shortage->uuid[i]);
    gs_text_add(json, "\",\"refused_by\":\"%s\"", shortage->by_limit ? "pool.limit" : "driver");
    add_number(json, "asked_bytes", shortage->wanted > 0, shortage->wanted);
    add_number(json, "limit_bytes", shortage->limit != SIZE_MAX, shortage->limit);
    add_number(json, "total_bytes", shortage->has_info, shortage->total);
    add_number(json, "free_bytes", shortage->has_info, shortage->free);
    add_number(json, "outside_bytes", shortage->has_info, shortage->outside);
}

static void add_own(struct gs_text *json, const struct gs_shortage *shortage)
{
    const struct gs_stats *stats = &shortage->stats;

    gs_text_add(json,
                ",\"process\":{\"reserved_bytes\":%zu,\"live_bytes\":%zu,\"cached_bytes\":%zu,"
                "\"retired_bytes\":%zu,\"ordered_bytes\":%zu,\"limbo_bytes\":%zu,"
                "\"going_bytes\":%zu,\"largest_free_bytes\":%zu}",
                stats->reserved, stats->live, stats->cached, stats->retired, stats->ordered,
                stats->limbo, shortage->going, shortage->largest);
}

static void add_holders(struct gs_text *json, const struct gs_share_held *held)
{
    gs_text_add(json, ",\"holders\":{\"count\":%u", held->holders);
    add_number(json, "held_bytes", true, held->bytes);
    gs_text_add(json, ",\"most\":[");
    for (unsigned i = 0; i < held->holders && i < GS_SHARE_HOLDERS; i++) {
        const struct gs_share_holder *holder = &held->most[i];

        gs_text_add(json, "%s", i ? "," : "");
        add_pid(json, holder->pid);
        add_name(json, holder->name);
        gs_text_add(json, ",\"stopped\":%s", holder->stopped ? "true" : "false");
        add_number(json, "held_bytes", true, holder->bytes);
        add_number(json, "held_ns", true, holder->held_ns);
        gs_text_add(json, "}");
    }
    gs_text_add(json, "]}");
}

static void add_others(struct gs_text *json, const struct gs_shortage *shortage)
{
    const struct gs_share_others *others = &shortage->others;

    gs_text_add(json, ",\"others\":{\"asked\":%s", shortage->asked ? "true" : "false");
    add_number(json, "answered", true, others->answered);
    add_number(json, "silent", true, others->silent);
    add_number(json, "reserved_bytes", true, others->reserved);
    add_number(json, "cached_bytes", true, others->cached);
    gs_text_add(json, ",\"most\":[");
    for (unsigned i = 0; i < others->answered && i < GS_SHARE_HOLDERS; i++) {
        gs_text_add(json, "%s", i ? "," : "");
        add_pid(json, others->most[i].pid);
        add_name(json, others->most[i].name);
        add_number(json, "reserved_bytes", true, others->most[i].reserved);
        add_number(json, "live_bytes", true, others->most[i].live);
        add_number(json, "cached_bytes", true, others->most[i].cached);
        gs_text_add(json, "}");
    }
    gs_text_add(json, "]}");
}

size_t gs_shortage_json(const struct gs_shortage *shortage, char *ret_line, size_t size)
{
    struct gs_text json = {.bytes = ret_line, .size = size};

    add_what(&json, shortage);
    add_own(&json, shortage);
    add_holders(&json, &shortage->held);
    add_others(&json, shortage);
    gs_text_add(&json, ",\"help\":[");
    for (unsigned i = 0; i < GS_SHORTAGE_HELPS && shortage->help[i]; i++)
        gs_text_add(&json, "%s\"%s\"", i ? "," : "", shortage->help[i]);
    gs_text_add(&json, "]}\n");
    return json.cut ? 0 : json.length;
}
