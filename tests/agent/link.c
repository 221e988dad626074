/* Links between agents: both have certificates, and what comes that is no message ends them. */
#include "shim/agent/link.h"

#include <criterion/criterion.h>
#include <arpa/inet.h>
#include <netinet/tcp.h>

#include <openssl/ssl.h>

#include "core/base/clock.h"
#include "tests/children.h"
#include "tests/system.h"

#define PATIENT_NS (30 * GS_NS_PER_S)

/* Both ends are here, in one loop. */
static struct links ours, theirs;
static struct source listener;
static unsigned port;
static struct link *called; /* ours */
static unsigned ups, messages, downs;
static char why_down[LINK_REASON];
static unsigned flood; /* messages of who floods: FLOODED */
static union talk last;

#define FLOODED UINT64_MAX

static void on_up(struct link *link)
{
    ups++;
}

static void on_message(struct link *link, const union talk *message)
{
    if (message->head.type == TALK_ENDED && message->ended.lease == FLOODED) {
        flood++;
        return;
    }
    messages++;
    last = *message;
}

static void on_down(struct link *link, const char *why)
{
    downs++;
    snprintf(why_down, sizeof why_down, "%s", why);
    if (link == called)
        called = NULL;
}

static const struct link_events events = {.up = on_up, .message = on_message, .down = on_down};

static void on_call(struct source *source, uint32_t what)
{
    int fd = accept4(source->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

    if (fd >= 0)
        called = link_accept(&ours, fd, &events);
}

static void step(void)
{
    struct epoll_event ready[16];
    int count = epoll_wait(ours.epoll, ready, 16, 10);

    for (int i = 0; i < count; i++) {
        struct source *source = ready[i].data.ptr;

        if (source->fd >= 0)
            source->ready(source, ready[i].events);
    }
    links_look(&ours, gs_now_ns());
    links_look(&theirs, gs_now_ns());
}

static void set_up(void)
{
    char reason[LINK_REASON] = "";
    int epoll = epoll_create1(EPOLL_CLOEXEC);

    signal(SIGPIPE, SIG_IGN);
    cr_assert(links_start(&ours, epoll, reason), "%s", reason);
    cr_assert(links_start(&theirs, epoll, reason), "%s", reason);
    listener = (struct source){.fd = link_listen("127.0.0.1", &port, reason), .ready = on_call};
    cr_assert(listener.fd >= 0 && port > 0, "%s", reason);
    cr_assert(loop_add(epoll, &listener, EPOLLIN));
}

static void until(const unsigned *what, unsigned count)
{
    const uint64_t end = gs_now_ns() + PATIENT_NS;

    while (*what < count && gs_now_ns() < end)
        step();
    cr_assert_geq(*what, count, "%u, %s", *what, why_down);
}

Test(agent_link, both_ends_know_each_others_fingerprint)
{
    char reason[LINK_REASON];
    union talk message;
    struct link *link;

    set_up();
    cr_assert_neq(memcmp(ours.fingerprint, theirs.fingerprint, LINK_FINGERPRINT), 0);
    link = link_connect(&theirs, "127.0.0.1", port, &events, NULL, reason);
    cr_assert(link, "%s", reason);
    until(&ups, 2);
    cr_assert_eq(memcmp(called->fingerprint, theirs.fingerprint, LINK_FINGERPRINT), 0);
    cr_assert_eq(memcmp(link->fingerprint, ours.fingerprint, LINK_FINGERPRINT), 0);
    link->is_ready = called->is_ready = true;
    for (uint64_t i = 1; i <= 20000; i++) { /* more than a socket takes */
        talk_start(&message, TALK_ENDED);
        message.ended.lease = i;
        link_send(link, &message);
    }
    until(&messages, 20000);
    cr_assert_eq(last.ended.lease, 20000);
    link_close(link);
    until(&downs, 1);
}

static int plain_call(void)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    cr_assert(fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof to) == 0);
    return fd;
}

Test(agent_link, who_speaks_no_tls_is_hung_up_on)
{
    int fd;

    set_up();
    fd = plain_call();
    cr_assert(write(fd, "GET / HTTP/1.1\r\n\r\n", 18) == 18);
    until(&downs, 1);
    cr_assert_eq(ups, 0);
    close(fd);
}

Test(agent_link, who_says_nothing_has_a_few_seconds)
{
    int fd;

    set_up();
    fd = plain_call();
    while (!called)
        step();
    links_look(&ours, called->made_ns + 4 * GS_NS_PER_S);
    cr_assert_eq(downs, 0);
    links_look(&ours, called->made_ns + 6 * GS_NS_PER_S);
    cr_assert_eq(downs, 1);
    cr_assert(strstr(why_down, "in time"), "%s", why_down);
    close(fd);
}

