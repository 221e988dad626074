/* Telling processes to do something (order.h). */
#include "shim/command/order.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "shim/command/command.h"

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
    if (error || answer.head.type != GS_WIRE_REPORT)
        ask_order_silence(silent, sizeof silent, error, &answer);
    else
        who_fill(who, who->pid, answer.report.pid, answer.report.name);
    order->tell(order, who, fd, silent);
}

void order_each(struct order *order)
{
    /* Who is at giving back takes its time. */
    static const struct ask_time time = {15 * GS_NS_PER_S, 30 * GS_NS_PER_S};

    ask_each(order->options, order->time ? order->time : &time, look_at, order);
    if (order->only && !order->found && !order->if_there)
        ask_complain_of_absent(order->only);
    order->failed |= order->only ? !order->found && !order->if_there : ask_left_out();
}

bool order_ask(int fd, union gs_wire_message *message, struct gs_wire_done *ret_done, char *ret_reason, size_t size)
{
    union gs_wire_message answer;
    const int error = ask_for(fd, message, GS_WIRE_DONE, &answer);

    if (error || answer.head.type != GS_WIRE_DONE) {
        ask_order_silence(ret_reason, size, error, &answer);
        return false;
    }
    *ret_done = answer.done;
    ret_done->text[sizeof ret_done->text - 1] = 0;
    return true;
}

void order_say(struct order *order, const struct who *who, const char *silent, order_write_fn *write, const void *answer,
               const char *format, ...)
{
    char whose[WHO_TEXT], text[1024];
    va_list arguments;

    order->failed |= silent[0] != 0;
    if (order->json) {
        json_open(order->json, NULL, '{');
        who_write(order->json, who);
        if (!silent[0])
            write(order->json, answer);
        json_text(order->json, "silent", silent[0] ? silent : NULL);
        json_close(order->json, '}');
    } else if (silent[0]) {
        command_complain("%s (%s): %s", who_text(who, whose), who->name, silent);
    } else {
        va_start(arguments, format);
        vsnprintf(text, sizeof text, format, arguments);
        va_end(arguments);
        command_say("%s (%s): %s", who_text(who, whose), who->name, text);
    }
}

int order_command(const struct call *call, __typeof__(((struct order *)0)->tell) tell)
{
    struct gs_share_options options;
    struct order order = {.options = &options, .tell = tell};

    if (strcmp(call->argv[0], "all") != 0 && (order.only = call_pid(call, call->argv[0])) <= 0)
        return COMMAND_USAGE;
    if (!command_share_options(&options))
        return COMMAND_WRONG;
    order.json = call_json(call, true);
    order_each(&order);
    json_end(order.json);
    return order.failed ? COMMAND_WRONG : COMMAND_WELL;
}
