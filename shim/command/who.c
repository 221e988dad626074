/*
 * gpushim who: the processes that share GPU memory, who holds what of theirs and since when, what
 * is freed and still held, and whose memory each has open, which its owner's end does not end. Each
 * is asked at its socket in the folder (core/share/report.c answers). Pids are as the reader sees
 * them, by the kernel's word, or marked as what the process calls itself.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/text.h"
#include "shim/command/ask.h"
#include "shim/command/command.h"
#include "shim/command/json.h"
#include "shim/command/show.h"

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

/* ---- Asking --------------------------------------------------------------------------------- */

static void add_told(struct sharer *sharer, uint32_t index, const struct gs_wire_report *report,
                     int pidfd)
{
    struct told *told;

    sharer->told = command_room(sharer->told, sharer->count, &sharer->room, sizeof *told);
    told = &sharer->told[sharer->count++];
    *told =
        (struct told){.of_holder = index < report->clients && (report->left || report->references),
                      .of_owner = index < report->opened.owners,
                      .report = *report};
    if (told->of_holder)
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

        if (!error && answer.head.type == GS_WIRE_REPORT) {
            if (i == 0) {
                sharer->report = answer.report;
                sharer->is_broker = answer.report.is_broker;
                who_fill(&sharer->who, sharer->who.pid, answer.report.pid, answer.report.name);
            }
            clients = answer.report.clients;
            owners = answer.report.opened.owners;
            add_told(sharer, i, &answer.report, pidfd);
        } else {
            ask_silence(sharer->silent, sizeof sharer->silent, error, &answer);
            error = -ENOMSG;
        }
        gs_fd_drop(pidfd);
        if (error)
            break;
    }
}

/* ---- Telling -------------------------------------------------------------------------------- */

static void print_holder(const struct told *told)
{
    const struct gs_wire_report *report = &told->report;
    char who[WHO_TEXT], all[SHOWN], age[SHOWN], freed[SHOWN], since[SHOWN];

    who_text(&told->holder, who);
    if (report->left)
        command_say("  from %s (%s) for %s: %llu blocks left here", who, told->holder.name,
                    show_age(report->client_age_ns, age), (unsigned long long)report->left);
    if (report->references)
        command_say(
            "  held by %s (%s)%s%s: %llu blocks, %s, the longest for %s; of freed ones %llu, %s",
            who, told->holder.name, told->holder.stopped ? ", which is stopped" : "",
            report->client_hung_up ? ", which has hung up and not ended" : "",
            (unsigned long long)report->references, show_size(report->reference_bytes, all),
            show_age(report->reference_age_ns, age), (unsigned long long)report->limbo_references,
            show_size(report->limbo_reference_bytes, freed));
    if (report->limbo_references)
        command_say("    the oldest of these, block %llu of %s: held for %s, freed %s ago",
                    (unsigned long long)report->limbo_block.id,
                    show_size(report->limbo_block.size, all),
                    show_age(report->limbo_block.held_ns, age),
                    show_age(report->limbo_block.freed_ns, since));
}

static void print_owner(const struct sharer *sharer, const struct told *told)
{
    const uint64_t pid = owner_pid(sharer, told);
    char who[48] = "a process that is not known here", size[SHOWN], around[SHOWN];

    if (told->report.opened.owner_pid)
        snprintf(who, sizeof who, "pid %llu%s", (unsigned long long)told->report.opened.owner_pid,
                 pid ? "" : " of its PID namespace");
    command_say("  has open of %s%s: %llu blocks, %s; mapped with what lies around these, %s", who,
                told->report.opened.owner_ended ? ", which has ended" : "",
                (unsigned long long)told->report.opened.owner_blocks,
                show_size(told->report.opened.owner_bytes, size),
                show_size(told->report.opened.owner_mapped, around));
}

static void print_sharer(const struct sharer *sharer, const char *socket)
{
    const struct gs_wire_report *report = &sharer->report;
    const char *kind = sharer->is_broker ? "broker" : "process";
    char who[WHO_TEXT], all[SHOWN], kept[SHOWN], age[SHOWN], command[COMMAND_SHOWN + 8];

    who_text(&sharer->who, who);
    if (report->head.type == GS_WIRE_REPORT)
        command_say(
            "%s %s (%s): %llu blocks shared, %s; freed and kept %llu, %s, the oldest for %s", kind,
            who, sharer->who.name, (unsigned long long)report->exports,
            show_size(report->bytes, all), (unsigned long long)report->limbo,
            show_size(report->limbo_bytes, kept), show_age(report->limbo_age_ns, age));
    if (report->asleep.ns)
        command_say("  asleep for %s: %s off the GPU", show_age(report->asleep.ns, age),
                    show_size(report->asleep.bytes, all));
    show_cut(sharer->who.command, COMMAND_SHOWN, command, sizeof command);
    if (sharer->who.user[0] && !sharer->is_broker)
        command_say("  %s, of %s", command, sharer->who.user);
    for (const struct told *told = sharer->told; told < sharer->told + sharer->count; told++)
        if (told->of_holder)
            print_holder(told);
    for (const struct told *told = sharer->told; told < sharer->told + sharer->count; told++)
        if (told->of_owner)
            print_owner(sharer, told);
    if (!sharer->silent[0])
        return;
    if (sharer->who.pid)
        command_say("%s %s: %s", kind, who, sharer->silent);
    else
        command_say("%s of another PID namespace (%s): %s", kind, socket, sharer->silent);
}

