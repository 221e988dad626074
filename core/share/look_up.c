/*
 * Looking a name up (names.c): all who may have it are asked about it at once, and the newest is
 * taken; and its end, or what was published anew, is told them the same way, by an order to end it.
 *
 * What they say is as good as they are: of this user's own processes and of brokers it is believed
 * whose name it is; anybody else's is his own, as the kernel tells who he is. So another user's
 * process can neither hide this user's names nor add to them.
 */
#include "core/share/ask.h"

#include <string.h>

#define REQUEST 1

struct inquiry {
    union gs_wire_message question;
    /* What came of it. */
    unsigned ended;
    bool refused; /* by a process of that user, who is not listed there */
    uid_t refused_uid;
    enum gs_named state;
    uint64_t since_ns;
    struct gs_found found;
};

/* There is one: others, who may have a newer, are not waited for as long as for the first. */
static void found_by(struct gs_asking *asking)
{
    uint64_t end = gs_now_ns() + GS_SHARE_TELL_NS;

    if (end < asking->deadline_ns)
        asking->deadline_ns = end;
}

/* This user's own come first, then what may be opened, then the newest. */
static bool is_better(const struct inquiry *inquiry, const struct gs_wire_named *named,
                      uint32_t uid)
{
    bool own = gs_user_is_own(uid), had = gs_user_is_own(inquiry->found.uid);

    if (inquiry->state == GS_NAMED_NONE || own != had)
        return inquiry->state == GS_NAMED_NONE || own;
    if (named->state != (uint32_t)inquiry->state)
        return named->state == GS_NAMED_HERE;
    return named->since_ns > inquiry->since_ns;
}

/* Whether it is an answer at all. */
static bool take_named(struct gs_asking *asking, const struct gs_peer *peer,
                       const struct gs_wire_named *named)
{
    struct inquiry *inquiry = asking->arg;
    const struct gs_found *found = &named->found;
    uint32_t uid = peer->is_broker || gs_user_is_own(peer->who.uid) ? found->uid : peer->who.uid;

    if (named->state == GS_NAMED_NONE)
        return true;
    if (named->state > GS_NAMED_OF_OTHERS || !gs_naming_is_good(&found->naming) ||
        memcmp(found->naming.name, inquiry->question.query.name, GS_NAME_SIZE) != 0 ||
        (named->state == GS_NAMED_HERE && found->offset >= found->size))
        return false;
    if (!is_better(inquiry, named, uid))
        return true;
    inquiry->state = (enum gs_named)named->state;
    inquiry->since_ns = named->since_ns;
    inquiry->found = *found;
    inquiry->found.uid = uid;
    inquiry->found.address = 0;
    inquiry->found.process[sizeof inquiry->found.process - 1] = 0;
    found_by(asking);
    return true;
}

static void refuse(struct gs_asking *asking, uid_t uid)
{
    struct inquiry *inquiry = asking->arg;

    inquiry->refused = true;
    inquiry->refused_uid = uid;
}

static enum gs_peer_state say(struct gs_asking *asking, struct gs_peer *peer)
{
    const struct inquiry *inquiry = asking->arg;
    const struct gs_conn_who *who = &peer->who;

    if (!gs_process_is_listed(&asking->share->options, who->uid, who->gid) ||
        (inquiry->question.head.type == GS_WIRE_ORDER && !peer->is_broker &&
         !gs_user_is_own(who->uid)))
        return GS_HEARD; /* it is not asked */
    if (gs_wire_goes_later(gs_wire_send(peer->socket.fd, &inquiry->question, -1)) ||
        (who->pid > 0 && gs_alive_is_stopped(who->pid)))
        return GS_SILENT; /* who is stopped is told, and not waited for */
    return GS_AWAITED;
}

static enum gs_peer_state hear(struct gs_asking *asking, struct gs_peer *peer, int error,
                               const union gs_wire_message *message)
{
    struct inquiry *inquiry = asking->arg;
    bool is_answer = !error && message->head.request == REQUEST;

    if (error == -ENOTCONN || error == -EPROTONOSUPPORT)
        return GS_HEARD; /* it ends, with what it has; or shares nothing with this version */
    if (!error && message->head.type == GS_WIRE_REFUSE &&
        message->refuse.reason == GS_REFUSED_USER) {
        refuse(asking, peer->who.uid);
        return GS_HEARD;
    }
    if (is_answer && message->head.type == GS_WIRE_DONE) {
        inquiry->ended += message->done.ended > 0;
        return GS_HEARD;
    }
    if (is_answer && message->head.type == GS_WIRE_REPORT &&
        take_named(asking, peer, &message->report.named))
        return GS_HEARD;
    return GS_SILENT;
}

