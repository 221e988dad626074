/* Connections between agents (link.h): sockets, and OpenSSL upon them. */
#include "shim/agent/tls.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <utlist.h>

#include "core/base/clock.h"

#define LOST_MS \
    15000 /* what was sent is not acknowledged for so long: the other machine is not there */

static void on_ready(struct source *source, uint32_t events);
static void take_turn(struct link *link);

/* ---- Beginning and end ---------------------------------------------------------------------- */

static void set_up_socket(int fd)
{
    const int on = 1, idle_s = 5, between_s = 3, tries = 3;
    const unsigned lost_ms = LOST_MS;

    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &between_s, sizeof between_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &tries, sizeof tries);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &lost_ms, sizeof lost_ms);
}

static struct link *new_link(struct links *links, int fd, const struct link_events *events,
                             bool is_out)
{
    struct link *link = calloc(1, sizeof *link);

    set_up_socket(fd);
    if (link) {
        *link = (struct link){.source = {.fd = fd, .ready = on_ready},
                              .events = events,
                              .links = links,
                              .is_out = is_out,
                              .made_ns = gs_now_ns()};
    }
    if (!link || !loop_add(links->epoll, &link->source, is_out ? EPOLLOUT : EPOLLIN)) {
        free(link);
        close(fd);
        return NULL;
    }
    DL_APPEND(links->all, link);
    return link;
}

/* 0: it is no address of numbers. */
static socklen_t address_of(const char *text, unsigned port, struct sockaddr_storage *ret_address)
{
    static const struct addrinfo numbers = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV,
                                            .ai_socktype = SOCK_STREAM};
    struct addrinfo *found;
    char service[8];
    socklen_t size;

    snprintf(service, sizeof service, "%u", port);
    if (getaddrinfo(text, service, &numbers, &found) != 0)
        return 0;
    size = found->ai_addrlen;
    memcpy(ret_address, found->ai_addr, size);
    freeaddrinfo(found);
    return size;
}

struct link *link_connect(struct links *links, const char *address, unsigned port,
                          const struct link_events *events, void *owner,
                          char ret_reason[LINK_REASON])
{
    struct sockaddr_storage to;
    socklen_t size = address_of(address, port, &to);
    int fd = size ? socket(to.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0) : -1;
    struct link *link;

    snprintf(ret_reason, LINK_REASON, "%s port %u: %s", address, port,
             size ? strerror(errno) : "that is no address of numbers");
    if (fd < 0)
        return NULL;
    if (connect(fd, (const struct sockaddr *)&to, size) != 0 && errno != EINPROGRESS) {
        snprintf(ret_reason, LINK_REASON, "%s port %u: %s", address, port, strerror(errno));
        close(fd);
        return NULL;
    }
    link = new_link(links, fd, events, true);
    if (link) {
        link->owner = owner;
        snprintf(link->peer, sizeof link->peer, "%.45s:%u", address, port);
    }
    return link;
}

