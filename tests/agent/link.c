/* Links between agents: both have certificates, and what comes that is no message ends them. */
#include "shim/agent/link.h"

#include <criterion/criterion.h>
#include <arpa/inet.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <openssl/ssl.h>

#include "core/base/clock.h"
#include "tests/children.h"

#define PATIENT_NS (30 * GS_NS_PER_S)


/* Both ends are here, in one loop. */
static struct links ours, theirs;
static struct source listener;
static unsigned port;
static struct link *called; /* ours */
static unsigned ups, messages, downs;
static char why_down[LINK_REASON];
static union talk last;

static void on_up(struct link *link)
{
    ups++;
}

static void on_message(struct link *link, const union talk *message)
{
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

Test(agent_link, both_ends_know_each_others_fingerprint_and_share_a_binding)
{
    char reason[LINK_REASON];
    unsigned char one[32], two[32];
    union talk message;
    struct link *link;

    set_up();
    cr_assert_neq(memcmp(ours.fingerprint, theirs.fingerprint, LINK_FINGERPRINT), 0);
    link = link_connect(&theirs, "127.0.0.1", port, &events, NULL, reason);
    cr_assert(link, "%s", reason);
    until(&ups, 2);
    cr_assert_eq(memcmp(called->fingerprint, theirs.fingerprint, LINK_FINGERPRINT), 0);
    cr_assert_eq(memcmp(link->fingerprint, ours.fingerprint, LINK_FINGERPRINT), 0);
    cr_assert(link_binding(called, one) && link_binding(link, two));
    cr_assert_eq(memcmp(one, two, sizeof one), 0);
    link->is_ready = called->is_ready = true;
    for (uint64_t i = 1; i <= 20000; i++) { /* more than a socket takes */
        talk_start(&message, TALK_ENDED);
        message.ended.lease = i;
        link_send(&theirs, link, &message);
    }
    until(&messages, 20000);
    cr_assert_eq(last.ended.lease, 20000);
    link_close(&theirs, link);
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
    until(&downs, 1);
    cr_assert(strstr(why_down, "in time"), "%s", why_down);
    close(fd);
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
        link_send(&ours, called, &message);
    cr_assert_eq(downs, 0, "not while it is sent to");
    until(&downs, 1);
    cr_assert(strstr(why_down, "does not read"), "%s", why_down);
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
