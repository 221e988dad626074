/* Asking the processes in the folder (ask.h). */
#include "shim/command/ask.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/share/directory.h"
#include "shim/command/command.h"
#include "shim/command/figures.h"

#define USERS_MAX 4096
#define EARLY_NS  (5 * GS_NS_PER_MS) /* who does not look for a block yet is asked again */
#define LATE_NS   (100 * GS_NS_PER_MS) /* for each that is asked when the time of all is over */

uint64_t ask_until(uint64_t deadline_ns)
{
    uint64_t late = gs_now_ns() + LATE_NS;

    return deadline_ns > late ? deadline_ns : late;
}

/* Whether something came; whoever is asked ends the wait, or the deadline does. */
static bool has_come(int fd, uint64_t deadline_ns)
{
    struct pollfd answer = {.fd = fd, .events = POLLIN};
    int ready;

    do {
        uint64_t now = gs_now_ns();

        ready = poll(&answer, 1, deadline_ns > now ? (int)((deadline_ns - now) / GS_NS_PER_MS) : 0);
    } while (ready < 0 && errno == EINTR); /* it was stopped and goes on */
    return ready == 1;
}

static int send_to(int fd, const union gs_wire_message *message)
{
    int error = gs_wire_send(fd, message, -1);

    return error == -EPIPE ? 0 : error; /* what made it hang up may lie there */
}

int ask_send(int fd, uint32_t index, uint32_t device)
{
    union gs_wire_message query;

    gs_wire_start(&query, GS_WIRE_QUERY, index + 1);
    query.query.index = index;
    query.query.device = device;
    return send_to(fd, &query);
}

int ask_hear(int fd, uint64_t deadline_ns, union gs_wire_message *ret_answer, int *ret_pidfd)
{
    int error;

    *ret_pidfd = -1;
    if (!has_come(fd, deadline_ns))
        return -ETIMEDOUT;
    error = gs_wire_receive(fd, ret_answer, ret_pidfd);
    if (!error && ret_answer->head.type != GS_WIRE_REPORT &&
        ret_answer->head.type != GS_WIRE_REFUSE)
        return -EPROTO;
    return error;
}

int ask(int fd, uint32_t index, uint32_t device, union gs_wire_message *ret_answer, int *ret_pidfd)
{
    int error = ask_send(fd, index, device);

    *ret_pidfd = -1;
    return error ? error : ask_hear(fd, gs_now_ns() + ANSWER_NS, ret_answer, ret_pidfd);
}

int ask_find(int fd, const struct gs_wire_find *find, union gs_wire_message *ret_answer,
             int *ret_pidfd)
{
    const uint64_t deadline = gs_now_ns() + ANSWER_NS;
    union gs_wire_message message = {.find = *find};
    int error;

    gs_wire_start(&message, GS_WIRE_FIND, find->index + 1);
    message.find.index = find->index;
    message.find.by_address = find->by_address;
    message.find.number = find->number;
    memcpy(message.find.instance, find->instance, sizeof find->instance);
    do {
        *ret_pidfd = -1;
        error = send_to(fd, &message);
        if (error)
            return error;
        if (!has_come(fd, deadline))
            return -ETIMEDOUT;
        error = gs_wire_receive(fd, ret_answer, ret_pidfd);
        if (!error && ret_answer->head.type != GS_WIRE_FOUND &&
            ret_answer->head.type != GS_WIRE_REFUSE)
            return -EPROTO;
        if (error || ret_answer->head.type != GS_WIRE_FOUND || !ret_answer->found.is_early)
            return error;
        gs_rest_ns(EARLY_NS);
    } while (gs_now_ns() < deadline); /* others ask it for addresses without end */
    return -ETIMEDOUT;
}

int ask_for(int fd, const union gs_wire_message *message, enum gs_wire_type type,
            union gs_wire_message *ret_answer)
{
    int error = send_to(fd, message);

    if (error)
        return error;
    if (!has_come(fd, gs_now_ns() + ANSWER_NS))
        return -ETIMEDOUT;
    error = gs_wire_receive(fd, ret_answer, NULL);
    if (!error && ret_answer->head.type != type && ret_answer->head.type != GS_WIRE_REFUSE)
        return -EPROTO;
    return error;
}

