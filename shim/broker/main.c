/*
 * gpushim-broker: keeps what processes share beyond their end (core/share/broker.c), and shows who
 * holds what. It is core/share without a GPU, and like the shim it joins core with the
 * configuration of the user who runs it.
 *
 *   gpushim-broker           in the foreground, until a signal; by systemd: the socket it is given
 *   gpushim-broker --detach  in the background once it listens; ends when nobody needs it
 *   gpushim-broker --started the same as a child of a process that shares, which is all it forks
 *   gpushim-broker ps        lists the processes that share, and who holds what of theirs
 *   gpushim-broker --help, --version
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "config/config.h"
#include "core/share/directory.h"
#include "core/share/internal.h"

#define UNNEEDED_NS  (10 * GS_NS_PER_S) /* or share.keep, where that is shorter */
#define LOOK_MS      250
#define ANSWER_NS    (2 * GS_NS_PER_S) /* for one of those that are listed */
#define FIRST_FD     3 /* systemd's protocol */
#define REPORTS_MAX  65536

static volatile sig_atomic_t told_to_end;

static void on_signal(int number)
{
    told_to_end = number;
}

static void complain(void *arg, const char *line)
{
    fprintf(stderr, "gpushim-broker: %s\n", line);
}

static enum gs_log_level threshold = GS_LOG_WARNING;

static void log_line(enum gs_log_level level, const void *place, const char *text)
{
    if (level <= threshold)
        complain(NULL, text);
}

static bool read_options(struct gs_share_options *options)
{
    static struct gs_config config;
    struct gs_config_sources sources = {.environment = environ,
                                        .system_files = gs_config_system_files};
    const char *dir;

    gs_config_load(&config, &sources, complain, NULL);
    threshold = (enum gs_log_level)config.general.log;
    dir = config.share.dir.text;
    *options = (struct gs_share_options){.enable = true,
                                         .is_broker = true,
                                         .listen_fd = -1,
                                         .settle_ns = config.share.settle,
                                         .timeout_ns = config.share.timeout,
                                         .keep_ns = config.share.keep,
                                         .published_max = (uint32_t)config.share.broker_blocks,
                                         .max_clients = (uint32_t)config.share.max_clients};
    for (size_t i = 0; i < config.share.uids.count; i++)
        options->uids[options->uid_count++] = (uid_t)config.share.uids.ids[i];
    for (size_t i = 0; i < config.share.gids.count; i++)
        options->gids[options->gid_count++] = (gid_t)config.share.gids.ids[i];
    if (snprintf(options->dir, sizeof options->dir, "%s", dir) >= (int)sizeof options->dir)
        return complain(NULL, "share.dir is too long for a socket; choose a shorter path"), false;
    return true;
}

/* ---- Serving -------------------------------------------------------------------------------- */

static void nothing_to_do(void *arg, uint64_t address)
{
}

/* The socket that systemd has opened for us, or -1. */
static int activated_socket(void)
{
    const char *pid = getenv("LISTEN_PID"), *count = getenv("LISTEN_FDS");

    if (!pid || !count || strtol(pid, NULL, 10) != (long)getpid() || strcmp(count, "1") != 0)
        return -1;
    fcntl(FIRST_FD, F_SETFD, FD_CLOEXEC);
    fcntl(FIRST_FD, F_SETFL, O_NONBLOCK);
    return FIRST_FD;
}

/* What the starting program left open is none of ours. */
static void leave_behind(void)
{
    int null = open("/dev/null", O_RDWR);
    long limit = sysconf(_SC_OPEN_MAX);

    for (int fd = 0; null >= 0 && fd < 3; fd++)
        dup2(null, fd);
    if (syscall(SYS_close_range, 3u, ~0u, 0u) != 0)
        for (int fd = 3; fd < limit; fd++)
            close(fd);
    setsid();
    if (chdir("/") != 0)
        return; /* it only keeps a file system busy */
}

/* ---- Whose child it is ---------------------------------------------------------------------- */

static bool read_of(pid_t pid, const char *task, const char *what, char *ret_text, size_t size)
{
    char path[128];
    int fd;
    ssize_t got;

    snprintf(path, sizeof path, "/proc/%d/task/%s/%s", (int)pid, task, what);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    got = fd < 0 ? -1 : read(fd, ret_text, size - 1);
    if (fd >= 0)
        close(fd);
    ret_text[got < 0 ? 0 : got] = 0;
    return got >= 0;
}

/*
 * Whether who took this orphan (a launcher that is PID 1 or a subreaper) has no other child and
 * waits for one: all that it started has ended, and this broker is what it waits for. Where that
 * cannot be seen it is not so.
 */
