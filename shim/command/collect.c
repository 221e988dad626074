/*
 * gpushim collect: has processes give each other back what they have closed and only keep for the
 * next open, and tell the ends of what others have given back (core/share/order.c). It is
 * torch.cuda.ipc_collect for every program, from outside.
 */
#include "shim/command/command.h"
#include "shim/command/order.h"
#include "shim/command/show.h"

static void write_it(struct json *json, const void *answer)
{
    const struct gs_collected *collected = answer;

    json_number(json, "given_blocks", collected->given);
    json_number(json, "given_bytes", collected->given_bytes);
    json_number(json, "ended_blocks", collected->ended);
    json_number(json, "ended_bytes", collected->ended_bytes);
    json_number(json, "held_blocks", collected->limbo);
    json_number(json, "held_bytes", collected->limbo_bytes);
}

static void collect(struct order *order, const struct who *who, int fd, const char *silent)
{
    union gs_wire_message message;
    struct gs_wire_done done = {.more = 0};
    const struct gs_collected *collected = &done.collected;
    char reason[128] = "", given[SHOWN], ended[SHOWN], limbo[SHOWN];

    gs_wire_start(&message, GS_WIRE_ORDER, 1);
    message.order.kind = GS_ORDER_COLLECT;
    if (!silent[0])
        order_ask(fd, &message, &done, reason, sizeof reason);
    order_say(order, who, silent[0] ? silent : reason, write_it, collected,
              "%llu closed, %s, go back to their processes; %llu freed, %s, are held no more; %llu freed, %s, are still held",
              (unsigned long long)collected->given, show_size(collected->given_bytes, given),
              (unsigned long long)collected->ended, show_size(collected->ended_bytes, ended),
              (unsigned long long)collected->limbo, show_size(collected->limbo_bytes, limbo));
}

int command_collect(const struct call *call)
{
    return order_command(call, collect);
}
