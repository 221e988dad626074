/*
 * Programs that do nothing are woken by nothing: one with memory that it shares, and one that has
 * some of it open and some closed and kept. How often their threads have gone to sleep is what the
 * kernel counts.
 *
 *   asleep          shares and watches
 *   asleep importer   opens what it hears of
 *
 * The library is preloaded.
 */
#include "importer.h"
#include "tests/system.h"

#define SIZE ((size_t)128 << 20)
#define LOOKS \
    3000 /* a millisecond apart, in which nothing happens: what came each second is seen */
#define PATIENCE (20 * LOOKS) /* until a machine that is busy has done what was to be done */

/* Of all threads of a process but the one that looks. */
static unsigned long switches(pid_t pid)
{
    char path[64], line[128];
    unsigned long sum = 0, count;
    struct dirent *entry;
    DIR *tasks;

    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    tasks = opendir(path);
    expect("it has no threads", tasks != NULL);
    while ((entry = readdir(tasks))) {
        FILE *status;

        if (entry->d_name[0] == '.' || atoi(entry->d_name) == getpid())
            continue;
        snprintf(path, sizeof path, "/proc/%d/task/%.20s/status", (int)pid, entry->d_name);
        status = fopen(path, "r");
        while (status && fgets(line, sizeof line, status))
            if (sscanf(line, "voluntary_ctxt_switches: %lu", &count) == 1)
                sum += count + 1; /* one that ends is seen too */
        if (status)
            fclose(status);
    }
    closedir(tasks);
    return sum;
}

/* How many sockets are in the folder, which go on the way where they are to. */
static int sockets(bool removes)
{
    const struct dirent *entry;
    char path[512];
    int count = 0;
    DIR *folder = opendir(surroundings_folder);

    expect("the folder is gone", folder != NULL);
    while ((entry = readdir(folder)))
        if (entry->d_type == DT_SOCK) {
            snprintf(path, sizeof path, "%.200s/%.200s", surroundings_folder, entry->d_name);
            count += !removes || unlink(path) == 0;
        }
    closedir(folder);
    return count;
}

/* That wakes who they belong to: nothing else happens, and they are there again. */
static void remove_sockets(void)
{
    int count = sockets(true);

    expect("nobody has a socket", count > 0);
    expect("a socket that was removed is not put up again", AWAIT(sockets(false) == count));
}

static int opens(void)
{
    CUipcMemHandle handles[2];
    CUdeviceptr blocks[2];

    start_driver();
    hear(PARTY_SOCKET, handles, sizeof handles);
    for (int i = 0; i < 2; i++)
        must("cuIpcOpenMemHandle",
             cuIpcOpenMemHandle(&blocks[i], handles[i], CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    must("cuIpcCloseMemHandle", cuIpcCloseMemHandle(blocks[1]));
    say(PARTY_SOCKET, "", 1);
    return hear_or_end(PARTY_SOCKET, handles, 1);
}

int main(int argc, char **argv)
{
    CUipcMemHandle handles[2];
    struct party other;
    CUdeviceptr blocks[2];
    unsigned long last[2] = {0};
    unsigned quiet = 0;
    char byte;

    if (argc > 1 && strcmp(argv[1], "importer") == 0)
        return opens();
    surroundings_new();
    start_driver();
    other = party_start("importer", NULL);
    for (int i = 0; i < 2; i++) {
        must("cuMemAlloc", cuMemAlloc(&blocks[i], SIZE));
        must("cuIpcGetMemHandle", cuIpcGetMemHandle(&handles[i], blocks[i]));
    }
    say(other.socket, handles, sizeof handles);
    hear(other.socket, &byte, 1);
    for (unsigned looks = 0; quiet < LOOKS; looks++) {
        unsigned long now[2] = {switches(getpid()), switches(other.pid)};

        quiet = memcmp(now, last, sizeof now) == 0 ? quiet + 1 : 0;
        memcpy(last, now, sizeof last);
        expect("a program that does nothing is woken again and again", looks < PATIENCE);
        usleep(1000);
    }
    remove_sockets();
    return party_end(&other) == 0 ? 0 : 1;
}
