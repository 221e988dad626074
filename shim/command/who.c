/* gpushim who: who shares GPU memory, who holds what of it, and whose each has open
 * (core/share/report.c answers). Pids are as the reader sees them, by the kernel's word, or marked as
 * what the process calls itself. */

#include "shim/command/ask.h"

#define REPORTS_MAX   65536
#define COMMAND_SHOWN 100 /* columns of a command line */

/* One answer, which tells of a holder, an owner, or both. */
struct told {
    bool of_holder; /* a process that holds or has left something: */
    struct who holder;
    bool of_owner; /* one whose memory is open */
    struct gs_wire_report report;
};

/* One that answers, or does not. */
struct sharer {
    struct who who;
    bool is_broker;
    char silent[128]; /* why it is not listed, or not wholly; "": it is */
    struct gs_wire_report report;
    struct told *told;
    size_t count, room;
};

struct listing {
    long only; /* the pid that is asked about; 0: all */
    bool found;
    struct json *json; /* NULL: text */
};

static void add_told(struct sharer *sharer, bool of_holder, bool of_owner,
                     const struct gs_wire_report *report, int pidfd)
{
    struct told *told = COMMAND_NEXT(sharer->told, sharer->count, sharer->room);

    *told = (struct told){.of_holder = of_holder, .of_owner = of_owner, .report = *report};
    if (of_holder)
        who_fill_told(&told->holder, &sharer->who, pidfd, report->client_seen, report->client_pid,
                      report->client_name);
}

/* As this process sees it, which who answers may see otherwise; 0: it does not. */
static uint64_t owner_pid(const struct sharer *sharer, const struct told *told)
{
    return who_counts_alike(&sharer->who) ? told->report.opened.owner_pid : 0;
}

static void ask_all(struct sharer *sharer, int fd)
{
    union gs_wire_message answer;
    uint32_t clients = 1, owners = 0;

    for (uint32_t i = 0; i < REPORTS_MAX && (i <= clients || i < owners); i++) {
        int pidfd = -1, error = ask(fd, i, 0, &answer, &pidfd);

        if (!error) {
            if (i == 0) {
                sharer->report = answer.report;
                sharer->is_broker = answer.report.is_broker;
                who_fill(&sharer->who, sharer->who.pid, answer.report.pid, answer.report.name);
            }
            clients = answer.report.clients;
            owners = answer.report.opened.owners;
            add_told(sharer, i < clients && (answer.report.left || answer.report.references),
                     i < owners, &answer.report, pidfd);
        } else {
            ask_silence(sharer->silent, sizeof sharer->silent, error, &answer);
        }
        gs_fd_drop(pidfd);
        if (error)
            break;
    }
}

/* ---- Telling, as text or JSON ---------------------------------------------------------------- */

static void write_seconds(struct json *json, const char *key, uint64_t ns)
{
    json_number(json, key, ns / GS_NS_PER_S);
}

static void tell_holder(struct json *json, const struct told *told)
{
    const struct gs_wire_report *report = &told->report;
    const struct who_shown who = who_shown(&told->holder);

    json_open(json, NULL, '{');
    who_write(json, &told->holder);
    json_bool(json, "hung_up", report->client_hung_up != 0);
    json_number(json, "blocks_left", report->left);
    json_number(json, "blocks", report->references);
    json_number(json, "bytes", report->reference_bytes);
    write_seconds(json, "longest_seconds", report->reference_age_ns);
    json_number(json, "freed_blocks", report->limbo_references);
    json_number(json, "freed_bytes", report->limbo_reference_bytes);
    if (report->left && !json)
        command_say("  from %s for %s: %llu blocks left here", who.text,
                    show_age(report->client_age_ns).text, (unsigned long long)report->left);
    if (report->references && !json)
        command_say("  held by %s%s%s: %llu blocks, %s, the longest for %s; of freed ones %llu, %s",
                    who.text, told->holder.stopped ? ", which is stopped" : "",
                    report->client_hung_up ? ", which has hung up and not ended" : "",
                    (unsigned long long)report->references, show_size(report->reference_bytes).text,
                    show_age(report->reference_age_ns).text,
                    (unsigned long long)report->limbo_references,
                    show_size(report->limbo_reference_bytes).text);
    if (report->limbo_references) {
        json_open(json, "oldest_freed", '{');
        json_number(json, "block", report->limbo_block.id);
        json_number(json, "bytes", report->limbo_block.size);
        write_seconds(json, "held_seconds", report->limbo_block.held_ns);
        write_seconds(json, "freed_seconds", report->limbo_block.freed_ns);
        json_close(json, '}');
        if (!json)
            command_say("    the oldest of these, block %llu of %s: held for %s, freed %s ago",
                        (unsigned long long)report->limbo_block.id,
                        show_size(report->limbo_block.size).text,
                        show_age(report->limbo_block.held_ns).text,
                        show_age(report->limbo_block.freed_ns).text);
    }
    json_close(json, '}');
}

