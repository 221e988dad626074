/*
 * gpushim export --listen: a process for each connection, PLACES of them at a time. It reads the request, has all
 * processes asked, answers, and waits until the client hangs up: closed with something unread, it would lose the answer.
 * It has PATIENCE_S for each of these, and then alarm(2) ends it. Where all places are taken, the oldest connection that
 * does not ask just then makes room: nobody keeps others out by being slow.
 *
 * One asks at a time, by a lock of the file that its text is left in. Who waited for that is given the same text.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "shim/command/command.h"
#include "shim/command/export.h"
#include "shim/command/export_http.h"

#define PLACES     64
#define PATIENCE_S 10
#define ASKING_S   60 /* with the others' before it */

static struct {
    const struct call *call;
    int listener, text; /* the file, which children lock */
    struct {
        pid_t pid; /* 0: free */
        uint64_t number; /* of its connection */
    } places[PLACES];
    uint64_t connections;
    struct shared {
        uint64_t told_ns; /* when the text was whole; 0: there is none */
        bool asks[PLACES];
    } *shared; /* with all children */
} server;

static volatile sig_atomic_t ended;

static void on_end(int number)
{
    ended = number;
}

static void on_child(int number)
{
    (void)number; /* ppoll ends */
}

/* ---- A connection, in its process --------------------------------------------------------------- */

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

static struct http_request read_request(int fd)
{
    static char text[HTTP_REQUEST_MAX + 1];
    size_t got = 0;

    while (got < HTTP_REQUEST_MAX) {
        const ssize_t more = recv(fd, text + got, HTTP_REQUEST_MAX - got, 0);

        if (more <= 0)
            _exit(0); /* it has hung up */
        got += (size_t)more;
        if (memchr(text, 0, got))
            return (struct http_request){.status = HTTP_BAD};
        if (http_is_whole(text))
            return http_read(text);
    }
    return (struct http_request){.status = HTTP_TOO_LONG};
}

static void write_all(int fd, const char *text, size_t size)
{
    for (ssize_t sent; size > 0; text += sent, size -= (size_t)sent)
        if ((sent = send(fd, text, size, MSG_NOSIGNAL)) < 0)
            _exit(0);
}

/* Into the file. False: they cannot be asked. */
static bool ask_all(void)
{
    char *text = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&text, &size);
    bool well = file && export_write(file);

    if (file)
        well = fclose(file) == 0 && well;
    server.shared->told_ns = 0;
    well = well && ftruncate(server.text, 0) == 0 && pwrite(server.text, text, size, 0) == (ssize_t)size;
    server.shared->told_ns = well ? gs_now_ns() : 0;
    free(text);
    return well;
}

/* The text, from `began` on or later; NULL: there is none. */
static char *find_text(uint64_t began, size_t *ret_size)
{
    struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    char *text = NULL;
    off_t size = -1;

    if (fcntl(server.text, F_SETLKW, &all) == 0 && (server.shared->told_ns >= began || ask_all()))
        size = lseek(server.text, 0, SEEK_END);
    if (size > 0 && (text = malloc((size_t)size)) && pread(server.text, text, (size_t)size, 0) != size)
        free(text), text = NULL;
    all.l_type = F_UNLCK;
    fcntl(server.text, F_SETLK, &all);
    *ret_size = text ? (size_t)size : 0;
    return text;
}

static void answer(int fd, unsigned place)
{
    const uint64_t began = gs_now_ns();
    struct http_request request = read_request(fd);
    char head[HTTP_HEAD], rest[4096], *text = NULL;
    const char *body;
    size_t size = 0;

    if (request.status == HTTP_OK && !is_ours(request.host))
        request.status = HTTP_NO_HOST;
    if (!http_body(&request)) {
        alarm(ASKING_S);
        server.shared->asks[place] = true;
        text = find_text(began, &size);
        server.shared->asks[place] = false;
        request.status = text ? HTTP_OK : HTTP_BROKEN;
    }
    body = http_body(&request);
    if (body)
        size = strlen(body);
    alarm(PATIENCE_S);
    write_all(fd, head, http_head(&request, size, head));
    if (!request.head_only)
        write_all(fd, body ? body : text, size);
    shutdown(fd, SHUT_WR);
    alarm(PATIENCE_S);
    while (recv(fd, rest, sizeof rest, 0) > 0)
        continue;
}

