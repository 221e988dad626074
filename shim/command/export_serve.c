/*
 * gpushim export --listen: one thread that serves up to CLIENTS_MAX connections, none of which
 * another waits for. Nothing here blocks but ppoll:
 *
 *   READS    the request, until its head is whole
 *   AWAITS   the figures
 *   WRITES   the answer
 *   LINGERS  until the client hangs up: closed with something unread, it would lose the answer
 *
 * Asking processes takes seconds where one does not answer, so a child does it and writes the text
 * into a pipe. Whoever asks meanwhile is given the same text.
 *
 * A client has PATIENCE_NS for each of these. Where all places are taken, the one that has taken
 * longest to read or be read makes room: nobody keeps others out by being slow.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "shim/command/command.h"
#include "shim/command/export.h"
#include "shim/command/export_http.h"

#define CLIENTS_MAX 64
#define PATIENCE_NS (10 * GS_NS_PER_S)
#define COLLECT_NS  (60 * GS_NS_PER_S)
#define RETRY_NS    GS_NS_PER_S /* of accept, where the kernel has nothing to give */

enum stage { READS, AWAITS, WRITES, LINGERS };

struct client {
    int fd;
    enum stage stage;
    uint64_t until_ns; /* in AWAITS it is the collector's that counts */
    struct http_request request;
    size_t got;
    char *answer;
    size_t size, sent;
    char text[HTTP_REQUEST_MAX];
};

static struct server {
    int listener;
    uint64_t accept_ns; /* not before */
    struct client *clients[CLIENTS_MAX];
    unsigned count;
    pid_t collector; /* 0: none */
    int pipe;
    uint64_t collect_until_ns;
    char *text;
    size_t length, room;
} server;

static volatile sig_atomic_t ended;

static void end(int signal)
{
    ended = 1;
}

/* ---- One client ----------------------------------------------------------------------------- */

static void drop(unsigned i)
{
    close(server.clients[i]->fd);
    free(server.clients[i]->answer);
    free(server.clients[i]);
    server.clients[i] = server.clients[--server.count];
}

/* What is to be written is there, or the client goes: then false. */
static bool give(struct client *client, const char *body, size_t size)
{
    client->answer = http_answer(&client->request, body, size, &client->size);
    client->stage = WRITES;
    client->until_ns = gs_now_ns() + PATIENCE_NS;
    return client->answer != NULL;
}

/* False: the client goes. So below. */
static bool read_request(struct client *client)
{
    ssize_t got =
        recv(client->fd, client->text + client->got, sizeof client->text - client->got, 0);

    if (got <= 0)
        return got < 0 && (errno == EAGAIN || errno == EINTR);
    client->got += (size_t)got;
    if (http_is_whole(client->text, client->got))
        client->request = http_read(client->text, client->got);
    else if (client->got == sizeof client->text)
        client->request.status = HTTP_TOO_LONG;
    else
        return true;
    if (client->request.status != HTTP_OK || client->request.page != HTTP_METRICS)
        return give(client, NULL, 0);
    client->stage = AWAITS;
    return true;
}

static bool write_answer(struct client *client)
{
    ssize_t sent =
        send(client->fd, client->answer + client->sent, client->size - client->sent, MSG_NOSIGNAL);

    if (sent < 0)
        return errno == EAGAIN || errno == EINTR;
    client->sent += (size_t)sent;
    if (client->sent < client->size)
        return true;
    client->stage = LINGERS;
    client->until_ns = gs_now_ns() + PATIENCE_NS;
    return shutdown(client->fd, SHUT_WR) == 0;
}

static bool linger(struct client *client)
{
    ssize_t got = recv(client->fd, client->text, sizeof client->text, 0);

    return got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR));
}

static bool serve(struct client *client)
{
    switch (client->stage) {
    case READS:
        return read_request(client);
    case WRITES:
        return write_answer(client);
    case LINGERS:
        return linger(client);
    case AWAITS: /* nothing is asked of poll then, so it has hung up */
        break;
    }
    return false;
}

/* ---- All clients ---------------------------------------------------------------------------- */

/* The one that may best be spared: it lingers, or it is the slowest. -1: all wait for the figures.
 */
static int slowest(void)
{
    int found = -1;

    for (unsigned i = 0; i < server.count; i++) {
        const struct client *client = server.clients[i];
        const struct client *other = found < 0 ? NULL : server.clients[found];

        if (client->stage == AWAITS)
            continue;
        if (!other || (client->stage == LINGERS && other->stage != LINGERS) ||
            ((client->stage == LINGERS) == (other->stage == LINGERS) &&
             client->until_ns < other->until_ns))
            found = (int)i;
    }
    return found;
}