static void tell_owner(struct json *json, const struct sharer *sharer, const struct told *told)
{
    const uint64_t own_pid = told->report.opened.owner_pid,
                   blocks = told->report.opened.owner_blocks,
                   bytes = told->report.opened.owner_bytes,
                   mapped = told->report.opened.owner_mapped, pid = owner_pid(sharer, told);
    const bool ended = told->report.opened.owner_ended;
    char who[48] = "a process that is not known here";

    json_open(json, NULL, '{');
    json_known(json, "pid", pid);
    json_known(json, "own_pid", own_pid);
    json_bool(json, "ended", ended);
    json_number(json, "blocks", blocks);
    json_number(json, "bytes", bytes);
    json_number(json, "mapped_bytes", mapped);
    json_close(json, '}');
    if (own_pid)
        snprintf(who, sizeof who, "pid %llu%s", (unsigned long long)own_pid,
                 pid ? "" : " of its PID namespace");
    if (!json)
        command_say("  has open of %s%s: %llu blocks, %s; mapped with what lies around these, %s",
                    who, ended ? ", which has ended" : "", (unsigned long long)blocks,
                    show_size(bytes).text, show_size(mapped).text);
}

static void print_sharer(const struct sharer *sharer, const char *kind)
{
    const struct gs_wire_report *report = &sharer->report;
    char command[sizeof sharer->who.command + 4];

    if (report->head.type == GS_WIRE_REPORT)
        command_say("%s %s: %llu blocks shared, %s; freed and kept %llu, %s, the oldest for %s",
                    kind, who_shown(&sharer->who).text, (unsigned long long)report->exports,
                    show_size(report->bytes).text, (unsigned long long)report->limbo,
                    show_size(report->limbo_bytes).text, show_age(report->limbo_age_ns).text);
    if (report->asleep.ns)
        command_say("  asleep for %s: %s off the GPU", show_age(report->asleep.ns).text,
                    show_size(report->asleep.bytes).text);
    show_cut(sharer->who.command, COMMAND_SHOWN, command, sizeof command);
    if (sharer->who.user[0] && !sharer->is_broker)
        command_say("  %s, of %s", command, sharer->who.user);
}

static void write_sharer(struct json *json, const struct sharer *sharer)
{
    const struct gs_wire_report *report = &sharer->report;

    json_bool(json, "broker", sharer->is_broker);
    who_write(json, &sharer->who);
    json_text(json, "silent", sharer->silent[0] ? sharer->silent : NULL);
    json_number(json, "blocks", report->exports);
    json_number(json, "bytes", report->bytes);
    json_number(json, "freed_blocks", report->limbo);
    json_number(json, "freed_bytes", report->limbo_bytes);
    write_seconds(json, "oldest_freed_seconds", report->limbo_age_ns);
    write_seconds(json, "asleep_seconds", report->asleep.ns);
    json_number(json, "away_bytes", report->asleep.bytes);
}

static void tell_sharer(struct json *json, const struct sharer *sharer, const char *socket)
{
    const char *kind = sharer->is_broker ? "broker" : "process";
    const struct told *end = sharer->told + sharer->count;

    json_open(json, NULL, '{');
    json ? write_sharer(json, sharer) : print_sharer(sharer, kind);
    json_open(json, "holders", '[');
    for (const struct told *told = sharer->told; told < end; told++)
        if (told->of_holder)
            tell_holder(json, told);
    json_close(json, ']');
    json_open(json, "opened_from", '[');
    for (const struct told *told = sharer->told; told < end; told++)
        if (told->of_owner)
            tell_owner(json, sharer, told);
    json_close(json, ']');
    json_close(json, '}');
    if (sharer->silent[0] && !json && sharer->who.pid)
        command_say("%s %s: %s", kind, who_shown(&sharer->who).text, sharer->silent);
    else if (sharer->silent[0] && !json)
        command_say("%s of another PID namespace (%s): %s", kind, socket, sharer->silent);
}

static bool is_asked_about(const struct listing *listing, const struct sharer *sharer)
{
    bool is = !listing->only || sharer->who.pid == listing->only;

    for (const struct told *told = sharer->told; told < sharer->told + sharer->count; told++)
        is |= (told->of_holder && told->holder.pid == listing->only) ||
              (told->of_owner && owner_pid(sharer, told) == (uint64_t)listing->only);
    return is;
}

static void list_one(void *arg, int fd, const char *name, struct who *who)
{
    struct listing *listing = arg;
    struct sharer sharer = {.who = *who, .is_broker = ask_is_broker(name)};

    ask_all(&sharer, fd);
    if (is_asked_about(listing, &sharer)) {
        listing->found = true;
        tell_sharer(listing->json, &sharer, name);
    }
    free(sharer.told);
}

int command_who(const struct call *call)
{
    struct listing listing = {.only = call_pid(call, 0), .json = call_json(call, true)};
    const char *wrong = ask_each(NULL, list_one, &listing);

    json_end(listing.json);
    if (wrong)
        command_complain("%s", wrong);
    else if (listing.only && !listing.found)
        command_complain(
            "process %ld shares nothing that this user may see, and holds nothing of others",
            listing.only);
    else if (!listing.found && !listing.json)
        command_say("no process that this user may see shares GPU memory, or has such open");
    return !wrong && (!listing.only || listing.found) ? COMMAND_WELL : COMMAND_WRONG;
}
