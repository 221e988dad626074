/* How the chaos program starts a process (chaos.h): namespaces, environment, preload. */
#include "chaos.h"

#include <ctype.h>

/* A process ended by this one's end, however that comes about. */
static void end_with_parent(pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent && parent)
        _exit(1);
}

static bool write_file(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    ssize_t length = (ssize_t)strlen(text);
    bool written = fd >= 0 && write(fd, text, strlen(text)) == length;

    if (fd >= 0)
        close(fd);
    return written;
}

/* The same user inside as outside: then no configuration is needed. */
static bool map_user(uid_t uid, gid_t gid)
{
    char line[64];

    snprintf(line, sizeof line, "%u %u 1", (unsigned)uid, (unsigned)uid);
    if (!write_file("/proc/self/uid_map", line))
        return false;
    snprintf(line, sizeof line, "%u %u 1", (unsigned)gid, (unsigned)gid);
    return write_file("/proc/self/setgroups", "deny") && write_file("/proc/self/gid_map", line);
}

static bool enter_namespaces(unsigned kind)
{
    const int apart = CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWNET | CLONE_NEWNS;
    uid_t uid = geteuid();
    gid_t gid = getegid();

    if (kind == 0)
        return true;
    if (kind == 1)
        return unshare(apart) == 0;
    return unshare(apart | CLONE_NEWUSER) == 0 && map_user(uid, gid);
}

bool chaos_namespaces_work(unsigned kind)
{
    pid_t pid = fork();
    int status = 1;

    if (pid == 0) {
        bool entered = enter_namespaces(kind);
        pid_t first = entered ? fork() : -1;

        if (first == 0)
            _exit(0);
        _exit(first > 0 && waitpid(first, &status, 0) == first ? status != 0 : 1);
    }
    return pid > 0 && waitpid(pid, &status, 0) == pid && status == 0;
}

static int status_as_exit(int status)
{
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* Waits for `pid`, and on the way for whatever else ends as a child of this process. */
static _Noreturn void follow(pid_t pid)
{
    int status;
    pid_t ended;

    do
        ended = waitpid(-1, &status, 0);
    while (ended >= 0 && ended != pid);
    _exit(ended == pid ? status_as_exit(status) : 1);
}

/* The environment of an unmodified program under the shim. */
static void set_environment(const struct chaos_options *options, const struct chaos_launch *launch)
{
    char dir[CHAOS_PATH + 8];

    snprintf(dir, sizeof dir, "%s/share", options->dir);
    setenv("GPUSHIM_SHARE_DIR", dir, 1);
    setenv("GPUSHIM_CONFIG", "", 1);
    setenv("GPUSHIM_LOG", "error", 0);
    setenv("SOFTCUDA_MEMORY", "512M", 0);
    setenv("GPUSHIM_SHARE_STRATEGY", options->broker ? "broker" : "embedded", 1);
    if (options->broker && options->broker_program[0])
        setenv("GPUSHIM_SHARE_BROKER", options->broker_program, 1);
    if (options->broker)
        setenv("GPUSHIM_SHARE_KEEP", "500 ms", 0);
    if (launch && launch->faults[0])
        setenv("SOFTCUDA_FAULTS", launch->faults, 1);
    if (launch && launch->die[0])
        setenv("CHAOS_DIE", launch->die, 1);
    if (launch && launch->idle)
        setenv("GPUSHIM_DEBUG_IDLE", launch->idle, 1);
    if (options->shim[0])
        setenv("LD_PRELOAD", options->shim, 1);
}

pid_t chaos_start(const struct chaos_options *options, char *const argv[])
{
    pid_t parent = getpid(), pid = fork();

    if (pid != 0)
        return pid;
    end_with_parent(parent);
    set_environment(options, NULL);
    execv(options->program, argv);
    _exit(127);
}

static _Noreturn void become_actor(const struct chaos_options *options,
                                   const struct chaos_launch *launch, int world_fd)
{
    char role[] = "actor", world[16], slot[16], flags[16];

    snprintf(world, sizeof world, "%d", world_fd);
    snprintf(slot, sizeof slot, "%u", launch->slot);
    snprintf(flags, sizeof flags, "%u", launch->flags);
    set_environment(options, launch);
    execv(options->program, (char *[]){role, world, slot, flags, NULL});
    _exit(127);
}

/*
 * In a PID namespace the first process cannot kill itself, so one that only waits comes first:
 *   supervisor -> launcher -> first of the namespace -> actor
 * The supervisor kills the launcher, and the kernel then everything below, as with a container.
 */
pid_t chaos_launch(const struct chaos_options *options, const struct chaos_launch *launch,
                   int world_fd)
{
    pid_t parent = getpid(), pid = fork();

    if (pid != 0)
        return pid;
    end_with_parent(parent);
    signal(SIGINT, SIG_DFL);
    if (launch->namespaces == 0)
        become_actor(options, launch, world_fd);
    if (!enter_namespaces(launch->namespaces))
        _exit(126);
    parent = getpid();
    pid = fork();
    if (pid > 0)
        follow(pid);
    end_with_parent(0);
    pid = pid == 0 ? fork() : -1;
    if (pid > 0)
        follow(pid);
    if (pid < 0)
        _exit(125);
    end_with_parent(0);
    become_actor(options, launch, world_fd);
}

/* Whether a file of /proc, whose strings end in zeros, has `text` anywhere. */
static bool file_has(const char *pid, const char *file, const char *text)
{
    char path[64], bytes[16384];
    bool found;
    FILE *stream;
    size_t size;

    snprintf(path, sizeof path, "/proc/%.20s/%s", pid, file);
    stream = fopen(path, "re");
    size = stream ? fread(bytes, 1, sizeof bytes, stream) : 0;
    found = memmem(bytes, size, text, strlen(text)) != NULL;
    if (stream)
        fclose(stream);
    return found;
}

bool chaos_kill_broker(const struct chaos_options *options)
{
    const struct dirent *entry;
    DIR *list = opendir("/proc");
    bool killed = false;

    while (list && !killed && (entry = readdir(list)))
        killed = isdigit((unsigned char)entry->d_name[0]) &&
                 file_has(entry->d_name, "cmdline", "gpushim-broker") &&
                 file_has(entry->d_name, "environ", options->dir) &&
                 kill((pid_t)atol(entry->d_name), SIGKILL) == 0;
    if (list)
        closedir(list);
    return killed;
}
