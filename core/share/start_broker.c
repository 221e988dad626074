/* Exporter: starting a broker where there is none (core/share/publish.c). */
#include "core/share/exporter.h"

#include <sched.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define START_STACK (64 * 1024)

static void list_ids(char *text, size_t size, const char *name, const uint32_t *ids, unsigned count)
{
    size_t length = (size_t)snprintf(text, size, "%s", name);

    for (unsigned i = 0; i < count && length + 12 < size; i++)
        length += (size_t)snprintf(text + length, size - length, "%s%u", i ? "," : "", ids[i]);
}

/* What the broker is told, in the words of its configuration. */
struct command {
    const char *program;
    char *arguments[3], *environment[10];
    char *stack; /* of become_broker */
    int error;   /* set where the program cannot be run */
};

/* Both run in the memory of this process, which waits for them; nothing but system calls. */
static int become_broker(void *arg)
{
    struct command *command = arg;

    /* Nothing of the program's environment, LD_PRELOAD least. */
    execve(command->program, command->arguments, command->environment);
    command->error = -errno;
    _exit(127);
}

static int stand_between(void *arg)
{
    struct command *command = arg;

    if (clone(become_broker, command->stack, CLONE_VM | CLONE_VFORK, command) < 0)
        command->error = -errno;
    _exit(0);
}

/*
 * Starts the broker, which puts its socket up. The program's SIGCHLD handler and its wait() see
 * nothing of it: the process between has no exit signal, and the broker, which would get one by its
 * exec, is not our child. It becomes the child of whoever takes orphans here, a launcher perhaps:
 * the kernel has no way around that. So it is one process, which forks no other, and it ends when
 * that one waits for it alone (shim/command/broker.c).
 */
int gs_broker_start(const struct gs_share *share)
{
    const struct gs_share_options *options = &share->options;
    char dir[sizeof options->dir + 24], keep[48], settle[48], timeout[48], clients[48], blocks[48],
        uids[24 + 12 * GS_IDS_MAX], gids[24 + 12 * GS_IDS_MAX];
    struct command command = {
        .program = options->broker_program,
        .arguments = {(char *)"gpushim-broker", (char *)"--started"},
        .environment = {dir, keep, settle, timeout, clients, blocks, uids, gids,
                        (char *)"GPUSHIM_CONFIG="},
    };
    char *stack;
    int pid;

    _Static_assert(sizeof(uid_t) == sizeof(uint32_t) && sizeof(gid_t) == sizeof(uint32_t), "ids");
    if (!options->broker_program[0])
        return -ENOENT;
    snprintf(dir, sizeof dir, "GPUSHIM_SHARE_DIR=%s", options->dir);
    snprintf(keep, sizeof keep, "GPUSHIM_SHARE_KEEP=%lluns", (unsigned long long)options->keep_ns);
    snprintf(settle, sizeof settle, "GPUSHIM_DEBUG_SETTLE=%lluns",
             (unsigned long long)options->settle_ns);
    snprintf(timeout, sizeof timeout, "GPUSHIM_DEBUG_TIMEOUT=%lluns",
             (unsigned long long)options->timeout_ns);
    snprintf(clients, sizeof clients, "GPUSHIM_DEBUG_MAX_CLIENTS=%u", options->max_clients);
    snprintf(blocks, sizeof blocks, "GPUSHIM_DEBUG_BROKER_BLOCKS=%u", options->published_max);
    list_ids(uids, sizeof uids, "GPUSHIM_SHARE_UIDS=", options->uids, options->uid_count);
    list_ids(gids, sizeof gids, "GPUSHIM_SHARE_GIDS=", options->gids, options->gid_count);
    stack = mmap(NULL, 2 * START_STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (stack == MAP_FAILED)
        return -ENOMEM;
    command.stack = stack + 2 * START_STACK;
    pid = clone(stand_between, stack + START_STACK, CLONE_VM | CLONE_VFORK, &command);
    if (pid < 0)
        command.error = -errno;
    /* It has ended or become the broker: the thread that cloned it went on only then. */
    while (pid > 0 && waitpid(pid, NULL, __WCLONE) < 0 && errno == EINTR)
        continue;
    munmap(stack, 2 * START_STACK);
    return command.error;
}
