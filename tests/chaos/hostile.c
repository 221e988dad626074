/*
 *   hostile SHIM
 *
 * Neighbours that do everything wrong, against a process that shares memory under the shim as it
 * is shipped: it goes on allocating, freeing and sharing, an honest opener opens and closes, and
 * in each phase others flood, stall, cut messages in halves, send garbage and descriptors, open
 * ten thousand connections, or are another user. What must hold in every phase: the exporter's
 * host memory and descriptors stay bounded, no call of its program is held up, and the honest
 * opener gets what it asks for.
 *
 * The last line is "hostile: ok", or what went wrong.
 */
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

#include "core/share/token.h"
#include "core/share/wire.h"

#define PHASE_MS        1200
#define CONNECTIONS     10000
#define CONNECT_LIMIT_S 20
#define KEPT_OPEN       900  /* by one attacker at a time */
#define RSS_MORE_KIB    8192
#define FDS_MORE        2200 /* two for each of 1024 clients, and some */
#define WORST_NS        500000000u
#define USUAL_NS        1000000u /* 99 of 100 calls */
#define OPEN_WORST_NS   3000000000u
#define BUCKETS         40
#define ANY_USER        65534

enum timed { T_ALLOC, T_FREE, T_HANDLE, T_OPEN, TIMED };
static const char *const timed_names[TIMED] = {"cuMemAlloc", "cuMemFree", "cuIpcGetMemHandle",
                                               "cuIpcOpenMemHandle"};

/* Shared by all processes of the test. */
struct board {
    unsigned char token[GS_TOKEN_SIZE]; /* of the exporter's block; then: */
    _Atomic bool ready, stop;
    _Atomic uint64_t worst[TIMED], bucket[TIMED][BUCKETS];
    _Atomic unsigned honest_opens, connected, turned_away;
    char wrong[256];
    _Atomic bool is_wrong;
};

static struct board *board;
static int board_fd;
static char dir[128];

static uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void sleep_us(long us)
{
    nanosleep(&(struct timespec){us / 1000000, us % 1000000 * 1000}, NULL);
}

static void wrong(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void wrong(const char *format, ...)
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
    CUipcMemHandle handle;
    CUdeviceptr shared, ptr;
    uint64_t began;

    start_cuda();
    must("cuMemAlloc", cuMemAlloc(&shared, 1 << 20));
    must("cuMemsetD32", cuMemsetD32(shared, 7, 1 << 18));
    must("cuIpcGetMemHandle", cuIpcGetMemHandle(&handle, shared));
    memcpy(board->token, &handle, sizeof handle);
    atomic_store(&board->ready, true);
    while (!atomic_load(&board->stop)) {
        began = now_ns();
        must("cuMemAlloc", cuMemAlloc(&ptr, 64 << 10));
        note_time(T_ALLOC, began);
        began = now_ns();
        must("cuIpcGetMemHandle", cuIpcGetMemHandle(&handle, shared));
        note_time(T_HANDLE, began);
        began = now_ns();
        must("cuMemFree", cuMemFree(ptr));
        note_time(T_FREE, began);
        sleep_us(200);
    }
    must("cuMemFree", cuMemFree(shared));
    return 0;
}

