/*
 * Looking a name up (names.c): all who may have it are asked about it at once, and the newest is
 * taken; and its end, or what was published anew, is told them the same way, by an order to end it.
 *
 * Names are one user's: the user's processes are asked, and brokers, whoever runs them, of which
 * each has those of several users and tells a user's process of that user's.
 */
#include "core/share/ask.h"

#include <string.h>

#define REQUEST 1

struct inquiry {
    union gs_wire_message question;
    /* What came of it. */
    unsigned ended;
    bool found_any;
    uint64_t since_ns;
    struct gs_found found;
};

/* The newest is taken: where there is one, others are not waited for as long as for the first.
 * Whether it is an answer at all. */
static bool take_named(struct gs_asking *asking, const struct gs_wire_named *named)
{
    struct inquiry *inquiry = asking->arg;
    const struct gs_found *found = &named->found;

    if (!named->is_here)
        return true;
    if (named->is_here > 1 || !gs_naming_is_good(&found->naming) ||
        memcmp(found->naming.name, inquiry->question.query.name, GS_NAME_SIZE) != 0 ||
        found->offset >= found->size)
        return false;
    if (inquiry->found_any && named->since_ns <= inquiry->since_ns)
        return true;
    inquiry->found_any = true;
    inquiry->since_ns = named->since_ns;
    inquiry->found = *found;
    inquiry->found.uid = gs_user_own();
    inquiry->found.address = 0;
    inquiry->found.process[sizeof inquiry->found.process - 1] = 0;
    gs_sooner(&asking->deadline_ns, gs_now_ns() + GS_SHARE_TELL_NS);
    return true;
}

static enum gs_peer_state say(struct gs_asking *asking, struct gs_peer *peer)
{
    const struct inquiry *inquiry = asking->arg;
    const struct gs_conn_who *who = &peer->who;

    if (peer->is_broker ? !gs_process_is_listed(&asking->share->options, who->uid, who->gid)
                        : !gs_user_is_own(who->uid))
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

    if (error == -ENOTCONN || error == -EPROTONOSUPPORT ||
        (!error && message->head.type == GS_WIRE_REFUSE &&
         message->refuse.reason == GS_REFUSED_USER))
        return GS_HEARD; /* it ends, with what it has; or shares nothing with this one */
    if (is_answer && message->head.type == GS_WIRE_DONE) {
        inquiry->ended += message->done.ended > 0;
        return GS_HEARD;
    }
    if (is_answer && message->head.type == GS_WIRE_REPORT &&
        take_named(asking, &message->report.named))
        return GS_HEARD;
    return GS_SILENT;
}

/* Asks about a name, within debug.timeout, and `limit_ns`; what came of it is in *ret_inquiry, and
 * how many have not answered is returned. Natively there is nothing like it. */
static unsigned inquire(struct gs_share *share, enum gs_wire_type type, const char *name,
                        uint64_t since_ns, uint64_t limit_ns, struct inquiry *ret_inquiry)
{
    struct gs_asking asking = {.share = share, .arg = ret_inquiry, .say = say, .hear = hear};
    union gs_wire_message *question = &ret_inquiry->question;

    *ret_inquiry = (struct inquiry){.found_any = false};
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
        ret_inquiry->found_any = true;
        gs_sooner(&asking.deadline_ns, gs_now_ns() + GS_SHARE_TELL_NS);
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

    if (inquiry.found_any) {
        *ret_found = inquiry.found;
        outcome = GS_LOOK_FOUND;
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

enum gs_look_up gs_share_unname(struct gs_share *share, const char *name)
{
    uint64_t now = gs_names_now(share);
    bool ended = gs_names_end(share, gs_user_own(), name, now);
    struct inquiry inquiry;
    int saved = errno;
    unsigned silent = inquire(share, GS_WIRE_ORDER, name, now, GS_SHARE_TELL_NS, &inquiry);

    errno = saved;
    return ended || inquiry.ended > 0 ? GS_LOOK_FOUND : silent > 0 ? GS_LOOK_SILENT : GS_LOOK_NONE;
}