static void take_client(void)
{
    int fd = accept4(server.listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    struct client *client;

    if (fd < 0) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
            server.accept_ns = gs_now_ns() + RETRY_NS;
        return;
    }
    if (server.count == CLIENTS_MAX)
        drop((unsigned)slowest());
    client = calloc(1, sizeof *client);
    if (!client) {
        close(fd);
        return;
    }
    client->fd = fd;
    client->until_ns = gs_now_ns() + PATIENCE_NS;
    server.clients[server.count++] = client;
}

static void drop_late(uint64_t now)
{
    for (unsigned i = server.count; i-- > 0;)
        if (server.clients[i]->stage != AWAITS && now >= server.clients[i]->until_ns)
            drop(i);
}

/* ---- The figures ---------------------------------------------------------------------------- */

/* In the child: asks, and writes what is found into the pipe. What it has of its parent's sockets
 * would keep them open. */
static void collect_in_child(int fd)
{
    FILE *file = fdopen(fd, "w");
    sigset_t none;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGTERM, SIG_DFL);
    signal(SIGINT, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    close(server.listener);
    for (unsigned i = 0; i < server.count; i++)
        close(server.clients[i]->fd);
    _exit(file && export_write(file) && fflush(file) == 0 ? 0 : 1);
}

/* All that wait for the figures have them, or are told that there are none. */
static void give_all(bool well)
{
    for (unsigned i = server.count; i-- > 0;) {
        struct client *client = server.clients[i];

        if (client->stage != AWAITS)
            continue;
        if (!well)
            client->request.status = HTTP_BROKEN;
        if (!give(client, server.text, server.length))
            drop(i);
    }
}

static void collect(void)
{
    int ends[2];

    if (pipe2(ends, O_CLOEXEC) != 0)
        goto failed;
    server.collector = fork();
    if (server.collector == 0)
        collect_in_child(ends[1]);
    close(ends[1]);
    if (server.collector < 0) {
        close(ends[0]);
        goto failed;
    }
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    server.pipe = ends[0];
    server.length = 0;
    server.collect_until_ns = gs_now_ns() + COLLECT_NS;
    return;
failed:
    command_complain("no process can be started that asks the others: %s", strerror(errno));
    server.collector = 0;
    give_all(false);
}

static void end_collection(bool well)
{
    int status = 1;

    if (!well)
        kill(server.collector, SIGKILL);
    close(server.pipe);
    while (waitpid(server.collector, &status, 0) < 0 && errno == EINTR)
        ;
    server.collector = 0;
    give_all(well && status == 0);
}

static void read_figures(void)
{
    ssize_t got;

    if (server.room - server.length < 4096) {
        size_t room = server.room ? 2 * server.room : 65536;
        char *text = realloc(server.text, room);

        if (!text) {
            end_collection(false);
            return;
        }
        server.text = text;
        server.room = room;
    }
    got = read(server.pipe, server.text + server.length, server.room - server.length);
    if (got > 0)
        server.length += (size_t)got;
    else if (got == 0 || (errno != EAGAIN && errno != EINTR))
        end_collection(got == 0);
}

/* ---- The loop ------------------------------------------------------------------------------- */

static bool somebody_awaits(void)
{
    for (unsigned i = 0; i < server.count; i++)
        if (server.clients[i]->stage == AWAITS)
            return true;
    return false;
}

static bool takes_clients(uint64_t now)
{
    return now >= server.accept_ns && (server.count < CLIENTS_MAX || slowest() >= 0);
}

static struct timespec time_left(uint64_t now)
{
    uint64_t until = now + 3600 * GS_NS_PER_S, left;

    for (unsigned i = 0; i < server.count; i++)
        if (server.clients[i]->stage != AWAITS && server.clients[i]->until_ns < until)
            until = server.clients[i]->until_ns;
    if (server.collector && server.collect_until_ns < until)
        until = server.collect_until_ns;
    if (server.accept_ns > now && server.accept_ns < until)
        until = server.accept_ns;
    left = until > now ? until - now : 0;
    return (struct timespec){(time_t)(left / GS_NS_PER_S), (long)(left % GS_NS_PER_S)};
}

/* Clients first and from the last, so that one that goes leaves the others' numbers as polled. */
static void turn(const sigset_t *waiting)
{
    static const short events[] = {[READS] = POLLIN, [WRITES] = POLLOUT, [LINGERS] = POLLIN};
    struct pollfd polled[CLIENTS_MAX + 2];
    uint64_t now = gs_now_ns();
    struct timespec left = time_left(now);
    unsigned count = server.count;

    for (unsigned i = 0; i < count; i++)
        polled[i] = (struct pollfd){.fd = server.clients[i]->fd,
                                    .events = events[server.clients[i]->stage]};
    polled[count] =
        (struct pollfd){.fd = takes_clients(now) ? server.listener : -1, .events = POLLIN};
    polled[count + 1] =
        (struct pollfd){.fd = server.collector ? server.pipe : -1, .events = POLLIN};
    if (ppoll(polled, count + 2, &left, waiting) < 0)
        return;
    for (unsigned i = count; i-- > 0;)
        if (polled[i].revents && !serve(server.clients[i]))
            drop(i);
    if (polled[count + 1].revents)
        read_figures();
    if (server.collector && gs_now_ns() >= server.collect_until_ns)
        end_collection(false);
    drop_late(gs_now_ns());
    if (polled[count].revents && takes_clients(gs_now_ns()))
        take_client();
    if (!server.collector && somebody_awaits())
        collect();
}

