/*
 * The scribbling consumer (chaos.h): a process has another's block open, a kernel of it writes to
 * all of that block again and again, and it is killed. The exporter frees the block at that
 * moment and allocates until it gets the same bytes again; from then on nothing but the exporter
 * may change them.
 *
 * The GPU's work outlives a killed process's sockets (measured on an H200: hang-up after 1 ms,
 * the last write at 11 ms, the exit reported at 60 ms). On the tests' driver it does not, so there
 * the consumer plays its death: it closes its sockets, scribbles on for 60 ms, and exits.
 *
 * The device is filled so far that a second block of that size does not fit, and what is allocated
 * again can only be the same memory.
 */
#include "chaos.h"

#include <spawn.h>

#define MIB          ((size_t)1 << 20)
#define BLOCK_MOST   (2048 * MIB)
#define QUIET_NS     (150 * MS) /* for so long the new bytes are watched */
#define BACK_NS      (UINT64_C(30000) * MS)
#define KERNEL_NS    (UINT64_C(8000) * MS)
#define ROUND_S      90
#define OWN_STAMP    0x11111111u
#define SECOND_STAMP 0x22222222u
#define LOW_FDS      64

extern char **environ;

struct order {
    CUipcMemHandle ipc_handle;
    uint64_t words;
};

/* ---- The consumer, a new one each round ------------------------------------------------------ */

/* Takes the low numbers and gives them back after CUDA has started, so that the lease's socket
 * comes before the driver's descriptors, and is closed before them. */
static void hold_low_fds(int *ret_fds)
{
    for (int i = 0; i < LOW_FDS; i++)
        ret_fds[i] = dup(STDIN_FILENO);
}

static void release_low_fds(const int *fds)
{
    for (int i = 0; i < LOW_FDS; i++)
        close(fds[i]);
}

static void close_sockets(void)
{
    for (int fd = 0; fd < 1024; fd++) {
        struct stat info;

        if (fstat(fd, &info) == 0 && S_ISSOCK(info.st_mode))
            close(fd);
    }
}

/* argv: consumer low|high. Its end of the talk is stdin. */
int chaos_scribble_consumer(int argc, char **argv)
{
    bool low = argc > 1 && strcmp(argv[1], "low") == 0;
    int fds[LOW_FDS];
    struct order order;
    CUdeviceptr ptr;
    struct gpu gpu;
    char word;

    alarm(ROUND_S);
    if (low)
        hold_low_fds(fds);
    if (gpu_start(&gpu) != CUDA_SUCCESS)
        return 1;
    if (low)
        release_low_fds(fds);
    if (recv(STDIN_FILENO, &order, sizeof order, 0) != (ssize_t)sizeof order ||
        cuIpcOpenMemHandle(&ptr, order.ipc_handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) ||
        gpu_scribble(&gpu, ptr, order.words, KERNEL_NS))
        return 1;
    /* The kernel is there when its first word can be seen. */
    for (uint32_t seen = 0; seen != 0xdeadbeefu; chaos_sleep_us(500)) {
        CUstream other;

        if (cuStreamCreate(&other, CU_STREAM_NON_BLOCKING) ||
            cuMemcpyDtoHAsync(&seen, ptr, sizeof seen, other) || cuStreamSynchronize(other) ||
            cuStreamDestroy(other))
            return 1;
    }
    if (send(STDIN_FILENO, "s", 1, MSG_NOSIGNAL) != 1 || recv(STDIN_FILENO, &word, 1, 0) != 1)
        return 1;
    /* Only on the tests' driver is it told to die; otherwise it is killed here. */
    close_sockets();
    chaos_sleep_us(60000);
    _exit(0);
}

/* ---- The exporter --------------------------------------------------------------------------- */

struct span {
    uint64_t least, most, sum;
};

struct exporter {
    struct gpu gpu;
    char *program;
    size_t bytes;
    uint64_t words;
    CUdeviceptr counter, ballast;
    struct span back, hung_up, exited;
};

/* What a process outside sees of a consumer's end, by a thread of its own: the exporter may be in
 * an allocation meanwhile. Times are since `killed`. */
struct death {
    pthread_t thread;
    int socket, pidfd;
    uint64_t killed;
    uint64_t hung_up, exited;
};

static bool failed(const char *what, const char *why)
{
    fprintf(stderr, "chaos: %s: %s\n", what, why);
    return false;
}

