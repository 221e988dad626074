/* Asking the processes in the folder (ask.h). */
#include "shim/command/ask.h"

#include <dirent.h>
#include <pwd.h>

#include "core/base/printable.h"
#include "core/share/directory.h"
#include "core/share/alive.h"

/* Whose turn it is, and what is left of it. */
static struct {
    uint64_t user_end_ns, end_ns; /* the user's; and that of the one who is visited, no later */
    unsigned sockets, left,
        busy;      /* of the user: visited; not visited; and those that took no connection */
    bool any_left; /* of any user */
} turn = {.user_end_ns = UINT64_MAX, .end_ns = UINT64_MAX};

uint64_t ask_deadline(uint64_t ns)
{
    uint64_t deadline = gs_now_ns() + ns;

    return deadline < turn.end_ns ? deadline : turn.end_ns;
}

bool ask_left_out(void)
{
    return turn.any_left;
}

void ask_aside(void (*what)(void *arg), void *arg)
{
    const uint64_t user_end = turn.user_end_ns, end = turn.end_ns, began = gs_now_ns();

    turn.user_end_ns = turn.end_ns = UINT64_MAX;
    what(arg);
    turn.user_end_ns = user_end == UINT64_MAX ? user_end : user_end + gs_now_ns() - began;
    turn.end_ns = end == UINT64_MAX ? end : end + gs_now_ns() - began;
}

void ask_within(uint64_t ns)
{
    turn.end_ns = gs_now_ns() + ns;
}

int ask_tell(int fd, const union gs_wire_message *message)
{
    int error = gs_now_ns() < turn.end_ns ? gs_wire_send(fd, message, -1) : -ETIMEDOUT;

    return error == -EPIPE ? 0 : error; /* what made it hang up may lie there */
}

int ask_send(int fd, const struct gs_wire_query *what)
{
    union gs_wire_message query;

    gs_wire_start(&query, GS_WIRE_QUERY, what->index + 1);
    memcpy((char *)&query + sizeof query.head, (const char *)what + sizeof query.head,
           sizeof *what - sizeof query.head);
    return ask_tell(fd, &query);
}

int ask_hear(int fd, uint64_t deadline_ns, enum gs_wire_type type,
             union gs_wire_message *ret_answer, int *ret_pidfd)
{
    int pidfd = -1, error;

    if (!gs_conn_has_more(fd) && gs_conn_wait(fd, -1, false, deadline_ns) != GS_CONN_READY)
        return -ETIMEDOUT;
    error = gs_wire_receive(fd, ret_answer, &pidfd);
    if (ret_pidfd)
        *ret_pidfd = pidfd;
    else
        gs_fd_drop(pidfd);
    if (!error && ret_answer->head.type == GS_WIRE_REFUSE)
        return -ENOMSG;
    return !error && ret_answer->head.type != type ? -EPROTO : error;
}

int ask_about(int fd, const struct gs_wire_query *what, union gs_wire_message *ret_answer,
              int *ret_pidfd)
{
    int error = ask_send(fd, what);

    return error ? error
                 : ask_hear(fd, ask_deadline(ANSWER_NS), GS_WIRE_REPORT, ret_answer, ret_pidfd);
}

int ask(int fd, uint32_t index, uint32_t device, union gs_wire_message *ret_answer, int *ret_pidfd)
{
    return ask_about(fd, &(struct gs_wire_query){.index = index, .device = device}, ret_answer,
                     ret_pidfd);
}

void ask_order_silence(char *ret_reason, size_t size, int error,
                       const union gs_wire_message *answer)
{
    if (error == -ENOMSG && answer->refuse.reason == GS_REFUSED_USER)
        snprintf(ret_reason, size, "belongs to another user");
    else
        ask_silence(ret_reason, size, error, answer);
}

void ask_complain_of_absent(long pid, struct json *json)
{
    const char *why =
        "cannot be asked: it holds less than 64 MiB and neither shares nor opens memory, "
        "has debug.reclaim_from_peers off, or has another share.dir (gpushim stats)";
    struct user owner;
    struct who who;

    if (!user_of_process(pid, &owner))
        why = "is not there, as far as can be seen from here";
    else if (geteuid() != 0 && owner.uid != geteuid())
        why = "belongs to another user: ask as that one, or as root";
    else if (!who_has_library(pid))
        why = "has not the library: gpushim run starts programs with it";
    command_complain("process %ld %s", pid, why);
    who_fill(&who, pid, (uint64_t)pid, "");
    json_open(json, NULL, '{');
    who_write(json, &who);
    json_text(json, "silent", why);
    json_close(json, '}');
}

bool ask_is_broker(const char *name)
{
    size_t length = strlen(GS_BROKER_NAME);

    return strncmp(name, GS_BROKER_NAME, length) == 0 &&
           (name[length] == 0 || (name[length] == '.' && strlen(name) < GS_BROKER_NAME_SIZE));
}

/* Where the process runs, if that is another control group than this one's: the last part of its
 * path, by which runtimes of containers name theirs. "" where it is the same, or not to be seen. */
