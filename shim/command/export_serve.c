/*
 * gpushim export --listen: as much of HTTP/1.1 as Prometheus and a browser need; a connection
 * serves one request. PLACES connections at a time, none of which is waited for: who sends nothing
 * or reads nothing is dropped after PATIENCE_NS, or as soon as another needs the place, from the
 * oldest on. Asking all processes is waited for, and what comes in meanwhile is read afterwards: so
 * all who have asked by then are given one text.
 */
#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <strings.h>
#include <sys/socket.h>

#include "shim/command/command.h"

#define PLACES      64
#define AT_ONCE     16 /* are taken: who came just before keeps its place until it was heard */
#define PATIENCE_NS (10 * GS_NS_PER_S)
#define REQUEST_MAX 8192

static struct {
    const struct call *call;
    int listener;
    char *text; /* the figures, for all who ask in a turn; NULL: nobody has yet */
    struct client {
        int fd;            /* -1: the place is free */
        uint64_t since_ns; /* then it came, or was answered */
        char request[REQUEST_MAX + 1], *answer;
        size_t got, sent, size; /* of the request; of the answer */
    } clients[PLACES];
} server;

static void on_end(int number)
{
    (void)number;
    _exit(COMMAND_WELL);
}

/* ---- A request ------------------------------------------------------------------------------- */

/* NAME, NAME:PORT, [ADDRESS]:PORT, up to a blank, a line's end or a path. */
static void find_host(const char *text, char ret_host[HTTP_HOST])
{
    ret_host[0] = 0;
    while ((text = strchr(text, '\n')) && !ret_host[0] && *++text != '\n' &&
           *text != '\r') /* to the head's end */
        if (strncasecmp(text, "host:", 5) == 0) {
            const char *host = text + 5 + strspn(text + 5, " \t");
            const size_t length =
                *host == '[' ? strcspn(host, "]\r\n") + 1 : strcspn(host, ":/ \t\r\n");

            snprintf(ret_host, HTTP_HOST, "%.*s", (int)length, host);
        }
}

int http_read(const char *text, char ret_host[HTTP_HOST])
{
    const size_t method = strcspn(text, " \r\n"),
                 length = text[method] == ' ' ? strcspn(text + method + 1, " \r\n") : 0;
    const char *target = text + method + 1, *version = target + length;

    if (!strstr(text, "\n\r\n") && !strstr(text, "\n\n"))
        return 0;
    find_host(text, ret_host);
    if (!method || !length || strncmp(version, " HTTP/1.", 8) != 0 || version[8] < '0' ||
        version[8] > '9' || (version[9] != '\r' && version[9] != '\n'))
        return 400;
    if (strcspn(target, "? ") != 8 || strncmp(target, "/metrics", 8) != 0)
        return 404;
    return method == 3 && strncmp(text, "GET", 3) == 0 ? 200 : 405;
}

/* A page in somebody's browser may have its own name lead here, and would read what is told to this
 * machine alone: it does not ask by an address, nor by a name that this machine has or was
 * given. */
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
        is |= strcmp(server.call->given[i].option->name, "host") == 0 &&
              strcasecmp(server.call->given[i].value, host) == 0;
    return is;
}

/* ---- A connection ---------------------------------------------------------------------------- */

static void drop(struct client *client)
{
    close(client->fd);
    free(client->answer);
    *client = (struct client){.fd = -1};
}

/* NULL, and said: there are none. */
static const char *figures(void)
{
    size_t size = 0;
    FILE *file = server.text ? NULL : open_memstream(&server.text, &size);
    bool well = server.text || (file && export_write(file, NULL));

    if (file)
        well = fclose(file) == 0 && well;
    if (!well) {
        free(server.text);
        server.text = NULL;
    }
    return server.text;
}

static void answer(struct client *client, int status)
{
    static const struct {
        int status;
        const char *line, *body;
    } others[] = {
        {400, "400 Bad Request", "this is no request of HTTP/1.1\n"},
        {403, "403 Forbidden",
         "this machine has another name; ask by its address, or add the name: gpushim export --host\n"},
        {404, "404 Not Found", "there is nothing but /metrics\n"},
        {405, "405 Method Not Allowed\r\nAllow: GET", "only GET\n"},
    };
    const char *line = "200 OK", *body = status == 200 ? figures() : NULL;
    int size = -1;

    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (others[i].status == status)
            line = others[i].line, body = others[i].body;
    if (body)
        size = asprintf(&client->answer,
                        "HTTP/1.1 %s\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
                        "Content-Length: %zu\r\nConnection: close\r\n\r\n%s",
                        line, strlen(body), body);
    if (size < 0) {
        client->answer = NULL;
        drop(client);
        return;
    }
    client->size = (size_t)size;
    client->since_ns = gs_now_ns();
}

static void hear(struct client *client)
{
    char host[HTTP_HOST];
    int status = memchr(client->request, 0, client->got) ? 400 : http_read(client->request, host);

    if (status == 200 && !is_ours(host))
        status = 403;
    if (status)
        answer(client, status);
    else if (client->got == REQUEST_MAX)
        drop(client);
}

