/*
 * gpushim-broker: keeps what processes share beyond their end (core/share/broker.c), and shows who
 * holds what. It is core/share without a GPU, and like the shim it joins core with the
 * configuration of the user who runs it.
 *
 *   gpushim-broker           in the foreground, until a signal; by systemd: the socket it is given
 *   gpushim-broker --detach  in the background once it listens; ends when nobody needs it
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
#include <time.h>
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
                                         .left_max = (uint32_t)config.share.broker_blocks,
                                         .max_clients = (uint32_t)config.share.max_clients};
    for (size_t i = 0; i < config.share.uids.count; i++)
        options->uids[options->uid_count++] = (uid_t)config.share.uids.ids[i];
    for (size_t i = 0; i < config.share.gids.count; i++)
        options->gids[options->gid_count++] = (gid_t)config.share.gids.ids[i];
    if (!dir[0])
        gs_directory_default(options->dir, sizeof options->dir);
    else if (snprintf(options->dir, sizeof options->dir, "%s", dir) >= (int)sizeof options->dir)
        return complain(NULL, "share.dir is too long for a socket; choose a shorter path"), false;
    return true;
}

/* ---- Serving -------------------------------------------------------------------------------- */

static void nothing_to_do(void *arg)
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

/* Serves until it is told to end, or is needed no more where `until_unneeded`. */
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
        uint64_t since = gs_share_unneeded_since(share);

        if (until_unneeded && since && gs_now() - since >= limit)
            break;
        poll(NULL, 0, LOOK_MS);
    }
    gs_share_destroy(share);
    return 0;
}

/* The parent returns once the child listens, or has found that another broker does. */
static int serve_detached(const struct gs_share_options *options)
{
    int ready[2], fd = -1;
    char byte;
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
    fd = open(options->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    fd = fd < 0 ? -1 : gs_directory_connect(fd, options, GS_BROKER_NAME, ANSWER_NS);
    return fd < 0;
}

/* ---- Listing -------------------------------------------------------------------------------- */

/* 0 with an answer: a REPORT or a REFUSE. -ETIMEDOUT: there is none; else as gs_wire_receive. */
static int ask(int fd, uint32_t index, union gs_wire_message *ret_answer)
{
    struct pollfd answer = {.fd = fd, .events = POLLIN};
    union gs_wire_message query;
    int ready, error;

    gs_wire_start(&query, GS_WIRE_QUERY, index + 1);
    query.query.index = index;
    error = gs_wire_send(fd, &query, -1);
    if (error && error != -EPIPE) /* what made it hang up may lie there */
        return error;
    do
        ready = poll(&answer, 1, (int)(ANSWER_NS / GS_NS_PER_MS));
    while (ready < 0 && errno == EINTR); /* it was stopped and goes on */
    if (ready != 1)
        return -ETIMEDOUT;
    error = gs_wire_receive(fd, ret_answer, NULL);
    if (!error && ret_answer->head.type != GS_WIRE_REPORT &&
        ret_answer->head.type != GS_WIRE_REFUSE)
        return -EPROTO;
    return error;
}

/* Who listens there, where the kernel can tell. */
static void print_who(int fd, const char *name)
{
    struct ucred who = {.pid = 0};
    socklen_t size = sizeof who;

    printf("%s ", strcmp(name, GS_BROKER_NAME) == 0 ? "broker" : "process");
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size) == 0 && who.pid > 0)
        printf("pid %d", (int)who.pid);
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

static void print_client(const struct gs_wire_report *report)
{
    if (report->left)
        printf("  from pid %llu (%.15s) for %llu s: %llu blocks left here\n",
               (unsigned long long)report->client_pid, report->client_name,
               in_seconds(report->client_age_ns), (unsigned long long)report->left);
    if (report->holds)
        printf("  held by pid %llu (%.15s): %llu blocks, %llu KiB, the longest for %llu s; of "
               "freed ones %llu, %llu KiB\n",
               (unsigned long long)report->client_pid, report->client_name,
               (unsigned long long)report->holds, in_kib(report->hold_bytes),
               in_seconds(report->hold_age_ns), (unsigned long long)report->limbo_holds,
               in_kib(report->limbo_hold_bytes));
    if (report->limbo_holds)
        printf("    the oldest of these, block %llu of %llu KiB: held for %llu s, freed %llu s ago\n",
               (unsigned long long)report->limbo_block_id, in_kib(report->limbo_block_size),
               in_seconds(report->limbo_block_held_ns),
               in_seconds(report->limbo_block_freed_ns));
}

static void print_process(const struct gs_wire_report *report)
{
    printf("%s pid %llu (%.15s): %llu blocks shared, %llu KiB; freed and kept %llu, %llu KiB, the "
           "oldest for %llu s\n",
           report->is_broker ? "broker" : "process", (unsigned long long)report->pid, report->name,
           (unsigned long long)report->offers, in_kib(report->bytes),
           (unsigned long long)report->limbo, in_kib(report->limbo_bytes),
           in_seconds(report->limbo_age_ns));
}

static void list_one(int directory, const struct gs_share_options *options, const char *name)
{
    int fd = gs_directory_connect(directory, options, name, ANSWER_NS);
    union gs_wire_message answer;
    uint32_t clients = 1;

    if (fd < 0)
        return;
    for (uint32_t i = 0; i < REPORTS_MAX && i <= clients; i++) {
        int error = ask(fd, i, &answer);

        if (error || answer.head.type != GS_WIRE_REPORT) {
            print_silent(fd, name, error, &answer);
            break;
        }
        gs_wire_printable(answer.report.name);
        gs_wire_printable(answer.report.client_name);
        if (i == 0)
            print_process(&answer.report);
        clients = answer.report.clients;
        if (i < clients)
            print_client(&answer.report);
    }
    close(fd);
}

static bool is_ours(const char *name)
{
    return strcmp(name, GS_BROKER_NAME) == 0 ||
           (strlen(name) == GS_SOCKET_NAME_SIZE - 1 &&
            strspn(name, "0123456789abcdef") == GS_SOCKET_NAME_SIZE - 1);
}

static int list(const struct gs_share_options *options)
{
    char reason[GS_REASON_SIZE];
    int directory = gs_directory_open(options, false, reason);
    DIR *names = directory < 0 ? NULL : fdopendir(dup(directory));
    const struct dirent *entry;

    if (!names) {
        complain(NULL, directory < 0 ? reason : strerror(errno));
        return 1;
    }
    while ((entry = readdir(names)))
        if (is_ours(entry->d_name))
            list_one(directory, options, entry->d_name);
    closedir(names);
    close(directory);
    return 0;
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
    if (argc != 1) {
        fputs(usage, stderr);
        return 2;
    }
    options.listen_fd = activated_socket();
    return serve(&options, options.listen_fd >= 0, -1);
}
