/*
 * Looking a name up (names.c): all who may have it are asked at once, by LOOK_UP, and the newest is taken;
 * and the name's end, or what was published anew, is told them the same way, by UNNAME.
 *
 * What they say is as good as they are: of this user's own processes and of brokers it is believed
 * whose name it is; anybody else's is his own, as the kernel tells who he is. So another user's process
 * can neither hide this user's names nor add to them.
 */
#include "core/share/discard.h"
#include "core/share/internal.h"

#include <stdlib.h>
#include <string.h>

#define STEP_NS (5 * GS_NS_PER_MS)

/* One who is asked. */
struct asked {
    struct gs_fd kept; /* the program may close it */
    int socket;        /* -1: he has answered, or hung up */
    uid_t uid;
    bool is_broker;
};

struct inquiry {
    struct gs_share *share;
    const union gs_wire_message *question;
    uint64_t deadline_ns;
    unsigned count, waiting;
    struct asked asked[GS_CONN_ANY];
    /* What came of it. */
    unsigned silent, ended;
    bool refused; /* by a process of that user, who is not listed there */
    uid_t refused_uid;
    enum gs_named state;
    uint64_t since_ns;
    struct gs_found found;
};

static void end(struct inquiry *inquiry, struct asked *asked)
{
    if (gs_fd_is_there(&asked->kept))
        gs_hang_up(asked->socket);
    asked->socket = -1;
    inquiry->waiting--;
}