static const char *container_of(long pid)
{
    static char own[512], line[512];
    const char *name;

    command_read_of(getpid(), "cgroup", own, sizeof own);
    command_read_of(pid, "cgroup", line, sizeof line);
    own[strcspn(own, "\n")] = line[strcspn(line, "\n")] = 0;
    name = strrchr(line, '/');
    return name && own[0] && strcmp(own, line) != 0 ? name + 1 : "";
}

/* The name of its host by its environment: of a pod that is the pod's. "": it may not be read. */
static void host_of(long pid, char ret_name[64])
{
    char text[4096];
    const size_t got = command_read_of(pid, "environ", text, sizeof text);

    ret_name[0] = 0;
    for (const char *at = text; at < text + got; at += strlen(at) + 1)
        if (strncmp(at, "HOSTNAME=", 9) == 0)
            snprintf(ret_name, 64, "%.63s", at + 9);
}

/* A container's number is 64 hexadecimal digits, which nobody reads: its host's name, where it was
 * given one, or its engine's and the first of them. */
static void place_of(long pid, const char *container, char ret[80])
{
    const char *number = container;
    char host[64];
    int engine;

    while (*number && strspn(number, "0123456789abcdef") < 64)
        number++;
    engine = (int)(number - container);
    host_of(pid, host);
    if (!*number)
        snprintf(ret, 80, "%.79s", container);
    else if (host[0] && strncmp(number, host, strlen(host)) != 0)
        snprintf(ret, 80, "%s", host);
    else if (engine > 0 && engine < 40 && number[-1] == '-')
        snprintf(ret, 80, "%.*s %.12s", engine - 1, container, number);
    else
        snprintf(ret, 80, "%.12s", number);
}

const char *user_text(uid_t uid, char ret[32])
{
    static uid_t last = (uid_t)-1;
    static char name[32];

    if (uid != last) {
        const struct passwd *entry = getpwuid(uid);

        last = uid;
        if (entry)
            snprintf(name, sizeof name, "%.31s", entry->pw_name);
        else
            snprintf(name, sizeof name, "%u", (unsigned)last);
    }
    return memcpy(ret, name, sizeof name);
}

/* With a blank between words. */
static void command_of(long pid, const char *name, char ret[256])
{
    char text[1024];
    const size_t got = command_read_of(pid, "cmdline", text, sizeof text);
    size_t begin = 0;

    for (size_t i = 0; i < got && text[i]; i++)
        if (text[i] == '/')
            begin = i + 1;
    for (size_t i = begin; i + 1 < got; i++)
        if (!text[i])
            text[i] = ' ';
    gs_printable(text[begin] ? text + begin : name, strlen(text[begin] ? text + begin : name), ret,
                 256);
}

void who_fill(struct who *who, long pid, uint64_t told, const char *name)
{
    struct user user;

    *who = (struct who){.pid = pid, .told = told};
    snprintf(who->name, sizeof who->name, "%.15s", name);
    if (!name[0])
        command_read_of(pid, "comm", who->name, sizeof who->name);
    command_of(pid, who->name, who->command);
    if (!pid)
        return;
    who->stopped = gs_alive_is_stopped((pid_t)pid);
    snprintf(who->container, sizeof who->container, "%.255s", container_of(pid));
    place_of(pid, who->container, who->place);
    if (user_of_process(pid, &user))
        user_text(user.uid, who->user);
}

bool who_counts_alike(const struct who *who)
{
    return who->pid && (uint64_t)who->pid == who->told;
}

void who_fill_told(struct who *who, const struct who *teller, int pidfd, bool saw, uint64_t told,
                   const char *name)
{
    long pid = gs_alive_pid_of(pidfd);

    if (!pid && saw && who_counts_alike(teller))
        pid = (long)told;
    who_fill(who, pid, told, name);
}

void ask_silence(char *ret_reason, size_t size, int error, const union gs_wire_message *answer)
{
    if (error == -EPROTONOSUPPORT)
        snprintf(ret_reason, size, "is of " GS_WIRE_VERSION_TEXT "; its own gpushim lists it",
                 (unsigned)answer->head.version, GS_WIRE_VERSION);
    else if (error == -ENOMSG)
        snprintf(ret_reason, size, "does not tell: %s", gs_wire_reason_text(answer->refuse.reason));
    else if (error == -EPROTO)
        snprintf(ret_reason, size, "gives an answer that this version does not know");
    else if (error == -ETIMEDOUT)
        snprintf(ret_reason, size, "does not answer");
    else
        snprintf(ret_reason, size, "has ended, or closed the connection");
}

static bool is_socket(const char *name)
{
    return ask_is_broker(name) || (strlen(name) == GS_SOCKET_NAME_SIZE - 1 &&
                                   strspn(name, "0123456789abcdef") == GS_SOCKET_NAME_SIZE - 1);
}

struct who_shown who_shown(const struct who *who)
{
    struct who_shown shown;

    if (who->pid)
        snprintf(shown.text, sizeof shown.text, "pid %ld%s%s (%s)", who->pid,
                 who->place[0] ? " in " : "", who->place, who->name);
    else
        snprintf(shown.text, sizeof shown.text, "pid %llu of another PID namespace (%s)",
                 (unsigned long long)who->told, who->name);
    return shown;
}

