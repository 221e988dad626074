/*
 * Where this library could not share memory the driver does: whoever takes its place in the file
 * system, or forbids sockets, switches nobody's CUDA IPC off.
 *
 *   nowhere folder   no folder can be had from the beginning
 *   nowhere socket   socket(2) is forbidden
 *   nowhere listen   listen(2) is, while a socket can be made
 *   nowhere later    the folder goes, and cannot be made again until it can
 *   nowhere beside   no broker is installed: one that lies beside the library is started
 *   nowhere left     as a process that shares with a broker: waits for that
 *   nowhere open     as another process: opens the block that it is told of, and reads it
 *
 * The last line is "ok".
 */
#include "party.h"
#include "tests/folder.h"
#include "tests/forbid.h"
#include "tests/system.h"

static char above[] = "/tmp/gpushim-nowhere-XXXXXX";
static char folder[64];

static int open_block(void)
{
    CUipcMemHandle handle;

    hear(PARTY_SOCKET, &handle, sizeof handle);
    start_driver();
    must("cuIpcOpenMemHandle", try_open(&handle));
    return 0;
}

static void other_opens(const CUipcMemHandle *handle)
{
    struct party party = party_start("open", NULL);

    say(party.socket, handle, sizeof *handle);
    if (party_end(&party) != 0)
        fail("another process does not open the block", 0);
}

static void share_block(void)
{
    CUdeviceptr block = block_new();
    CUipcMemHandle handle;

    must("cuIpcGetMemHandle", cuIpcGetMemHandle(&handle, block));
    other_opens(&handle);
    must("cuMemFree", cuMemFree(block));
}

/* From here on, and in all children, the call fails with EPERM. */
static void forbid(unsigned call)
{
    if (!forbid_call(call, SECCOMP_RET_ERRNO | EPERM))
        fail("no filter of calls", errno);
}

/* The driver's own memory from the beginning, and in each process one line of why. */
static void is_native(const char *why)
{
    unsigned said;

    start_driver();
    share_block();
    share_block();
    said = times_logged("stay the driver's own");
    if (said != 3 || times_logged(why) != 3)
        fail(why, (int)said);
}

static void remove_folder(void)
{
    DIR *entries = opendir(folder);
    const struct dirent *entry;

    while (entries && (entry = readdir(entries)))
        unlinkat(dirfd(entries), entry->d_name, 0);
    closedir(entries);
    if (rmdir(folder) != 0 || rmdir(above) != 0)
        fail("the folder stays", errno);
}

static void goes_later(void)
{
    CUipcMemHandle handle, before;
    CUdeviceptr block, first;

    start_driver();
    first = block_new();
    must("cuIpcGetMemHandle", cuIpcGetMemHandle(&before, first));
    other_opens(&before);
    remove_folder();
    block = block_new();
    if (cuIpcGetMemHandle(&handle, block) != CUDA_ERROR_NOT_SUPPORTED)
        fail("a handle that nobody can open was given out", 0);
    if (times_logged("cannot be made: No such file") == 0)
        fail("nobody said why", 0);
    if (mkdir(above, 0700) != 0)
        fail("no folder", errno);
    must("cuIpcGetMemHandle", cuIpcGetMemHandle(&handle, block));
    other_opens(&handle);
    other_opens(&before);
    if (times_logged("stay the driver's own") != 0)
        fail("memory was the driver's", 0);
    must("cuMemFree", cuMemFree(block));
    must("cuMemFree", cuMemFree(first));
}

static void copy(const char *from, const char *name)
{
    char to[128], bytes[65536];
    int in = open(from, O_RDONLY | O_CLOEXEC), out;
    ssize_t got;

    snprintf(to, sizeof to, "%s/%s", above, name);
    out = open(to, O_WRONLY | O_CREAT | O_CLOEXEC, 0755);
    while ((got = read(in, bytes, sizeof bytes)) > 0)
        if (write(out, bytes, (size_t)got) != got)
            break;
    if (in < 0 || out < 0 || got != 0)
        fail(from, errno);
    close(in);
    close(out);
}

static bool has_broker(void)
{
    DIR *entries = opendir(folder);
    const struct dirent *entry;
    bool has = false;

    while (entries && (entry = readdir(entries)))
        has |= strncmp(entry->d_name, "broker", 6) == 0;
    if (entries)
        closedir(entries);
    return has;
}

static int leave_block(void)
{
    CUipcMemHandle handle;
    CUdeviceptr block;

    snprintf(folder, sizeof folder, "%s", getenv("GPUSHIM_SHARE_DIR"));
    start_driver();
    block = block_new();
    must("cuIpcGetMemHandle", cuIpcGetMemHandle(&handle, block));
    for (int i = 0; i < 20000 && !has_broker(); i++)
        usleep(1000);
    return has_broker() ? 0 : 1;
}

/* The library and its broker were copied together. */
static void start_beside(const char *broker)
{
    char library[128];
    int status;
    pid_t child;

    copy(getenv("LD_PRELOAD"), "libgpushim.so");
    copy(broker, "gpushim-broker");
    snprintf(library, sizeof library, "%s/libgpushim.so", above);
    setenv("LD_PRELOAD", library, 1);
    setenv("GPUSHIM_SHARE_STRATEGY", "broker", 1);
    setenv("GPUSHIM_SHARE_KEEP", "0", 1);
    child = fork_child();
    if (child == 0) {
        execl("/proc/self/exe", "nowhere", "left", (char *)NULL);
        _exit(127);
    }
    if (waitpid(child, &status, 0) != child || status != 0)
        fail("no broker was started", status);
    for (int i = 0; i < 20000 && has_broker(); i++)
        usleep(1000);
    unlink(library);
}

static void play(const char *how)
{
    if (strcmp(how, "folder") == 0) {
        rmdir(above);
        is_native("cannot be made: No such file");
    } else if (strcmp(how, "socket") == 0) {
        forbid(SYS_socket);
        is_native("no socket can be made in");
    } else if (strcmp(how, "listen") == 0) {
        forbid(SYS_listen);
        is_native("no socket can be made in");
    } else {
        goes_later();
    }
}

int main(int argc, char **argv)
{
    const char *how = argc >= 2 ? argv[1] : "";

    if (strcmp(how, "open") == 0)
        return open_block();
    if (strcmp(how, "left") == 0)
        return leave_block();
    surroundings_new();
    setenv("GPUSHIM_DEBUG_RECLAIM_FROM_PEERS", "off", 1);
    if (!mkdtemp(above))
        fail("no folder", errno);
    snprintf(folder, sizeof folder, "%s/run", above);
    setenv("GPUSHIM_SHARE_DIR", folder, 1);
    folder_watch(folder);
    folder_watch(above); /* what the other leaves in it */
    if (strcmp(how, "beside") == 0)
        start_beside(argv[2]);
    else
        play(how);
    puts("ok");
    return 0;
}