static int honest_opener(void)
{
    CUipcMemHandle handle;
    CUdeviceptr ptr;
    uint32_t word;

    start_cuda();
    memcpy(&handle, board->token, sizeof handle);
    while (!atomic_load(&board->stop)) {
        uint64_t began = now_ns();

        must("an honest cuIpcOpenMemHandle",
             cuIpcOpenMemHandle(&ptr, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
        note_time(T_OPEN, began);
        must("cuMemcpyDtoH", cuMemcpyDtoH(&word, ptr, 4));
        if (word != 7)
            wrong("an honest opener sees %u", word);
        must("cuIpcCloseMemHandle", cuIpcCloseMemHandle(ptr));
        atomic_fetch_add(&board->honest_opens, 1);
        sleep_us(20000); /* long enough that the hold goes back */
    }
    return 0;
}

/* ---- Attackers: no shim, no CUDA ------------------------------------------------------------ */

/* The connection, or -1 with errno. */
static int dial(void)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    struct gs_token token;
    int n = snprintf(to.sun_path, sizeof to.sun_path, "%.60s/", dir);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    memcpy(&token, board->token, sizeof token);
    for (unsigned i = 0; i < GS_INSTANCE_SIZE; i++)
        n += sprintf(to.sun_path + n, "%02x", token.instance[i]);
    if (fd < 0)
        return -1;
    if (connect(fd, (struct sockaddr *)&to, sizeof to) == 0) {
        atomic_fetch_add(&board->connected, 1);
        return fd;
    }
    n = errno;
    close(fd);
    errno = n;
    return -1;
}

static void hello(int fd)
{
    union gs_wire_message message;

    gs_wire_start(&message, GS_WIRE_HELLO, 0);
    memcpy(message.hello.instance, board->token + offsetof(struct gs_token, instance),
           GS_INSTANCE_SIZE);
    message.hello.pid = 1; /* somebody else's */
    memset(message.hello.name, 'x', sizeof message.hello.name);
    gs_wire_send(fd, &message, -1);
}

static void send_open(int fd, bool good, uint32_t want_fd)
{
    union gs_wire_message message;

    gs_wire_start(&message, GS_WIRE_OPEN, 1);
    memcpy(message.open.token, board->token, GS_TOKEN_SIZE);
    if (!good)
        message.open.token[GS_TOKEN_SIZE - 1] ^= 1;
    message.open.want_fd = want_fd;
    gs_wire_send(fd, &message, -1);
}

static bool time_is_up(uint64_t end)
{
    return now_ns() > end || atomic_load(&board->is_wrong);
}

/* Opens as fast as it can with a secret that is wrong, and reads nothing. */
static void flood(uint64_t end)
{
    while (!time_is_up(end)) {
        int fd = dial();

        hello(fd);
        for (int i = 0; i < 2000 && !time_is_up(end); i++)
            send_open(fd, false, 1);
        close(fd);
    }
}

/* Asks for the real block and takes none of the descriptors; keeps hundreds of connections. */
static void stall(uint64_t end)
{
    int fds[KEPT_OPEN / 2];
    unsigned count = 0;

    while (count < KEPT_OPEN / 2 && !time_is_up(end)) {
        fds[count] = dial();
        if (fds[count] < 0)
            continue;
        hello(fds[count]);
        for (int i = 0; i < 8; i++)
            send_open(fds[count], true, 1);
        count++;
    }
    while (!time_is_up(end))
        sleep_us(10000);
    while (count)
        close(fds[--count]);
}

/* Beginnings of messages, and messages of every length. */
static void halves(uint64_t end)
{
    unsigned seed = 2;

    while (!time_is_up(end)) {
        union gs_wire_message message;
        int fd = dial();

        hello(fd);
        gs_wire_start(&message, GS_WIRE_OPEN, 1);
        send(fd, &message, 1 + (unsigned)rand_r(&seed) % (message.head.size - 1),
             MSG_NOSIGNAL | MSG_DONTWAIT);
        close(fd);
    }
}

static void garbage(uint64_t end)
{
    unsigned seed = 3;
    unsigned char junk[4096];

    while (!time_is_up(end)) {
        int fd = dial();

        for (size_t i = 0; i < sizeof junk; i++)
            junk[i] = (unsigned char)rand_r(&seed);
        if (rand_r(&seed) % 2)
            hello(fd);
        send(fd, junk, (unsigned)rand_r(&seed) % sizeof junk, MSG_NOSIGNAL | MSG_DONTWAIT);
        close(fd);
    }
}

/* Good messages with many descriptors, which would fill the exporter's table. */
static void descriptors(uint64_t end)
{
    char control[CMSG_SPACE(200 * sizeof(int))] __attribute__((aligned(8)));
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);

    while (!time_is_up(end)) {
        union gs_wire_message message;
        struct iovec part = {&message, 0};
        struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control,
                                .msg_controllen = sizeof control};
        struct cmsghdr *c = CMSG_FIRSTHDR(&header);
        int fd = dial();

        memset(control, 0, sizeof control);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(200 * sizeof(int));
        for (size_t i = 0; i < 200; i++)
            memcpy(CMSG_DATA(c) + i * sizeof null, &null, sizeof null);
        gs_wire_start(&message, GS_WIRE_HELLO, 0);
        memcpy(message.hello.instance, board->token + offsetof(struct gs_token, instance),
               GS_INSTANCE_SIZE);
        part.iov_len = message.head.size;
        sendmsg(fd, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
        close(fd);
    }
    close(null);
}

/* Ten thousand connections that say nothing; as many of them as the table holds stay open. */
static void many(uint64_t end)
{
    static int fds[KEPT_OPEN];
    uint64_t limit = now_ns() + CONNECT_LIMIT_S * UINT64_C(1000000000);
    unsigned made = 0;

    memset(fds, -1, sizeof fds);
    while (made < CONNECTIONS && !time_is_up(limit)) {
        int fd = dial();

        if (fd < 0)
            continue;
        if (fds[made % KEPT_OPEN] >= 0)
            close(fds[made % KEPT_OPEN]);
        fds[made++ % KEPT_OPEN] = fd;
    }
    if (made < CONNECTIONS)
        wrong("only %u connections could be made in %d s", made, CONNECT_LIMIT_S);
    for (unsigned i = 0; i < KEPT_OPEN; i++)
        if (fds[i] >= 0)
            close(fds[i]);
}