static bool must(const char *call, CUresult result)
{
    return result == CUDA_SUCCESS || failed(call, gpu_error(result));
}

static pid_t spawn_consumer(const struct exporter *exporter, bool low, int *ret_socket)
{
    char role[] = "consumer", low_fds[] = "low", high_fds[] = "high";
    char *argv[] = {role, low ? low_fds : high_fds, NULL};
    posix_spawn_file_actions_t actions;
    int pair[2], error;
    pid_t pid;

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        return -1;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, pair[1], STDIN_FILENO);
    error = posix_spawn(&pid, exporter->program, &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(pair[1]);
    *ret_socket = pair[0];
    if (!error)
        return pid;
    close(pair[0]);
    return -1;
}

/* Returns when the consumer's kernel writes. */
static bool let_scribble(const struct exporter *exporter, int socket, CUdeviceptr block)
{
    struct order order = {.words = exporter->words};
    struct pollfd answer = {.fd = socket, .events = POLLIN};
    char word = 0;

    return must("cuIpcGetMemHandle", cuIpcGetMemHandle(&order.ipc_handle, block)) &&
           ((send(socket, &order, sizeof order, MSG_NOSIGNAL) == (ssize_t)sizeof order &&
             poll(&answer, 1, 30000) > 0 && recv(socket, &word, 1, 0) == 1) ||
            failed("the consumer", "ended early or does not answer"));
}

static void end_consumer(const struct exporter *exporter, pid_t pid, int socket)
{
    if (exporter->gpu.software)
        send(socket, "d", 1, MSG_NOSIGNAL);
    else
        kill(pid, SIGKILL);
}

static void add(struct span *span, uint64_t ns)
{
    span->sum += ns;
    span->most = ns > span->most ? ns : span->most;
    span->least = !span->least || ns < span->least ? ns : span->least;
}

static void *watch(void *arg)
{
    struct death *death = arg;
    struct pollfd ends[2] = {{.fd = death->socket}, {.fd = death->pidfd, .events = POLLIN}};

    while (!death->exited && poll(ends, 2, (int)(BACK_NS / MS)) > 0) {
        if (ends[0].revents) {
            death->hung_up = now_ns() - death->killed;
            ends[0].fd = -1;
        }
        if (ends[1].revents)
            death->exited = now_ns() - death->killed;
    }
    return NULL;
}

static bool watch_death(struct death *death, pid_t pid, int socket)
{
    death->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    death->socket = socket;
    return (death->pidfd >= 0 && pthread_create(&death->thread, NULL, watch, death) == 0) ||
           failed("a consumer cannot be watched", strerror(errno));
}

/* Allocates until the bytes come again; how long after `since` they came. */
static bool get_back(struct exporter *exporter, uint64_t since, CUdeviceptr *ret_block)
{
    CUresult r;
    uint64_t took;

    while ((r = cuMemAlloc(ret_block, exporter->bytes)) == CUDA_ERROR_OUT_OF_MEMORY &&
           now_ns() - since < BACK_NS)
        chaos_sleep_us(200);
    took = now_ns() - since;
    if (!must("allocating the memory of a dead consumer again", r))
        return false;
    add(&exporter->back, took);
    return true;
}

static bool stays_quiet(struct exporter *exporter, CUdeviceptr block, uint64_t killed)
{
    uint64_t end = now_ns() + QUIET_NS;
    uint32_t others;
    char text[128];

    if (!must("stamping", gpu_stamp(&exporter->gpu, block, SECOND_STAMP, exporter->words)))
        return false;
    do {
        if (!must("counting foreign words",
                  gpu_count_other(&exporter->gpu, block, SECOND_STAMP, exporter->words,
                                  exporter->counter, &others)))
            return false;
        if (others) {
            snprintf(text, sizeof text,
                     "changed %u words of memory that was handed out again, %.1f ms after its end",
                     others, (double)(now_ns() - killed) / 1e6);
            return failed("a killed consumer's kernel", text);
        }
        chaos_sleep_us(500);
    } while (now_ns() < end);
    return true;
}