static bool is_waited_for_alone(void)
{
    char path[64], text[256], own[16];
    const pid_t parent = getppid();
    const struct dirent *entry;
    bool waits = false, alone = true;
    DIR *tasks;

    snprintf(path, sizeof path, "/proc/%d/task", (int)parent);
    snprintf(own, sizeof own, "%d ", (int)getpid());
    tasks = parent > 0 ? opendir(path) : NULL;
    while (tasks && alone && (entry = readdir(tasks))) {
        if (entry->d_name[0] == '.')
            continue;
        if (!read_of(parent, entry->d_name, "children", text, sizeof text))
            alone = false;
        else if (text[0] && strcmp(text, own) != 0)
            alone = false;
        if (read_of(parent, entry->d_name, "wchan", text, sizeof text) && strstr(text, "do_wait"))
            waits = true;
    }
    if (tasks)
        closedir(tasks);
    return waits && alone;
}

/* Whether nobody has needed it for so long. Looks count, not the clock: where this process stood
 * still, those who need it may have waited as long. */
static bool is_unneeded(struct gs_share *share, uint64_t limit, uint64_t *since, unsigned *looks)
{
    uint64_t now_since = gs_share_unneeded_since(share);

    *looks = now_since == *since ? *looks + 1 : 0;
    *since = now_since;
    return now_since && *looks * (LOOK_MS * GS_NS_PER_MS) >= limit &&
           gs_share_end_unneeded(share, now_since);
}

/* Serves until it is told to end; where a process that shares has started it also until it is needed
 * no more, or keeps a launcher from its end. */
static int serve(const struct gs_share_options *options, bool until_unneeded, int tell)
{
    static struct gs_map map;
    static struct gs_fences fences;
    const struct gs_log log = {.line = log_line};
    const struct gs_share_events events = {.lease_ended = nothing_to_do};
    const struct sigaction act = {.sa_handler = on_signal};
    struct rlimit files;
    sigset_t none;
    uint64_t limit = options->keep_ns < UNNEEDED_NS ? options->keep_ns : UNNEEDED_NS;
    struct gs_share *share;
    uint64_t since = 0;
    unsigned looks = 0;
    int waited_for = 0;

    signal(SIGPIPE, SIG_IGN); /* whoever started it, or reads its log, may be gone */
    sigaction(SIGTERM, &act, NULL);
    sigaction(SIGINT, &act, NULL);
    signal(SIGHUP, SIG_IGN);
    sigemptyset(&none); /* it was started by a thread that blocks them all */
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    prctl(PR_SET_NAME, "gpushim-broker");
    gs_map_init(&map);
    gs_fences_init(&fences, &gs_broker_driver);
    if (gs_share_create(&gs_broker_driver, &map, &fences, &log, options, &events, &share) !=
            GS_OK ||
        gs_share_serve(share) != GS_OK)
        return 1;
    if (tell >= 0 && write(tell, "", 1) == 1)
        close(tell);
    while (!told_to_end) {
        if (until_unneeded && is_unneeded(share, limit, &since, &looks))
            break;
        waited_for = until_unneeded && is_waited_for_alone() ? waited_for + 1 : 0;
        if (waited_for >= 2) /* not only between one of its processes and the next */
            break;
        poll(NULL, 0, LOOK_MS);
    }
    gs_share_destroy(share);
    return 0;
}

/* By a process that shares, which looks by itself when the socket is there. */
static int serve_started(const struct gs_share_options *options)
{
    leave_behind();
    return serve(options, true, -1);
}

/* The parent returns once the child listens, or has found that another broker does. */
static int serve_detached(const struct gs_share_options *options)
{
    char byte, name[GS_BROKER_NAME_SIZE], reason[GS_REASON_SIZE];
    int ready[2], fd = -1, directory;
    unsigned place = 0;
    pid_t child;

    leave_behind();
    if (pipe2(ready, O_CLOEXEC) != 0 || (child = fork()) < 0)
        return 1;
    if (child == 0) {
        close(ready[0]);
        return serve(options, true, ready[1]);
    }
    close(ready[1]);
    if (read(ready[0], &byte, 1) == 1)
        return 0;
    gs_broker_name(name);
    while (fd < 0 && (directory = gs_directory_next(options, &place, reason)) >= 0)
        fd = gs_directory_connect(directory, options, name, ANSWER_NS);
    return fd < 0;
}

/* ---- Listing -------------------------------------------------------------------------------- */

/* 0 with an answer: a REPORT or a REFUSE. -ETIMEDOUT: there is none; else as gs_wire_receive. What
 * the REPORT is about comes with its pidfd, the caller's, where who answers has one. */
