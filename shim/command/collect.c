/*
 * gpushim collect: has processes give each other back what they have closed and only keep for the
 * next open, and tell the ends of what others have given back (core/share/order.c). It is
 * torch.cuda.ipc_collect for every program, from outside.
 */
#include <stdio.h>

#include "shim/command/command.h"
#include "shim/command/order.h"
#include "shim/command/show.h"

static void print_it(const struct who *who, const struct gs_wire_collected *collected)
{
    char given[SHOWN], ended[SHOWN], limbo[SHOWN];

    command_say("pid %ld (%s): %llu closed, %s, go back to their processes; %llu freed, %s, are held no more; "
                "%llu freed, %s, are still held",
                who->pid, who->name, (unsigned long long)collected->given, show_size(collected->given_bytes, given),
                (unsigned long long)collected->ended, show_size(collected->ended_bytes, ended),
                (unsigned long long)collected->limbo, show_size(collected->limbo_bytes, limbo));
}

static void print(struct order *order, const struct who *who,
                  const struct gs_wire_collected *collected, const char *silent)
{
    struct json *json = order->json;

    order->failed |= silent[0] != 0;
    if (!json && silent[0])
        command_say("pid %ld (%s): %s", who->pid, who->name, silent);
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

static void collect(struct order *order, const struct who *who, int fd, const char *silent)
{
    union gs_wire_message message, answer = {.head = {0}};
    char reason[128] = "";
    int error;

    if (!silent[0]) {
        gs_wire_start(&message, GS_WIRE_COLLECT, 1);
        error = ask_for(fd, &message, GS_WIRE_COLLECTED, &answer);
        if (error || answer.head.type != GS_WIRE_COLLECTED)
            ask_order_silence(reason, sizeof reason, error, &answer);
    }
    print(order, who, &answer.collected, silent[0] ? silent : reason);
}

int command_collect(const struct call *call)
{
    return order_command(call, collect);
}