static bool one_round(struct exporter *exporter, bool low, CUdeviceptr *block)
{
    struct death death = {.pidfd = -1};
    int socket;
    pid_t pid = spawn_consumer(exporter, low, &socket);
    bool good;

    if (pid < 0)
        return failed("a consumer cannot be started", strerror(errno));
    good = must("stamping", gpu_stamp(&exporter->gpu, *block, OWN_STAMP, exporter->words)) &&
           let_scribble(exporter, socket, *block);
    death.killed = now_ns();
    good = good && watch_death(&death, pid, socket);
    end_consumer(exporter, pid, socket);
    if (good) {
        good = must("cuMemFree", cuMemFree(*block)) && get_back(exporter, death.killed, block) &&
               stays_quiet(exporter, *block, death.killed);
        kill(pid, SIGKILL);
        pthread_join(death.thread, NULL);
        add(&exporter->hung_up, death.hung_up);
        add(&exporter->exited, death.exited);
    }
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    close(death.pidfd);
    close(socket);
    return good;
}

/* A block, and so little left beside it that another does not fit but a consumer's context does. */
static bool fill_device(struct exporter *exporter, CUdeviceptr *ret_block)
{
    size_t free_bytes = gpu_free_bytes(), room;

    exporter->bytes = free_bytes / 10 * 6;
    if (exporter->bytes > BLOCK_MOST)
        exporter->bytes = BLOCK_MOST;
    exporter->bytes &= ~(2 * MIB - 1);
    exporter->words = exporter->bytes / 4;
    room = exporter->bytes / 4 * 3;
    if (!must("allocating a block", cuMemAlloc(ret_block, exporter->bytes)))
        return false;
    if (free_bytes <= exporter->bytes + room + 64 * MIB)
        return true;
    return must("filling the device",
                cuMemAlloc(&exporter->ballast,
                           (free_bytes - exporter->bytes - room) & ~(2 * MIB - 1)));
}

static void say_span(const char *what, const struct span *span, unsigned count)
{
    printf("chaos: %s after %.1f to %.1f ms, %.1f on average\n", what, (double)span->least / 1e6,
           (double)span->most / 1e6, (double)span->sum / count / 1e6);
}

/* argv: exporter ROUNDS PROGRAM. */
int chaos_scribble_exporter(int argc, char **argv)
{
    struct exporter exporter = {.program = argc > 2 ? argv[2] : NULL};
    unsigned rounds = argc > 2 ? (unsigned)atoi(argv[1]) : 0, done = 0;
    CUdeviceptr block;

    if (!rounds || gpu_start(&exporter.gpu) != CUDA_SUCCESS ||
        !must("cuMemAlloc", cuMemAlloc(&exporter.counter, 4)) || !fill_device(&exporter, &block))
        return 1;
    while (done < rounds) {
        alarm(ROUND_S);
        if (!one_round(&exporter, done % 2, &block))
            return 1;
        done++;
    }
    printf("chaos: %u consumers %s while their kernels wrote %zu MiB\n", done,
           exporter.gpu.software ? "played their death" : "were killed", exporter.bytes / MIB);
    say_span("their sockets hung up", &exporter.hung_up, done);
    say_span("their exits were seen", &exporter.exited, done);
    say_span("their memory came back", &exporter.back, done);
    return 0;
}

/* The socket of who was killed is removed by the next process that shares there; after the last one
 * there is none. */
static void remove_sockets(const char *folder)
{
    DIR *directory = opendir(folder);
    const struct dirent *entry;

    while (directory && (entry = readdir(directory)))
        if (entry->d_type == DT_SOCK)
            unlinkat(dirfd(directory), entry->d_name, 0);
    if (directory)
        closedir(directory);
}

int chaos_scribble(const struct chaos_options *options)
{
    char role[] = "exporter", rounds[16], share[CHAOS_PATH + 8], program[CHAOS_PATH];
    int status = 1;
    pid_t pid;

    snprintf(rounds, sizeof rounds, "%u", options->scribble);
    snprintf(share, sizeof share, "%s/share", options->dir);
    snprintf(program, sizeof program, "%s", options->program);
    setenv("SOFTCUDA_MEMORY", "64M", 1);
    if (mkdir(share, 0700) != 0)
        return 2;
    pid = chaos_start(options, (char *[]){role, rounds, program, NULL});
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0) {
        printf("chaos: the exporter ended with %s %d (see above; everything is in %s)\n",
               WIFSIGNALED(status) ? "signal" : "status",
               WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), options->dir);
        return 1;
    }
    remove_sockets(share);
    rmdir(share);
    if (rmdir(options->dir) != 0) {
        printf("chaos: something is left in %s\n", options->dir);
        return 1;
    }
    printf("chaos: ok %u kills %u checks\n", options->scribble, options->scribble);
    return 0;
}
