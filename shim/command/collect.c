/*
 * gpushim collect: has processes give each other back what they have closed and only keep for the
 * next open, and tell the ends of what others have given back (core/share/order.c). It is
 * torch.cuda.ipc_collect for every program, from outside.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/share/directory.h"
#include "shim/command/ask.h"
#include "shim/command/command.h"

struct collection {
    const struct gs_share_options *options;
    long only; /* 0: all */
    bool found, failed;
    struct json *json; /* NULL: text */
};

static unsigned long long in_mib(uint64_t bytes)
{
    return (unsigned long long)(bytes + (1 << 20) - 1) >> 20;
}

static void print_it(const struct who *who, const struct gs_wire_collected *collected)
{
    printf("pid %ld (%s): %llu closed, %llu MiB, go back to their processes; %llu freed, %llu MiB, "
           "are held no more; %llu freed, %llu MiB, are still held\n",
           who->pid, who->name, (unsigned long long)collected->given,
           in_mib(collected->given_bytes), (unsigned long long)collected->ended,
           in_mib(collected->ended_bytes), (unsigned long long)collected->limbo,
           in_mib(collected->limbo_bytes));
}

static void tell(struct collection *collection, const struct who *who,
                 const struct gs_wire_collected *collected, const char *silent)
{
    struct json *json = collection->json;

    collection->failed |= silent[0] != 0;
    if (!json && silent[0])
        printf("pid %ld (%s): %s\n", who->pid, who->name, silent);
    if (!json && !silent[0])
        print_it(who, collected);
    if (!json)
        return;
    json_open(json, NULL, '{');
    who_write(json, who);
    if (!silent[0]) {
        json_number(json, "given_blocks", collected->given);
        json_number(json, "given_bytes", collected->given_bytes);
        json_number(json, "ended_blocks", collected->ended);
        json_number(json, "ended_bytes", collected->ended_bytes);
        json_number(json, "held_blocks", collected->limbo);
        json_number(json, "held_bytes", collected->limbo_bytes);
    }
    json_text(json, "silent", silent[0] ? silent : NULL);
    json_close(json, '}');
}

static void collect(struct collection *collection, struct who *who, int fd)
{
    union gs_wire_message message, answer;
    char silent[128] = "";
    int error, pidfd;

    error = ask(fd, UINT32_MAX, 0, &answer, &pidfd);
    if (pidfd >= 0)
        close(pidfd);
    if (!error && answer.head.type == GS_WIRE_REPORT) {
        gs_wire_printable(answer.report.name);
        who_fill(who, who->pid, answer.report.pid, answer.report.name);
        gs_wire_start(&message, GS_WIRE_COLLECT, 1);
        error = ask_for(fd, &message, GS_WIRE_COLLECTED, &answer);
    }
    if (error || answer.head.type != GS_WIRE_COLLECTED)
        ask_order_silence(silent, sizeof silent, error, &answer);
    tell(collection, who, &answer.collected, silent);
}

static void look_at(void *arg, int directory, const char *name)
{
    struct collection *collection = arg;
    struct who who;
    int fd = ask_is_broker(name)
                 ? -1
                 : gs_directory_connect(directory, collection->options, name, ANSWER_NS);

    if (fd < 0)
        return;
    who_fill(&who, ask_pid_of_listener(fd), 0, "");
    if (!collection->only || who.pid == collection->only) {
        collection->found = true;
        collect(collection, &who, fd);
    }
    close(fd);
}

int command_collect(int argc, char **argv)
{
    static const char usage[] =
        "usage: gpushim collect PID|all [--json]\n"
        "Has that process, or all of this user's (for root: of everybody), give back the memory of "
        "others\nthat it has closed and keeps for the next open, and use again what others have given "
        "back to it.\n";
    struct gs_share_options options;
    struct json json = {.file = stdout};
    struct collection collection = {.options = &options};
    char reason[GS_REASON_SIZE];
    bool as_json;
    int status;

    if (!command_arguments(&argc, argv, 1, usage, &as_json, &status))
        return status;
    if (argc != 2)
        return command_usage(usage);
    if (strcmp(argv[1], "all") != 0 && (collection.only = command_pid(argv[1])) <= 0)
        return command_usage(usage);
    if (!command_share_options(&options))
        return COMMAND_WRONG;
    collection.json = as_json ? &json : NULL;
    if (as_json)
        json_open(&json, NULL, '[');
    ask_each(&options, look_at, &collection, reason);
    if (as_json) {
        json_close(&json, ']');
        json_end(&json);
    }
    if (collection.only && !collection.found) {
        ask_complain_of_absent(collection.only);
        return COMMAND_WRONG;
    }
    return collection.failed ? COMMAND_WRONG : COMMAND_WELL;
}
