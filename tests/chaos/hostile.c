/*
 *   hostile SHIM            against a process that shares memory
 *   hostile SHIM BROKER     against the broker that it and others leave it with
 *
 * Neighbours that do everything wrong (attackers.c), against the library as it is shipped: a
 * process goes on allocating, freeing and sharing, an honest opener opens and closes, and in each
 * phase others flood, stall, cut messages in halves, send garbage and descriptors, open ten
 * thousand connections, are another user or claim to be somebody. What must hold in every phase:
 * host memory and descriptors of who is attacked stay bounded, and while the attack goes on the
 * exporter's program makes its calls and the honest opener gets what it asks for. Of the broker the
 * honest opener gets a block whose process was killed, and in the end the exporter must still be
 * connected to it.
 *
 * How long calls took is printed and not judged: some kernels leave who is attacked without a CPU
 * for seconds beside attackers that never sleep (measured with 6.18: ready to run for 1.5 to 3.7 s
 * in a row). An open that was not answered for so long is asked anew, as a program would.
 *
 * The last line is "hostile: ok", or what went wrong.
 */
#include "hostile.h"

#include <cuda.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>


#define PHASE_MS     1000 /* or until CALLS and OPENS are reached */
#define CALLS        1000
#define OPENS        5
#define PHASE_MOST_S 60 /* what was not reached by then is wrong */
#define MANY         2000 /* exported blocks that nobody opens */
#define ATTACK_S     90 /* the longest that a phase may take */
#define RSS_MORE_KIB 8192
/* Two for each of 1024 clients, 256 that wait to be closed, the 253 of a message in the hands of each
 * closer that a user may have (core/share/discard.c), and some. */
#define FDS_MORE     (2 * 1024 + 256 + 2 * 253 + 100)
#define ANSWER_S     5 /* an open waits so long for its exporter */
#define PATIENCE_MS  30000
#define BLOCKS_MOST  "8192" /* that the broker keeps */

static const char *const timed_names[TIMED] = {"cuMemAlloc", "cuMemFree", "cuIpcGetMemHandle",
                                               "cuIpcOpenMemHandle"};

struct board *board;
char hostile_dir[128];
static int board_fd;
static const char *broker_program; /* NULL: the exporter itself is attacked */

void sleep_us(long us)
{
    nanosleep(&(struct timespec){us / 1000000, us % 1000000 * 1000}, NULL);
}

void wrong(const char *format, ...)
{
    va_list args;

    if (atomic_exchange(&board->is_wrong, true))
        return;
    va_start(args, format);
    vsnprintf(board->wrong, sizeof board->wrong, format, args);
    va_end(args);
}

/* ---- Under the shim ------------------------------------------------------------------------- */

static void note_time(enum timed what, uint64_t began)
{
    uint64_t took = now_ns() - began, worst = atomic_load(&board->worst[what]);
    unsigned bucket = took ? 64 - (unsigned)__builtin_clzll(took) : 0;

    atomic_fetch_add(&board->bucket[what][bucket < BUCKETS ? bucket : BUCKETS - 1], 1);
    while (took > worst && !atomic_compare_exchange_weak(&board->worst[what], &worst, took))
        ;
}

static void must(const char *call, CUresult result)
{
    const char *name = "an unknown error";

    if (result == CUDA_SUCCESS)
        return;
    cuGetErrorName(result, &name);
    wrong("%s: %s", call, name);
    _exit(1);
}