static void silent(struct inquiry *inquiry, struct asked *asked)
{
    inquiry->silent++;
    end(inquiry, asked);
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
static bool take_named(struct inquiry *inquiry, const struct asked *asked,
                       const struct gs_wire_named *named)
{
    const struct gs_found *found = &named->found;
    uint32_t uid = asked->is_broker || gs_user_is_own(asked->uid) ? found->uid : asked->uid;

    if (named->state == GS_NAMED_NONE)
        return true;
    if (named->state > GS_NAMED_OF_OTHERS || !gs_naming_is_good(&found->naming) ||
        memcmp(found->naming.name, inquiry->question->look_up.name, GS_NAME_SIZE) != 0 ||
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
    if (gs_now_ns() + GS_SHARE_TELL_NS < inquiry->deadline_ns)
        inquiry->deadline_ns = gs_now_ns() + GS_SHARE_TELL_NS;
    return true;
}

static void refuse(struct inquiry *inquiry, uid_t uid)
{
    inquiry->refused = true;
    inquiry->refused_uid = uid;
}

static void take(struct inquiry *inquiry, struct asked *asked, const union gs_wire_message *message)
{
    bool is_answer = message->head.request == inquiry->question->head.request;

    if (message->head.type == GS_WIRE_REFUSE && message->refuse.reason == GS_REFUSED_USER) {
        refuse(inquiry, asked->uid);
        end(inquiry, asked);
    } else if (is_answer && message->head.type == GS_WIRE_UNNAMED) {
        inquiry->ended += message->unnamed.count > 0;
        end(inquiry, asked);
    } else if (is_answer && message->head.type == GS_WIRE_NAMED &&
               take_named(inquiry, asked, &message->named)) {
        end(inquiry, asked);
    } else {
        silent(inquiry, asked);
    }
}

static void hear(struct inquiry *inquiry, struct asked *asked)
{
    union gs_wire_message message;
    int error = gs_fd_is_there(&asked->kept) ? gs_wire_receive(asked->socket, &message, NULL)
                                             : -EBADF;

    if (error == -EAGAIN)
        return;
    if (error == -ENOTCONN || error == -EPROTONOSUPPORT)
        end(inquiry, asked); /* he ends, with what he has; or shares nothing with this version */
    else if (error)
        silent(inquiry, asked);
    else
        take(inquiry, asked, &message);
}

/* Until all have answered, or the time is over; natively there is nothing like it. */
static void hear_all(struct inquiry *inquiry)
{
    int sockets[GS_CONN_ANY];

    while (inquiry->waiting > 0 && gs_now_ns() < inquiry->deadline_ns) {
        unsigned count = 0;

        for (unsigned i = 0; i < inquiry->count; i++)
            if (inquiry->asked[i].socket >= 0)
                sockets[count++] = inquiry->asked[i].socket;
        gs_conn_wait_any(sockets, count, STEP_NS);
        for (unsigned i = 0; i < inquiry->count; i++)
            if (inquiry->asked[i].socket >= 0)
                hear(inquiry, &inquiry->asked[i]);
    }
    for (unsigned i = 0; i < inquiry->count; i++)
        if (inquiry->asked[i].socket >= 0)
            silent(inquiry, &inquiry->asked[i]);
    inquiry->count = 0;
}

static void ask_one(void *arg, int directory, const char *name)
{
    struct inquiry *inquiry = arg;
    struct gs_share *share = inquiry->share;
    bool is_broker = strlen(name) != GS_SOCKET_NAME_SIZE - 1;
    bool unnames = inquiry->question->head.type == GS_WIRE_UNNAME;
    struct gs_conn_who who;
    struct asked *asked;
    int socket;

    if (inquiry->count == GS_CONN_ANY)
        hear_all(inquiry);
    socket = gs_peer_connect(share, directory, name, &who);
    inquiry->silent += socket == -EAGAIN;
    if (socket == -EACCES && who.uid != (uid_t)-1)
        refuse(inquiry, who.uid);
    if (socket < 0)
        return;
    if (!gs_process_is_listed(&share->options, who.uid, who.gid) ||
        (unnames && !is_broker && !gs_user_is_own(who.uid))) {
        gs_hang_up(socket);
        return;
    }
    asked = &inquiry->asked[inquiry->count++];
    *asked = (struct asked){.kept = gs_fd_keep(socket),
                            .socket = socket,
                            .uid = who.uid,
                            .is_broker = is_broker};
    inquiry->waiting++;
    if (gs_wire_goes_later(gs_wire_send(socket, inquiry->question, -1)) ||
        (who.pid > 0 && gs_alive_is_stopped(who.pid)))
        silent(inquiry, asked); /* who is stopped is told, and not waited for */
}

static void ask_all(struct inquiry *inquiry)
{
    inquiry->silent += !gs_peers_each(inquiry->share, ask_one, inquiry);
    hear_all(inquiry);
}

static struct inquiry *inquire(struct gs_share *share, const union gs_wire_message *question,
                               uint64_t limit_ns)
{
    struct inquiry *inquiry = calloc(1, sizeof *inquiry);

    if (!inquiry)
        return NULL;
    inquiry->share = share;
    inquiry->question = question;
    if (limit_ns > share->options.timeout_ns)
        limit_ns = share->options.timeout_ns;
    inquiry->deadline_ns = gs_now_ns() + limit_ns;
    return inquiry;
}

static struct inquiry *unname(struct gs_share *share, union gs_wire_message *question,
                              const char *name, uint64_t since_ns)
{
    struct inquiry *inquiry;

    gs_wire_start(question, GS_WIRE_UNNAME, 1);
    strncpy(question->unname.name, name, GS_NAME_SIZE - 1);
    question->unname.since_ns = since_ns;
    inquiry = inquire(share, question, GS_SHARE_TELL_NS);
    if (inquiry)
        ask_all(inquiry);
    return inquiry;
}

void gs_share_named(struct gs_share *share, const char *name, uint64_t since_ns)
{
    union gs_wire_message question;
    int saved = errno;

    if (!gs_names_await_kept(share, name, since_ns))
        gs_log_line(&share->log, GS_LOG_WARNING,
                    "no broker has the name %s: it ends with this process; see that gpushim-broker "
                    "runs (gpushim doctor)",
                    name);
    free(unname(share, &question, name, since_ns - 1));
    errno = saved;
}

enum gs_look_up gs_share_look_up(struct gs_share *share, const char *name,
                                 struct gs_found *ret_found)
{
    union gs_wire_message question;
    struct inquiry *inquiry;
    enum gs_look_up outcome = GS_LOOK_NONE;
    int saved = errno;

    gs_wire_start(&question, GS_WIRE_LOOK_UP, 1);
    strncpy(question.look_up.name, name, GS_NAME_SIZE - 1);
    inquiry = inquire(share, &question, GS_NAME_ANSWER_NS);
    if (!inquiry) {
        errno = saved;
        return GS_LOOK_SILENT;
    }
    if (gs_names_own(share, name, &inquiry->since_ns, &inquiry->found)) {
        inquiry->state = GS_NAMED_HERE;
        inquiry->deadline_ns = gs_now_ns() + GS_SHARE_TELL_NS;
    }
    ask_all(inquiry);
    if (inquiry->state == GS_NAMED_HERE) {
        *ret_found = inquiry->found;
        outcome = GS_LOOK_FOUND;
    } else if (inquiry->state == GS_NAMED_OF_OTHERS || inquiry->refused) {
        ret_found->uid = inquiry->state ? inquiry->found.uid : inquiry->refused_uid;
        gs_log_line(&share->log, GS_LOG_WARNING,
                    inquiry->state ? "the name %s is user %u's, who does not share with this one; "
                                     "name this user there (share.uids)"
                                   : "no process of this user's has the name %s, and those of user "
                                     "%u do not say; name this user there (share.uids)",
                    name, (unsigned)ret_found->uid);
        outcome = GS_LOOK_OTHERS;
    } else if (inquiry->silent > 0) {
        gs_log_line(&share->log, GS_LOG_INFO,
                    "the name %s was not found, and %u processes do not answer (stopped, or too "
                    "busy)",
                    name, inquiry->silent);
        outcome = GS_LOOK_SILENT;
    }
    free(inquiry);
    errno = saved;
    return outcome;
}

enum gs_look_up gs_share_unname(struct gs_share *share, const char *name, uint32_t *ret_uid)
{
    uint64_t now = gs_names_now(share);
    bool ended = gs_names_end(share, gs_user_own(), name, now);
    union gs_wire_message question;
    struct inquiry *inquiry;
    struct gs_found found;
    enum gs_look_up outcome, others;
    int saved = errno;

    inquiry = unname(share, &question, name, now);
    ended |= inquiry && inquiry->ended > 0;
    outcome = ended ? GS_LOOK_FOUND
              : !inquiry || inquiry->silent > 0 ? GS_LOOK_SILENT
                                                : GS_LOOK_NONE;
    free(inquiry);
    others = outcome == GS_LOOK_NONE ? gs_share_look_up(share, name, &found) : GS_LOOK_NONE;
    if (others == GS_LOOK_OTHERS || (others == GS_LOOK_FOUND && !gs_user_is_own(found.uid))) {
        *ret_uid = found.uid;
        outcome = GS_LOOK_OTHERS;
    }
    errno = saved;
    return outcome;
}
