/*
 * gpushim export --listen: PLACES connections at a time, none of which is waited for. Who sends nothing or reads nothing
 * is dropped after PATIENCE_NS, or as soon as another needs the place, from the oldest on. Asking all processes is
 * waited for, and what comes in meanwhile is read afterwards: so all who have asked by then are given one text.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shim/command/command.h"
#include "shim/command/export.h"

#define PLACES      64
#define AT_ONCE     16 /* are taken: who came just before keeps its place until it was heard */
#define PATIENCE_NS (10 * GS_NS_PER_S)

enum stage {
    READS, /* its request */
    ASKS,  /* for figures */
    WRITES,
    ENDS, /* awaits that it hangs up: closed with something unread, it would lose the answer */
};

static struct {
    const struct call *call;
    int listener;
    struct client {
        int fd; /* -1: the place is free */
        enum stage stage;
        uint64_t since_ns; /* then that began */
        char request[HTTP_REQUEST_MAX + 1], *answer;
        size_t got, sent, size; /* of the request; of the answer */
    } clients[PLACES];
} server;

static void on_end(int number)
{
    (void)number;
    _exit(COMMAND_WELL);
}

/* ---- A connection ------------------------------------------------------------------------------- */

/* A page in somebody's browser may have its own name lead here, and would read what is told to this machine alone: it does
 * not ask by an address, nor by a name that this machine has or was given. */
static bool is_ours(const char *host)
{
    char own[HTTP_HOST] = "localhost", six[HTTP_HOST] = "";
    unsigned char address[sizeof(struct in6_addr)];
    bool is = !host[0] || strcasecmp(own, host) == 0 || inet_pton(AF_INET, host, address) == 1;

    if (host[0] == '[')
        snprintf(six, sizeof six, "%.*s", (int)strcspn(host + 1, "]"), host + 1);
    is |= inet_pton(AF_INET6, six, address) == 1;
    is |= gethostname(own, sizeof own - 1) == 0 && strcasecmp(own, host) == 0;
    for (unsigned i = 0; i < server.call->count; i++)
        is |= strcmp(server.call->given[i].option->name, "host") == 0 && strcasecmp(server.call->given[i].value, host) == 0;
    return is;
}

static void drop(struct client *client)
{
    close(client->fd);
    free(client->answer);
    *client = (struct client){.fd = -1};
}

static void enter(struct client *client, enum stage stage)
{
    client->stage = stage;
    client->since_ns = gs_now_ns();
}

/* `text`: the figures, where they are asked for. */
static void answer(struct client *client, const struct http_request *request, const char *text, size_t size)
{
    const char *body = http_body(request) ? http_body(request) : text;
    char head[HTTP_HEAD];
    size_t before;

    size = body == text ? size : strlen(body);
    before = http_head(request, size, head);
    client->size = before + (request->head_only ? 0 : size);
    client->answer = malloc(before + size);
    if (!client->answer) {
        drop(client);
        return;
    }
    memcpy(client->answer, head, before);
    memcpy(client->answer + before, body, size);
    enter(client, WRITES);
}

/* What it asks, as far as it is there: false, it goes on. */
static bool read_request(const struct client *client, struct http_request *ret_request)
{
    *ret_request = (struct http_request){.status = client->got == HTTP_REQUEST_MAX ? HTTP_TOO_LONG : HTTP_BAD};
    if (memchr(client->request, 0, client->got))
        return true;
    if (!http_is_whole(client->request))
        return client->got == HTTP_REQUEST_MAX;
    *ret_request = http_read(client->request);
    if (ret_request->status == HTTP_OK && !is_ours(ret_request->host))
        ret_request->status = HTTP_NO_HOST;
    return true;
}

/* A step, as it is ready for it. */
static void serve(struct client *client)
{
    struct http_request request;
    char rest[4096];
    ssize_t did;

    if (client->stage == READS)
        did = recv(client->fd, client->request + client->got, HTTP_REQUEST_MAX - client->got, 0);
    else if (client->stage == WRITES)
        did = send(client->fd, client->answer + client->sent, client->size - client->sent, MSG_NOSIGNAL);
    else
        did = recv(client->fd, rest, sizeof rest, 0);
    if (did <= 0 && (did == 0 || errno != EAGAIN)) {
        drop(client); /* it has hung up */
    } else if (did > 0 && client->stage == READS) {
        client->got += (size_t)did;
        if (!read_request(client, &request))
            return;
        if (http_body(&request))
            answer(client, &request, NULL, 0);
        else
            enter(client, ASKS);
    } else if (did > 0 && client->stage == WRITES && (client->sent += (size_t)did) == client->size) {
        shutdown(client->fd, SHUT_WR);
        enter(client, ENDS);
    }
}

/* For all who asked for figures. */
static void ask_all(void)
{
    char *text = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&text, &size);
    bool well = file && export_write(file);

    if (file)
        well = fclose(file) == 0 && well;
    for (struct client *client = server.clients; client < server.clients + PLACES; client++) {
        struct http_request request;

        if (client->fd < 0 || client->stage != ASKS)
            continue;
        read_request(client, &request);
        if (well)
            answer(client, &request, text, size);
        else
            drop(client); /* why was said */
    }
    free(text);
}