static void serve(int fd, unsigned place)
{
    sigset_t none;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGTERM, SIG_DFL);
    signal(SIGINT, SIG_DFL);
    signal(SIGALRM, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    close(server.listener);
    alarm(PATIENCE_S);
    answer(fd, place);
    _exit(0);
}

/* ---- Places ------------------------------------------------------------------------------------- */

/* A free one, or the oldest that may be spared; -1: all of them ask. */
static int find_place(void)
{
    int found = -1;

    for (int i = 0; i < PLACES; i++) {
        if (!server.places[i].pid)
            return i;
        if (!server.shared->asks[i] && (found < 0 || server.places[i].number < server.places[found].number))
            found = i;
    }
    return found;
}

static void free_place(pid_t pid)
{
    for (unsigned i = 0; i < PLACES; i++)
        if (server.places[i].pid == pid)
            server.places[i].pid = 0;
}

static void note_ended(void)
{
    pid_t pid;

    while ((pid = waitpid(-1, NULL, WNOHANG)) > 0)
        free_place(pid);
}

static void end_place(unsigned place)
{
    if (!server.places[place].pid)
        return;
    kill(server.places[place].pid, SIGKILL);
    waitpid(server.places[place].pid, NULL, 0);
    server.places[place].pid = 0;
}

/* False: the kernel has nothing to give for now. */
static bool take_connection(unsigned place)
{
    const int fd = accept4(server.listener, NULL, NULL, SOCK_CLOEXEC);
    pid_t child;

    if (fd < 0)
        return errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM;
    end_place(place);
    server.shared->asks[place] = false;
    child = fork();
    if (child == 0)
        serve(fd, place);
    if (child < 0)
        command_complain("no process can be started for a connection: %s", strerror(errno));
    close(fd);
    server.places[place].pid = child > 0 ? child : 0;
    server.places[place].number = server.connections++;
    return child > 0;
}

static void turn(const sigset_t *waiting)
{
    static const struct timespec second = {1, 0}; /* after it, who asked may be spared */
    const int place = find_place();
    struct pollfd next = {.fd = place < 0 ? -1 : server.listener, .events = POLLIN};
    const int ready = ppoll(&next, 1, place < 0 ? &second : NULL, waiting);

    note_ended();
    if (ready > 0 && (server.places[place].pid == 0 || !server.shared->asks[place]) && !take_connection((unsigned)place))
        ppoll(NULL, 0, &second, waiting);
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

/* What the children share. False, and said: there is no memory for it. */
static bool make_shared(void)
{
    server.shared = mmap(NULL, sizeof *server.shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    server.text = (int)syscall(SYS_memfd_create, "gpushim export", MFD_CLOEXEC);
    if (server.shared != MAP_FAILED && server.text >= 0)
        return true;
    command_complain("there is no memory left: %s", strerror(errno));
    return false;
}

/* `ret_waiting` has those signals that end it alone while it waits: else one could come just before that. */
static void hear_signals(sigset_t *ret_waiting)
{
    static const struct {
        int number;
        void (*handler)(int);
    } heard[] = {{SIGTERM, on_end}, {SIGINT, on_end}, {SIGCHLD, on_child}};
    sigset_t held;

    sigemptyset(&held);
    for (size_t i = 0; i < sizeof heard / sizeof *heard; i++) {
        sigaction(heard[i].number, &(struct sigaction){.sa_handler = heard[i].handler}, NULL);
        sigaddset(&held, heard[i].number);
    }
    sigprocmask(SIG_BLOCK, &held, ret_waiting);
    for (size_t i = 0; i < sizeof heard / sizeof *heard; i++)
        sigdelset(ret_waiting, heard[i].number);
    signal(SIGPIPE, SIG_IGN);
}

int export_serve(const struct call *call, const char *where)
{
    struct gs_share_options options;
    struct addrinfo *address = read_address(where);
    sigset_t waiting;
    bool well;

    server.call = call;
    if (!address)
        return call_wrong(call, "--listen takes ADDRESS:PORT, and not '%s'; as 127.0.0.1:9465, :9465 or [::1]:9465", where);
    well = command_share_options(&options) && make_shared() && start_listening(where, address);
    freeaddrinfo(address);
    if (!well)
        return COMMAND_WRONG;
    hear_signals(&waiting);
    if (!say_where())
        command_complain("where it serves cannot be written: %s", strerror(errno));
    while (!ended)
        turn(&waiting);
    for (unsigned i = 0; i < PLACES; i++)
        end_place(i); /* one that has just begun still has the listener, too */
    return COMMAND_WELL;
}
