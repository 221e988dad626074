/*
 * What the user's other processes have of a device, for who has run out of it: each is asked for
 * its figures (QUERY), device after device until that of the uuid, and many of them at once.
 */
#include "core/share/alive.h"
#include "core/share/conn.h"
#include "core/share/discard.h"
#include "core/share/internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define ROUND_MAX GS_CONN_ANY /* are asked at once: each costs a descriptor */
#define STEP_NS    (5 * GS_NS_PER_MS)

struct other {
    struct gs_fd kept; /* the program may close it */
    int socket;        /* -1: it has said what it has, or hung up */
    uint32_t device;
    pid_t pid;
};

struct survey {
    struct gs_share *share;
    const unsigned char *uuid;
    struct gs_share_others *found;
    uint64_t deadline_ns;
    unsigned count, waiting;
    struct other others[ROUND_MAX];
};

static void enter(struct gs_share_others *found, const struct gs_share_other *other)
{
    unsigned at = GS_SHARE_HOLDERS;

    found->answered++;
    found->reserved += other->reserved;
    found->cached += other->cached;
    for (; at > 0 && found->most[at - 1].reserved < other->reserved; at--)
        if (at < GS_SHARE_HOLDERS)
            found->most[at] = found->most[at - 1];
    if (at < GS_SHARE_HOLDERS)
        found->most[at] = *other;
}

static void end(struct survey *survey, struct other *other)
{
    if (gs_fd_is_there(&other->kept))
        gs_hang_up(other->socket);
    other->socket = -1;
    survey->waiting--;
}

static void silent(struct survey *survey, struct other *other)
{
    survey->found->silent++;
    end(survey, other);
}

static void query(struct survey *survey, struct other *other)
{
    union gs_wire_message message;

    gs_wire_start(&message, GS_WIRE_QUERY, other->device + 1);
    message.query.index = UINT32_MAX; /* no client of his is asked about */
    message.query.device = other->device;
    if (gs_wire_send(other->socket, &message, -1) != 0)
        silent(survey, other);
}

/* What it says of one device; it is asked about the next where that is another one. */
static void take(struct survey *survey, struct other *other, const struct gs_wire_report *report)
{
    const struct gs_figures *figures = &report->figures;
    bool is_of_it = memcmp(figures->uuid, survey->uuid, sizeof figures->uuid) == 0;
    struct gs_share_other told = {.pid = other->pid,
                                  .reserved = figures->reserved,
                                  .live = figures->live,
                                  .cached = figures->cached};

    if (report->has_figures && !is_of_it && other->device < 255) {
        other->device++;
        query(survey, other);
        return;
    }
    if (report->has_figures && is_of_it && figures->reserved > 0 && !report->is_broker) {
        memcpy(told.name, report->name, sizeof told.name);
        told.name[sizeof told.name - 1] = 0;
        enter(survey->found, &told);
    }
    end(survey, other);
}

static void hear(struct survey *survey, struct other *other)
{
    union gs_wire_message message;
    int error;

    while (other->socket >= 0) {
        error =
            gs_fd_is_there(&other->kept) ? gs_wire_receive(other->socket, &message, NULL) : -EBADF;
        if (error == -EAGAIN)
            return;
        if (error || message.head.type != GS_WIRE_REPORT ||
            message.head.request != other->device + 1)
            silent(survey, other);
        else
            take(survey, other, &message.report);
    }
}

/* Until all of this round have said what they have, or the time is over. */
static void end_round(struct survey *survey)
{
    int sockets[ROUND_MAX];

    while (survey->waiting > 0 && gs_now_ns() < survey->deadline_ns) {
        unsigned count = 0;

        for (unsigned i = 0; i < survey->count; i++)
            if (survey->others[i].socket >= 0)
                sockets[count++] = survey->others[i].socket;
        gs_conn_wait_any(sockets, count, STEP_NS);
        for (unsigned i = 0; i < survey->count; i++)
            hear(survey, &survey->others[i]);
    }
    for (unsigned i = 0; i < survey->count; i++)
        if (survey->others[i].socket >= 0)
            silent(survey, &survey->others[i]);
    survey->count = 0;
}

static void ask_one(void *arg, int directory, const char *name)
{
    struct survey *survey = arg;
    struct other *other;
    pid_t pid;
    int socket;

    if (survey->count == ROUND_MAX)
        end_round(survey);
    socket = gs_own_connect(survey->share, directory, name, &pid);
    survey->found->silent += socket == -EMFILE;
    if (socket < 0)
        return;
    other = &survey->others[survey->count++];
    *other = (struct other){.kept = gs_fd_keep(socket), .socket = socket, .pid = pid > 0 ? pid : 0};
    survey->waiting++;
    if (other->pid > 0 && gs_alive_is_stopped(other->pid))
        silent(survey, other);
    else
        query(survey, other);
}

void gs_share_others(struct gs_share *share, const unsigned char uuid[16], uint64_t limit_ns,
                     struct gs_share_others *ret_others)
{
    struct survey *survey = calloc(1, sizeof *survey);

    memset(ret_others, 0, sizeof *ret_others);
    if (!survey)
        return;
    survey->share = share;
    survey->uuid = uuid;
    survey->found = ret_others;
    survey->deadline_ns = gs_now_ns() + limit_ns;
    gs_own_each(share, ask_one, survey);
    end_round(survey);
    free(survey);
}