static void start_cuda(void)
{
    CUcontext context;
    CUdevice device;

    must("cuInit", cuInit(0));
    must("cuDeviceGet", cuDeviceGet(&device, 0));
    must("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&context, device));
    must("cuCtxSetCurrent", cuCtxSetCurrent(context));
}

/* The program that is attacked. */
static int exporter(void)
{
    static CUdeviceptr many[MANY];
    CUipcMemHandle handle;
    CUdeviceptr shared, ptr;
    uint64_t began;

    start_cuda();
    for (unsigned i = 0; i < MANY; i++) { /* so that looking through all of them would show */
        must("cuMemAlloc", cuMemAlloc(&many[i], 512));
        must("cuIpcGetMemHandle", cuIpcGetMemHandle(&handle, many[i]));
    }
    must("cuMemAlloc", cuMemAlloc(&shared, 1 << 20));
    must("cuMemsetD32", cuMemsetD32(shared, 7, 1 << 18));
    must("cuIpcGetMemHandle", cuIpcGetMemHandle(&handle, shared));
    memcpy(board->own, &handle, sizeof handle);
    atomic_store(&board->has_own, true);
    for (unsigned i = 0; !atomic_load(&board->exporter_stops); i++) {
        began = now_ns();
        must("cuMemAlloc", cuMemAlloc(&ptr, 64 << 10));
        note_time(T_ALLOC, began);
        began = now_ns();
        must("cuIpcGetMemHandle", cuIpcGetMemHandle(&handle, i % 16 ? shared : ptr));
        note_time(T_HANDLE, began);
        began = now_ns();
        must("cuMemFree", cuMemFree(ptr));
        note_time(T_FREE, began);
        sleep_us(200);
    }
    must("cuMemFree", cuMemFree(shared));
    for (unsigned i = 0; i < MANY; i++)
        must("cuMemFree", cuMemFree(many[i]));
    return 0;
}

/* Shares a block and waits to be killed. */
static _Noreturn void publisher(void)
{
    CUipcMemHandle handle;
    CUdeviceptr shared;

    start_cuda();
    must("cuMemAlloc", cuMemAlloc(&shared, 1 << 20));
    must("cuMemsetD32", cuMemsetD32(shared, 7, 1 << 18));
    must("cuCtxSynchronize", cuCtxSynchronize());
    must("cuIpcGetMemHandle", cuIpcGetMemHandle(&handle, shared));
    memcpy(board->ipc_handle, &handle, sizeof handle);
    atomic_store(&board->ready, true);
    for (;;)
        sleep_us(1000000);
}

static int honest_opener(void)
{
    CUipcMemHandle handle;
    CUdeviceptr ptr;
    uint32_t word;

    start_cuda();
    memcpy(&handle, board->ipc_handle, sizeof handle);
    while (!atomic_load(&board->opener_stops)) {
        uint64_t began = now_ns();
        CUresult result = cuIpcOpenMemHandle(&ptr, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);

        if (result != CUDA_SUCCESS && now_ns() - began >= ANSWER_S * UINT64_C(1000000000)) {
            atomic_fetch_add(&board->unanswered, 1);
            continue;
        }
        must("an honest cuIpcOpenMemHandle", result);
        note_time(T_OPEN, began);
        must("cuMemcpyDtoH", cuMemcpyDtoH(&word, ptr, 4));
        if (word != 7)
            wrong("an honest opener sees %u", word);
        must("cuIpcCloseMemHandle", cuIpcCloseMemHandle(ptr));
        atomic_fetch_add(&board->honest_opens, 1);
        sleep_us(20000); /* long enough that the reference goes back: nothing is kept idle */
    }
    return 0;
}

/* ---- The judge ------------------------------------------------------------------------------ */

static pid_t start_under_shim(const char *shim, const char *role)
{
    pid_t pid = fork();
    char number[16];

    if (pid != 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setenv("GPUSHIM_SHARE_DIR", hostile_dir, 1);
    setenv("GPUSHIM_CONFIG", "", 1);
    setenv("GPUSHIM_DEBUG_IDLE", "0", 1); /* each open asks */
    setenv("GPUSHIM_DEBUG_GRACE", "20 ms", 1);
    snprintf(number, sizeof number, "%d s", ANSWER_S);
    setenv("GPUSHIM_DEBUG_TIMEOUT", number, 1);
    setenv("GPUSHIM_SHARE_KEEP", "12 s", 1); /* more than what an open waits for */
    if (broker_program) {
        setenv("GPUSHIM_SHARE_STRATEGY", "broker", 1);
        setenv("GPUSHIM_SHARE_BROKER", broker_program, 1);
        setenv("GPUSHIM_DEBUG_BROKER_BLOCKS", BLOCKS_MOST, 1);
    }
    setenv("LD_PRELOAD", shim, 1);
    snprintf(number, sizeof number, "%d", board_fd);
    execl("/proc/self/exe", "hostile", role, number, hostile_dir, (char *)NULL);
    _exit(127);
}

static long status_kib(pid_t pid, const char *field)
{
    char path[64], line[256];
    size_t length = strlen(field);
    long kib = -1;
    FILE *file;

    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    file = fopen(path, "re");
    while (file && kib < 0 && fgets(line, sizeof line, file))
        if (strncmp(line, field, length) == 0)
            kib = strtol(line + length, NULL, 10);
    if (file)
        fclose(file);
    return kib;
}

/* The software driver has a descriptor for each chunk that a process keeps. */
static bool is_memory(int list, const char *name)
{
    static const char memory[] = "/memfd:softcuda";
    char target[sizeof memory - 1];

    return readlinkat(list, name, target, sizeof target) == sizeof target &&
           memcmp(target, memory, sizeof target) == 0;
}

static unsigned count_fds(pid_t pid, bool with_memory)
{
    struct dirent *entry;
    char path[64];
    unsigned count = 0;
    DIR *list;

    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    list = opendir(path);
    while (list && (entry = readdir(list)))
        count += with_memory || !is_memory(dirfd(list), entry->d_name);
    if (list)
        closedir(list);
    return count;
}

static uint64_t calls(enum timed what)
{
    uint64_t all = 0;

    for (unsigned i = 0; i < BUCKETS; i++)
        all += atomic_load(&board->bucket[what][i]);
    return all;
}

/* The time that 99 of 100 calls stay below, rounded up to a power of two. */
static uint64_t usual(enum timed what)
{
    uint64_t all = calls(what), seen = 0;

    for (unsigned i = 0; i < BUCKETS; i++) {
        seen += atomic_load(&board->bucket[what][i]);
        if (seen * 100 >= all * 99)
            return UINT64_C(1) << i;
    }
    return UINT64_MAX;
}

static void reset_figures(void)
{
    for (unsigned i = 0; i < TIMED; i++) {
        atomic_store(&board->worst[i], 0);
        for (unsigned j = 0; j < BUCKETS; j++)
            atomic_store(&board->bucket[i][j], 0);
    }
    atomic_store(&board->honest_opens, 0);
    atomic_store(&board->unanswered, 0);
    atomic_store(&board->connected, 0);
    atomic_store(&board->turned_away, 0);
}

struct bounds {
    pid_t attacked;
    long rss_kib;      /* after the first phase */
    long rss_most_kib; /* seen in this one */
    unsigned fds, fds_most;
};

static void look(struct bounds *bounds)
{
    long rss = status_kib(bounds->attacked, "VmRSS:");
    unsigned fds = count_fds(bounds->attacked, true);

    bounds->rss_most_kib = rss > bounds->rss_most_kib ? rss : bounds->rss_most_kib;
    bounds->fds_most = fds > bounds->fds_most ? fds : bounds->fds_most;
}

static void print_times(const struct phase *phase)
{
    printf("%s:\n  ", phase->name);
    for (unsigned i = 0; i < TIMED; i++)
        printf("%s %s<%.0f us, worst %.1f ms", i ? "," : "", timed_names[i], (double)usual(i) / 1e3,
               (double)atomic_load(&board->worst[i]) / 1e6);
    printf("\n");
}

static void judge(const struct phase *phase, const struct bounds *bounds)
{
    printf("   %u connections, %u turned away, %u honest opens and %u unanswered, VmRSS at most "
           "%ld KiB (+%ld), at most %u descriptors\n",
           atomic_load(&board->connected), atomic_load(&board->turned_away),
           atomic_load(&board->honest_opens), atomic_load(&board->unanswered),
           bounds->rss_most_kib, bounds->rss_most_kib - bounds->rss_kib, bounds->fds_most);
    if (bounds->rss_most_kib - bounds->rss_kib > RSS_MORE_KIB)
        wrong("with %s what was attacked grew by %ld KiB", phase->name,
              bounds->rss_most_kib - bounds->rss_kib);
    if (bounds->fds_most > bounds->fds + (phase->for_broker ? 2 : 1) * FDS_MORE)
        wrong("with %s what was attacked had %u descriptors", phase->name, bounds->fds_most);
    if (phase->is_other_user ? atomic_load(&board->connected) > 0 && geteuid() == 0
                                    : phase->attack && !atomic_load(&board->connected))
        wrong("with %s %u connections were made", phase->name, atomic_load(&board->connected));
    if (calls(T_HANDLE) < CALLS)
        wrong("with %s the exporter made %llu calls", phase->name, (unsigned long long)calls(T_HANDLE));
    if (atomic_load(&board->honest_opens) < OPENS)
        wrong("with %s an honest opener got %u", phase->name, atomic_load(&board->honest_opens));
}

/* It has lasted long enough, and all have had their turn. */
static bool phase_is_over(const struct phase *phase, uint64_t began)
{
    uint64_t ms = (now_ns() - began) / 1000000;
    bool attacked = !phase->attack || phase->is_other_user || atomic_load(&board->connected) > 0;

    return ms > PHASE_MOST_S * 1000 ||
           (ms >= PHASE_MS && attacked && calls(T_HANDLE) >= CALLS &&
            atomic_load(&board->honest_opens) >= OPENS);
}

static void play_phase(const struct phase *phase, struct bounds *bounds)
{
    uint64_t began = now_ns();
    pid_t attackers[4];
    unsigned running = phase->attackers;

    reset_figures();
    atomic_store(&board->over, false);
    for (unsigned i = 0; i < phase->attackers; i++) {
        attackers[i] = fork();
        if (attackers[i] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            phase->attack();
            _exit(0);
        }
    }
    while (running || !atomic_load(&board->over)) {
        look(bounds);
        atomic_store(&board->over, atomic_load(&board->over) || phase_is_over(phase, began));
        sleep_us(20000);
        while (running && waitpid(attackers[running - 1], NULL, WNOHANG) != 0)
            running--;
        if (now_ns() - began > ATTACK_S * UINT64_C(1000000000)) {
            wrong("with %s the attackers hang", phase->name);
            break;
        }
    }
    if (!bounds->rss_kib) {
        bounds->rss_kib = bounds->rss_most_kib;
        bounds->fds = bounds->fds_most;
    }
    print_times(phase);
    judge(phase, bounds);
    if (phase->is_many)
        printf("   in %.1f s\n", (double)(now_ns() - began) / 1e9);
    bounds->rss_most_kib = 0;
    bounds->fds_most = 0;
}

static bool end_one(pid_t pid)
{
    int status = 1;

    for (int i = 0; i < PATIENCE_MS / 10; i++) {
        if (waitpid(pid, &status, WNOHANG) == pid)
            return status == 0;
        sleep_us(10000);
    }
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    return false;
}

/* What the attackers' connections took is given back within a few seconds; what they left with the
 * broker is kept for a while. How many chunks a program's arenas keep is not their doing. */
static void check_rest(const struct bounds *bounds)
{
    const bool with_memory = board->by_broker;
    unsigned left = count_fds(bounds->attacked, with_memory);

    for (int i = 0; i < PATIENCE_MS / 10 && left > bounds->fds + 8; i++) {
        sleep_us(10000);
        left = count_fds(bounds->attacked, with_memory);
    }
    if (left > bounds->fds + 8)
        wrong("what was attacked keeps %u descriptors, it had %u", left, bounds->fds);
}

/* ---- The broker ------------------------------------------------------------------------------ */

/* What it says of itself and of its client number `index`; its own pid, or 0. */
static pid_t ask_broker(uint32_t index, struct gs_wire_report *ret_report)
{
    union gs_wire_message message;
    struct ucred who = {.pid = 0};
    socklen_t size = sizeof who;
    int fd = dial();

    *ret_report = (struct gs_wire_report){.pid = 0};
    if (fd < 0)
        return 0;
    getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size);
    gs_wire_start(&message, GS_WIRE_QUERY, 1);
    message.query.index = index;
    if (gs_wire_send(fd, &message, -1) == 0 && recv(fd, &message, sizeof message, 0) > 0)
        *ret_report = message.report;
    close(fd);
    return who.pid;
}

static bool broker_has(uint64_t blocks)
{
    struct gs_wire_report report;

    for (int i = 0; i < PATIENCE_MS / 5; i++, sleep_us(5000))
        if (ask_broker(0, &report) && report.exports == blocks)
            return true;
    return false;
}

/* A process that shared a block and was killed: the broker serves it. Its pid. */
static pid_t leave_with_broker(const char *shim)
{
    pid_t pid = start_under_shim(shim, "leaver");
    struct gs_wire_report report;

    for (int i = 0; i < PATIENCE_MS / 5 && !atomic_load(&board->ready); i++)
        sleep_us(5000);
    if (!broker_has(1))
        wrong("the broker was not left anything");
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    return ask_broker(0, &report);
}

/* The exporter has not given it up, nor it the exporter. */
static void check_broker(pid_t exporter)
{
    struct gs_wire_report report;
    uint32_t index = 0;
    bool found = false;

    do {
        ask_broker(index, &report);
        found |= report.client_pid == (uint64_t)exporter && report.left > 0;
    } while (!found && ++index < report.clients);
    if (!found)
        wrong("the exporter is not connected to the broker any more");
}

static void end_broker(pid_t pid)
{
    kill(pid, SIGTERM);
    for (int i = 0; i < PATIENCE_MS / 5 && kill(pid, 0) == 0; i++)
        sleep_us(5000);
}

/* ---- All of it ------------------------------------------------------------------------------- */

static void wait_for_exporter(void)
{
    for (int i = 0; i < PATIENCE_MS / 5 && !atomic_load(&board->has_own); i++)
        sleep_us(5000);
    if (!atomic_load(&board->has_own))
        wrong("the exporter does not start");
    else if (!broker_program)
        memcpy(board->ipc_handle, board->own, sizeof board->ipc_handle);
}

static int judge_all(const char *shim)
{
    pid_t broker = broker_program ? leave_with_broker(shim) : 0;
    pid_t exporter = start_under_shim(shim, "exporter");
    struct bounds bounds = {.attacked = broker ? broker : exporter};

    wait_for_exporter();
    board->honest = start_under_shim(shim, "opener");
    sleep_us(300000);
    for (unsigned i = 0; i < phase_count; i++)
        if (!atomic_load(&board->is_wrong) && (broker || !phases[i].for_broker))
            play_phase(&phases[i], &bounds);
    if (!atomic_load(&board->is_wrong)) {
        check_rest(&bounds);
        if (broker)
            check_broker(exporter);
    }
    atomic_store(&board->opener_stops, true);
    if (!end_one(board->honest))
        wrong("the honest opener did not end well");
    atomic_store(&board->exporter_stops, true);
    if (!end_one(exporter))
        wrong("the exporter did not end well");
    if (broker)
        end_broker(broker);
    if (rmdir(hostile_dir) != 0 && !atomic_load(&board->is_wrong))
        wrong("something is left in %s", hostile_dir);
    printf("hostile: %s\n", atomic_load(&board->is_wrong) ? board->wrong : "ok");
    return atomic_load(&board->is_wrong);
}

static int play(const char *role)
{
    if (strcmp(role, "exporter") == 0)
        return exporter();
    if (strcmp(role, "leaver") == 0)
        publisher();
    return honest_opener();
}

int main(int argc, char **argv)
{
    bool is_judge = argc == 2 || argc == 3;
    char shim[PATH_MAX], broker[PATH_MAX], made[] = "/tmp/hostile-XXXXXX";
    struct rlimit fds = {1024, 4096};
    int fd = is_judge ? memfd_create("hostile", 0) : argc == 4 ? atoi(argv[2]) : -1;

    setvbuf(stdout, NULL, _IOLBF, 0);
    if (fd < 0 || (is_judge && (ftruncate(fd, sizeof *board) != 0 || !realpath(argv[1], shim))) ||
        (argc == 3 && !realpath(argv[2], broker))) {
        fprintf(stderr, "usage: hostile SHIM [BROKER]\n");
        return 2;
    }
    board_fd = fd;
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (board == MAP_FAILED)
        return 2;
    if (!is_judge) {
        snprintf(hostile_dir, sizeof hostile_dir, "%s", argv[3]);
        return play(argv[1]);
    }
    if (!mkdtemp(made))
        return 2;
    snprintf(hostile_dir, sizeof hostile_dir, "%s", made);
    broker_program = argc == 3 ? broker : NULL;
    board->by_broker = argc == 3;
    signal(SIGPIPE, SIG_IGN);
    setrlimit(RLIMIT_NOFILE, &fds);
    return judge_all(shim);
}