/* ---- Places ------------------------------------------------------------------------------------- */

/* False: there is none, or the kernel has nothing to give for it now, which is rested for. */
static bool take_connection(void)
{
    const int fd = accept4(server.listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    struct client *place = server.clients;

    if (fd < 0 && errno != EAGAIN)
        poll(NULL, 0, 100);
    if (fd < 0)
        return false;
    for (struct client *client = server.clients; client < server.clients + PLACES && place->fd >= 0; client++)
        if (client->fd < 0 || client->since_ns < place->since_ns)
            place = client;
    if (place->fd >= 0)
        drop(place);
    place->fd = fd;
    enter(place, READS);
    return true;
}

static void turn(void)
{
    struct pollfd ready[PLACES + 1] = {{.fd = server.listener, .events = POLLIN}};
    bool asks = false;

    for (unsigned i = 0; i < PLACES; i++)
        ready[i + 1] = (struct pollfd){.fd = server.clients[i].fd,
                                       .events = server.clients[i].stage == WRITES ? POLLOUT : POLLIN};
    if (poll(ready, PLACES + 1, 1000) < 0)
        return;
    for (unsigned i = 0; i < PLACES; i++) {
        struct client *client = &server.clients[i];
        const bool is_late = client->fd >= 0 && gs_now_ns() - client->since_ns > PATIENCE_NS;

        /* What came while others were asked is heard however long that took. */
        if (is_late && (!ready[i + 1].revents || client->stage == ENDS))
            drop(client);
        else if (ready[i + 1].revents)
            serve(client);
        asks |= client->fd >= 0 && client->stage == ASKS;
    }
    if (asks)
        ask_all();
    for (unsigned i = 0; ready[0].revents && i < AT_ONCE; i++)
        if (!take_connection())
            break;
}

/* ---- The start ------------------------------------------------------------------------------ */

/* ADDRESS:PORT, [ADDRESS]:PORT or :PORT; NULL: it is none. */
static struct addrinfo *read_address(const char *where)
{
    static const struct addrinfo wanted = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
    const char *colon = strrchr(where, ':'), *port = colon ? colon + 1 : "";
    const bool bracketed = where[0] == '[' && colon > where && colon[-1] == ']';
    struct addrinfo *found;
    char host[64];

    if (!*port || port[strspn(port, "0123456789")] || strtoul(port, NULL, 10) > 65535 || colon - where >= (int)sizeof host)
        return NULL;
    snprintf(host, sizeof host, "%.*s", (int)(colon - where) - 2 * bracketed, where + bracketed);
    if (!bracketed && (!host[0] || strcmp(host, "localhost") == 0))
        strcpy(host, "127.0.0.1");
    if (bracketed != (strchr(host, ':') != NULL) || getaddrinfo(host, port, &wanted, &found) != 0)
        return NULL;
    return found;
}

static const char *remedy_of(int error)
{
    switch (error) {
    case EADDRINUSE:
        return "something listens there, maybe another gpushim export (ss -ltnp tells who): end that, or name another port";
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
    struct sockaddr_storage address;
    socklen_t size = sizeof address;
    char host[HTTP_HOST], port[8];

    if (getsockname(server.listener, (struct sockaddr *)&address, &size) != 0 ||
        getnameinfo((struct sockaddr *)&address, size, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV))
        return false;
    command_say(strchr(host, ':') ? "serves http://[%s]:%s/metrics" : "serves http://%s:%s/metrics", host, port);
    return fflush(stdout) == 0;
}

static bool start_listening(const char *where, const struct addrinfo *address)
{
    int on = 1;

    server.listener = socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); /* accept may find none */
    if (server.listener >= 0 && setsockopt(server.listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
        bind(server.listener, address->ai_addr, address->ai_addrlen) == 0 && listen(server.listener, PLACES) == 0)
        return true;
    command_complain("%s cannot be listened at: %s; %s", where, strerror(errno), remedy_of(errno));
    return false;
}

int export_serve(const struct call *call, const char *where)
{
    struct gs_share_options options;
    struct addrinfo *address = read_address(where);
    bool well;

    server.call = call;
    if (!address)
        return call_wrong(call, "--listen takes ADDRESS:PORT, and not '%s'; as 127.0.0.1:9465, :9465 or [::1]:9465", where);
    well = command_share_options(&options) && start_listening(where, address);
    freeaddrinfo(address);
    if (!well)
        return COMMAND_WRONG;
    signal(SIGTERM, on_end);
    signal(SIGINT, on_end);
    signal(SIGPIPE, SIG_IGN);
    if (!say_where())
        command_complain("where it serves cannot be written: %s", strerror(errno));
    for (unsigned i = 0; i < PLACES; i++)
        server.clients[i].fd = -1;
    for (;;)
        turn();
}