/* Asks about a name, within debug.timeout, and `limit_ns`; what came of it is in *ret_inquiry, and
 * how many have not answered is returned. Natively there is nothing like it. */
static unsigned inquire(struct gs_share *share, enum gs_wire_type type, const char *name,
                        uint64_t since_ns, uint64_t limit_ns, struct inquiry *ret_inquiry)
{
    struct gs_asking asking = {
        .share = share, .arg = ret_inquiry, .say = say, .hear = hear, .barred = refuse};
    union gs_wire_message *question = &ret_inquiry->question;

    *ret_inquiry = (struct inquiry){.state = GS_NAMED_NONE};
    gs_wire_start(question, type, REQUEST);
    if (type == GS_WIRE_QUERY) {
        question->query.about = GS_ABOUT_NAME;
        strncpy(question->query.name, name, GS_NAME_SIZE - 1);
    } else {
        question->order.kind = GS_ORDER_UNNAME;
        question->order.value = since_ns;
        strncpy(question->order.name, name, GS_NAME_SIZE - 1);
    }
    if (limit_ns > share->options.timeout_ns)
        limit_ns = share->options.timeout_ns;
    asking.deadline_ns = gs_now_ns() + limit_ns;
    if (type == GS_WIRE_QUERY &&
        gs_names_own(share, name, &ret_inquiry->since_ns, &ret_inquiry->found)) {
        ret_inquiry->state = GS_NAMED_HERE;
        found_by(&asking);
    }
    gs_ask_all(&asking);
    return asking.silent + asking.unasked;
}

void gs_share_named(struct gs_share *share, const char *name, uint64_t since_ns)
{
    struct inquiry inquiry;
    int saved = errno;

    if (!gs_names_await_kept(share, name, since_ns))
        gs_log_line(&share->log, GS_LOG_WARNING,
                    "no broker has the name %s: it ends with this process; see that gpushim-broker "
                    "runs (gpushim doctor)",
                    name);
    inquire(share, GS_WIRE_ORDER, name, since_ns - 1, GS_SHARE_TELL_NS, &inquiry);
    errno = saved;
}

enum gs_look_up gs_share_look_up(struct gs_share *share, const char *name,
                                 struct gs_found *ret_found)
{
    enum gs_look_up outcome = GS_LOOK_NONE;
    struct inquiry inquiry;
    int saved = errno;
    unsigned silent = inquire(share, GS_WIRE_QUERY, name, 0, GS_NAME_ANSWER_NS, &inquiry);

    if (inquiry.state == GS_NAMED_HERE) {
        *ret_found = inquiry.found;
        outcome = GS_LOOK_FOUND;
    } else if (inquiry.state == GS_NAMED_OF_OTHERS || inquiry.refused) {
        ret_found->uid = inquiry.state ? inquiry.found.uid : inquiry.refused_uid;
        gs_log_line(&share->log, GS_LOG_WARNING,
                    inquiry.state ? "the name %s is user %u's, who does not share with this one; "
                                    "name this user there (share.uids)"
                                  : "no process of this user's has the name %s, and those of user "
                                    "%u do not say; name this user there (share.uids)",
                    name, (unsigned)ret_found->uid);
        outcome = GS_LOOK_OTHERS;
    } else if (silent > 0) {
        gs_log_line(&share->log, GS_LOG_INFO,
                    "the name %s was not found, and %u processes do not answer (stopped, or too "
                    "busy)",
                    name, silent);
        outcome = GS_LOOK_SILENT;
    }
    errno = saved;
    return outcome;
}

enum gs_look_up gs_share_unname(struct gs_share *share, const char *name, uint32_t *ret_uid)
{
    uint64_t now = gs_names_now(share);
    bool ended = gs_names_end(share, gs_user_own(), name, now);
    enum gs_look_up outcome, others;
    struct inquiry inquiry;
    struct gs_found found;
    int saved = errno;
    unsigned silent = inquire(share, GS_WIRE_ORDER, name, now, GS_SHARE_TELL_NS, &inquiry);

    outcome = ended || inquiry.ended > 0 ? GS_LOOK_FOUND
              : silent > 0               ? GS_LOOK_SILENT
                                         : GS_LOOK_NONE;
    others = outcome == GS_LOOK_NONE ? gs_share_look_up(share, name, &found) : GS_LOOK_NONE;
    if (others == GS_LOOK_OTHERS || (others == GS_LOOK_FOUND && !gs_user_is_own(found.uid))) {
        *ret_uid = found.uid;
        outcome = GS_LOOK_OTHERS;
    }
    errno = saved;
    return outcome;
}