/* Another user, whom nobody has listed: the folder or the socket is closed to him. */
static void other_user(uint64_t end)
{
    if (setgid(ANY_USER) != 0 || setuid(ANY_USER) != 0)
        return; /* not root: there is no other user to be had */
    while (!time_is_up(end)) {
        int fd = dial();
        char byte;

        if (fd >= 0) {
            hello(fd);
            send_open(fd, true, 1);
            if (recv(fd, &byte, 1, 0) > 0)
                wrong("another user got an answer");
            close(fd);
        } else if (errno == EACCES) {
            atomic_fetch_add(&board->turned_away, 1);
        }
        sleep_us(100);
    }
}

static const struct phase {
    const char *name;
    void (*attack)(uint64_t end);
    unsigned attackers;
} phases[] = {
    {"nobody", NULL, 0},
    {"a flood of wrong tokens", flood, 2},
    {"stalled clients that asked for hundreds of descriptors", stall, 2},
    {"halves of messages", halves, 2},
    {"garbage", garbage, 2},
    {"messages with 200 descriptors", descriptors, 2},
    {"10,000 connections", many, 1},
    {"another user", other_user, 1},
};

/* ---- The judge ------------------------------------------------------------------------------ */

static pid_t start_under_shim(const char *shim, const char *role)
{
    pid_t pid = fork();
    char number[16];

    if (pid != 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    snprintf(number, sizeof number, "%d", board_fd);
    setenv("GPUSHIM_SHARE_DIR", dir, 1);
    setenv("GPUSHIM_CONFIG", "", 1);
    setenv("LD_PRELOAD", shim, 1);
    execl("/proc/self/exe", "hostile", role, number, dir, (char *)NULL);
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

static unsigned count_fds(pid_t pid)
{
    char path[64];
    unsigned count = 0;
    DIR *list;

    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    list = opendir(path);
    while (list && readdir(list))
        count++;
    if (list)
        closedir(list);
    return count;
}

/* The time that 99 of 100 calls stay below, rounded up to a power of two. */
static uint64_t usual(enum timed what)
{
    uint64_t all = 0, seen = 0;

    for (unsigned i = 0; i < BUCKETS; i++)
        all += atomic_load(&board->bucket[what][i]);
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
    atomic_store(&board->connected, 0);
    atomic_store(&board->turned_away, 0);
}

struct bounds {
    pid_t exporter;
    long rss_kib;      /* after the first phase */
    long rss_most_kib; /* seen in this one */
    unsigned fds, fds_most;
};

static void look(struct bounds *bounds)
{
    long rss = status_kib(bounds->exporter, "VmRSS:");
    unsigned fds = count_fds(bounds->exporter);

    bounds->rss_most_kib = rss > bounds->rss_most_kib ? rss : bounds->rss_most_kib;
    bounds->fds_most = fds > bounds->fds_most ? fds : bounds->fds_most;
}

static void judge(const struct phase *phase, const struct bounds *bounds)
{
    printf("%s:\n  ", phase->name);
    for (unsigned i = 0; i < TIMED; i++) {
        uint64_t worst = atomic_load(&board->worst[i]);

        printf("%s %s<%.0f us, worst %.1f ms", i ? "," : "", timed_names[i],
               (double)usual(i) / 1e3, (double)worst / 1e6);
        if (worst > (i == T_OPEN ? OPEN_WORST_NS : WORST_NS))
            wrong("with %s a %s took %.0f ms", phase->name, timed_names[i], (double)worst / 1e6);
        if (i != T_OPEN && usual(i) > USUAL_NS)
            wrong("with %s 99 of 100 %s took up to %.1f ms", phase->name, timed_names[i],
                  (double)usual(i) / 1e6);
    }
    printf("\n   %u connections, %u turned away, %u honest opens, VmRSS at most %ld KiB (+%ld), at most %u descriptors\n",
           atomic_load(&board->connected), atomic_load(&board->turned_away),
           atomic_load(&board->honest_opens), bounds->rss_most_kib,
           bounds->rss_most_kib - bounds->rss_kib, bounds->fds_most);
    if (bounds->rss_most_kib - bounds->rss_kib > RSS_MORE_KIB)
        wrong("with %s the exporter grew by %ld KiB", phase->name,
              bounds->rss_most_kib - bounds->rss_kib);
    if (bounds->fds_most > bounds->fds + FDS_MORE)
        wrong("with %s the exporter had %u descriptors", phase->name, bounds->fds_most);
    if (phase->attack == other_user ? atomic_load(&board->connected) > 0 && geteuid() == 0
                                    : phase->attack && !atomic_load(&board->connected))
        wrong("with %s %u connections were made", phase->name, atomic_load(&board->connected));
    if (atomic_load(&board->honest_opens) == 0)
        wrong("with %s an honest opener got nothing", phase->name);
}

static void run_phase(const struct phase *phase, struct bounds *bounds)
{
    uint64_t end = now_ns() + PHASE_MS * UINT64_C(1000000), began = now_ns();
    pid_t attackers[4];
    unsigned running = phase->attackers;

    reset_figures();
    for (unsigned i = 0; i < phase->attackers; i++) {
        attackers[i] = fork();
        if (attackers[i] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            phase->attack(end);
            _exit(0);
        }
    }
    while (running || now_ns() < end) {
        look(bounds);
        sleep_us(20000);
        while (running && waitpid(attackers[running - 1], NULL, WNOHANG) != 0)
            running--;
        if (now_ns() - began > (CONNECT_LIMIT_S + 10) * UINT64_C(1000000000)) {
            wrong("with %s the attackers hang", phase->name);
            break;
        }
    }
    if (!bounds->rss_kib) {
        bounds->rss_kib = bounds->rss_most_kib;
        bounds->fds = bounds->fds_most;
    }
    judge(phase, bounds);
    if (phase->attack == many)
        printf("   in %.1f s\n", (double)(now_ns() - began) / 1e9);
    bounds->rss_most_kib = 0;
    bounds->fds_most = 0;
}

static bool end_one(pid_t pid)
{
    int status = 1;

    for (int i = 0; i < 1000; i++) {
        if (waitpid(pid, &status, WNOHANG) == pid)
            return status == 0;
        sleep_us(10000);
    }
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    return false;
}

/* What the attackers' connections took is given back within a few seconds. */
static void check_rest(const struct bounds *bounds)
{
    unsigned left = count_fds(bounds->exporter);

    for (int i = 0; i < 500 && left > bounds->fds + 8; i++) {
        sleep_us(10000);
        left = count_fds(bounds->exporter);
    }
    if (left > bounds->fds + 8)
        wrong("the exporter keeps %u descriptors, it had %u", left, bounds->fds);
}

static int judge_all(const char *shim)
{
    struct bounds bounds = {.exporter = start_under_shim(shim, "exporter")};
    pid_t opener;

    for (int i = 0; i < 2000 && !atomic_load(&board->ready); i++)
        sleep_us(5000);
    if (!atomic_load(&board->ready))
        wrong("the exporter does not start");
    opener = start_under_shim(shim, "opener");
    sleep_us(300000);
    for (size_t i = 0; i < sizeof phases / sizeof *phases; i++)
        if (!atomic_load(&board->is_wrong))
            run_phase(&phases[i], &bounds);
    check_rest(&bounds);
    atomic_store(&board->stop, true);
    if (!end_one(opener) || !end_one(bounds.exporter))
        wrong("the exporter or the honest opener did not end well");
    if (rmdir(dir) != 0 && !atomic_load(&board->is_wrong))
        wrong("something is left in %s", dir);
    printf("hostile: %s\n", atomic_load(&board->is_wrong) ? board->wrong : "ok");
    return atomic_load(&board->is_wrong);
}

int main(int argc, char **argv)
{
    bool is_judge = argc == 2;
    char shim[PATH_MAX], made[] = "/tmp/hostile-XXXXXX";
    struct rlimit fds = {1024, 4096};
    int fd = is_judge ? memfd_create("hostile", 0) : argc == 4 ? atoi(argv[2]) : -1;

    setvbuf(stdout, NULL, _IOLBF, 0);
    if (fd < 0 || (is_judge && (ftruncate(fd, sizeof *board) != 0 || !realpath(argv[1], shim)))) {
        fprintf(stderr, "usage: hostile SHIM\n");
        return 2;
    }
    board_fd = fd;
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (board == MAP_FAILED)
        return 2;
    if (!is_judge) {
        snprintf(dir, sizeof dir, "%s", argv[3]);
        return strcmp(argv[1], "exporter") == 0 ? exporter() : honest_opener();
    }
    if (!mkdtemp(made))
        return 2;
    snprintf(dir, sizeof dir, "%s", made);
    signal(SIGPIPE, SIG_IGN);
    setrlimit(RLIMIT_NOFILE, &fds);
    return judge_all(shim);
}