int ask_of_ended(int fd, uint64_t deadline_ns, uint32_t number, uint32_t device,
                 union gs_wire_message *ret_answer)
{
    union gs_wire_message query;
    int pidfd, error;

    gs_wire_start(&query, GS_WIRE_QUERY, number);
    query.query.index = number;
    query.query.device = device;
    query.query.farewell = 1;
    error = send_to(fd, &query);
    if (error)
        return error;
    error = ask_hear(fd, deadline_ns, ret_answer, &pidfd);
    if (pidfd >= 0)
        close(pidfd);
    return error;
}

void ask_order_silence(char *ret_reason, size_t size, int error,
                       const union gs_wire_message *answer)
{
    if (!error && answer->head.type == GS_WIRE_REFUSE && answer->refuse.reason == GS_REFUSED_USER)
        snprintf(ret_reason, size, "belongs to another user");
    else
        ask_silence(ret_reason, size, error, answer);
}

/* Of the process; false: there is none. */
static bool owner_of(long pid, struct statx *ret_owner)
{
    char path[32];

    snprintf(path, sizeof path, "/proc/%ld", pid);
    return statx(AT_FDCWD, path, 0, STATX_UID | STATX_GID, ret_owner) == 0;
}

void ask_complain_of_absent(long pid)
{
    struct statx owner;

    if (!owner_of(pid, &owner))
        command_complain("process %ld: there is none, as far as can be seen from here", pid);
    else if (geteuid() != 0 && owner.stx_uid != geteuid())
        command_complain("process %ld belongs to another user: ask as that one, or as root", pid);
    else if (!figures_has_library(pid))
        command_complain("process %ld has not the library: gpushim run starts programs with it",
                         pid);
    else
        command_complain("process %ld cannot be asked: it holds less than 64 MiB and neither shares nor opens memory, "
                         "has pool.neighbours off, or has another share.dir (gpushim stats %ld)",
                         pid, pid);
}

bool ask_is_broker(const char *name)
{
    size_t length = strlen(GS_BROKER_NAME);

    return strncmp(name, GS_BROKER_NAME, length) == 0 &&
           (name[length] == 0 || (name[length] == '.' && strlen(name) < GS_BROKER_NAME_SIZE));
}

long ask_pid_of_listener(int fd)
{
    return gs_conn_who(fd).pid;
}

long ask_pid_of_pidfd(int pidfd)
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
    return name ? name + 1 : "";
}

void who_fill(struct who *who, long pid, uint64_t told, const char *name)
{
    who->pid = pid;
    who->told = told;
    snprintf(who->name, sizeof who->name, "%.15s", name);
    snprintf(who->container, sizeof who->container, "%.255s", pid ? container_of(pid) : "");
}

void ask_silence(char *ret_reason, size_t size, int error, const union gs_wire_message *answer)
{
    if (error == -EPROTONOSUPPORT)
        snprintf(ret_reason, size, "is of " GS_WIRE_VERSION_TEXT "; its own gpushim lists it",
                 (unsigned)answer->head.version, GS_WIRE_VERSION);
    else if (error == 0)
        snprintf(ret_reason, size, "does not tell: %s", gs_wire_reason_text(answer->refuse.reason));
    else if (error == -EPROTO)
        snprintf(ret_reason, size, "gives an answer that this version does not know");
    else if (error == -ETIMEDOUT)
        snprintf(ret_reason, size, "does not answer");
    else
        snprintf(ret_reason, size, "hangs up");
}

bool ask_is_socket(const char *name)
{
    return ask_is_broker(name) || (strlen(name) == GS_SOCKET_NAME_SIZE - 1 &&
                                   strspn(name, "0123456789abcdef") == GS_SOCKET_NAME_SIZE - 1);
}

const char *who_text(const struct who *who, char ret[WHO_TEXT])
{
    if (who->pid)
        snprintf(ret, WHO_TEXT, "pid %ld%s%s", who->pid, who->container[0] ? " in " : "", who->container);
    else
        snprintf(ret, WHO_TEXT, "pid %llu of another PID namespace", (unsigned long long)who->told);
    return ret;
}