void who_write(struct json *json, const struct who *who)
{
    json_known(json, "pid", (uint64_t)who->pid);
    json_number(json, "own_pid", who->told);
    json_text(json, "name", who->name);
    json_text(json, "container", who->container[0] ? who->container : NULL);
    json_text(json, "place", who->place[0] ? who->place : NULL);
    json_text(json, "user", who->user[0] ? who->user : NULL);
    json_text(json, "command", who->command);
    json_bool(json, "stopped", who->stopped);
}

/* ---- Everybody's folders ---- */

/* What is done with everybody. */
struct round {
    const struct gs_share_options *options;
    const struct ask_time *time;
    ask_visit_fn *visit;
    void *arg;
};

/* One visit; false: the user has had their turn. */
static bool visit_one(const struct round *round, int directory, const char *name)
{
    const uint64_t now = gs_now_ns();
    struct who who;
    int fd;

    if (turn.sockets >= SOCKETS_OF_USER || now >= turn.user_end_ns)
        return false;
    turn.sockets++;
    turn.end_ns = now + round->time->each_ns < turn.user_end_ns ? now + round->time->each_ns
                                                                : turn.user_end_ns;
    fd = gs_directory_connect(directory, round->options, name,
                              turn.end_ns - now < ANSWER_NS ? turn.end_ns - now : ANSWER_NS);
    turn.busy += fd == -EAGAIN;
    if (fd >= 0) {
        who_fill(&who, gs_conn_who(fd).pid, 0, "");
        round->visit(round->arg, fd, name, &who);
        close(fd);
    }
    turn.end_ns = UINT64_MAX;
    return true;
}

static void complain_of_user(uid_t uid, const struct ask_time *time)
{
    if (turn.left)
        command_complain(
            "user %u: %u more sockets are not asked: one user has %u, and %llu s in all; end who does "
            "not answer",
            (unsigned)uid, turn.left, SOCKETS_OF_USER,
            (unsigned long long)(time->user_ns / GS_NS_PER_S));
    if (turn.busy)
        command_complain(
            "user %u: %u sockets take no connection: their processes are stopped, or at something else",
            (unsigned)uid, turn.busy);
    turn.any_left |= turn.left || turn.busy;
}

static unsigned each_of_user(const struct round *round, uid_t uid, char ret_reason[GS_REASON_SIZE])
{
    unsigned place = 0, folders = 0;
    int directory;

    turn.user_end_ns = gs_now_ns() + round->time->user_ns;
    turn.sockets = turn.left = turn.busy = 0;
    for (; (directory = gs_directory_next(round->options, &place, ret_reason)) >= 0; folders++) {
        DIR *names = fdopendir(directory);
        const struct dirent *entry;

        while (names && turn.left < SOCKETS_OF_USER && (entry = readdir(names)))
            if (is_socket(entry->d_name))
                turn.left += !visit_one(round, dirfd(names), entry->d_name);
        if (names)
            closedir(names);
        else
            close(directory);
    }
    turn.user_end_ns = UINT64_MAX;
    complain_of_user(uid, round->time);
    return folders;
}

/*
 * Root asks everybody's processes, those of each user as that user: the folders are as good for
 * root as for the user's own programs, the processes answer their own user, and nothing that a user
 * put there is touched with root's rights.
 */
static unsigned each_of_others(const struct round *round)
{
    char reason[GS_REASON_SIZE];
    struct users users;
    unsigned folders = 0;

    users_find(round->options, &users);
    for (unsigned i = 0; i < users.count; i++) {
        if (user_become(&users.of[i]))
            folders += each_of_user(round, users.of[i].uid, reason);
        user_back();
    }
    return folders;
}

/* Nothing is wrong with the places where this user's folder may be: it is in none of them. */
static bool nobody_shared(const struct gs_share_options *options)
{
    char path[GS_FOLDER_SIZE], reason[GS_REASON_SIZE];
    bool nobody = !options->dir[0] || access(options->dir, F_OK) == 0;

    for (unsigned n = 0; nobody && gs_directory_place(options, n, path); n++) {
        int directory = gs_directory_open_place(options, n, false, reason);

        nobody = directory >= 0 || errno == ENOENT || access(path, F_OK) != 0;
        gs_fd_drop(directory);
    }
    return nobody;
}

const char *ask_each(const struct ask_time *time, ask_visit_fn *visit, void *arg)
{
    static const struct ask_time usual = {2 * ANSWER_NS, 5 * ANSWER_NS};
    static char reason[GS_REASON_SIZE];
    struct gs_share_options *options;
    const char *wrong = command_share_options(&options);
    const struct round round = {options, time ? time : &usual, visit, arg};
    unsigned folders;

    if (wrong)
        return wrong;
    folders = each_of_user(&round, geteuid(), reason);
    if (geteuid() == 0)
        folders += each_of_others(&round);
    return folders || !reason[0] || nobody_shared(options) ? NULL : reason;
}
