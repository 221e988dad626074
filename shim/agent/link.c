/* Connections between agents (link.h): sockets, and OpenSSL upon them. */
#include "shim/agent/link.h"

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
#include "core/base/fd.h"

#define LOST_MS \
    15000 /* what was sent is not acknowledged for so long: the other machine is not there */

static void on_ready(struct source *source, uint32_t events);
static void flush(struct link *link);
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

    if (fd >= 0 && connect(fd, (const struct sockaddr *)&to, size) != 0 && errno != EINPROGRESS) {
        gs_fd_drop(fd);
        fd = -1;
    }
    snprintf(ret_reason, LINK_REASON, "%s",
             size ? strerror(errno) : "that is no address of numbers");
    link = fd < 0 ? NULL : new_link(links, fd, events, true);
    if (link) {
        link->owner = owner;
        snprintf(link->peer, sizeof link->peer, "%.45s:%u", address, port);
    }
    return link;
}

struct link *link_accept(struct links *links, int fd, const struct link_events *events)
{
    char address[LINK_ADDRESS - 8] = "?", port[8] = "?";
    struct sockaddr_storage from = {0};
    socklen_t size = sizeof from;
    struct link *link = new_link(links, fd, events, false);

    if (!link)
        return NULL;
    if (getpeername(fd, (struct sockaddr *)&from, &size) == 0)
        getnameinfo((struct sockaddr *)&from, size, address, sizeof address, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(link->peer, sizeof link->peer, "%s:%s", address, port);
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

void link_close(struct link *link)
{
    if (link->is_dead)
        return;
    link->is_dead = true;
    flush(link);            /* with what TLS says of the reason */
    close(link->source.fd); /* with it goes its place in the epoll */
    link->source.fd = -1;
    DL_DELETE(link->links->all, link);
    LL_PREPEND(link->links->dead, link);
}

void link_fail(struct link *link, const char *why)
{
    if (link->is_dead)
        return;
    link_close(link);
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

/* The failure is OpenSSL's. */
static void fail_by_tls(struct link *link)
{
    const char *said = ERR_reason_error_string(ERR_peek_error());
    char why[LINK_REASON];

    snprintf(why, sizeof why, "%s%s", said ? "TLS: " : "", said ? said : "it has hung up");
    link_fail(link, why);
}

/* Bytes of TLS that the socket has not taken yet. */
static size_t unsent(const struct link *link)
{
    return link->ssl ? BIO_ctrl_pending(SSL_get_wbio(link->ssl)) : 0;
}

/* It does not read what it asked for; nor is it read. */
static bool is_behind(const struct link *link)
{
    return !link->is_out && unsent(link) > LINK_ANSWERS;
}

/* Where it fails it does so in links_look: who sends may be going through what `down` takes
 * away. */
static void want(struct link *link)
{
    const uint32_t events =
        (link->is_held || is_behind(link) ? 0 : EPOLLIN) | (unsent(link) > 0 ? EPOLLOUT : 0);

    if (unsent(link) > LINK_UNSENT)
        link->doom = "it does not read what it is sent";
    else if (!link->is_dead && !loop_want(link->links->epoll, &link->source, events))
        link->doom = "the kernel has no room to wait for it";
}

/* All is sent: room for much goes, which OpenSSL only makes larger. */
static void give_back_room(SSL *ssl)
{
    BIO *other;
    BUF_MEM *room;

    BIO_get_mem_ptr(SSL_get_wbio(ssl), &room);
    other = room->max > LINK_ANSWERS ? BIO_new(BIO_s_mem()) : NULL;
    if (other)
        SSL_set0_wbio(ssl, other);
}

/* As much as the socket takes. */
static void flush(struct link *link)
{
    char *bytes, gone[4096];

    while (unsent(link) > 0) {
        const long size = BIO_get_mem_data(SSL_get_wbio(link->ssl), &bytes);
        const ssize_t sent =
            send(link->source.fd, bytes, (size_t)size < sizeof gone ? (size_t)size : sizeof gone,
                 MSG_NOSIGNAL);

        if (sent < 0 && errno != EAGAIN && errno != EINTR)
            link_fail(link, strerror(errno));
        if (sent < 0)
            break;
        BIO_read(SSL_get_wbio(link->ssl), gone, (int)sent);
    }
    if (link->ssl && unsent(link) == 0)
        give_back_room(link->ssl);
}

void link_send(struct link *link, const union talk *message)
{
    if (link->is_dead || link->doom)
        return;
    ERR_clear_error();
    if (SSL_write(link->ssl, message, (int)message->head.size) <= 0)
        link->doom = "no memory is left for it";
    want(link);
}

/* So much in a turn and no more, for TLS to read: the one place where bytes of others come in. */
static void hear(struct link *link)
{
    unsigned char bytes[LINK_TURN];
    const ssize_t got = recv(link->source.fd, bytes, sizeof bytes, 0);

    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) {
        link_fail(link, got ? strerror(errno) : "it has hung up");
    } else if (got > 0) {
        BIO_write(SSL_get_rbio(link->ssl), bytes, (int)got);
        link->heard += link_is_caller(link) ? (size_t)got : 0;
    }
}

/* Why a message cannot be one, as it begins; NULL: it can. */
static const char *head_error(const struct talk_head *head)
{
    if (head->version != TALK_VERSION)
        return "it is of another version";
    return head->type >= TALK_TYPES || !sizes[head->type] || head->size != sizes[head->type]
               ? "what it says makes no sense"
               : NULL;
}

/* What TLS has read so far, message by message. */
static void take_messages(struct link *link)
{
    while (!link->is_dead && !link->is_held) {
        const bool begun = link->in_size >= sizeof link->in.head;
        const char *why = begun ? head_error(&link->in.head) : NULL;
        const size_t size = begun ? link->in.head.size : sizeof link->in.head;
        int got;

        if (why) {
            link_fail(link, why);
        } else if (begun && link->in_size == size) {
            const union talk message = link->in;

            link->in_size = 0;
            link->events->message(link, &message);
        } else {
            ERR_clear_error();
            got = SSL_read(link->ssl, (unsigned char *)&link->in + link->in_size,
                           (int)(size - link->in_size));
            if (got <= 0 && SSL_get_error(link->ssl, got) == SSL_ERROR_WANT_READ) {
                if (SSL_in_init(link->ssl)) /* and nothing could be sent until the other half */
                    link_fail(link, "it says half of what TLS says itself");
                break;
            }
            if (got <= 0)
                fail_by_tls(link);
            else
                link->in_size += (size_t)got;
        }
    }
}

void link_release(struct link *link)
{
    link->is_held = false;
    take_turn(link);
}

/* Each new key costs many times what its bytes do, and agents ask for none. */
static void on_tls_message(int is_sent, int version, int type, const void *bytes, size_t size,
                           SSL *ssl, void *arg)
{
    struct link *link = arg;

    if (!is_sent && type == SSL3_RT_HANDSHAKE && link->is_up && ++link->keys > LINK_KEYS)
        link->doom = "it changes its keys again and again";
}

/* A link that was just made costs no more than its place until there is something to do for it. */
static bool begin_tls(struct link *link)
{
    BIO *in = BIO_new(BIO_s_mem()), *out = BIO_new(BIO_s_mem());

    link->ssl = in && out ? SSL_new(link->links->tls) : NULL;
    if (!link->ssl) {
        BIO_free(in);
        BIO_free(out);
        return false;
    }
    SSL_set_bio(link->ssl, in, out);
    SSL_set_msg_callback(link->ssl, on_tls_message);
    SSL_set_msg_callback_arg(link->ssl, link);
    if (link->is_out)
        SSL_set_connect_state(link->ssl);
    else
        SSL_set_accept_state(link->ssl);
    return true;
}

static void shake_hands(struct link *link)
{
    X509 *certificate;
    int result;

    ERR_clear_error();
    result = SSL_do_handshake(link->ssl);
    if (result != 1 && SSL_get_error(link->ssl, result) == SSL_ERROR_WANT_READ)
        return;
    if (result != 1) {
        fail_by_tls(link);
        return;
    }
    certificate = SSL_get1_peer_certificate(link->ssl);
    link->is_up = tls_fingerprint(certificate, link->fingerprint);
    X509_free(certificate);
    if (!link->is_up)
        link_fail(link, "it has no certificate");
    else if (link->events->up)
        link->events->up(link);
}

/* What is sent goes first: who reads the answers is heard again. */
static void take_turn(struct link *link)
{
    if (!link->is_dead && !link->ssl && !begin_tls(link))
        link_fail(link, "no memory is left for it");
    if (!link->is_dead)
        flush(link);
    if (!link->is_dead && !link->is_held && !is_behind(link))
        hear(link);
    if (!link->is_dead && !link->is_up)
        shake_hands(link);
    if (!link->is_dead && link->is_up)
        take_messages(link);
    if (!link->is_dead && link_is_caller(link) && link->heard >= LINK_UNKNOWN)
        link_fail(link, "it says too much before it has said who it is");
    if (!link->is_dead)
        flush(link);
    want(link);
}

static void on_ready(struct source *source, uint32_t events)
{
    struct link *link = (struct link *)source;

    if (!link->is_dead && (link->is_held || is_behind(link)) && events & (EPOLLHUP | EPOLLERR))
        link_fail(link, "it has hung up");
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
            link_fail(link, why);
        link = why ? links->all : link->next; /* others may have gone with it */
    }
    while ((link = links->dead)) {
        links->dead = link->next;
        SSL_free(link->ssl);
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
        gs_fd_drop(fd);
        return -1;
    }
    *port = ntohs(at.ss_family == AF_INET ? ((struct sockaddr_in *)&at)->sin_port
                                          : ((struct sockaddr_in6 *)&at)->sin6_port);
    return fd;
}