/* So that it is made again, before the kernel would. */
Test(agent_link, a_call_for_which_there_is_no_room_ends_soon)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    char reason[LINK_REASON];
    struct link *link = NULL;
    int full = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    set_up();
    cr_assert_eq(bind(full, (struct sockaddr *)&at, sizeof at), 0);
    cr_assert_eq(listen(full, 0), 0);
    cr_assert_eq(getsockname(full, (struct sockaddr *)&at, &size), 0);
    for (int i = 0; i < 4; i++)
        link = link_connect(&theirs, "127.0.0.1", ntohs(at.sin_port), &events, NULL, reason);
    cr_assert(link, "%s", reason);
    for (struct link *each = theirs.all; each; each = each->next)
        each->made_ns = link->made_ns; /* however busy the machine was between them */
    links_look(&theirs, link->made_ns + GS_NS_PER_S / 5);
    cr_assert_eq(downs, 0);
    links_look(&theirs, link->made_ns + GS_NS_PER_S / 2);
    cr_assert_gt(downs, 0);
    cr_assert_lt(downs, 4, "those that were taken go on");
    cr_assert_str_eq(why_down, "it does not answer a call");
    close(full);
}

/* A client of another make, beside the loop. */
static SSL_CTX *client;
static SSL *caller;

static void end_caller(void)
{
    SSL_free(caller);
    SSL_CTX_free(client);
}

TestSuite(agent_link, .timeout = 60, .fini = end_caller);

