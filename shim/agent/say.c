/* The log of what others do (agent.h): whoever they are and however often they do it, a disk holds
 * it. */
#include "shim/agent/agent.h"

#include <stdarg.h>
#include <stdio.h>

#define AT_ONCE  20                /* lines */
#define EVERY_NS (2 * GS_NS_PER_S) /* one more */

static bool has_turn(struct say *say, uint64_t now_ns)
{
    if (say->due_ns < now_ns)
        say->due_ns = now_ns;
    if (say->due_ns - now_ns > (AT_ONCE - 1) * EVERY_NS) {
        say->left_out++;
        return false;
    }
    say->due_ns += EVERY_NS;
    return true;
}

void say_line(struct agent *agent, struct say *say, enum gs_log_level level, const char *format,
              ...)
{
    char text[512];
    va_list arguments;

    if (!gs_log_wants(&agent->log.to, level) || !has_turn(say, gs_now_ns()))
        return;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (say->left_out)
        AGENT_LOG(agent, level, "%s (%u lines of this kind were left out)", text, say->left_out);
    else
        AGENT_LOG(agent, level, "%s", text);
    say->left_out = 0;
}
