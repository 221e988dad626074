/*
 * gpushim sleep, wake and swap: processes take their memory off the GPU, and get it back. Each
 * begins with it in a thread of its own when it is told so (core/share/order.c); from then on it is
 * asked whether it is at it still. Several take it in two steps (core/process/sleep.h), one after
 * the other in each: so what they share among themselves goes too. Before that all of them stop, for
 * the work of one may wait for what another would submit next.
 */
#include <fts.h>
#include <limits.h>

#include "shim/command/order.h"

#define TIMEOUT_NS     (30 * GS_NS_PER_S)
#define MOVES_NS       (600 * GS_NS_PER_S) /* for the copies, beside that */
#define ASKED_FIRST_NS (GS_NS_PER_MS / 5)  /* what came of it, and then twice as late each time, */
#define ASKED_LAST_NS  (20 * GS_NS_PER_MS)
#define STOPS_NS       GS_NS_PER_MS        /* for the work of one that stopped */
#define PASSES_NS      (16 * GS_NS_PER_MS) /* calls of one pass for so long, */
#define STUCK_NS       (GS_NS_PER_S / 2)   /* then work ends in none, and calls of all pass */
#define LEAST_NS       (10 * GS_NS_PER_MS) /* for those that have stopped, when time is over */

/* A process that is meant. */
struct target {
    long pid;
    int word;      /* of the command line, that it was named by: */
    bool in_group; /* a control group, in which it was found and may have no socket */
    size_t first;  /* the number of the target that is told: it was named before */
    bool found, goes_on;
    bool works; /* it has stopped, and its work has not ended */
    uint64_t took_ns;
};

struct sleeping {
    struct order order; /* first: what tells it is given this */
    enum gs_sleep_verb verb;
    struct target *targets, *target; /* and the one that is told */
    size_t count, room;
    uint64_t timeout_ns;
    char directory[GS_SLEEP_DIRECTORY], discard[GS_SLEEP_TAG];
};

/* One answer; about the order of that number for GS_SLEEP_STATE. False, and why in ret_reason:
 * there is none. */
static bool ask_it(int fd, const struct sleeping *sleeping, enum gs_sleep_verb verb, uint32_t order,
                   struct gs_wire_done *ret, char *ret_reason, size_t size)
{
    union gs_wire_message message;

    gs_wire_start(&message, GS_WIRE_ORDER, 1);
    message.order.kind = GS_ORDER_SLEEP;
    message.order.verb = verb;
    message.order.number = order;
    message.order.value = sleeping->timeout_ns;
    memcpy(message.order.name, sleeping->directory, sizeof message.order.name);
    memcpy(message.order.discard, sleeping->discard, sizeof message.order.discard);
    return order_ask(fd, &message, ret, ret_reason, size);
}

/* Until it is done with it. */
static void have_it(int fd, const struct sleeping *sleeping, struct gs_wire_done *ret,
                    char *ret_reason, size_t size)
{
    const uint64_t deadline = ask_deadline(sleeping->timeout_ns + MOVES_NS);
    uint64_t rest = ASKED_FIRST_NS;
    bool told = ask_it(fd, sleeping, sleeping->verb, 0, ret, ret_reason, size);

    while (told && ret->more && gs_now_ns() < deadline) {
        gs_rest_ns(rest);
        rest = rest < ASKED_LAST_NS ? 2 * rest : rest;
        told = ask_it(fd, sleeping, GS_SLEEP_STATE, ret->more, ret, ret_reason, size);
    }
    sleeping->target->works = told && !ret->more && ret->outcome == EINPROGRESS;
    if (sleeping->target->works)
        return;
    if (told && ret->more)
        snprintf(ret_reason, size, "is at it still");
    else if (told && ret->outcome)
        snprintf(ret_reason, size, "%s", ret->text[0] ? ret->text : "it does not sleep");
}

