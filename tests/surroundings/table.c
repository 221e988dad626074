/*
 * Processes whose descriptor table is full, or has a few numbers left: 0 to ROOM_MAX of them.
 *
 *   table exporter first   before it shares for the first time, each time in a new process
 *   table exporter later   when it has shared, one process
 *   table importer first, later
 *   table broker PROGRAM   the broker, whose limit is set from outside
 *
 * Allocating and freeing goes on; sharing works, or fails with an error; with numbers free it works
 * again, whoever has something open keeps it, no descriptor is left over, and nobody spins.
 */
#include "tests/share/party.h"
#include "tests/system.h"

#define NUMBERS  96
#define ROOM_MAX 12
#define SPIN_NS  UINT64_C(300000000)
#define SLACK    16 /* descriptors that are kept for later; one left over each time would be more */

static int fillers[NUMBERS * 2];
static unsigned filled;

/* The hard limit stays: above it is where the software driver keeps its memory. */
static void limit_numbers(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_max < 2 * NUMBERS)
        fail("getrlimit", errno);
    limit.rlim_cur = NUMBERS;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
        fail("setrlimit", errno);
}

static void leave_free(unsigned room)
{
    int fd;

    while (filled < NUMBERS * 2 && (fd = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0)) >= 0)
        fillers[filled++] = fd;
    while (room-- > 0 && filled > 0)
        close(fillers[--filled]);
}

static void free_all(void)
{
    while (filled > 0)
        close(fillers[--filled]);
}

/* Those below the limit: the driver's memory is above. */
static unsigned numbers_used(void)
{
    unsigned used = 0;

    for (int fd = 0; fd < NUMBERS; fd++)
        used += fcntl(fd, F_GETFD) >= 0;
    return used;
}

struct answer {
    CUresult result;
    CUipcMemHandle handle;
    uint64_t cpu, wall; /* from when the numbers were few until they were many */
    unsigned files;
};

/* Each word is a number of free numbers to share with, and is answered twice: so, and with many. */
static int exporter(void)
{
    struct answer answer = {.result = CUDA_SUCCESS};
    CUdeviceptr block;
    unsigned room;
    char now;

    limit_numbers();
    start_driver();
    use_memory();
    while (hear_or_end(PARTY_SOCKET, &room, sizeof room)) {
        block = block_new();
        leave_free(room);
        answer.cpu = cpu_ns();
        answer.wall = now_ns();
        use_memory();
        answer.result = cuIpcGetMemHandle(&answer.handle, block);
        use_memory();
        say(PARTY_SOCKET, &answer, sizeof answer);
        hear(PARTY_SOCKET, &now, 1);
        answer.cpu = cpu_ns() - answer.cpu;
        answer.wall = now_ns() - answer.wall;
        free_all();
        answer.result = cuIpcGetMemHandle(&answer.handle, block);
        say(PARTY_SOCKET, &answer, sizeof answer);
        hear(PARTY_SOCKET, &now, 1);
        must("cuMemFree", cuMemFree(block));
        use_memory();
        answer.files = numbers_used();
        say(PARTY_SOCKET, &answer, sizeof answer);
    }
    return 0;
}

static void check_spin(const char *who, const struct answer *answer)
{
    if (answer->cpu > SPIN_NS && answer->cpu > answer->wall / 2)
        fail(who, (int)(answer->cpu / 1000000));
}

/* The files that it has afterwards. */
static unsigned exporter_round(const struct party *party, unsigned room)
{
    unsigned refused = 0, said = times_logged("Too many open files");
    struct answer answer;

    say(party->socket, &room, sizeof room);
    hear(party->socket, &answer, sizeof answer);
    if (answer.result == CUDA_SUCCESS)
        refused = try_open(&answer.handle) != CUDA_SUCCESS;
    else
        refused = 1;
    printf("%u numbers free: handle %d, %s\n", room, (int)answer.result,
           refused ? "not opened" : "opened");
    if (refused && times_logged("ulimit -n") == 0)
        fail("nobody said why", (int)room);
    if (answer.result != CUDA_SUCCESS && times_logged("Too many open files") == said)
        fail("who gave no handle did not say why", (int)room);
    if (times_logged("ulimit -u") > 0)
        fail("it was said to lack threads", (int)room);
    say(party->socket, "", 1);
    hear(party->socket, &answer, sizeof answer);
    check_spin("the exporter spins, ms", &answer);
    must("cuIpcGetMemHandle with numbers free", answer.result);
    must_open(&answer.handle);
    say(party->socket, "", 1);
    hear(party->socket, &answer, sizeof answer);
    return answer.files;
}

