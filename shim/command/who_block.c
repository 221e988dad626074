/*
 * gpushim who HANDLE | ADDRESS: one block, who shares it and who has it open. Everybody is asked: a block
 * may be its process's and be left at a broker, too, and two processes may have memory at one address.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shim/command/ask.h"
#include "shim/command/command.h"
#include "shim/command/json.h"
#include "shim/command/show.h"

#define HOLDERS_MAX 65536

/* ---- What is asked for ---------------------------------------------------------------------- */

static int digit(char c)
{
    const char *at = c ? strchr("0123456789abcdef", c | 0x20) : NULL;

    return at ? (int)(at - "0123456789abcdef") : -1;
}

static bool read_handle(const char *text, unsigned char ret_bytes[GS_IPC_HANDLE_SIZE])
{
    for (size_t i = 0; i < GS_IPC_HANDLE_SIZE; i++) {
        int high = digit(text[2 * i]), low = high < 0 ? -1 : digit(text[2 * i + 1]);

        if (low < 0)
            return false;
        ret_bytes[i] = (unsigned char)(high << 4 | low);
    }
    return !text[(size_t)2 * GS_IPC_HANDLE_SIZE];
}

bool who_is_block(const char *text, struct gs_wire_query *ret_query)
{
    unsigned char bytes[GS_IPC_HANDLE_SIZE];
    struct gs_ipc_handle handle;
    char *end;

    *ret_query = (struct gs_wire_query){.about = GS_ABOUT_ADDRESS};
    if (read_handle(text, bytes)) {
        /* One that is none of ours is no block's: who_block says so. */
        if (gs_ipc_handle_read(bytes, &handle) == GS_OK) {
            memcpy(ret_query->instance, handle.instance, sizeof handle.instance);
            ret_query->number = handle.block_id;
        }
        ret_query->about = GS_ABOUT_BLOCK;
        return true;
    }
    if (text[0] != '0' || (text[1] | 0x20) != 'x' || digit(text[2]) < 0)
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
    who_fill_told(&more->who, &block->who, pidfd, report->client_seen, report->client_pid, report->client_name);
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
        snprintf(freed, sizeof freed, "; freed %s ago and kept", show_age(block->report.block.freed_ns, age));
    command_say("block %llu of %s, shared by %s %s (%s)%s%s", (unsigned long long)block->report.block.id,
                show_size(block->report.block.size, size), block->report.is_broker ? "broker" : "process",
                who_text(&block->who, who), block->who.name, freed, block->count ? "" : "; nobody has it open");
    for (size_t i = 0; i < block->count; i++) {
        const struct holding *holder = &block->holders[i];

        command_say("  open in %s (%s)%s for %s", who_text(&holder->who, who), holder->who.name,
                    holder->who.stopped ? ", which is stopped," : "", show_age(holder->held_ns, age));
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

int who_block(const struct gs_wire_query *query, const struct call *call)
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
        command_complain("no process that this user may ask shares memory at %s; an address is one of the process that shares "
                         "it, not of those that have it open", call->argv[0]);
    else if (!search.found)
        command_complain("nobody who may be asked has the block of that handle: it has been freed and is used again, its process "
                         "has ended%s, or has another folder (GPUSHIM_SHARE_DIR)",
                         geteuid() ? " or belongs to another user (ask as that one, or as root)" : "");
    return search.found ? COMMAND_WELL : COMMAND_WRONG;
}
