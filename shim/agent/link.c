/* Connections between agents (link.h): sockets, and OpenSSL upon them. */
#include "shim/agent/link.h"

#include <arpa/inet.h>
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
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <utlist.h>

#include "core/base/clock.h"

#define LOST_MS 15000 /* what was sent is not acknowledged for so long: the other machine is not there */

static void on_ready(struct source *source, uint32_t events);

/* ---- TLS ------------------------------------------------------------------------------------ */

/* Any certificate is taken here: whose it is, the fingerprint says, which the owner looks at. */
static int take_any(int good, X509_STORE_CTX *store)
{
    return 1;
}

static bool fingerprint_of(const X509 *certificate, unsigned char ret[LINK_FINGERPRINT])
{
    unsigned size = 0;

    return certificate && X509_digest(certificate, EVP_sha256(), ret, &size) == 1 &&
           size == LINK_FINGERPRINT;
}

static X509 *make_certificate(EVP_PKEY *key)
{
    X509 *certificate = X509_new();
    X509_NAME *name = certificate ? X509_get_subject_name(certificate) : NULL;
    bool good = name && X509_set_version(certificate, 2) &&
                ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1) &&
                X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                                           (const unsigned char *)"gpushim-agent", -1, -1, 0) &&
                X509_set_issuer_name(certificate, name) &&
                /* Clocks of machines differ: no time decides here. */
                ASN1_TIME_set_string_X509(X509_getm_notBefore(certificate), "20000101000000Z") &&
                ASN1_TIME_set_string_X509(X509_getm_notAfter(certificate), "99991231235959Z") &&
                X509_set_pubkey(certificate, key) && X509_sign(certificate, key, NULL);

    if (!good) {
        X509_free(certificate);
        return NULL;
    }
    return certificate;
}

