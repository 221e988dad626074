/* Telling processes to do something (order.h), and the command that tells all of them: trim, as they
 * do for each other where a GPU is full (core/share/pressure.c). */
#include "shim/command/order.h"

#include <stdarg.h>

static void look_at(void *arg, int fd, const char *name, struct who *who)
{
    struct order *order = arg;
    union gs_wire_message answer;
    char silent[128] = "";
    int error;

    if (ask_is_broker(name) || (order->only && (order->found || who->pid != order->only)))
        return;
    order->found = true;
    error = ask(fd, UINT32_MAX, 0, &answer, NULL);
    if (error == -ETIMEDOUT && who->stopped)
        snprintf(silent, sizeof silent, "does not answer, as it is stopped");
    else if (error)
        ask_order_silence(silent, sizeof silent, error, &answer);
    else
        who_fill(who, who->pid, answer.report.pid, answer.report.name);
    order->tell(order, who, fd, silent);
}

void order_each(struct order *order)
{
    /* Who is at giving back takes its time. */
    static const struct ask_time time = {15 * GS_NS_PER_S, 30 * GS_NS_PER_S};
    const char *wrong = ask_each(order->time ? order->time : &time, look_at, order);

    order->failed |= wrong != NULL;
    if (wrong)
        command_complain("%s", wrong);
    else if (order->only && !order->found && !order->if_there)
        ask_complain_of_absent(order->only, order->json);
    order->failed |= order->only ? !order->found && !order->if_there : ask_left_out();
}

int order_run(struct order *order, const struct call *call)
{
    order->only = call_pid(call, 0);
    order->json = call_json(call, true);
    order_each(order);
    json_end(order->json);
    return order->failed ? COMMAND_WRONG : COMMAND_WELL;
}

bool order_ask(int fd, union gs_wire_message *message, struct gs_wire_done *ret_done,
               char *ret_reason, size_t size)
{
    union gs_wire_message answer;
    int error = ask_tell(fd, message);

    if (!error)
        error = ask_hear(fd, ask_deadline(ANSWER_NS), GS_WIRE_DONE, &answer, NULL);
    if (error) {
        ask_order_silence(ret_reason, size, error, &answer);
        return false;
    }
    *ret_done = answer.done;
    ret_done->text[sizeof ret_done->text - 1] = 0;
    return true;
}

bool order_begins(struct order *order, const struct who *who, const char *silent)
{
    order->told = true;
    json_open(order->json, NULL, '{');
    who_write(order->json, who);
    if (!silent[0])
        return true;
    order->failed = true;
    json_text(order->json, "silent", silent);
    json_close(order->json, '}');
    if (!order->json)
        command_complain("%s: %s", who_shown(who).text, silent);
    return false;
}

void order_ends(struct order *order, const struct who *who, const char *format, ...)
{
    char text[1024];
    va_list arguments;

    json_text(order->json, "silent", NULL);
    json_close(order->json, '}');
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (!order->json)
        command_say("%s: %s", who_shown(who).text, text);
}

/* ---- Trim ------------------------------------------------------------------------------------ */

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
    error = ask_tell(fd, &message);
    while (!error) {
        if (gs_now_ns() >= deadline) /* it may say without end that it is at it */
            return -ETIMEDOUT;
        error = ask_hear(fd, deadline, GS_WIRE_DONE, ret_answer, NULL);
        if (!error && !ret_answer->done.more)
            return ret_answer->done.given < INT64_MAX ? (int64_t)ret_answer->done.given : -EPROTO;
    }
    return error;
}

/* Of each device that it keeps something of. */
static void trim(struct order *order, const struct who *who, int fd, const char *silent)
{
    union gs_wire_message answer;
    char reason[128] = "";

    if (silent[0])
        order_begins(order, who, silent);
    for (unsigned device = 0; !silent[0] && !reason[0] && device < DEVICES_MOST; device++) {
        const struct gs_figures *figures = &answer.report.figures;
        int64_t given = ask(fd, UINT32_MAX, device, &answer, NULL);

        if (given == 0 && !answer.report.has_figures)
            return;
        if (given == 0 && !figures->cached && !figures->ordered && !figures->retired)
            continue;
        if (given == 0)
            given = ask_back(fd, figures->uuid, device + 1, &answer);
        if (given < 0)
            ask_order_silence(reason, sizeof reason, (int)given, &answer);
        if (!order_begins(order, who, reason))
            return;
        json_number(order->json, "device", device);
        json_number(order->json, "given_bytes", (uint64_t)given);
        order_ends(order, who, "gave %s of GPU %u back", show_size((uint64_t)given).text, device);
    }
}

int command_trim(const struct call *call)
{
    struct order order = {.tell = trim};
    const int status = order_run(&order, call);

    if (status == COMMAND_WELL && !order.told && !order.json)
        command_say("no process that was asked keeps memory that it does not use");
    return status;
}