static const struct {
    const char *text, *json;
} stays[GS_SLEEP_STAYS] = {{"shared", "shared_bytes"},
                           {"registered", "registered_bytes"},
                           {"of ended contexts", "ending_bytes"},
                           {"that the driver did not unmap", "refused_bytes"},
                           {"of the program's own", "own_bytes"}};

/* What has gone, and what stays; as text behind how long it took. */
static void tell_sizes(struct json *json, const struct gs_asleep_for *asleep, char *ret_text,
                       size_t size)
{
    size_t used = (size_t)snprintf(ret_text, size, ": %s off the GPU, %s kept on the host",
                                   show_size(asleep->away).text, show_size(asleep->copied).text);

    json_number(json, "away_bytes", asleep->away);
    json_number(json, "kept_bytes", asleep->copied);
    for (int i = 0; i < GS_SLEEP_STAYS; i++) {
        json_number(json, stays[i].json, asleep->stays[i]);
        if (asleep->stays[i] && used < size)
            used += (size_t)snprintf(ret_text + used, size - used, "; %s %s stay",
                                     show_size(asleep->stays[i]).text, stays[i].text);
    }
}

static void tell_it(struct order *order, const struct who *who, int fd, const char *silent)
{
    struct sleeping *sleeping = (struct sleeping *)order;
    const uint64_t began = gs_now_ns();
    struct gs_wire_done done = {.more = 0};
    uint64_t *took_ns = &sleeping->target->took_ns;
    const bool is_half = sleeping->verb != GS_SLEEP_GOES && sleeping->verb != GS_SLEEP_WAKES;
    char reason[sizeof done.text], sizes[320];

    snprintf(reason, sizeof reason, "%s", silent);
    if (!silent[0])
        have_it(fd, sleeping, &done, reason, sizeof reason);
    *took_ns += gs_now_ns() - began;
    if ((is_half && !reason[0]) || !order_begins(order, who, reason))
        return;
    json_text(order->json, "state", done.sleep.ns ? "asleep" : "awake");
    json_number(order->json, "took_ns", *took_ns);
    tell_sizes(order->json, &done.sleep, sizes, sizeof sizes);
    order_ends(order, who, "%s, in %.2f s%s", done.sleep.ns ? "asleep" : "awake",
               (double)*took_ns / 1e9, done.sleep.ns ? sizes : "");
}

/* False: it was not done, which was said. */
static bool order_one(struct sleeping *sleeping, struct target *target, enum gs_sleep_verb verb)
{
    struct order *order = &sleeping->order;
    const struct ask_time time = {sleeping->timeout_ns + MOVES_NS, sleeping->timeout_ns + MOVES_NS};

    order->only = target->pid;
    order->if_there = target->in_group;
    order->found = order->failed = false;
    order->time = &time;
    sleeping->verb = verb;
    sleeping->target = target;
    order_each(order);
    order->time = NULL;
    target->found |= order->found;
    target->goes_on = order->found && !order->failed;
    return !order->failed;
}

/* ---- Who is meant ---------------------------------------------------------------------------- */

static void add_target(struct sleeping *sleeping, long pid, int word, bool in_group)
{
    size_t first = 0;

    while (first < sleeping->count && sleeping->targets[first].pid != pid)
        first++;
    if (first < sleeping->count)
        sleeping->targets[first].in_group &= in_group;
    *COMMAND_NEXT(sleeping->targets, sleeping->count, sleeping->room) =
        (struct target){.pid = pid, .word = word, .in_group = in_group, .first = first};
}

/* Those of a control group that have the library. 0, or an errno. */
static int add_group(struct sleeping *sleeping, const char *path, int word)
{
    char name[PATH_MAX], line[32];
    FILE *pids;
    long pid;

    snprintf(name, sizeof name, "%s/cgroup.procs", path);
    pids = fopen(name, "re");
    if (!pids)
        return errno;
    while (fgets(line, sizeof line, pids))
        if ((pid = strtol(line, NULL, 10)) > 0 && who_has_library(pid))
            add_target(sleeping, pid, word, true);
    fclose(pids);
    return 0;
}