static SSL *call_by_tls(SSL_CTX *tls)
{
    SSL *ssl = caller = SSL_new(tls);
    const uint64_t end = gs_now_ns() + PATIENT_NS;
    int fd = plain_call(), done = -1;

    SSL_set_fd(ssl, fd);
    cr_assert(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
    while (downs == 0 && ups == 0 && gs_now_ns() < end) {
        if (done != 1)
            done = SSL_connect(ssl);
        step();
    }
    return ssl;
}

Test(agent_link, who_has_no_certificate_is_hung_up_on)
{
    client = SSL_CTX_new(TLS_client_method());
    set_up();
    call_by_tls(client);
    until(&downs, 1);
    cr_assert_eq(ups, 0, "it never is up");
}

Test(agent_link, older_tls_is_refused)
{
    set_up();
    cr_assert(SSL_CTX_set_max_proto_version(theirs.tls, TLS1_2_VERSION));
    SSL_CTX_set_min_proto_version(theirs.tls, TLS1_2_VERSION);
    call_by_tls(theirs.tls);
    until(&downs, 1);
    cr_assert_eq(ups, 0);
}

/* What is sent after TLS is up, by somebody who has a certificate. */
static void sends(const void *bytes, size_t size, const char *why)
{
    const uint64_t end = gs_now_ns() + PATIENT_NS;
    SSL *ssl;

    set_up();
    ssl = call_by_tls(theirs.tls);
    cr_assert_eq(ups, 1, "%s", why_down);
    called->is_ready = true;
    while (SSL_write(ssl, bytes, (int)size) <= 0 && gs_now_ns() < end)
        step();
    until(&downs, 1);
    cr_assert(strstr(why_down, why), "%s", why_down);
    cr_assert_eq(messages, 0);
}

Test(agent_link, another_versions_message_ends_it)
{
    union talk message;

    talk_start(&message, TALK_ENDED);
    message.head.version++;
    sends(&message, message.head.size, "another version");
}

Test(agent_link, a_message_of_the_wrong_size_ends_it)
{
    union talk message;

    talk_start(&message, TALK_ENDED);
    message.head.size = UINT32_MAX;
    sends(&message, sizeof message, "no sense");
}

Test(agent_link, a_message_that_there_is_not_ends_it)
{
    union talk message;

    talk_start(&message, TALK_ENDED);
    message.head.type = 60000;
    sends(&message, sizeof message, "no sense");
}

Test(agent_link, who_does_not_read_is_hung_up_on)
{
    union talk message;
    SSL *ssl;

    set_up();
    ssl = call_by_tls(theirs.tls);
    cr_assert(ssl && ups == 1);
    called->is_ready = true;
    talk_start(&message, TALK_KEPT);
    for (int i = 0; called && i < 10000000; i++)
        link_send(called, &message);
    cr_assert_eq(downs, 0, "not while it is sent to");
    until(&downs, 1);
    cr_assert(strstr(why_down, "does not read"), "%s", why_down);
}

static struct link *be_up(void)
{
    char reason[LINK_REASON];
    const unsigned before = ups;
    struct link *link = link_connect(&theirs, "127.0.0.1", port, &events, NULL, reason);

    cr_assert(link, "%s", reason);
    until(&ups, before + 2);
    link->is_ready = called->is_ready = true;
    return link;
}

static void say(struct link *link, uint64_t lease, unsigned count)
{
    union talk message;

    talk_start(&message, TALK_ENDED);
    message.ended.lease = lease;
    for (unsigned i = 0; i < count; i++)
        link_send(link, &message);
}

/* The most of those before, and of one more. */
static unsigned flood_of_a_round(unsigned most)
{
    const unsigned before = flood;

    step();
    return flood - before > most ? flood - before : most;
}

/* Whatever lies there of one link: no more of it is done in a round than two records of TLS have,
 * and the other link's message does not wait for more than three rounds of that. */
Test(agent_link, who_floods_has_its_turn_as_all_have)
{
    const unsigned most = 2 * LINK_TURN / sizeof(struct talk_ended), all = 100000;
    struct link *noisy, *honest;
    unsigned before, in_a_round = 0;

    set_up();
    noisy = be_up();
    honest = be_up();
    say(noisy, FLOODED, all);
    while (flood == 0)
        in_a_round = flood_of_a_round(in_a_round);
    for (uint64_t i = 1; i <= 20; i++) {
        say(honest, 1000 + i, 1);
        before = flood;
        while (messages < i)
            in_a_round = flood_of_a_round(in_a_round);
        cr_assert_leq(flood - before, 3 * most, "the honest message waited for %u others",
                      flood - before);
        cr_assert_eq(last.ended.lease, 1000 + i);
    }
    cr_assert(flood < all && downs == 0, "the flood went on: %u, %s", flood, why_down);
    cr_assert_leq(in_a_round, most, "%u in one round", in_a_round);
    printf("an honest message waits for at most %u of a flood; in a round %u were done\n", 3 * most,
           in_a_round);
}

/* The socket's buffer no longer grows, which it does while it is used: how much it takes, in
 * bytes. */
static size_t fixed_buffer(const struct link *link, int which)
{
    int size = 64 << 10;
    socklen_t length = sizeof size;

    cr_assert_eq(setsockopt(link->source.fd, SOL_SOCKET, which, &size, sizeof size), 0);
    cr_assert_eq(getsockopt(link->source.fd, SOL_SOCKET, which, &size, &length), 0);
    return (size_t)size;
}

/* Who asks and does not read is not heard; when it reads, it is. */
Test(agent_link, a_caller_that_does_not_read_waits)
{
    struct link *link;
    union talk message;
    size_t sockets;

    set_up();
    link = be_up();
    talk_start(&message, TALK_KEPT);
    link->is_held = true; /* it does not read */
    sockets = fixed_buffer(called, SO_SNDBUF) + fixed_buffer(link, SO_RCVBUF);
    while (BIO_ctrl_pending(SSL_get_wbio(called->ssl)) <=
           LINK_ANSWERS + sockets) { /* whatever they still take */
        for (int i = 0; i < 100; i++)
            link_send(called, &message);
        step();
    }
    say(link, 7, 1);
    for (int i = 0; i < 50; i++)
        step();
    cr_assert_eq(messages, 0, "it is not heard while its answers lie here");
    link_release(link);
    while (last.head.type != TALK_ENDED)
        step();
    cr_assert_eq(last.ended.lease, 7);
}

/* Room for all that did not go at once goes when it has gone. */
Test(agent_link, what_is_sent_takes_no_room)
{
    const unsigned all = 100000;
    struct link *link;
    BUF_MEM *room;

    set_up();
    link = be_up();
    say(link, FLOODED, all);
    BIO_get_mem_ptr(SSL_get_wbio(link->ssl), &room);
    cr_assert_gt(room->max, LINK_ANSWERS);
    until(&flood, all);
    BIO_get_mem_ptr(SSL_get_wbio(link->ssl), &room);
    cr_assert_leq(room->max, LINK_ANSWERS, "%zu", room->max);
}

/* What a client that has its bytes in memory has to say goes one by one; and what is said to it. */
static void pass_bytes(SSL *ssl, int fd)
{
    char bytes[4096], byte;
    ssize_t got;

    while (BIO_read(SSL_get_wbio(ssl), &byte, 1) == 1) {
        cr_assert_eq(write(fd, &byte, 1), 1);
        step();
    }
    step();
    while ((got = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT)) > 0)
        BIO_write(SSL_get_rbio(ssl), bytes, (int)got);
}

