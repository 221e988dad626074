/*
 * Clocks that are set, and clocks that differ.
 *
 *   clock jumps   whenever any of the processes asks for the time of day it is years earlier or later
 *                 than before: as if somebody set it all the time
 *   clock apart   each process has a CLOCK_MONOTONIC of its own (time namespaces), days apart
 *
 * They share, open, close, free and wait for what was freed, take memory from each other and see
 * each other end, as always.
 */
#include "tests/share/party.h"

#include <stdatomic.h>

#define ROUNDS   20
#define FAR_S    (INT64_C(10) * 365 * 24 * 3600)
#define APART_S  INT64_C(3000000) /* a month and more */
#define DAY_NS   UINT64_C(86400000000000)
#define HALF_GPU ((size_t)96 << 20)
#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x00000080
#endif

/* ---- A time of day that jumps: what all of the process calls -------------------------------- */

static atomic_bool jumps;
static atomic_uint asked;

static int64_t away_s(void)
{
    static const int64_t by[] = {0, FAR_S, -FAR_S, FAR_S / 2, -3700, 3700, -90, 90};

    return atomic_load(&jumps) ? by[atomic_fetch_add(&asked, 1) % (sizeof by / sizeof *by)] : 0;
}

#include "tests/system.h"
#include "tests/time_of_day.h"

/* ---- A clock of its own ---------------------------------------------------------------------- */

static bool write_file(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool written = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);

    if (fd >= 0)
        close(fd);
    return written;
}

/* Not root: as the root of a namespace of users that has this one alone. */
static bool unshare_time(void)
{
    unsigned uid = geteuid(), gid = getegid();
    char map[64];

    if (unshare(CLONE_NEWTIME) == 0)
        return true;
    if (unshare(CLONE_NEWUSER | CLONE_NEWTIME) != 0)
        return false;
    snprintf(map, sizeof map, "%u %u 1", uid, uid);
    if (!write_file("/proc/self/setgroups", "deny") || !write_file("/proc/self/uid_map", map))
        return false;
    snprintf(map, sizeof map, "%u %u 1", gid, gid);
    return write_file("/proc/self/gid_map", map);
}

static bool go_apart(void)
{
    char offset[64];
    int fd;

    snprintf(offset, sizeof offset, "monotonic %lld 0\n", (long long)APART_S);
    if (!unshare_time() || !write_file("/proc/self/timens_offsets", offset))
        return false;
    fd = open("/proc/self/ns/time_for_children", O_RDONLY | O_CLOEXEC);
    return fd >= 0 && setns(fd, CLONE_NEWTIME) == 0 && close(fd) == 0;
}

static void be_apart(void)
{
    if (!go_apart())
        _exit(126);
}

static bool can_go_apart(void)
{
    int status;
    pid_t child = fork();

    if (child == 0)
        _exit(!go_apart());
    return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

/* ---- What they do ---------------------------------------------------------------------------- */

/* Says what time it is, then does as it is told. */
static int exporter(const char *how)
{
    uint64_t now;

    atomic_store(&jumps, strcmp(how, "jumps") == 0);
    start_driver();
    now = now_ns();
    say(PARTY_SOCKET, &now, sizeof now);
    party_share(HALF_GPU);
    return 0;
}

/* Freed while it is open; then opened no more. */
static void share_round(const struct party *party)
{
    CUipcMemHandle handle = party_tell(party, 's');
    CUdeviceptr block;
    CUresult result = CUDA_ERROR_UNKNOWN;

    if (!AWAIT((result = cuIpcOpenMemHandle(&block, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)) ==
               CUDA_SUCCESS))
        must("cuIpcOpenMemHandle", result);
    party_tell(party, 'f');
    if (!block_has_stamp(block))
        fail("a block that was open is somebody else's", 0);
    must("cuIpcCloseMemHandle", cuIpcCloseMemHandle(block));
    if (!AWAIT(try_open(&handle) != CUDA_SUCCESS))
        fail("what was freed and closed can be opened", 0);
}

static void play(const char *how, void (*in_child)(void))
{
    uint64_t began = now_ns(), there;
    CUipcMemHandle last;
    struct party party;
    CUdeviceptr half;
    CUresult result;

    atomic_store(&jumps, strcmp(how, "jumps") == 0);
    start_driver();
    party = party_start_in("exporter", how, in_child);
    hear(party.socket, &there, sizeof there);
    if (in_child && there < began + DAY_NS)
        fail("both have the same clock", 0);
    for (int i = 0; i < ROUNDS; i++)
        share_round(&party);
    party_tell(&party, 'k');
    if (!AWAIT((result = cuMemAlloc(&half, HALF_GPU)) == CUDA_SUCCESS))
        must("cuMemAlloc of what the other keeps", result);
    must("cuMemFree", cuMemFree(half));
    last = party_tell(&party, 's');
    must_open(&last);
    party_kill(&party);
    use_memory();
    if (atomic_load(&jumps) && atomic_load(&asked) == 0)
        fail("nobody asked for the time", 0);
}

int main(int argc, char **argv)
{
    const char *how = argc >= 2 ? argv[1] : "";
    char machine[80];

    if (strcmp(how, "exporter") == 0)
        return exporter(argc >= 3 ? argv[2] : "");
    surroundings_new();
    snprintf(machine, sizeof machine, "%s/machine", surroundings_folder);
    setenv("SOFTCUDA_MACHINE", machine, 1);
    setenv("SOFTCUDA_MEMORY", "128M", 1);
    setenv("GPUSHIM_POOL_DECAY", "10min", 1);
    if (strcmp(how, "jumps") == 0)
        play(how, NULL);
    else if (strcmp(how, "apart") == 0 && !can_go_apart())
        skip("no time namespace can be had here");
    else
        play(how, be_apart);
    puts("ok");
    return 0;
}
