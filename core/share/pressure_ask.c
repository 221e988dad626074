/* Asking other processes for memory (the picture is in core/share/pressure.c). */
#include "core/share/conn.h"
#include "core/share/discard.h"
#include "core/share/internal.h"

#include <stdlib.h>
#include <string.h>

#define ROUND_MAX  GS_CONN_ANY /* are asked at once: each costs a descriptor. In a round is waited */
#define WAIT_NS    (50 * GS_NS_PER_MS) /* for one to say that it is seen to, */
#define GIVING_NS  GS_NS_PER_S         /* and to have given */
#define SILENT_MAX GS_CONN_ANY /* behind so many that do not answer, which cost one too, nobody is asked */
#define LOOK_NS    (5 * GS_NS_PER_MS)

/* A process that was asked. Who does not answer in time is kept: by its connection is seen when it
 * has. */
struct gs_other {
    struct gs_other *next;
    char name[GS_SOCKET_NAME_SIZE];
    pid_t pid;           /* 0: of another PID namespace */
    struct gs_fd socket; /* the program may close it */
    uint32_t request;
    bool seen_to; /* as it says */
    enum { SILENT, WAITED, DONE } state;
};

struct asking {
    struct gs_share *share;
    const unsigned char *uuid;
    uint64_t wanted;
    struct gs_other *others; /* of this round, and who was silent in one before it */
    uint64_t waited; /* in this round, */
    unsigned count;  /* and who was asked in it */
    unsigned silent; /* in those before it */
    unsigned unasked;
    struct gs_share_answers *answers;
};

static void send_plea(const struct asking *asking, struct gs_other *other)
{
    union gs_wire_message message;

    gs_wire_start(&message, GS_WIRE_PURGE, ++other->request);
    memcpy(message.purge.uuid, asking->uuid, sizeof message.purge.uuid);
    message.purge.wanted = asking->wanted;
    other->seen_to = false;
    other->state = gs_wire_send(other->socket.fd, &message, -1) == 0 ? WAITED : DONE;
}

/* What it has said. Who says what is no answer, or the same twice, is not listened to. */
static void hear(struct asking *asking, struct gs_other *other)
{
    while (other->state != DONE) {
        uint64_t missing = asking->wanted - asking->answers->given;
        union gs_wire_message message;
        int error = gs_fd_is_there(&other->socket)
                        ? gs_wire_receive(other->socket.fd, &message, NULL)
                        : -EBADF;

        if (error == -EAGAIN)
            return;
        asking->answers->ended |= error == -ENOTCONN;
        if (error || message.head.type != GS_WIRE_PURGED || message.head.request != other->request ||
            message.purged.zero || message.purged.more > 1 ||
            (message.purged.more && other->seen_to)) {
            other->state = DONE;
        } else if (message.purged.more) {
            other->seen_to = true;
            other->state = WAITED;
        } else {
            asking->answers->given +=
                message.purged.given < missing ? message.purged.given : missing;
            other->state = DONE;
        }
    }
}

/* ---- Whom ----------------------------------------------------------------------------------- */

static void add(struct asking *asking, struct gs_other *other)
{
    other->next = asking->others;
    asking->others = other;
}

static struct gs_other *find(struct gs_other *others, const char *name)
{
    while (others && strcmp(others->name, name) != 0)
        others = others->next;
    return others;
}

/* ---- Their answers -------------------------------------------------------------------------- */

static bool is_awaited(const struct asking *asking, const struct gs_other *other)
{
    return other->state == WAITED && asking->waited < (other->seen_to ? GIVING_NS : WAIT_NS);
}

/* Until one of those that are awaited says something, or it is time to look. False: none is. */
static bool wait_for_any(const struct asking *asking)
{
    int sockets[GS_CONN_ANY];
    unsigned count = 0;

    for (const struct gs_other *other = asking->others; other; other = other->next)
        if (is_awaited(asking, other) && count < GS_CONN_ANY) /* all are heard in any case */
            sockets[count++] = other->socket.fd;
    if (count > 0)
        gs_conn_wait_any(sockets, count, LOOK_NS);
    return count > 0;
}

/* Ended by the others' share threads and by those that they ask, by their ends, or by the time. */
static void await_answers(struct asking *asking)
{
    uint64_t looked = gs_now_ns();

    while (asking->answers->given < asking->wanted && wait_for_any(asking)) {
        asking->waited += gs_look_counts(&looked);
        for (struct gs_other *other = asking->others; other; other = other->next)
            if (other->state == WAITED)
                hear(asking, other);
    }
}