static int ask(int fd, uint32_t index, union gs_wire_message *ret_answer, int *ret_pidfd)
{
    struct pollfd answer = {.fd = fd, .events = POLLIN};
    union gs_wire_message query;
    int ready, error;

    gs_wire_start(&query, GS_WIRE_QUERY, index + 1);
    query.query.index = index;
    *ret_pidfd = -1;
    error = gs_wire_send(fd, &query, -1);
    if (error && error != -EPIPE) /* what made it hang up may lie there */
        return error;
    do
        ready = poll(&answer, 1, (int)(ANSWER_NS / GS_NS_PER_MS));
    while (ready < 0 && errno == EINTR); /* it was stopped and goes on */
    if (ready != 1)
        return -ETIMEDOUT;
    error = gs_wire_receive(fd, ret_answer, ret_pidfd);
    if (!error && ret_answer->head.type != GS_WIRE_REPORT &&
        ret_answer->head.type != GS_WIRE_REFUSE)
        return -EPROTO;
    return error;
}

static bool is_broker(const char *name)
{
    size_t length = strlen(GS_BROKER_NAME);

    return strncmp(name, GS_BROKER_NAME, length) == 0 &&
           (name[length] == 0 || (name[length] == '.' && strlen(name) < GS_BROKER_NAME_SIZE));
}

/* The pid of who listens there as this process sees it; 0: it does not. */
static long pid_of_listener(int fd)
{
    return gs_conn_who(fd).pid;
}

/* The same of a process that there is a pidfd of. */
static long pid_of(int pidfd)
{
    char path[64], line[128];
    long pid = 0;
    FILE *file;

    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", pidfd);
    file = pidfd < 0 ? NULL : fopen(path, "re");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "Pid: %ld", &pid) == 1)
            break;
    if (file)
        fclose(file);
    return pid > 0 ? pid : 0;
}

/* Where the process runs, if that is another control group than this one's: the last part of its
 * path, by which runtimes of containers name theirs. "" where it is the same, or not to be seen. */
static const char *container_of(long pid)
{
    static char own[512], line[512];
    char path[64], *name;
    FILE *file;

    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "/proc/%ld/cgroup", i ? pid : (long)getpid());
        file = fopen(path, "re");
        if (!file)
            return "";
        if (!fgets(i ? line : own, sizeof own, file))
            own[0] = line[0] = 0;
        fclose(file);
    }
    if (strcmp(own, line) == 0)
        return "";
    line[strcspn(line, "\n")] = 0;
    name = strrchr(line, '/');
    for (char *c = line; *c; c++)
        if (*c < ' ' || *c > '~')
            *c = '?';
    return name ? name + 1 : "";
}

/* The kernel's number as this process sees it; or the one it gives itself, marked as that. */
static void print_pid(long seen, unsigned long long told)
{
    const char *container = seen ? container_of(seen) : "";

    if (seen && container[0])
        printf("pid %ld in %s", seen, container);
    else if (seen)
        printf("pid %ld", seen);
    else
        printf("pid %llu of another PID namespace", told);
}

/* Who listens there, where the kernel can tell. */
static void print_who(int fd, const char *name)
{
    long pid = pid_of_listener(fd);

    printf("%s ", is_broker(name) ? "broker" : "process");
    if (pid)
        print_pid(pid, 0);
    else
        printf("of another PID namespace (%s)", name);
}

/* Why somebody who listens there is not listed, or not wholly. */
static void print_silent(int fd, const char *name, int error, const union gs_wire_message *answer)
{
    print_who(fd, name);
    if (error == -EPROTONOSUPPORT)
        printf(": is of " GS_WIRE_VERSION_TEXT "; its own gpushim-broker lists it\n",
               (unsigned)answer->head.version, GS_WIRE_VERSION);
    else if (error == 0)
        printf(": does not tell: %s\n", gs_wire_reason_text(answer->refuse.reason));
    else if (error == -EPROTO)
        printf(": gives an answer that this version does not know\n");
    else if (error == -ETIMEDOUT)
        printf(": does not answer\n");
    else
        printf(": hangs up\n");
}

static unsigned long long in_kib(uint64_t bytes)
{
    return (unsigned long long)(bytes + 1023) / 1024;
}

static unsigned long long in_seconds(uint64_t ns)
{
    return (unsigned long long)(ns / GS_NS_PER_S);
}

/* Without a pidfd (an old kernel, a process that has ended) the number counts that who answers sees,
 * if his is the one that is seen here. */