/* Those of a control group and of the ones below it, however deep they lie. False: one cannot be
 * read, or is none, which was said; then nobody below it is meant. */
static bool add_groups(struct sleeping *sleeping, const char *path, int word)
{
    char *const roots[] = {(char *)path, NULL};
    FTS *tree = command_need(fts_open(roots, FTS_PHYSICAL | FTS_COMFOLLOW, NULL));
    bool well = true;
    FTSENT *entry;

    while ((entry = fts_read(tree))) {
        const bool is_asked =
            entry->fts_info == FTS_D || (entry->fts_level == 0 && entry->fts_info != FTS_DP);
        const int error = is_asked ? add_group(sleeping, entry->fts_accpath, word) : 0;

        if (!error)
            continue;
        command_complain("%s is no control group: cgroup.procs: %s", entry->fts_path,
                         strerror(error));
        fts_set(tree, entry, FTS_SKIP);
        well = false;
    }
    if (errno) { /* fts_read's, at its end 0 */
        command_complain("%s cannot be read to its end: %s", path, strerror(errno));
        well = false;
    }
    fts_close(tree);
    return well;
}

static bool is_group(const char *word)
{
    return word[0] == '/';
}

/* Those that have not failed: all, or those whose work has ended, or has not. */
enum those { ALL, AT_REST, AT_WORK };
static bool is_of(const struct sleeping *sleeping, size_t i, enum those those)
{
    const struct target *target = &sleeping->targets[i];

    return target->first == i && target->goes_on &&
           (those == ALL || target->works == (those == AT_WORK));
}

static bool order_those(struct sleeping *sleeping, enum those those, enum gs_sleep_verb verb)
{
    bool well = true;

    for (size_t i = 0; i < sleeping->count; i++)
        if (is_of(sleeping, i, those))
            well &= order_one(sleeping, &sleeping->targets[i], verb);
    return well;
}

static bool has_any(const struct sleeping *sleeping, enum those those)
{
    size_t i = 0;

    while (i < sleeping->count && !is_of(sleeping, i, those))
        i++;
    return i < sleeping->count;
}

/*
 * All stop. The work of one that does not end waits for what another would submit, who has nothing
 * to do: that one's calls pass for a while, until that work ends. By then it may have gone a step
 * further, and wait for the other, which then is the one to go on. Where time is over some work on.
 */
static bool stop_targets(struct sleeping *sleeping)
{
    const uint64_t timeout_ns = sleeping->timeout_ns, end = ask_deadline(timeout_ns);
    uint64_t rested_ns = gs_now_ns();
    bool well;

    sleeping->timeout_ns = STOPS_NS;
    well = order_those(sleeping, ALL, GS_SLEEP_STOPS);
    while (has_any(sleeping, AT_WORK) && gs_now_ns() < end) {
        well &= order_those(sleeping, AT_WORK, GS_SLEEP_STOPS);
        if (!has_any(sleeping, AT_WORK))
            break;
        sleeping->timeout_ns = PASSES_NS;
        if (has_any(sleeping, AT_REST)) {
            well &= order_those(sleeping, AT_REST, GS_SLEEP_PASSES);
            rested_ns = gs_now_ns();
        } else if (gs_now_ns() - rested_ns > STUCK_NS) {
            sleeping->timeout_ns = 0;
            well &= order_those(sleeping, ALL, GS_SLEEP_PASSES);
        }
        sleeping->timeout_ns = STOPS_NS;
    }
    sleeping->timeout_ns = gs_now_ns() + LEAST_NS < end ? end - gs_now_ns() : LEAST_NS;
    return well;
}