/* ---- Telling programs ----------------------------------------------------------------------- */

static void write_seconds(struct json *json, const char *key, uint64_t ns)
{
    json_number(json, key, ns / GS_NS_PER_S);
}

static void write_holder(struct json *json, const struct told *told)
{
    const struct gs_wire_report *report = &told->report;

    json_open(json, NULL, '{');
    who_write(json, &told->holder);
    json_bool(json, "stopped", told->holder.stopped);
    json_bool(json, "hung_up", report->client_hung_up != 0);
    json_number(json, "blocks_left", report->left);
    json_number(json, "blocks", report->references);
    json_number(json, "bytes", report->reference_bytes);
    write_seconds(json, "longest_seconds", report->reference_age_ns);
    json_number(json, "freed_blocks", report->limbo_references);
    json_number(json, "freed_bytes", report->limbo_reference_bytes);
    if (report->limbo_references) {
        json_open(json, "oldest_freed", '{');
        json_number(json, "block", report->limbo_block.id);
        json_number(json, "bytes", report->limbo_block.size);
        write_seconds(json, "held_seconds", report->limbo_block.held_ns);
        write_seconds(json, "freed_seconds", report->limbo_block.freed_ns);
        json_close(json, '}');
    }
    json_close(json, '}');
}

static void write_owner(struct json *json, const struct sharer *sharer, const struct told *told)
{
    json_open(json, NULL, '{');
    json_known(json, "pid", owner_pid(sharer, told));
    json_known(json, "own_pid", told->report.opened.owner_pid);
    json_bool(json, "ended", told->report.opened.owner_ended);
    json_number(json, "blocks", told->report.opened.owner_blocks);
    json_number(json, "bytes", told->report.opened.owner_bytes);
    json_number(json, "mapped_bytes", told->report.opened.owner_mapped);
    json_close(json, '}');
}

static void write_sharer(struct json *json, const struct sharer *sharer)
{
    const struct gs_wire_report *report = &sharer->report;

    json_open(json, NULL, '{');
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
    json_open(json, "holders", '[');
    for (const struct told *told = sharer->told; told < sharer->told + sharer->count; told++)
        if (told->of_holder)
            write_holder(json, told);
    json_close(json, ']');
    json_open(json, "opened_from", '[');
    for (const struct told *told = sharer->told; told < sharer->told + sharer->count; told++)
        if (told->of_owner)
            write_owner(json, sharer, told);
    json_close(json, ']');
    json_close(json, '}');
}

/* ---- One block ------------------------------------------------------------------------------- */

#define HOLDERS_MAX 65536

/* ---- What is asked for ---------------------------------------------------------------------- */

static bool who_is_block(const char *text, struct gs_wire_query *ret_query)
{
    unsigned char bytes[GS_IPC_HANDLE_SIZE];
    struct gs_ipc_handle handle;
    char *end;

    *ret_query = (struct gs_wire_query){.about = GS_ABOUT_ADDRESS};
    if (gs_text_unhex(text, bytes, sizeof bytes)) {
        /* One that is none of ours is no block's: who_block says so. */
        if (gs_ipc_handle_read(bytes, &handle) == GS_OK) {
            memcpy(ret_query->instance, handle.instance, sizeof handle.instance);
            ret_query->number = handle.block_id;
        }
        ret_query->about = GS_ABOUT_BLOCK;
        return true;
    }
    if (text[0] != '0' || (text[1] | 0x20) != 'x')
        return false;
    errno = 0;
    ret_query->number = strtoull(text, &end, 16);
    return !*end && !errno;
}

/* ---- Asking --------------------------------------------------------------------------------- */

struct holding {
    struct who who;
    uint64_t held_ns;
};

struct block {
    struct who who; /* whose it is */
    struct gs_wire_report report;
    struct holding *holders;
    size_t count, room;
};

struct search {
    struct gs_wire_query query;
    unsigned found;
    struct json *json; /* NULL: text */
};

static void add_holder(struct block *block, const struct gs_wire_report *report, int pidfd)
{
    struct holding *more;

    block->holders = command_room(block->holders, block->count, &block->room, sizeof *more);
    more = &block->holders[block->count++];
    who_fill_told(&more->who, &block->who, pidfd, report->client_seen, report->client_pid,
                  report->client_name);
    more->held_ns = report->reference_age_ns;
}

