/*
 * gpushim trim: has processes give back to the driver what they keep of GPU memory and do not use,
 * as they do for each other where a GPU is full (core/share/pressure.c). Their programs notice
 * nothing but that the next large allocation takes longer.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/share/directory.h"
#include "shim/command/ask.h"
#include "shim/command/command.h"

#define GIVES_NS (10 * GS_NS_PER_S) /* for one that is at it */

struct trimming {
    const struct gs_share_options *options;
    long only; /* 0: all */
    bool found, failed;
    struct json *json; /* NULL: text */
};

/* What of the device was given back; a negative errno: nobody can say. 0 where it gives none now,
 * which one that was asked a moment ago may do. */
static int64_t ask_back(int fd, const unsigned char uuid[16], uint32_t request,
                        union gs_wire_message *ret_answer)
{
    union gs_wire_message message;
    struct pollfd answer = {.fd = fd, .events = POLLIN};
    int error, ready;

    gs_wire_start(&message, GS_WIRE_PURGE, request);
    memcpy(message.purge.uuid, uuid, sizeof message.purge.uuid);
    message.purge.wanted = INT64_MAX;
    error = gs_wire_send(fd, &message, -1);
    for (;;) {
        if (error && error != -EPIPE)
            return error;
        do
            ready = poll(&answer, 1, (int)(GIVES_NS / GS_NS_PER_MS));
        while (ready < 0 && errno == EINTR);
        if (ready != 1)
            return -ETIMEDOUT;
        error = gs_wire_receive(fd, ret_answer, NULL);
        if (error)
            return error;
        if (ret_answer->head.type == GS_WIRE_REFUSE)
            return -EPERM;
        if (ret_answer->head.type != GS_WIRE_PURGED)
            return -EPROTO;
        if (!ret_answer->purged.more)
            return ret_answer->purged.given < INT64_MAX ? (int64_t)ret_answer->purged.given
                                                        : -EPROTO;
    }
}

static void tell(struct trimming *trimming, const struct who *who, unsigned device, int64_t given,
                 const char *silent)
{
    trimming->failed |= silent[0] != 0;
    if (trimming->json) {
        json_open(trimming->json, NULL, '{');
        who_write(trimming->json, who);
        json_number(trimming->json, "device", device);
        json_number(trimming->json, "given_bytes", given < 0 ? 0 : (uint64_t)given);
        json_text(trimming->json, "silent", silent[0] ? silent : NULL);
        json_close(trimming->json, '}');
    } else if (silent[0]) {
        printf("pid %ld (%s): %s\n", who->pid, who->name, silent);
    } else {
        printf("pid %ld (%s): gave %llu MiB of GPU %u back\n", who->pid, who->name,
               (unsigned long long)given >> 20, device);
    }
}

/* Of each device that it keeps something of. */
static void trim(struct trimming *trimming, struct who *who, int fd)
{
    union gs_wire_message answer, given_answer;
    char silent[128] = "";
    int error = 0, pidfd;

    for (unsigned device = 0; !error; device++) {
        const struct gs_figures *figures = &answer.report.figures;
        int64_t given;

        error = ask(fd, UINT32_MAX, device, &answer, &pidfd);
        if (pidfd >= 0)
            close(pidfd);
        if (error || answer.head.type != GS_WIRE_REPORT) {
            ask_silence(silent, sizeof silent, error, &answer);
            tell(trimming, who, device, 0, silent);
            return;
        }
        gs_wire_printable(answer.report.name);
        who_fill(who, who->pid, answer.report.pid, answer.report.name);
        if (!answer.report.has_figures)
            return;
        if (!figures->cached && !figures->ordered && !figures->retired)
            continue;
        given = ask_back(fd, figures->uuid, device + 1, &given_answer);
        if (given < 0)
            ask_silence(silent, sizeof silent, given == -EPERM ? 0 : (int)given, &given_answer);
        tell(trimming, who, device, given, silent);
        if (given < 0)
            return;
    }
}

static void trim_listener(void *arg, int directory, const char *name)
{
    struct trimming *trimming = arg;
    int fd = ask_is_broker(name)
                 ? -1
                 : gs_directory_connect(directory, trimming->options, name, ANSWER_NS);
    struct who who;

    if (fd < 0)
        return;
    who_fill(&who, ask_pid_of_listener(fd), 0, "");
    if (!trimming->only || who.pid == trimming->only) {
        trimming->found = true;
        trim(trimming, &who, fd);
    }
    close(fd);
}

int command_trim(int argc, char **argv)
{
    static const char usage[] =
        "usage: gpushim trim PID|all [--json]\n"
        "Has that process, or all of this user's (for root: of everybody), give back to the driver "
        "what\nthey keep of GPU memory and do not use. They have to have pool.neighbours on, as "
        "they "
        "do where\nnobody says otherwise.\n";
    struct gs_share_options options;
    struct json json = {.file = stdout};
    struct trimming trimming = {.options = &options};
    char reason[GS_REASON_SIZE];
    bool as_json;
    int status;

    if (!command_arguments(&argc, argv, 1, usage, &as_json, &status))
        return status;
    if (argc != 2)
        return command_usage(usage);
    if (strcmp(argv[1], "all") != 0 && (trimming.only = command_pid(argv[1])) <= 0)
        return command_usage(usage);
    if (!command_share_options(&options))
        return COMMAND_WRONG;
    trimming.json = as_json ? &json : NULL;
    if (as_json)
        json_open(&json, NULL, '[');
    ask_each(&options, trim_listener, &trimming, reason);
    if (as_json) {
        json_close(&json, ']');
        json_end(&json);
    }
    if (trimming.only && !trimming.found) {
        command_complain(
            "process %ld cannot be asked: it has not the library, holds less than 64 MiB, or "
            "has another share.dir (gpushim stats %ld)",
            trimming.only, trimming.only);
        return COMMAND_WRONG;
    }
    return trimming.failed ? COMMAND_WRONG : COMMAND_WELL;
}