static void note_caller(struct link *link, const struct sockaddr *from, socklen_t size)
{
    char address[LINK_ADDRESS - 8] = "?", port[8] = "?";

    getnameinfo(from, size, address, sizeof address, port, sizeof port,
                NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(link->peer, sizeof link->peer, "%s:%s", address, port);
}

struct link *link_accept(struct links *links, int fd, const struct link_events *events)
{
    struct sockaddr_storage from = {0};
    socklen_t size = sizeof from;
    struct link *link = new_link(links, fd, events, false);

    if (link && getpeername(fd, (struct sockaddr *)&from, &size) == 0)
        note_caller(link, (struct sockaddr *)&from, size);
    return link;
}

struct link *link_to_give_way(const struct links *links, unsigned *ret_callers)
{
    struct link *link, *found = NULL;

    *ret_callers = 0;
    DL_FOREACH(links->all, link) {
        if (!link_is_caller(link))
            continue;
        ++*ret_callers;
        if (!found ||
            (!link->heard == !found->heard ? link->made_ns < found->made_ns : !link->heard))
            found = link;
    }
    return found;
}

void link_close(struct links *links, struct link *link)
{
    if (link->is_dead)
        return;
    link->is_dead = true;
    if (link->is_up)
        SSL_shutdown(link->ssl);
    ERR_clear_error();
    close(link->source.fd); /* with it goes its place in the epoll */
    link->source.fd = -1;
    DL_DELETE(links->all, link);
    LL_PREPEND(links->dead, link);
}

void link_fail(struct links *links, struct link *link, const char *why)
{
    if (link->is_dead)
        return;
    link_close(links, link);
    link->events->down(link, why);
}

/* ---- Messages ------------------------------------------------------------------------------- */

static const uint32_t sizes[TALK_TYPES] = {
    [TALK_HELLO] = sizeof(struct talk_hello), [TALK_KEPT] = sizeof(struct talk_ended),
    [TALK_LISTED] = sizeof(struct talk_head), [TALK_TAKE] = sizeof(struct talk_take),
    [TALK_TAKEN] = sizeof(struct talk_taken), [TALK_REFUSED] = sizeof(struct talk_refused),
    [TALK_ENDED] = sizeof(struct talk_ended), [TALK_RECALL] = sizeof(struct talk_recall),
};

void talk_start(union talk *message, enum talk_type type)
{
    memset(message, 0, sizeof *message);
    message->head = (struct talk_head){.version = TALK_VERSION, .type = type, .size = sizes[type]};
}

/* Why the links' owner hears of a failure of OpenSSL's, which may be the socket's. */
static void fail_by_tls(struct links *links, struct link *link, int result)
{
    const int kind = SSL_get_error(link->ssl, result), error = errno;
    const char *said = ERR_reason_error_string(ERR_peek_error());
    char why[LINK_REASON];

    if (kind == SSL_ERROR_SYSCALL || kind == SSL_ERROR_ZERO_RETURN || !said)
        snprintf(why, sizeof why, "%s",
                 kind == SSL_ERROR_SYSCALL && error ? strerror(error) : "it has hung up");
    else
        snprintf(why, sizeof why, "TLS: %s", said);
    ERR_clear_error();
    link_fail(links, link, why);
}

static bool waits(struct link *link, int result)
{
    int kind = SSL_get_error(link->ssl, result);

    return kind == SSL_ERROR_WANT_READ || kind == SSL_ERROR_WANT_WRITE;
}

/* It fails in links_look: who sends may be going through what `down` takes away. */
static void doom(struct link *link, const char *why)
{
    if (!link->doom)
        link->doom = why;
}

static size_t unsent(const struct link *link)
{
    return link->out_size - link->out_at;
}

/* It does not read what it asked for; nor is it read. */
static bool is_behind(const struct link *link)
{
    return !link->is_out && unsent(link) > LINK_ANSWERS;
}

static void want(struct link *link)
{
    uint32_t events = EPOLLIN;

    if (link->is_held || is_behind(link))
        events = 0;
    if (unsent(link) > 0 || (!link->is_up && link->ssl && SSL_want_write(link->ssl)))
        events |= EPOLLOUT;
    if (!link->is_dead && !loop_want(link->links->epoll, &link->source, events))
        doom(link, "the kernel has no room to wait for it");
}

static void flush(struct links *links, struct link *link)
{
    while (unsent(link) > 0 && !link->is_dead) {
        int sent;

        ERR_clear_error();
        errno = 0;
        sent = SSL_write(link->ssl, link->out + link->out_at, (int)unsent(link));
        if (sent <= 0 && waits(link, sent))
            break;
        if (sent <= 0) {
            fail_by_tls(links, link, sent);
            return;
        }
        link->out_at += (size_t)sent;
    }
    if (unsent(link) == 0) {
        free(link->out);
        link->out = NULL;
        link->out_at = link->out_size = link->out_room = 0;
    }
}

/* Room behind what is unsent; what was sent goes. False: it is too much. */
static bool make_room(struct link *link, size_t size)
{
    unsigned char *out;
    size_t room = link->out_room ? link->out_room : 4096;

    if (link->out_size + size <= link->out_room)
        return true;
    while (unsent(link) + size > room - room / 4) /* else there is soon no room again */
        room *= 2;
    out = room > LINK_UNSENT ? NULL : malloc(room);
    if (!out)
        return false;
    if (unsent(link) > 0)
        memcpy(out, link->out + link->out_at, unsent(link));
    free(link->out);
    link->out = out;
    link->out_size = unsent(link);
    link->out_at = 0;
    link->out_room = room;
    return true;
}

void link_send(struct links *links, struct link *link, const union talk *message)
{
    if (link->is_dead || link->doom)
        return;
    if (!make_room(link, message->head.size)) {
        doom(link, "it does not read what it is sent");
        return;
    }
    memcpy(link->out + link->out_size, message, message->head.size);
    link->out_size += message->head.size;
    if (link->is_up)
        want(link);
}

/* All whole messages that are there. */
static void take_messages(struct links *links, struct link *link)
{
    size_t at = 0;

    while (!link->is_dead && !link->is_held && link->in_size - at >= sizeof(struct talk_head)) {
        union talk message = {0};

        memcpy(&message.head, link->in + at, sizeof message.head);
        if (message.head.version != TALK_VERSION) {
            link_fail(links, link, "it is of another version");
            return;
        }
        if (message.head.type >= TALK_TYPES || !sizes[message.head.type] ||
            message.head.size != sizes[message.head.type]) {
            link_fail(links, link, "what it says makes no sense");
            return;
        }
        if (link->in_size - at < message.head.size)
            break;
        memcpy(&message, link->in + at, message.head.size);
        at += message.head.size;
        link->events->message(link, &message);
    }
    link->in_size -= at;
    memmove(link->in, link->in + at, link->in_size);
}

static void receive(struct links *links, struct link *link)
{
    while (!link->is_dead && !link->is_held) {
        int got;

        ERR_clear_error();
        errno = 0;
        got = SSL_read(link->ssl, link->in + link->in_size, (int)(sizeof link->in - link->in_size));
        if (got <= 0 && waits(link, got))
            return;
        if (got <= 0) {
            fail_by_tls(links, link, got);
            return;
        }
        link->in_size += (size_t)got;
        take_messages(links, link);
    }
}

void link_release(struct links *links, struct link *link)
{
    link->is_held = false;
    take_messages(links, link);
    take_turn(link);
}

static void shake_hands(struct links *links, struct link *link)
{
    X509 *certificate;
    int result;

    ERR_clear_error();
    errno = 0;
    result = SSL_do_handshake(link->ssl);
    if (result != 1 && waits(link, result))
        return;
    if (result != 1) {
        fail_by_tls(links, link, result);
        return;
    }
    certificate = SSL_get1_peer_certificate(link->ssl);
    link->is_up = tls_fingerprint(certificate, link->fingerprint);
    X509_free(certificate);
    if (!link->is_up)
        link_fail(links, link, "it has no certificate");
    else if (link->events->up)
        link->events->up(link);
}

/* What is sent goes first: who reads the answers is heard again. */
static void take_turn(struct link *link)
{
    struct links *links = link->links;

    link->turn = LINK_TURN;
    if (!link->is_dead && !link->ssl &&
        !tls_begin(link)) /* who says nothing costs no more than its place */
        link_fail(links, link, "no memory is left for it");
    if (!link->is_dead && !link->is_up)
        shake_hands(links, link);
    if (!link->is_dead && link->is_up)
        flush(links, link);
    if (!link->is_dead && link->is_up && !is_behind(link))
        receive(links, link);
    if (!link->is_dead && link_is_caller(link) && link->heard >= LINK_UNKNOWN)
        link_fail(links, link, "it says too much before it has said who it is");
    if (!link->is_dead && link->is_up)
        flush(links, link);
    if (!link->is_dead)
        want(link);
}

static void on_ready(struct source *source, uint32_t events)
{
    struct link *link = (struct link *)source;

    if (!link->is_dead && (link->is_held || is_behind(link)) && events & (EPOLLHUP | EPOLLERR))
        link_fail(link->links, link, "it has hung up");
    else
        take_turn(link);
}

/* ---- Each round ------------------------------------------------------------------------------ */

static bool is_connected(const struct link *link)
{
    struct sockaddr_storage to;
    socklen_t size = sizeof to;

    return getpeername(link->source.fd, (struct sockaddr *)&to, &size) == 0;
}

/* Why it is to fail now; NULL: it is not. */
static const char *overdue(const struct link *link, uint64_t now_ns)
{
    const uint64_t age_ns = now_ns - link->made_ns;

    if (link->doom || link->is_ready)
        return link->doom;
    if (age_ns > LINK_BEGIN_S * GS_NS_PER_S)
        return "it did not say in time who it is";
    return link->is_out && !link->is_up && age_ns > LINK_CALL_NS && !is_connected(link)
               ? "it does not answer a call"
               : NULL;
}

void links_look(struct links *links, uint64_t now_ns)
{
    struct link *link = links->all;

    while (link) {
        const char *why = overdue(link, now_ns);

        if (why)
            link_fail(links, link, why);
        link = why ? links->all : link->next; /* others may have gone with it */
    }
    while ((link = links->dead)) {
        links->dead = link->next;
        SSL_free(link->ssl);
        free(link->out);
        free(link);
    }
}

/* ---- Listening ------------------------------------------------------------------------------ */

int link_listen(const char *address, unsigned *port, char ret_reason[LINK_REASON])
{
    struct sockaddr_storage at;
    socklen_t size = address_of(address, *port, &at);
    const int on = 1;
    int fd = size ? socket(at.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0) : -1;

    if (fd >= 0)
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (fd < 0 || bind(fd, (struct sockaddr *)&at, size) != 0 || listen(fd, 128) != 0 ||
        getsockname(fd, (struct sockaddr *)&at, &size) != 0) {
        snprintf(ret_reason, LINK_REASON, "%s port %u: %s", address, *port,
                 address[0] && size ? strerror(errno) : "that is no address of numbers");
        if (fd >= 0)
            close(fd);
        return -1;
    }
    *port = ntohs(at.ss_family == AF_INET ? ((struct sockaddr_in *)&at)->sin_port
                                          : ((struct sockaddr_in6 *)&at)->sin6_port);
    return fd;
}
