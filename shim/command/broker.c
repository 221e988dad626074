/* gpushim broker: core/share without a GPU (core/share/broker.c), with the configuration of the user
 * who runs it. With --started it is the child of a process that shares; `gpushim-broker ps` is
 * gpushim who. */
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "core/share/directory.h"
#include "shim/command/command.h"

#define UNNEEDED_NS (10 * GS_NS_PER_S) /* or share.keep, where that is shorter */
#define FIRST_NS    (4 * GS_NS_PER_S)  /* and at least, for who started it (core/share/publish.c) */
#define LOOK_MS     250
#define ANSWER_NS   (2 * GS_NS_PER_S) /* for another broker */
#define FIRST_FD    3                 /* systemd's protocol */
#define WORDS_SIZE  4096

static volatile sig_atomic_t told_to_end;

static void on_signal(int number)
{
    told_to_end = number;
}

static void log_line(enum gs_log_level level, const void *place, const char *text)
{
    if (level <= (enum gs_log_level)command_config()->general.log)
        command_complain("%s", text);
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

/* What the starting program left open is none of ours. What it is to say goes to `words`, or
 * nowhere: -1. */
static void leave_behind(int words)
{
    int null = open("/dev/null", O_RDWR);
    long limit = sysconf(_SC_OPEN_MAX);

    if (words >= 0)
        dup2(words, STDERR_FILENO);
    for (int fd = 0; null >= 0 && fd < (words < 0 ? 3 : STDERR_FILENO); fd++)
        dup2(null, fd);
    if (syscall(SYS_close_range, 3u, ~0u, 0u) != 0)
        for (int fd = 3; fd < limit; fd++)
            close(fd);
    setsid();
    if (chdir("/") != 0)
        return; /* it only keeps a file system busy */
}

/* ---- Whose child it is ---------------------------------------------------------------------- */

/*
 * Whether who took this orphan (a launcher that is PID 1 or a subreaper) has no other child and
 * waits for one: all that it started has ended, and this broker is what it waits for. Where that
 * cannot be seen it is not so.
 */
static bool is_waited_for_alone(void)
{
    char path[64], name[NAME_MAX + 16], text[256], own[16];
    const pid_t parent = getppid();
    const struct dirent *entry;
    bool waits = false, is_child = false, alone = true;
    DIR *tasks;

    snprintf(path, sizeof path, "/proc/%d/task", (int)parent);
    snprintf(own, sizeof own, "%d ", (int)getpid());
    tasks = parent > 0 ? opendir(path) : NULL;
    while (tasks && alone && (entry = readdir(tasks))) {
        if (entry->d_name[0] == '.')
            continue;
        snprintf(name, sizeof name, "task/%s/children", entry->d_name);
        if (command_read_of(parent, name, text, sizeof text))
            alone = is_child = strcmp(text, own) == 0;
        snprintf(name, sizeof name, "task/%s/wchan", entry->d_name);
        command_read_of(parent, name, text, sizeof text);
        waits |= strstr(text, "do_wait") != NULL;
    }
    if (tasks)
        closedir(tasks);
    return waits && is_child;
}

/* For how long nobody may need it. */
struct patience {
    uint64_t limit_ns, first_ns; /* as long as nobody has come: since began_ns */
    uint64_t began_ns, since_ns;
    unsigned looks;
};

/* Whether nobody has needed it for so long. Looks count, not the clock: where this process stood
 * still, those who need it may have waited as long. */
static bool is_unneeded(struct gs_share *share, struct patience *patience)
{
    uint64_t since = gs_share_unneeded_since(share);
    uint64_t limit = since == patience->began_ns ? patience->first_ns : patience->limit_ns;

    patience->looks = since == patience->since_ns ? patience->looks + 1 : 0;
    patience->since_ns = since;
    return since && patience->looks * (LOOK_MS * GS_NS_PER_MS) >= limit &&
           gs_share_end_unneeded(share, since);
}

/* Serves until it is told to end; where a process that shares has started it also until it is
 * needed no more, or keeps a launcher from its end. */
static int serve(const struct gs_share_options *options, bool until_unneeded, bool tell)
{
    static struct gs_map map;
    static struct gs_fences fences;
    const struct gs_log log = {.line = log_line};
    const struct gs_share_events events = {.lease_ended = nothing_to_do};
    const struct sigaction act = {.sa_handler = on_signal};
    struct rlimit files;
    sigset_t none;
    struct patience patience = {
        .limit_ns = options->keep_ns < UNNEEDED_NS ? options->keep_ns : UNNEEDED_NS,
    };
    struct gs_share *share;
    int waited_for = 0;

    patience.first_ns = patience.limit_ns < FIRST_NS ? FIRST_NS : patience.limit_ns;
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
    if (gs_share_create(&gs_broker_driver, &map, &fences, &log, options, &events, &share) != GS_OK)
        return 1;
    patience.began_ns = gs_share_unneeded_since(share);
    if (gs_share_serve(share) != GS_OK)
        return 1;
    if (tell && write(STDERR_FILENO, "", 1) == 1)
        dup2(STDOUT_FILENO, STDERR_FILENO);
    while (!told_to_end) {
        if (until_unneeded && is_unneeded(share, &patience))
            break;
        waited_for = until_unneeded && is_waited_for_alone() ? waited_for + 1 : 0;
        if (waited_for >= 2) /* not only between one of its processes and the next */
            break;
        poll(NULL, 0, LOOK_MS);
    }
    gs_share_destroy(share);
    return 0;
}

static bool another_listens(const struct gs_share_options *options)
{
    char name[GS_BROKER_NAME_SIZE], reason[GS_REASON_SIZE];
    int fd = -1, directory;
    unsigned place = 0;

    gs_broker_name(name);
    while (fd < 0 && (directory = gs_directory_next(options, &place, reason)) >= 0)
        fd = gs_directory_connect(directory, options, name, ANSWER_NS);
    return fd >= 0;
}

/* The parent returns once the child listens, or has found that another broker does. Until then the
 * child's words come to the parent, then a zero: they are said where none listens. */
static int serve_detached(const struct gs_share_options *options)
{
    char words[WORDS_SIZE];
    size_t length = 0;
    int ready[2];
    pid_t child;
    ssize_t got;

    if (pipe2(ready, O_CLOEXEC) != 0 || (child = fork()) < 0)
        return command_complain("it cannot be started: %s", strerror(errno)), COMMAND_WRONG;
    if (child == 0) {
        leave_behind(ready[1]);
        return serve(options, true, true);
    }
    close(ready[1]);
    while ((got = read(ready[0], words + length, sizeof words - length)) > 0) {
        if (memchr(words + length, 0, (size_t)got))
            return COMMAND_WELL;
        length += (size_t)got;
        if (length == sizeof words) /* what it says first is the cause */
            length--;
    }
    if (another_listens(options))
        return COMMAND_WELL;
    if (length == 0)
        command_complain("it has ended before it listened");
    fwrite(words, 1, length, stderr);
    return COMMAND_WRONG;
}

int command_broker(const struct call *call)
{
    struct gs_share_options *options;
    const char *wrong = command_share_options(&options);

    if (call_has(call, "version"))
        return command_say("%s %s", command_program, GS_VERSION);
    if (call->argc && strcmp(call->argv[0], "ps") != 0)
        return call_wrong(call, "broker does not know '%s'", call->argv[0]);
    if (call->argc)
        return command_who(&(struct call){.command = command_find("who")});
    if (wrong)
        return command_complain("%s", wrong), COMMAND_WRONG;
    if (call_has(call, "detach"))
        return serve_detached(options);
    if (call_has(call, "started")) /* by a process that shares, which looks itself when it serves */
        return leave_behind(-1), serve(options, true, false);
    options->listen_fd = activated_socket();
    return serve(options, options->listen_fd >= 0, false);
}