static void try_exporters(bool later)
{
    struct party party = {0};
    unsigned files, most = 0;

    start_driver();
    if (later) {
        party = party_start("exporter", NULL);
        for (unsigned i = 0; i < 3; i++)
            exporter_round(&party, NUMBERS / 2);
    }
    for (unsigned pass = 0; pass <= 3u * later; pass++)
        for (unsigned room = 0; room <= ROOM_MAX; room++) {
            if (!later)
                party = party_start("exporter", NULL);
            files = exporter_round(&party, room);
            if (pass == 0 && files > most)
                most = files;
            if (files > most + SLACK)
                fail("descriptors are left over", (int)files);
            if (!later && party_end(&party) != 0)
                fail("the exporter ended badly", (int)room);
        }
    if (later && party_end(&party) != 0)
        fail("the exporter ended badly", 0);
}

/* Has a block open; each message is a number of free numbers and a handle to open with them. */
static int importer(void)
{
    struct {
        unsigned room;
        CUipcMemHandle held, handle;
    } order;
    struct answer answer;
    CUdeviceptr held = 0;

    limit_numbers();
    start_driver();
    use_memory();
    while (hear_or_end(PARTY_SOCKET, &order, sizeof order)) {
        if (order.room >= NUMBERS / 2 && !held)
            must("cuIpcOpenMemHandle",
                 cuIpcOpenMemHandle(&held, order.held, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
        leave_free(order.room);
        answer.cpu = cpu_ns();
        answer.wall = now_ns();
        use_memory();
        answer.result = try_open(&order.handle);
        use_memory();
        answer.cpu = cpu_ns() - answer.cpu;
        answer.wall = now_ns() - answer.wall;
        free_all();
        say(PARTY_SOCKET, &answer, sizeof answer);
        must_open(&order.handle);
        if (held && !block_has_stamp(held))
            fail("what it had open has changed", (int)order.room);
        answer.files = numbers_used();
        say(PARTY_SOCKET, &answer, sizeof answer);
    }
    return 0;
}

static unsigned importer_round(const struct party *party, const CUipcMemHandle *held, unsigned room)
{
    struct {
        unsigned room;
        CUipcMemHandle held, handle;
    } order = {.room = room, .held = *held};
    CUdeviceptr block = block_new();
    struct answer answer;

    must("cuIpcGetMemHandle", cuIpcGetMemHandle(&order.handle, block));
    say(party->socket, &order, sizeof order);
    hear(party->socket, &answer, sizeof answer);
    printf("%u numbers free: opened %d\n", room, (int)answer.result);
    if (answer.result != CUDA_SUCCESS && times_logged("ulimit -n") == 0)
        fail("nobody said why", (int)room);
    check_spin("the importer spins, ms", &answer);
    hear(party->socket, &answer, sizeof answer);
    must("cuMemFree", cuMemFree(block));
    return answer.files;
}

static void try_importers(bool later)
{
    CUdeviceptr kept, over[4];
    CUipcMemHandle held;
    struct party party = {0};
    unsigned files, most = 0;

    start_driver();
    kept = block_new();
    must("cuIpcGetMemHandle", cuIpcGetMemHandle(&held, kept));
    if (later) {
        party = party_start("importer", NULL);
        for (unsigned i = 0; i < 3; i++)
            importer_round(&party, &held, NUMBERS / 2);
        must("cuMemFree", cuMemFree(kept));
        for (unsigned i = 0; i < 4; i++) {
            must("cuMemAlloc", cuMemAlloc(&over[i], BLOCK_SIZE));
            must("cuMemsetD32", cuMemsetD32(over[i], 1, BLOCK_SIZE / 4));
        }
    }
    for (unsigned pass = 0; pass <= 3u * later; pass++)
        for (unsigned room = 0; room <= ROOM_MAX; room++) {
            if (!later)
                party = party_start("importer", NULL);
            files = importer_round(&party, &held, room);
            if (pass == 0 && files > most)
                most = files;
            if (files > most + SLACK)
                fail("descriptors are left over", (int)files);
            if (!later && party_end(&party) != 0)
                fail("the importer ended badly", (int)room);
        }
    if (later && party_end(&party) != 0)
        fail("the importer ended badly", 0);
}

/* ---- The broker ------------------------------------------------------------------------------ */

static int sharer(void)
{
    CUipcMemHandle handle;
    char end;

    start_driver();
    for (int i = 0; i < 3; i++) {
        must("cuIpcGetMemHandle", cuIpcGetMemHandle(&handle, block_new()));
        say(PARTY_SOCKET, &handle, sizeof handle);
    }
    use_memory();
    hear_or_end(PARTY_SOCKET, &end, 1);
    return 0;
}

/* So many numbers are free to it; -1: as many as it may have. */
static void limit_of(pid_t pid, int room)
{
    struct rlimit limit;
    char path[64];
    rlim_t next = 0;

    for (int left = room; left >= 0; next++) {
        snprintf(path, sizeof path, "/proc/%d/fd/%u", (int)pid, (unsigned)next);
        if (faccessat(AT_FDCWD, path, F_OK, AT_SYMLINK_NOFOLLOW) != 0 && left-- == 0)
            break;
    }
    if (prlimit(pid, RLIMIT_NOFILE, NULL, &limit) != 0)
        fail("prlimit", errno);
    limit.rlim_cur = room < 0 ? limit.rlim_max : next;
    if (prlimit(pid, RLIMIT_NOFILE, &limit, NULL) != 0)
        fail("prlimit", errno);
}

/* Shares, is killed, and what it had shared is opened: how many of the three. */
static unsigned outlive_sharer(bool busy)
{
    struct party party = party_start("sharer", NULL);
    CUipcMemHandle handles[3];
    unsigned opened = 0;

    for (int i = 0; i < 3; i++) {
        hear(party.socket, &handles[i], sizeof handles[i]);
        if (busy)
            must_open(&handles[i]); /* of a process that runs, whatever its broker */
    }
    usleep(20000); /* the broker may have them by then */
    party_kill(&party);
    for (int i = 0; i < 3; i++)
        opened += try_open(&handles[i]) == CUDA_SUCCESS;
    return opened;
}

static void try_broker(const char *program)
{
    uint64_t begin = now_ns();
    unsigned opened, files;
    pid_t broker;

    setenv("GPUSHIM_SHARE_STRATEGY", "broker", 1);
    setenv("GPUSHIM_SHARE_KEEP", "500ms", 1);
    setenv("GPUSHIM_DEBUG_IDLE", "0", 1);
    broker = broker_start(program);
    start_driver();
    files = open_files(broker);
    if (!AWAIT(outlive_sharer(false) == 3))
        fail("the broker serves nothing", 0);
    for (int room = 0; room <= ROOM_MAX; room += room < 6 ? 1 : 3) {
        if (!AWAIT(open_files(broker) <= files)) /* it has dropped what was shared before */
            fail("descriptors are left over", (int)open_files(broker));
        limit_of(broker, room);
        opened = outlive_sharer(true);
        printf("%d numbers free: %u of 3 were left\n", room, opened);
        if (room == 0 && opened > 0)
            fail("the broker had numbers", (int)opened);
        limit_of(broker, -1);
    }
    if (!AWAIT(outlive_sharer(false) == 3))
        fail("the broker serves no more", 0);
    if (!AWAIT(open_files(broker) <= files))
        fail("descriptors are left over", (int)open_files(broker));
    if (cpu_of(broker) > SPIN_NS && cpu_of(broker) > (now_ns() - begin) / 2)
        fail("the broker spins, ms", (int)(cpu_of(broker) / 1000000));
    if (!broker_end(broker))
        fail("the broker ended badly", 0);
}

int main(int argc, char **argv)
{
    const char *how = argc >= 2 ? argv[1] : "", *when = argc >= 3 ? argv[2] : NULL;

    if (!when && strcmp(how, "exporter") == 0)
        return exporter();
    if (!when && strcmp(how, "importer") == 0)
        return importer();
    if (strcmp(how, "sharer") == 0)
        return sharer();
    surroundings_new();
    if (strcmp(how, "exporter") == 0)
        try_exporters(strcmp(when, "later") == 0);
    else if (strcmp(how, "importer") == 0)
        try_importers(strcmp(when, "later") == 0);
    else if (strcmp(how, "broker") == 0)
        try_broker(when);
    else
        fail("how?", 0);
    puts("ok");
    return 0;
}
