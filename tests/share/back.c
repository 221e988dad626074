/*
 * Memory that is freed while another process has it mapped. Where that one only keeps it for its
 * next open, its mapping is called back and no descriptor keeps the memory from the driver; where
 * it has it open, the log tells.
 *
 *   back create    the program needs the memory: its cuMemCreate finds the GPU full
 *   back full      the same behind an allocation that finds the GPU full, and has the memory at once
 *   back purge     it lies idle, and neither program does anything
 *   back LIMBO_WARNING=VALUE   the other process has all open still: the log tells of what is freed;
 *                  also LIMBO_WARNING_BLOCKS, LIMBO_WARNING_AGE
 *   back importer    opens and closes what it is told, and then says how much it has mapped; with one
 *                  word more it closes nothing
 *
 * The library is preloaded; what is mapped and exported is asked of the software driver.
 */
#include "party.h"
#include "softcuda.h"
#include "tests/folder.h"
#include "tests/system.h"

#define BLOCKS 40
#define SIZE   ((size_t)2 << 20)
#define MOST   ((size_t)104 << 20) /* of 128 MiB */
#define WAITS  20000               /* of a millisecond */

static struct softcuda_census census(void)
{
    struct softcuda_census now;

    softcuda_census(&now);
    return now;
}

/* ---- The importer ---------------------------------------------------------------------------- */

static int importer(bool closes)
{
    CUipcMemHandle handle[BLOCKS];
    CUdeviceptr block[BLOCKS];
    uint32_t mapped, before;
    char ask;

    start_driver();
    before = census().mappings;
    hear(PARTY_SOCKET, handle, sizeof handle);
    for (int i = 0; i < BLOCKS; i++)
        must("cuIpcOpenMemHandle",
             cuIpcOpenMemHandle(&block[i], handle[i], CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    for (int i = 0; i < BLOCKS && closes; i++)
        must("cuIpcCloseMemHandle", cuIpcCloseMemHandle(block[i]));
    do {
        mapped = census().mappings - before;
        say(PARTY_SOCKET, &mapped, sizeof mapped);
    } while (hear_or_end(PARTY_SOCKET, &ask, 1));
    return 0;
}

static uint32_t mapped_there(const struct party *importer)
{
    uint32_t mapped;

    hear(importer->socket, &mapped, sizeof mapped);
    return mapped;
}

/* ---- The owner ------------------------------------------------------------------------------ */

#define ANCHOR 1 /* a descriptor of what the device was probed with */

/* Some chunks went to the driver, and nobody keeps more than there are left. */
static bool is_back(uint32_t mapped)
{
    struct softcuda_census now = census();

    return now.handles < BLOCKS && mapped <= now.handles &&
           now.exported_fds <= now.handles + ANCHOR;
}

/* Whether the library has said so: its log's lines are short. */
static bool is_said(const char *path, const char *text)
{
    char line[1024];
    FILE *log = fopen(path, "r");
    bool said = false;

    while (log && !said && fgets(line, sizeof line, log))
        said = strstr(line, text) != NULL;
    if (log)
        fclose(log);
    return said;
}

/* Told by their age they may be as many as were freed before the machine stood still. */
static void await_said(const char *path, pid_t other, bool all)
{
    char text[64];
    int length = snprintf(text, sizeof text, "most by process %d (back): ", (int)other);

    if (all)
        snprintf(text + length, sizeof text - (size_t)length, "%d blocks", BLOCKS);
    for (int i = 0; i < WAITS && !is_said(path, text); i++)
        usleep(1000);
    if (!is_said(path, text))
        fail("the log does not say what is freed and still held, by process", (int)other);
}

static void share(const char *how, const struct party *other, const char *log)
{
    CUipcMemHandle handle[BLOCKS];
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUmemGenericAllocationHandle made = 0;
    CUdeviceptr block[BLOCKS], large;
    uint32_t mapped;

    for (int i = 0; i < BLOCKS; i++) {
        must("cuMemAlloc", cuMemAlloc(&block[i], SIZE));
        must("cuIpcGetMemHandle", cuIpcGetMemHandle(&handle[i], block[i]));
    }
    say(other->socket, handle, sizeof handle);
    mapped = mapped_there(other);
    if (mapped < BLOCKS)
        fail("nothing stays mapped: this test shows nothing", (int)mapped);
    for (int i = 0; i < BLOCKS; i++)
        must("cuMemFree", cuMemFree(block[i]));
    if (log) {
        await_said(log, other->pid, strncmp(how, "LIMBO_WARNING_AGE", 17));
        return;
    }
    if (!strcmp(how, "full")) { /* at once: the importer has not heard of it yet */
        must("cuMemAlloc, of most", cuMemAlloc(&large, MOST));
        must("cuMemFree", cuMemFree(large));
    }
    if (strcmp(how, "purge") != 0)
        must("cuMemCreate, of most", cuMemCreate(&made, MOST, &prop, 0));
    for (int i = 0; i < WAITS && !is_back(mapped); i++) {
        usleep(1000);
        say(other->socket, "?", 1);
        mapped = mapped_there(other);
    }
    printf("%u chunks are left, %u mapped by others, %u descriptors\n", census().handles, mapped,
           census().exported_fds);
    if (!is_back(mapped))
        fail("memory that went back is kept", (int)mapped);
    if (made)
        must("cuMemRelease", cuMemRelease(made));
}

int main(int argc, char **argv)
{
    const char *dir, *value = argc == 2 ? strchr(argv[1], '=') : NULL;
    char log[64], name[64] = "GPUSHIM_SHARE_";
    int status;
    pid_t child;

    if (argc >= 2 && !strcmp(argv[1], "importer"))
        return importer(argc == 2);
    if (argc != 2)
        fail("one word", argc);
    dir = folder_new("back");
    snprintf(log, sizeof log, "%s.log", dir);
    if (value) {
        strncat(name, argv[1], (size_t)(value - argv[1]));
        setenv(name, value + 1, 1);
        setenv("GPUSHIM_LOG_TARGET", log, 1);
    }
    setenv("GPUSHIM_DEBUG_IDLE", "10 min", 1);
    setenv("GPUSHIM_POOL_DECAY", strcmp(argv[1], "purge") ? "0" : "300 ms", 1);
    child = fork_child(); /* its end takes all with it that it keeps there */
    if (child == 0) {
        struct party other = party_start("importer", value ? "holds" : NULL);

        start_driver();
        share(argv[1], &other, value ? log : NULL);
        return party_end(&other) == 0 ? 0 : 1;
    }
    waitpid(child, &status, 0);
    unlink(log);
    if (rmdir(dir) != 0)
        fail("something is left in the directory", errno);
    if (status == 0)
        printf("ok\n");
    return status == 0 ? 0 : 1;
}