/* ---- The start ------------------------------------------------------------------------------ */

union address {
    struct sockaddr any;
    struct sockaddr_in four;
    struct sockaddr_in6 six;
};

/* ADDRESS:PORT, [ADDRESS]:PORT or :PORT. */
static bool read_address(const char *where, union address *ret_address)
{
    const char *colon = strrchr(where, ':');
    char host[64], *last;
    unsigned long port;
    size_t length;

    memset(ret_address, 0, sizeof *ret_address);
    if (!colon || (size_t)(colon - where) >= sizeof host || !colon[1] ||
        strspn(colon + 1, "0123456789") != strlen(colon + 1))
        return false;
    port = strtoul(colon + 1, NULL, 10);
    if (port > 65535)
        return false;
    length = (size_t)(colon - where);
    memcpy(host, where, length);
    host[length] = 0;
    last = length ? host + length - 1 : host;
    ret_address->four.sin_family = AF_INET;
    ret_address->four.sin_port = htons((uint16_t)port);
    if (!*host || strcmp(host, "localhost") == 0)
        strcpy(host, "127.0.0.1");
    if (*host != '[' || *last != ']')
        return inet_pton(AF_INET, host, &ret_address->four.sin_addr) == 1;
    *last = 0;
    ret_address->six =
        (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
    return inet_pton(AF_INET6, host + 1, &ret_address->six.sin6_addr) == 1;
}

static const char *remedy_of(int error)
{
    switch (error) {
    case EADDRINUSE:
        return "something listens there, maybe another gpushim export (ss -ltnp tells who): end "
               "that, or name "
               "another port";
    case EADDRNOTAVAIL:
        return "name an address that this machine has (ip address lists them), or 0.0.0.0 for all";
    case EACCES:
        return "name a port from 1024 on";
    case EAFNOSUPPORT:
        return "this kernel has no IPv6; name an address of IPv4";
    default:
        return "name another address";
    }
}

/* Says where it serves: with port 0 the kernel chose. */
static bool say_where(void)
{
    union address address;
    socklen_t size = sizeof address;
    char host[INET6_ADDRSTRLEN];
    bool is_six;

    if (getsockname(server.listener, &address.any, &size) != 0)
        return false;
    is_six = address.any.sa_family == AF_INET6;
    if (!inet_ntop(address.any.sa_family,
                   is_six ? (const void *)&address.six.sin6_addr
                          : (const void *)&address.four.sin_addr,
                   host, sizeof host))
        return false;
    command_say(is_six ? "serves http://[%s]:%u/metrics" : "serves http://%s:%u/metrics", host,
                ntohs(is_six ? address.six.sin6_port : address.four.sin_port));
    return fflush(stdout) == 0;
}

static bool start_listening(const char *where, const union address *address)
{
    bool is_six = address->any.sa_family == AF_INET6;
    int on = 1;

    server.listener = socket(address->any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (server.listener >= 0 &&
        setsockopt(server.listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
        bind(server.listener, &address->any, is_six ? sizeof address->six : sizeof address->four) ==
            0 &&
        listen(server.listener, CLIENTS_MAX) == 0)
        return true;
    command_complain("%s cannot be listened at: %s; %s", where, strerror(errno), remedy_of(errno));
    return false;
}

int export_serve(const char *where)
{
    struct gs_share_options options;
    struct sigaction action = {.sa_handler = end};
    union address address;
    sigset_t endings, waiting;

    if (!read_address(where, &address)) {
        command_complain(
            "--listen takes ADDRESS:PORT, and not '%s'; as 127.0.0.1:9465, :9465 or [::1]:9465",
            where);
        return COMMAND_USAGE;
    }
    if (!command_share_options(&options) || !start_listening(where, &address))
        return COMMAND_WRONG;
    sigemptyset(&endings);
    sigaddset(&endings, SIGTERM);
    sigaddset(&endings, SIGINT);
    sigprocmask(SIG_BLOCK, &endings,
                &waiting); /* but for ppoll: else one could come just before it */
    sigdelset(&waiting, SIGTERM);
    sigdelset(&waiting, SIGINT);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    signal(SIGPIPE, SIG_IGN);
    if (!say_where())
        command_complain("where it serves cannot be written: %s", strerror(errno));
    while (!ended)
        turn(&waiting);
    if (server.collector)
        end_collection(false);
    while (server.count)
        drop(server.count - 1);
    close(server.listener);
    free(server.text);
    return COMMAND_WELL;
}