static void print_client(const struct gs_wire_report *report, int pidfd, long listener)
{
    long pid = pid_of(pidfd);

    if (!pid && listener == (long)report->pid)
        pid = (long)report->client_pid;

    if (report->left) {
        printf("  from ");
        print_pid(pid, (unsigned long long)report->client_pid);
        printf(" (%.15s) for %llu s: %llu blocks left here\n", report->client_name,
               in_seconds(report->client_age_ns), (unsigned long long)report->left);
    }
    if (report->references) {
        printf("  held by ");
        print_pid(pid, (unsigned long long)report->client_pid);
        printf(" (%.15s): %llu blocks, %llu KiB, the longest for %llu s; of freed ones %llu, %llu "
               "KiB\n",
               report->client_name, (unsigned long long)report->references,
               in_kib(report->reference_bytes), in_seconds(report->reference_age_ns),
               (unsigned long long)report->limbo_references, in_kib(report->limbo_reference_bytes));
    }
    if (report->limbo_references)
        printf("    the oldest of these, block %llu of %llu KiB: held for %llu s, freed %llu s ago\n",
               (unsigned long long)report->limbo_block_id, in_kib(report->limbo_block_size),
               in_seconds(report->limbo_block_held_ns),
               in_seconds(report->limbo_block_freed_ns));
}

static void print_process(const struct gs_wire_report *report, int fd)
{
    printf("%s ", report->is_broker ? "broker" : "process");
    print_pid(pid_of_listener(fd), (unsigned long long)report->pid);
    printf(" (%.15s): %llu blocks shared, %llu KiB; freed and kept %llu, %llu KiB, the oldest for "
           "%llu s\n",
           report->name,
           (unsigned long long)report->exports, in_kib(report->bytes),
           (unsigned long long)report->limbo, in_kib(report->limbo_bytes),
           in_seconds(report->limbo_age_ns));
}

static void list_one(int directory, const struct gs_share_options *options, const char *name)
{
    int fd = gs_directory_connect(directory, options, name, ANSWER_NS);
    union gs_wire_message answer;
    uint32_t clients = 1;
    int pidfd;

    if (fd < 0)
        return;
    for (uint32_t i = 0; i < REPORTS_MAX && i <= clients; i++) {
        int error = ask(fd, i, &answer, &pidfd);

        if (error || answer.head.type != GS_WIRE_REPORT) {
            print_silent(fd, name, error, &answer);
            if (pidfd >= 0)
                close(pidfd);
            break;
        }
        gs_wire_printable(answer.report.name);
        gs_wire_printable(answer.report.client_name);
        if (i == 0)
            print_process(&answer.report, fd);
        clients = answer.report.clients;
        if (i < clients)
            print_client(&answer.report, pidfd, pid_of_listener(fd));
        if (pidfd >= 0)
            close(pidfd);
    }
    close(fd);
}

static bool is_ours(const char *name)
{
    return is_broker(name) ||
           (strlen(name) == GS_SOCKET_NAME_SIZE - 1 &&
            strspn(name, "0123456789abcdef") == GS_SOCKET_NAME_SIZE - 1);
}

static void list_all(int directory, const struct gs_share_options *options)
{
    DIR *names = fdopendir(dup(directory));
    const struct dirent *entry;

    if (!names) {
        complain(NULL, strerror(errno));
        return;
    }
    while ((entry = readdir(names)))
        if (is_ours(entry->d_name))
            list_one(directory, options, entry->d_name);
    closedir(names);
}

static int list(const struct gs_share_options *options)
{
    char reason[GS_REASON_SIZE];
    unsigned place = 0, looked = 0;
    int directory;

    for (; (directory = gs_directory_next(options, &place, reason)) >= 0; looked++) {
        list_all(directory, options);
        close(directory);
    }
    if (!looked)
        complain(NULL, reason);
    return !looked;
}

static const char usage[] =
    "usage: gpushim-broker [--detach | ps | --help | --version]\n"
    "Keeps GPU memory that processes share by libgpushim beyond their end.\n"
    "  (nothing)   serves in the foreground, until SIGTERM or SIGINT; under systemd, the socket it is\n"
    "              given\n"
    "  --detach    serves in the background, until nobody needs it\n"
    "  ps          lists the processes that share, and who holds what of theirs\n"
    "It goes by the configuration of the user who runs it: GPUSHIM_SHARE_DIR names the folder of the\n"
    "sockets.\n";

int main(int argc, char **argv)
{
    struct gs_share_options options;

    if (argc == 2 && strcmp(argv[1], "--help") == 0)
        return printf("%s", usage) < 0;
    if (argc == 2 && strcmp(argv[1], "--version") == 0)
        return printf("gpushim-broker %s\n", GS_VERSION) < 0;
    if (!read_options(&options))
        return 1;
    if (argc == 2 && strcmp(argv[1], "ps") == 0)
        return list(&options);
    if (argc == 2 && strcmp(argv[1], "--detach") == 0)
        return serve_detached(&options);
    if (argc == 2 && strcmp(argv[1], "--started") == 0)
        return serve_started(&options);
    if (argc != 1) {
        fputs(usage, stderr);
        return 2;
    }
    options.listen_fd = activated_socket();
    return serve(&options, options.listen_fd >= 0, -1);
}