/* All of them do it, each once. One that fails at the first step takes no second. */
static bool order_targets(struct sleeping *sleeping, enum gs_sleep_verb verb)
{
    const bool wakes = verb == GS_SLEEP_WAKES;
    const uint64_t timeout_ns = sleeping->timeout_ns;
    bool well = true;

    for (size_t i = 0; i < sleeping->count; i++)
        sleeping->targets[i].goes_on = true;
    if (sleeping->count > 1 && !wakes)
        well &= stop_targets(sleeping);
    if (sleeping->count > 1)
        well &= order_those(sleeping, ALL, wakes ? GS_SLEEP_RETURNS : GS_SLEEP_LETS_GO);
    well &= order_those(sleeping, ALL, verb);
    sleeping->timeout_ns = timeout_ns;
    return well;
}

/* False: the word is a group in which there was none, which is said. */
static bool has_found(const struct sleeping *sleeping, const struct call *call, int n)
{
    bool found = !is_group(call->argv[n]);

    for (size_t i = 0; i < sleeping->count; i++)
        found |=
            sleeping->targets[i].word == n && sleeping->targets[sleeping->targets[i].first].found;
    if (!found)
        command_complain("%s: no process in it has GPU memory of the library's that can be asked",
                         call->argv[n]);
    return found;
}

/* The words from the n-th on. False: not all was done, which was said. */
static bool order_words(struct sleeping *sleeping, const struct call *call, int n, int count,
                        enum gs_sleep_verb verb)
{
    bool well = true;

    sleeping->count = 0;
    for (int i = n; i < n + count; i++)
        if (is_group(call->argv[i]))
            well &= add_groups(sleeping, call->argv[i], i);
        else
            add_target(sleeping, call_pid(call, i), i, false);
    well &= order_targets(sleeping, verb);
    for (int i = n; well && i < n + count; i++)
        well = has_found(sleeping, call, i);
    return well;
}

/* Of all: the options, and what is asked. COMMAND_WELL: it can begin. */
static int begin(const struct call *call, struct sleeping *ret)
{
    const char *to = call_value(call, "to"), *discard = call_value(call, "discard");
    char path[PATH_MAX];

    *ret = (struct sleeping){.order = {.tell = tell_it}, .timeout_ns = TIMEOUT_NS};
    if (!call_seconds(call, "timeout", 0, &ret->timeout_ns))
        return COMMAND_USAGE;
    if (to && !realpath(to, path)) {
        command_complain("%s: %s", to, strerror(errno));
        return COMMAND_WRONG;
    }
    if (to &&
        snprintf(ret->directory, sizeof ret->directory, "%s", path) >= (int)sizeof ret->directory) {
        command_complain("%s: its path is longer than %zu characters", to,
                         sizeof ret->directory - 1);
        return COMMAND_WRONG;
    }
    if (discard &&
        snprintf(ret->discard, sizeof ret->discard, "%s", discard) >= (int)sizeof ret->discard)
        return call_wrong(call, "--discard takes a tag of up to %zu characters",
                          sizeof ret->discard - 1);
    return COMMAND_WELL;
}

/* All words; of a swap the second one wakes, and does not where the first does not sleep. */
static int order_all(const struct call *call, enum gs_sleep_verb verb, bool swaps)
{
    struct sleeping sleeping;
    bool well;
    int status = begin(call, &sleeping);

    if (status != COMMAND_WELL)
        return status;
    sleeping.order.json = call_json(call, true);
    well = order_words(&sleeping, call, 0, swaps ? 1 : call->argc, verb);
    if (well && swaps)
        well = order_words(&sleeping, call, 1, 1, GS_SLEEP_WAKES);
    json_end(sleeping.order.json);
    free(sleeping.targets);
    return well ? COMMAND_WELL : COMMAND_WRONG;
}

int command_sleep(const struct call *call)
{
    return order_all(call, GS_SLEEP_GOES, false);
}

int command_wake(const struct call *call)
{
    return order_all(call, GS_SLEEP_WAKES, false);
}

int command_swap(const struct call *call)
{
    if (strcmp(call->argv[0], call->argv[1]) == 0)
        return call_wrong(call, "both are %s: one sleeps and another wakes", call->argv[0]);
    return order_all(call, GS_SLEEP_GOES, true);
}