void who_write(struct json *json, const struct who *who)
{
    if (who->pid)
        json_number(json, "pid", (uint64_t)who->pid);
    else
        json_text(json, "pid", NULL);
    json_number(json, "own_pid", who->told);
    json_text(json, "name", who->name);
    json_text(json, "container", who->container[0] ? who->container : NULL);
}

/* ---- Everybody's folders ---- */

static unsigned each_of_user(const struct gs_share_options *options,
                             void (*visit)(void *arg, int directory, const char *name), void *arg,
                             char *ret_reason)
{
    unsigned place = 0, folders = 0;
    int directory;

    for (; (directory = gs_directory_next(options, &place, ret_reason)) >= 0; folders++) {
        DIR *names = fdopendir(directory);
        const struct dirent *entry;

        while (names && (entry = readdir(names)))
            if (ask_is_socket(entry->d_name))
                visit(arg, dirfd(names), entry->d_name);
        if (names)
            closedir(names);
        else
            close(directory);
    }
    return folders;
}

struct users {
    uid_t of[USERS_MAX];
    unsigned count;
};

static void add_user(struct users *users, uid_t uid)
{
    bool is_new = uid != (uid_t)-1 && uid != geteuid() && users->count < USERS_MAX;

    for (unsigned i = 0; is_new && i < users->count; i++)
        is_new = users->of[i] != uid;
    if (is_new)
        users->of[users->count++] = uid;
}

static void add_owner(struct users *users, int directory, const char *name)
{
    struct statx info;

    if (statx(directory, name, AT_SYMLINK_NOFOLLOW, STATX_TYPE | STATX_UID, &info) == 0 &&
        S_ISDIR(info.stx_mode))
        add_user(users, info.stx_uid);
}

/* Adds those whose something there is that is named by a number after `prefix`: the owner's, but in
 * a container with users of its own it is the one that he has inside. */
static void add_users(struct users *users, const char *folder, const char *prefix)
{
    const size_t length = strlen(prefix);
    DIR *names = opendir(folder);
    const struct dirent *entry;

    while (names && (entry = readdir(names)))
        if (strncmp(entry->d_name, prefix, length) == 0 && entry->d_name[length] >= '0' &&
            entry->d_name[length] <= '9')
            add_owner(users, dirfd(names), entry->d_name);
    if (names)
        closedir(names);
}

/*
 * Root asks everybody's processes, those of each user as that user: the folders are as good for him
 * as for the user's own programs, the processes answer their own user, and nothing that a user put
 * there is touched with root's rights.
 */
unsigned ask_each(const struct gs_share_options *options,
                  void (*visit)(void *arg, int directory, const char *name), void *arg,
                  char ret_reason[GS_REASON_SIZE])
{
    unsigned folders = each_of_user(options, visit, arg, ret_reason);
    struct users users = {.count = 0};
    char reason[GS_REASON_SIZE];

    if (geteuid() != 0)
        return folders;
    if (options->dir[0])
        add_owner(&users, AT_FDCWD, options->dir); /* one of his alone */
    add_users(&users, "/run/user", "");
    add_users(&users, options->dir[0] ? options->dir : "/tmp", GS_OWN_PREFIX);
    add_users(&users, "/dev/shm", GS_OWN_PREFIX);
    for (unsigned i = 0; i < users.count; i++) {
        if (seteuid(users.of[i]) != 0)
            continue; /* a user namespace that does not have him */
        folders += each_of_user(options, visit, arg, reason);
        if (seteuid(0) != 0)
            abort(); /* the rest would be done as another */
    }
    return folders;
}

bool ask_each_listed(const struct gs_share_options *options,
                     void (*visit)(void *arg, int directory, const char *name), void *arg,
                     struct json *json, unsigned *ret_folders, char ret_reason[GS_REASON_SIZE])
{
    if (json)
        json_open(json, NULL, '[');
    *ret_folders = ask_each(options, visit, arg, ret_reason);
    if (json)
        json_close(json, ']');
    return !json || json_end(json);
}