static void forget(struct gs_other *other)
{
    if (gs_fd_is_there(&other->socket))
        gs_hang_up(other->socket.fd);
    free(other);
}

/* Who has answered, or is not needed any more, is parted with; whose time is over is silent. */
static void end_round(struct asking *asking)
{
    struct gs_other **link = &asking->others, *other;

    await_answers(asking);
    asking->silent = 0;
    while ((other = *link)) {
        if (other->state == DONE || is_awaited(asking, other)) {
            *link = other->next;
            forget(other);
        } else {
            other->state = SILENT;
            asking->silent++;
            link = &other->next;
        }
    }
    asking->waited = asking->count = 0;
}

static void ask_one(void *arg, int directory, const char *name)
{
    struct asking *asking = arg;
    struct gs_other *other;
    pid_t pid;
    int fd;

    if (asking->count == ROUND_MAX)
        end_round(asking);
    if (asking->answers->given >= asking->wanted || find(asking->others, name))
        return;
    fd = asking->silent < SILENT_MAX ? gs_own_connect(asking->share, directory, name, &pid)
                                     : -EMFILE;
    if (fd == -EMFILE && asking->count > 0) {
        end_round(asking);
        fd = gs_own_connect(asking->share, directory, name, &pid);
    }
    asking->unasked += fd == -EMFILE;
    if (fd < 0)
        return;
    other = calloc(1, sizeof *other);
    if (!other) {
        gs_hang_up(fd);
        return;
    }
    memcpy(other->name, name, sizeof other->name);
    other->pid = pid;
    other->socket = gs_fd_keep(fd);
    send_plea(asking, other);
    add(asking, other);
    asking->count++;
}

/* ---- Who is silent -------------------------------------------------------------------------- */

/* Two threads may ask at once, and each finds some of the others: of one process once. */
static bool keep(struct gs_share *share, struct gs_other *other)
{
    bool is_new;

    gs_lock_take(&share->lock);
    is_new = !find(share->asked.pressure.silent, other->name);
    if (is_new) {
        other->next = share->asked.pressure.silent;
        share->asked.pressure.silent = other;
    }
    gs_lock_release(&share->lock);
    return is_new;
}

/* It has not answered. */
static void part(const struct asking *asking, struct gs_other *other)
{
    asking->answers->silent_pid = other->pid > 0 ? other->pid : asking->answers->silent_pid;
    asking->answers->silent++;
    if (!keep(asking->share, other))
        forget(other);
}

static struct gs_other *take_silent(struct gs_share *share)
{
    struct gs_other *silent;

    gs_lock_take(&share->lock);
    silent = share->asked.pressure.silent;
    share->asked.pressure.silent = NULL;
    gs_lock_release(&share->lock);
    return silent;
}

/* Those who were silent the last time. Who has answered by now, gone, or lost the connection, is found
 * anew: what he gave before this is not counted. */
static void hear_silent(struct asking *asking)
{
    struct gs_other *other = take_silent(asking->share), *next;

    for (; other; other = next) {
        next = other->next;
        hear(asking, other);
        if (other->state == DONE) {
            forget(other);
        } else {
            add(asking, other);
            asking->silent++;
        }
    }
    asking->answers->given = 0;
}

void gs_share_ask(struct gs_share *share, const unsigned char uuid[16], uint64_t wanted,
                  struct gs_share_answers *ret_answers)
{
    struct asking asking = {.share = share, .uuid = uuid, .wanted = wanted, .answers = ret_answers};
    struct gs_other *next;

    *ret_answers = (struct gs_share_answers){.given = 0};
    hear_silent(&asking);
    gs_own_each(share, ask_one, &asking);
    end_round(&asking);
    if (asking.unasked)
        gs_log_line(&share->log, GS_LOG_INFO,
                    "%u processes were not asked for what they keep idle: %s",
                    asking.unasked,
                    asking.silent < SILENT_MAX ? "no descriptor is left (ulimit -n)"
                                               : "too many others do not answer");
    for (struct gs_other *other = asking.others; other; other = next) {
        next = other->next;
        part(&asking, other);
    }
}

void gs_others_free(struct gs_share *share)
{
    struct gs_other *other = take_silent(share), *next;

    for (; other; other = next) {
        next = other->next;
        forget(other);
    }
}