/* A step, as it is ready for it. */
static void serve(struct client *client)
{
    const ssize_t did = client->answer ? send(client->fd, client->answer + client->sent,
                                              client->size - client->sent, MSG_NOSIGNAL)
                                       : recv(client->fd, client->request + client->got,
                                              REQUEST_MAX - client->got, 0);

    if (did <= 0 && (did == 0 || errno != EAGAIN)) {
        drop(client); /* it has hung up */
    } else if (did > 0 && !client->answer) {
        client->got += (size_t)did;
        hear(client);
    } else if (did > 0 && (client->sent += (size_t)did) == client->size) {
        /* Closed with something unread, it could lose the answer. */
        for (unsigned i = 0; i < AT_ONCE && recv(client->fd, client->request, REQUEST_MAX, 0) > 0;
             i++)
            continue;
        drop(client);
    }
}

/* False: there is none, or the kernel has nothing to give for it now, which is rested for. */
static bool take_connection(void)
{
    const int fd = accept4(server.listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    struct client *place = server.clients;

    if (fd < 0 && errno != EAGAIN)
        poll(NULL, 0, 100);
    if (fd < 0)
        return false;
    for (struct client *client = server.clients; client < server.clients + PLACES && place->fd >= 0;
         client++)
        if (client->fd < 0 || client->since_ns < place->since_ns)
            place = client;
    if (place->fd >= 0)
        drop(place);
    place->fd = fd;
    place->since_ns = gs_now_ns();
    return true;
}

static void turn(void)
{
    struct pollfd ready[PLACES + 1] = {{.fd = server.listener, .events = POLLIN}};
    struct client *client = server.clients;

    for (unsigned i = 0; i < PLACES; i++)
        ready[i + 1] =
            (struct pollfd){.fd = client[i].fd, .events = client[i].answer ? POLLOUT : POLLIN};
    if (poll(ready, PLACES + 1, 1000) < 0)
        return;
    for (unsigned i = 0; i < PLACES; i++, client++)
        if (ready[i + 1]
                .revents) /* what came while others were asked is heard however long that took */
            serve(client);
        else if (client->fd >= 0 && gs_now_ns() - client->since_ns > PATIENCE_NS)
            drop(client);
    free(server.text);
    server.text = NULL;
    for (unsigned i = 0; ready[0].revents && i < AT_ONCE; i++)
        if (!take_connection())
            break;
}

/* ---- The start ------------------------------------------------------------------------------ */

/* ADDRESS:PORT, [ADDRESS]:PORT or :PORT; NULL: it is none. */
static struct addrinfo *read_address(const char *where)
{
    static const struct addrinfo wanted = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV,
                                           .ai_socktype = SOCK_STREAM};
    const char *colon = strrchr(where, ':'), *port = colon ? colon + 1 : "";
    const bool bracketed = where[0] == '[' && colon > where && colon[-1] == ']';
    struct addrinfo *found;
    char host[64];

    if (!*port || port[strspn(port, "0123456789")] || strtoul(port, NULL, 10) > 65535 ||
        colon - where >= (int)sizeof host)
        return NULL;
    snprintf(host, sizeof host, "%.*s", (int)(colon - where) - 2 * bracketed, where + bracketed);
    if (!bracketed && (!host[0] || strcmp(host, "localhost") == 0))
        strcpy(host, "127.0.0.1");
    if (bracketed != (strchr(host, ':') != NULL) || getaddrinfo(host, port, &wanted, &found) != 0)
        return NULL;
    return found;
}

/* Says where it serves: with port 0 the kernel chose. */
static bool say_where(void)
{
    struct sockaddr_storage address;
    socklen_t size = sizeof address;
    char host[HTTP_HOST], port[8];

    if (getsockname(server.listener, (struct sockaddr *)&address, &size) != 0 ||
        getnameinfo((struct sockaddr *)&address, size, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV))
        return false;
    command_say(strchr(host, ':') ? "serves http://[%s]:%s/metrics" : "serves http://%s:%s/metrics",
                host, port);
    return fflush(stdout) == 0;
}

static bool start_listening(const char *where, const struct addrinfo *address)
{
    int on = 1;

    server.listener = socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC,
                             0); /* accept may find none */
    if (server.listener >= 0 &&
        setsockopt(server.listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
        bind(server.listener, address->ai_addr, address->ai_addrlen) == 0 &&
        listen(server.listener, PLACES) == 0)
        return true;
    command_complain(
        "%s cannot be listened at: %s; %s", where, strerror(errno),
        errno == EADDRINUSE
            ? "end what listens there, maybe another gpushim export (ss -ltnp), or name another port"
            : "name an address that this machine has (ip address lists them), and a port from 1024 on");
    return false;
}

int export_serve(const struct call *call, const char *where)
{
    struct addrinfo *address = read_address(where);
    bool well;

    server.call = call;
    if (!address)
        return call_wrong(
            call,
            "--listen takes ADDRESS:PORT, and not '%s'; as 127.0.0.1:9465, :9465 or [::1]:9465",
            where);
    well = start_listening(where, address);
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