/* Also where each is under keys of its own. */
Test(agent_link, what_comes_byte_by_byte_is_heard)
{
    const int on = 1;
    union talk message;
    SSL *ssl;
    int fd;

    set_up();
    fd = plain_call();
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    ssl = caller = SSL_new(theirs.tls);
    SSL_set_bio(ssl, BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
    while (SSL_connect(ssl) != 1 || ups == 0)
        pass_bytes(ssl, fd);
    called->is_ready = true;
    for (unsigned i = 1; i <= 10; i++) {
        talk_start(&message, TALK_ENDED);
        message.ended.lease = i;
        cr_assert_eq(SSL_key_update(ssl, SSL_KEY_UPDATE_REQUESTED), 1);
        cr_assert_gt(SSL_write(ssl, &message, (int)message.head.size), 0);
        while (messages < i)
            pass_bytes(ssl, fd);
        cr_assert_eq(last.ended.lease, i);
        link_send(called, &last);
        memset(&message, 0, sizeof message);
        while (SSL_read(ssl, &message, sizeof message) <= 0)
            pass_bytes(ssl, fd);
        cr_assert_eq(memcmp(&message, &last, last.head.size), 0);
    }
    cr_assert_eq(downs, 0, "%s", why_down);
    close(fd);
}

static int make_it_large(SSL *ssl, void *bytes)
{
    return SSL_SESSION_set1_ticket_appdata(SSL_get0_session(ssl), bytes, 40000);
}

static SSL_TICKET_RETURN take_none(SSL *ssl, SSL_SESSION *session, const unsigned char *name,
                                   size_t size, SSL_TICKET_STATUS status, void *arg)
{
    return SSL_TICKET_RETURN_IGNORE;
}

/* A message of TLS's own, of which the rest never comes: nothing could be sent meanwhile. */
Test(agent_link, who_says_half_of_what_tls_says_is_hung_up_on)
{
    static unsigned char bytes[40000];

    set_up();
    SSL_CTX_set_session_ticket_cb(ours.tls, make_it_large, take_none, bytes);
    be_up();
    cr_assert_eq(SSL_new_session_ticket(called->ssl), 1);
    cr_assert_eq(SSL_do_handshake(called->ssl), 1);
    cr_assert_eq(BIO_read(SSL_get_wbio(called->ssl), bytes, 20000), 20000);
    BIO_reset(SSL_get_wbio(called->ssl));
    cr_assert_eq(write(called->source.fd, bytes, 20000), 20000);
    until(&downs, 1);
    cr_assert(strstr(why_down, "says half"), "%s", why_down);
}

Test(agent_link, who_changes_its_keys_again_and_again_is_hung_up_on)
{
    struct link *link;

    set_up();
    link = be_up();
    for (int i = 0; i < 100; i++) {
        cr_assert_eq(SSL_key_update(link->ssl, SSL_KEY_UPDATE_NOT_REQUESTED), 1);
        cr_assert_eq(SSL_do_handshake(link->ssl), 1);
    }
    say(link, 7, 1);
    until(&downs, 1);
    cr_assert(strstr(why_down, "changes its keys"), "%s", why_down);
}

Test(agent_link, a_stranger_is_heard_so_far_and_no_farther)
{
    static const unsigned char begins[] = {22, 3, 1,   0x40, 0,
                                           1,  3, 255, 255}; /* a first word of 256 KiB */
    static unsigned char text[4 * LINK_UNKNOWN];
    int fd;

    set_up();
    memcpy(text, begins, sizeof begins);
    fd = plain_call();
    cr_assert(write(fd, text, sizeof text) == sizeof text);
    while (!called)
        step();
    until(&downs, 1);
    cr_assert(strstr(why_down, "too much"), "%s", why_down);
    close(fd);
}

/* The oldest that has said nothing. */
Test(agent_link, who_gives_way)
{
    struct link *calls[3];
    unsigned callers;
    int fds[3];

    set_up();
    for (int i = 0; i < 3; i++) {
        fds[i] = plain_call();
        called = NULL;
        while (!called)
            step();
        calls[i] = called;
        calls[i]->made_ns -= (3 - (uint64_t)i) * GS_NS_PER_MS; /* the clock may not have moved */
    }
    for (int i = 0; i < 3; i += 2) {
        cr_assert(write(fds[i], "\26", 1) == 1);
        while (!calls[i]->heard)
            step();
    }
    cr_assert_eq(link_to_give_way(&ours, &callers), calls[1]);
    cr_assert_eq(callers, 3);
    link_close(calls[1]);
    cr_assert_eq(link_to_give_way(&ours, &callers), calls[0]);
    link_close(calls[0]);
    link_close(calls[2]);
    cr_assert(!link_to_give_way(&ours, &callers) && callers == 0);
}

Test(agent_link, an_address_that_is_none_is_said)
{
    char reason[LINK_REASON] = "";
    unsigned any = 0;

    set_up();
    cr_assert_null(link_connect(&theirs, "some.host", 1, &events, NULL, reason));
    cr_assert(strstr(reason, "numbers"), "%s", reason);
    cr_assert_lt(link_listen("some.host", &any, reason), 0);
}