/* False: there is none, or it does not tell. */
static bool ask_for_block(const struct search *search, int fd, struct block *block)
{
    struct gs_wire_query query = search->query;
    union gs_wire_message answer;
    bool more = true;

    for (; more && query.index < HOLDERS_MAX; query.index++) {
        int pidfd = -1;

        more = ask_about(fd, &query, ask_deadline(ANSWER_NS), &answer, &pidfd) == 0 &&
               answer.head.type == GS_WIRE_REPORT && answer.report.block.id;
        if (more && query.index == 0) {
            block->report = answer.report;
            who_fill(&block->who, block->who.pid, answer.report.pid, answer.report.name);
            query.about = GS_ABOUT_BLOCK; /* another may lie there by now */
            query.number = answer.report.block.id;
            memcpy(query.instance, answer.report.block.instance, sizeof query.instance);
        }
        more = more && query.index < answer.report.clients;
        if (more)
            add_holder(block, &answer.report, pidfd);
        gs_fd_drop(pidfd);
    }
    return block->report.block.id != 0;
}

/* ---- Telling -------------------------------------------------------------------------------- */

static void print_block(const struct block *block)
{
    char who[WHO_TEXT], size[SHOWN], age[SHOWN], freed[64] = "";

    if (block->report.block.is_freed)
        snprintf(freed, sizeof freed, "; freed %s ago and kept",
                 show_age(block->report.block.freed_ns, age));
    command_say("block %llu of %s, shared by %s %s (%s)%s%s",
                (unsigned long long)block->report.block.id,
                show_size(block->report.block.size, size),
                block->report.is_broker ? "broker" : "process", who_text(&block->who, who),
                block->who.name, freed, block->count ? "" : "; nobody has it open");
    for (size_t i = 0; i < block->count; i++) {
        const struct holding *holder = &block->holders[i];

        command_say("  open in %s (%s)%s for %s", who_text(&holder->who, who), holder->who.name,
                    holder->who.stopped ? ", which is stopped," : "",
                    show_age(holder->held_ns, age));
    }
}

static void write_block(struct json *json, const struct block *block)
{
    json_open(json, NULL, '{');
    json_bool(json, "broker", block->report.is_broker);
    who_write(json, &block->who);
    json_number(json, "block", block->report.block.id);
    json_number(json, "bytes", block->report.block.size);
    json_bool(json, "freed", block->report.block.is_freed);
    json_number(json, "freed_seconds", block->report.block.freed_ns / GS_NS_PER_S);
    json_open(json, "holders", '[');
    for (size_t i = 0; i < block->count; i++) {
        json_open(json, NULL, '{');
        who_write(json, &block->holders[i].who);
        json_bool(json, "stopped", block->holders[i].who.stopped);
        json_number(json, "seconds", block->holders[i].held_ns / GS_NS_PER_S);
        json_close(json, '}');
    }
    json_close(json, ']');
    json_close(json, '}');
}

static void look_at(void *arg, int fd, const char *name, struct who *who)
{
    struct search *search = arg;
    struct block block = {.who = *who};

    if (ask_for_block(search, fd, &block)) {
        search->found++;
        search->json ? write_block(search->json, &block) : print_block(&block);
    }
    free(block.holders);
}

static int who_block(const struct gs_wire_query *query, const struct call *call)
{
    struct gs_share_options options;
    struct search search = {.query = *query};
    const char *wrong;

    if (query->about == GS_ABOUT_BLOCK && !query->number) {
        command_complain("no handle of this library's: the driver made it, or it was changed");
        return COMMAND_WRONG;
    }
    if (!command_share_options(&options))
        return COMMAND_WRONG;
    search.json = call_json(call, true);
    wrong = ask_each(&options, NULL, look_at, &search);
    json_end(search.json);
    if (wrong)
        command_complain("%s", wrong);
    else if (!search.found && query->about == GS_ABOUT_ADDRESS)
        command_complain(
            "no process that this user may ask shares memory at %s; an address is one of the process that shares "
            "it, not of those that have it open",
            call->argv[0]);
    else if (!search.found)
        command_complain(
            "nobody who may be asked has the block of that handle: it has been freed and is used again, its process "
            "has ended%s, or has another folder (GPUSHIM_SHARE_DIR)",
            geteuid() ? " or belongs to another user (ask as that one, or as root)" : "");
    return search.found ? COMMAND_WELL : COMMAND_WRONG;
}

/* ---- All of them ---------------------------------------------------------------------------- */

struct listing {
    long only; /* the pid that is asked about; 0: all */
    bool found;
    struct json *json; /* NULL: text */
};

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
        listing->json ? write_sharer(listing->json, &sharer) : print_sharer(&sharer, name);
    }
    free(sharer.told);
}

int command_who(const struct call *call)
{
    struct gs_share_options options;
    struct listing listing = {0};
    struct gs_wire_query block;
    const char *wrong;

    if (call->argc && who_is_block(call->argv[0], &block))
        return who_block(&block, call);
    if (call->argc && (listing.only = call_pid(call, call->argv[0])) <= 0)
        return COMMAND_USAGE;
    if (!command_share_options(&options))
        return COMMAND_WRONG;
    listing.json = call_json(call, true);
    wrong = ask_each(&options, NULL, list_one, &listing);
    json_end(listing.json);
    if (wrong)
        command_complain("%s", wrong);
    else if (listing.only && !listing.found)
        command_complain(
            "process %ld shares nothing that this user may see, and holds nothing of others",
            listing.only);
    return !wrong && (!listing.only || listing.found) ? COMMAND_WELL : COMMAND_WRONG;
}