bool links_start(struct links *links, int epoll, char ret_reason[LINK_REASON])
{
    EVP_PKEY *key = EVP_PKEY_Q_keygen(NULL, NULL, "ED25519");
    X509 *certificate = key ? make_certificate(key) : NULL;
    SSL_CTX *tls = SSL_CTX_new(TLS_method());
    bool good = certificate && tls && fingerprint_of(certificate, links->fingerprint) &&
                SSL_CTX_set_min_proto_version(tls, TLS1_3_VERSION) &&
                SSL_CTX_use_certificate(tls, certificate) == 1 &&
                SSL_CTX_use_PrivateKey(tls, key) == 1;

    X509_free(certificate);
    EVP_PKEY_free(key);
    if (!good) {
        snprintf(ret_reason, LINK_REASON, "OpenSSL makes no certificate: %s",
                 ERR_reason_error_string(ERR_get_error()));
        SSL_CTX_free(tls);
        return false;
    }
    SSL_CTX_set_verify(tls, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, take_any);
    SSL_CTX_set_mode(tls, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_session_cache_mode(tls, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_num_tickets(tls, 0); /* each link is looked at anew */
    links->epoll = epoll;
    links->tls = tls;
    return true;
}

bool link_binding(struct link *link, unsigned char ret_bytes[32])
{
    static const char label[] = "EXPORTER-gpushim-agents";

    return link->is_up && SSL_export_keying_material(link->ssl, ret_bytes, 32, label,
                                                     sizeof label - 1, NULL, 0, 0) == 1;
}

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

static struct link *new_link(struct links *links, int fd, const struct link_events *events, bool is_out)
{
    struct link *link = calloc(1, sizeof *link);

    set_up_socket(fd);
    if (link) {
        *link = (struct link){.source = {.fd = fd, .ready = on_ready},
                              .events = events,
                              .is_out = is_out,
                              .made_ns = gs_now_ns(),
                              .ssl = SSL_new(links->tls)};
    }
    if (!link || !link->ssl || SSL_set_fd(link->ssl, fd) != 1 ||
        !loop_add(links->epoll, &link->source, is_out ? EPOLLOUT : EPOLLIN)) {
        if (link)
            SSL_free(link->ssl);
        free(link);
        close(fd);
        return NULL;
    }
    SSL_set_ex_data(link->ssl, 0, links);
    if (is_out)
        SSL_set_connect_state(link->ssl);
    else
        SSL_set_accept_state(link->ssl);
    DL_APPEND(links->all, link);
    return link;
}

static socklen_t address_of(const char *text, unsigned port, struct sockaddr_storage *ret_address)
{
    struct sockaddr_in *four = (struct sockaddr_in *)ret_address;
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)ret_address;

    memset(ret_address, 0, sizeof *ret_address);
    if (inet_pton(AF_INET, text, &four->sin_addr) == 1) {
        four->sin_family = AF_INET;
        four->sin_port = htons((uint16_t)port);
        return sizeof *four;
    }
    if (inet_pton(AF_INET6, text, &six->sin6_addr) == 1) {
        six->sin6_family = AF_INET6;
        six->sin6_port = htons((uint16_t)port);
        return sizeof *six;
    }
    return 0;
}

struct link *link_connect(struct links *links, const char *address, unsigned port,
                          const struct link_events *events, void *owner, char ret_reason[LINK_REASON])
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

struct link *link_accept(struct links *links, int fd, const struct link_events *events)
{
    struct sockaddr_storage from;
    socklen_t size = sizeof from;
    char address[NI_MAXHOST] = "?", port[NI_MAXSERV] = "?";
    struct link *link = new_link(links, fd, events, false);

    if (link && getpeername(fd, (struct sockaddr *)&from, &size) == 0)
        getnameinfo((struct sockaddr *)&from, size, address, sizeof address, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV);
    if (link)
        snprintf(link->peer, sizeof link->peer, "%.45s:%.8s", address, port);
    return link;
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

/* One that is to fail now; NULL: none is. */
static struct link *due(const struct links *links, uint64_t now_ns)
{
    struct link *link = links->all;

    while (link && !link->doom &&
           (link->is_ready || now_ns - link->made_ns <= LINK_BEGIN_S * GS_NS_PER_S))
        link = link->next;
    return link;
}

void links_look(struct links *links, uint64_t now_ns)
{
    struct link *link;

    while ((link = due(links, now_ns)))
        link_fail(links, link, link->doom ? link->doom : "it did not say in time who it is");
    while ((link = links->dead)) {
        links->dead = link->next;
        SSL_free(link->ssl);
        free(link->out);
        free(link);
    }
}

/* ---- Messages ------------------------------------------------------------------------------- */

static const uint32_t sizes[TALK_TYPES] = {
    [TALK_HELLO] = sizeof(struct talk_hello), [TALK_KEPT] = sizeof(struct talk_kept),
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

static void want(struct links *links, struct link *link)
{
    uint32_t events = EPOLLIN;

    if (link->is_held)
        events = 0;
    if (link->out_size > 0 || (!link->is_up && SSL_want_write(link->ssl)))
        events |= EPOLLOUT;
    if (!link->is_dead && !loop_want(links->epoll, &link->source, events))
        doom(link, "the kernel has no room to wait for it");
}

static void flush(struct links *links, struct link *link)
{
    while (link->out_size > 0 && !link->is_dead) {
        int sent;

        ERR_clear_error();
        errno = 0;
        sent = SSL_write(link->ssl, link->out, (int)link->out_size);
        if (sent <= 0 && waits(link, sent))
            break;
        if (sent <= 0) {
            fail_by_tls(links, link, sent);
            return;
        }
        link->out_size -= (size_t)sent;
        memmove(link->out, link->out + sent, link->out_size);
    }
    if (!link->is_dead)
        want(links, link);
}

void link_send(struct links *links, struct link *link, const union talk *message)
{
    const size_t size = message->head.size;

    if (link->is_dead || link->doom)
        return;
    if (link->out_size + size > link->out_room) {
        size_t room = link->out_room ? 2 * link->out_room : 4096;
        unsigned char *out = room > LINK_UNSENT ? NULL : realloc(link->out, room);

        if (!out) {
            doom(link, "it does not read what it is sent");
            return;
        }
        link->out = out;
        link->out_room = room;
    }
    memcpy(link->out + link->out_size, message, size);
    link->out_size += size;
    if (link->is_up)
        want(links, link);
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
    receive(links, link);
    if (!link->is_dead)
        want(links, link);
}

static void shake_hands(struct links *links, struct link *link)
{
    X509 *certificate;
    int result;

    ERR_clear_error();
    errno = 0;
    result = SSL_do_handshake(link->ssl);
    if (result != 1 && waits(link, result)) {
        want(links, link);
        return;
    }
    if (result != 1) {
        fail_by_tls(links, link, result);
        return;
    }
    certificate = SSL_get1_peer_certificate(link->ssl);
    link->is_up = fingerprint_of(certificate, link->fingerprint);
    X509_free(certificate);
    if (!link->is_up)
        link_fail(links, link, "it has no certificate");
    else
        link->events->up(link);
}

static void on_ready(struct source *source, uint32_t events)
{
    struct link *link = (struct link *)source;
    struct links *links = SSL_get_ex_data(link->ssl, 0);

    if (!link->is_dead && !link->is_up)
        shake_hands(links, link);
    if (!link->is_dead && link->is_up)
        receive(links, link);
    if (!link->is_dead && link->is_held && events & (EPOLLHUP | EPOLLERR))
        link_fail(links, link, "it has hung up");
    if (!link->is_dead && link->is_up)
        flush(links, link);
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
