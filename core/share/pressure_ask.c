/* Asking other processes for memory (the picture is in core/share/pressure.c). */
#include "core/base/list.h"
#include "core/share/ask.h"

#include <string.h>

#define WAIT_NS   (50 * GS_NS_PER_MS) /* for one to say that it is seen to, */
#define GIVING_NS GS_NS_PER_S         /* to have given, */
#define SLEEPS_NS (10 * GS_NS_PER_S)  /* or where it says so, to have gone to sleep */
#define REQUEST   1                   /* each is asked once over a connection */

struct plea {
    const unsigned char *uuid;
    uint64_t wanted;
    struct gs_share_answers *answers;
};

enum step { ASKED, SEEN_TO, SLEEPS }; /* as it says by DONE's `more` */

static enum gs_peer_state say(struct gs_asking *asking, struct gs_peer *peer)
{
    const struct plea *plea = asking->arg;
    union gs_wire_message message;

    gs_wire_start(&message, GS_WIRE_ORDER, REQUEST);
    message.order.kind = GS_ORDER_TRIM;
    memcpy(message.order.uuid, plea->uuid, sizeof message.order.uuid);
    message.order.value = plea->wanted;
    return gs_wire_send(peer->socket.fd, &message, -1) == 0 ? GS_AWAITED : GS_HEARD;
}

/* Who says what is no answer, or the same twice, is not listened to. */
static enum gs_peer_state hear(struct gs_asking *asking, struct gs_peer *peer, int error,
                               const union gs_wire_message *message)
{
    struct plea *plea = asking->arg;
    struct gs_share_answers *answers = plea->answers;
    uint64_t missing = plea->wanted - answers->given;

    answers->ended |= error == -ENOTCONN;
    if (error || message->head.type != GS_WIRE_DONE || message->head.request != REQUEST ||
        message->done.outcome || message->done.more > SLEEPS ||
        (message->done.more && message->done.more != peer->step + 1u))
        return GS_HEARD;
    if (message->done.more) {
        peer->step = message->done.more;
        return GS_AWAITED;
    }
    answers->given += message->done.given < missing ? message->done.given : missing;
    asking->enough = answers->given == plea->wanted;
    return GS_HEARD;
}

static bool waits(const struct gs_asking *asking, const struct gs_peer *peer)
{
    static const uint64_t most[] = {[ASKED] = WAIT_NS, [SEEN_TO] = GIVING_NS, [SLEEPS] = SLEEPS_NS};

    return asking->waited_ns < most[peer->step];
}

/* ---- Who is silent: kept, since by its connection is seen when it has answered --------------- */

static struct gs_peer *take_silent(struct gs_share *share)
{
    struct gs_peer *silent;
    GS_HOLDING(&share->lock);

    silent = share->asked.pressure.silent;
    share->asked.pressure.silent = NULL;
    return silent;
}

/* Two threads may ask at once, and each finds some of the others: of one process once. */
static bool keep(struct gs_share *share, struct gs_peer *peer)
{
    const struct gs_peer *other;
    GS_HOLDING(&share->lock);

    LL_FOREACH(share->asked.pressure.silent, other)
        if (strcmp(other->name, peer->name) == 0)
            break;
    if (!other)
        LL_PREPEND(share->asked.pressure.silent, peer);
    return !other;
}

/* Those who were silent the last time. Who has answered by now, gone, or lost the connection, is
 * found anew: what it gave before this is not counted. */
static void hear_silent(struct gs_asking *asking)
{
    struct plea *plea = asking->arg;
    struct gs_peer *silent = take_silent(asking->share), *peer, *next;

    LL_FOREACH_SAFE(silent, peer, next) {
        peer->state = GS_AWAITED;
        gs_ask_hear(asking, peer);
        if (peer->state == GS_HEARD) {
            gs_peer_forget(peer);
            continue;
        }
        peer->state = GS_SILENT;
        asking->silent++;
        LL_PREPEND(asking->peers, peer);
    }
    plea->answers->given = 0;
    asking->enough = false;
}

void gs_share_ask(struct gs_share *share, const unsigned char uuid[16], uint64_t wanted,
                  struct gs_share_answers *ret_answers)
{
    struct plea plea = {.uuid = uuid, .wanted = wanted, .answers = ret_answers};
    struct gs_asking asking = {.share = share,
                               .arg = &plea,
                               .own = true,
                               .keeps = true,
                               .say = say,
                               .hear = hear,
                               .waits = waits};
    struct gs_peer *peer, *next;

    *ret_answers = (struct gs_share_answers){.given = 0};
    hear_silent(&asking);
    gs_ask_all(&asking);
    if (asking.unasked)
        gs_log_line(&share->log, GS_LOG_INFO,
                    "%u processes were not asked for what they keep idle: %s", asking.unasked,
                    asking.silent < GS_CONN_ANY
                        ? "no descriptor is left (ulimit -n), or they take no connection"
                        : "too many others do not answer");
    ret_answers->silent = asking.silent;
    LL_FOREACH_SAFE(asking.peers, peer, next) {
        if (peer->who.pid > 0)
            ret_answers->silent_pid = peer->who.pid;
        if (!keep(share, peer))
            gs_peer_forget(peer);
    }
}

void gs_others_free(struct gs_share *share)
{
    struct gs_peer *silent = take_silent(share), *peer, *next;

    LL_FOREACH_SAFE(silent, peer, next)
        gs_peer_forget(peer);
}
