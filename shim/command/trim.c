/*
 * gpushim trim: has processes give back to the driver what they keep of GPU memory and do not use,
 * as they do for each other where a GPU is full (core/share/pressure.c). Their programs notice
 * nothing but that the next large allocation takes longer.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "shim/command/command.h"
#include "shim/command/order.h"
#include "shim/command/show.h"

#define GIVES_NS (10 * GS_NS_PER_S) /* for one that is at it */

/* What of the device was given back; a negative errno: nobody can say. 0 where it gives none now,
 * which one that was asked a moment ago may do. */
static int64_t ask_back(int fd, const unsigned char uuid[16], uint32_t request,
                        union gs_wire_message *ret_answer)
{
    union gs_wire_message message;
    uint64_t deadline = ask_deadline(GIVES_NS);
    int error;

    gs_wire_start(&message, GS_WIRE_ORDER, request);
    message.order.kind = GS_ORDER_TRIM;
    memcpy(message.order.uuid, uuid, sizeof message.order.uuid);
    message.order.value = INT64_MAX;
    error = gs_wire_send(fd, &message, -1);
    for (;;) {
        if (error && error != -EPIPE)
            return error;
        if (gs_now_ns() >= deadline || !ask_await(fd, deadline)) /* it may say without end that it is at it */
            return -ETIMEDOUT;
        error = gs_wire_receive(fd, ret_answer, NULL);
        if (error)
            return error;
        if (ret_answer->head.type == GS_WIRE_REFUSE)
            return -EPERM;
        if (ret_answer->head.type != GS_WIRE_DONE)
            return -EPROTO;
        if (!ret_answer->done.more)
            return ret_answer->done.given < INT64_MAX ? (int64_t)ret_answer->done.given : -EPROTO;
    }
}

struct gave {
    unsigned device;
    int64_t bytes;
};

static void write_it(struct json *json, const void *answer)
{
    const struct gave *gave = answer;

    json_number(json, "device", gave->device);
    json_number(json, "given_bytes", (uint64_t)gave->bytes);
}

/* Of each device that it keeps something of. */
static void trim(struct order *order, const struct who *who, int fd, const char *silent)
{
    union gs_wire_message answer, given_answer;
    char reason[128] = "", size[SHOWN];

    if (silent[0])
        order_say(order, who, silent, write_it, NULL, "%s", "");
    for (struct gave gave = {0}; !silent[0] && !reason[0] && gave.device < DEVICES_MOST; gave.device++) {
        const struct gs_figures *figures = &answer.report.figures;
        int error = ask(fd, UINT32_MAX, gave.device, &answer, NULL);

        gave.bytes = 0;
        if (error || answer.head.type != GS_WIRE_REPORT) {
            ask_order_silence(reason, sizeof reason, error, &answer);
        } else {
            if (!answer.report.has_figures)
                return;
            if (!figures->cached && !figures->ordered && !figures->retired)
                continue;
            gave.bytes = ask_back(fd, figures->uuid, gave.device + 1, &given_answer);
            if (gave.bytes < 0)
                ask_order_silence(reason, sizeof reason, gave.bytes == -EPERM ? 0 : (int)gave.bytes, &given_answer);
        }
        order_say(order, who, reason, write_it, &gave, "gave %s of GPU %u back",
                  show_size((uint64_t)gave.bytes, size), gave.device);
    }
}

int command_trim(const struct call *call)
{
    return order_command(call, trim);
}
