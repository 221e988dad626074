/*
 * What the user's other processes have of a device, for who has run out of it: each is asked for
 * its figures (QUERY), device after device until that of the uuid.
 */
#include "core/share/ask.h"

#include <string.h>

#define DEVICES 256 /* are asked for at most */

struct survey {
    const unsigned char *uuid;
    struct gs_share_others *found;
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

/* Its step is the device that it is asked about. */
static enum gs_peer_state query(struct gs_asking *asking, struct gs_peer *peer)
{
    union gs_wire_message message;

    (void)asking;
    if (peer->step == 0 && peer->who.pid > 0 && gs_alive_is_stopped(peer->who.pid))
        return GS_SILENT;
    gs_wire_start(&message, GS_WIRE_QUERY, peer->step + 1);
    message.query.index = UINT32_MAX; /* no client of its is asked about */
    message.query.device = peer->step;
    return gs_wire_send(peer->socket.fd, &message, -1) == 0 ? GS_AWAITED : GS_SILENT;
}

/* What it says of one device; it is asked about the next where that is another one. */
static enum gs_peer_state hear(struct gs_asking *asking, struct gs_peer *peer, int error,
                               const union gs_wire_message *message)
{
    const struct survey *survey = asking->arg;
    const struct gs_wire_report *report = &message->report;
    const struct gs_figures *figures = &report->figures;
    struct gs_share_other told = {.pid = peer->who.pid > 0 ? peer->who.pid : 0};

    if (error || message->head.type != GS_WIRE_REPORT || message->head.request != peer->step + 1)
        return GS_SILENT;
    if (!report->has_figures)
        return GS_HEARD;
    if (memcmp(figures->uuid, survey->uuid, sizeof figures->uuid) != 0)
        return ++peer->step < DEVICES ? query(asking, peer) : GS_HEARD;
    if (figures->reserved > 0 && !report->is_broker) {
        told.reserved = figures->reserved;
        told.live = figures->live;
        told.cached = figures->cached;
        memcpy(told.name, report->name, sizeof told.name - 1);
        enter(survey->found, &told);
    }
    return GS_HEARD;
}

void gs_share_others(struct gs_share *share, const unsigned char uuid[16], uint64_t limit_ns,
                     struct gs_share_others *ret_others)
{
    struct survey survey = {.uuid = uuid, .found = ret_others};
    struct gs_asking asking = {.share = share,
                               .arg = &survey,
                               .own = true,
                               .say = query,
                               .hear = hear,
                               .deadline_ns = gs_now_ns() + limit_ns};

    memset(ret_others, 0, sizeof *ret_others);
    gs_ask_all(&asking);
    ret_others->silent = asking.silent + asking.unasked;
}
