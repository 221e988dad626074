/* Asking at the sockets in the folder (ask.h). */
#include "shim/command/ask.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "core/share/directory.h"

int ask(int fd, uint32_t index, union gs_wire_message *ret_answer, int *ret_pidfd)
{
    struct pollfd answer = {.fd = fd, .events = POLLIN};
    union gs_wire_message query;
    int ready, error;

    gs_wire_start(&query, GS_WIRE_QUERY, index + 1);
    query.query.index = index;
    *ret_pidfd = -1;
    error = gs_wire_send(fd, &query, -1);
    if (error && error != -EPIPE) /* what made it hang up may lie there */
        return error;
    do
        ready = poll(&answer, 1, (int)(ASK_NS / GS_NS_PER_MS));
    while (ready < 0 && errno == EINTR); /* it was stopped and goes on */
    if (ready != 1)
        return -ETIMEDOUT;
    error = gs_wire_receive(fd, ret_answer, ret_pidfd);
    if (!error && ret_answer->head.type != GS_WIRE_REPORT &&
        ret_answer->head.type != GS_WIRE_REFUSE)
        return -EPROTO;
    return error;
}

void ask_failed(int error, const union gs_wire_message *answer, char ret_why[ASK_WHY_SIZE])
{
    if (error == -EPROTONOSUPPORT)
        snprintf(ret_why, ASK_WHY_SIZE, "is of " GS_WIRE_VERSION_TEXT "; its own gpushim lists it",
                 (unsigned)answer->head.version, GS_WIRE_VERSION);
    else if (error == 0)
        snprintf(ret_why, ASK_WHY_SIZE, "does not tell: %s",
                 gs_wire_reason_text(answer->refuse.reason));
    else if (error == -EPROTO)
        snprintf(ret_why, ASK_WHY_SIZE, "gives an answer that this version does not know");
    else if (error == -ETIMEDOUT)
        snprintf(ret_why, ASK_WHY_SIZE, "does not answer");
    else
        snprintf(ret_why, ASK_WHY_SIZE, "hangs up");
}

bool ask_is_broker(const char *name)
{
    size_t length = strlen(GS_BROKER_NAME);

    return strncmp(name, GS_BROKER_NAME, length) == 0 &&
           (name[length] == 0 || (name[length] == '.' && strlen(name) < GS_BROKER_NAME_SIZE));
}

bool ask_is_socket(const char *name)
{
    return ask_is_broker(name) ||
           (strlen(name) == GS_SOCKET_NAME_SIZE - 1 &&
            strspn(name, "0123456789abcdef") == GS_SOCKET_NAME_SIZE - 1);
}
