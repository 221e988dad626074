/*
 * A process that uses memory of its own alone has no share thread and no socket, in its descriptors
 * or in the folder of the sockets; one that has asked for a handle has both. The library is
 * preloaded.
 */
#include "program.h"
#include "tests/folder.h"
#include "tests/system.h"

#define TRIES 20000 /* of a millisecond */

/* What of the folder's entries `counts` says yes to; 0 where there is no folder. */
static unsigned count(const char *folder, bool (*counts)(const char *path))
{
    DIR *entries = opendir(folder);
    const struct dirent *entry;
    unsigned found = 0;

    while (entries && (entry = readdir(entries))) {
        char path[600];

        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        found += counts(path);
    }
    if (entries)
        closedir(entries);
    return found;
}

static bool is_socket(const char *path)
{
    struct stat info;

    return stat(path, &info) == 0 && S_ISSOCK(info.st_mode);
}

static bool is_share_thread(const char *path)
{
    char file[620], name[32] = "";
    FILE *comm;

    snprintf(file, sizeof file, "%s/comm", path);
    comm = fopen(file, "r");
    if (!comm)
        return false;
    if (!fgets(name, sizeof name, comm))
        name[0] = '\0';
    fclose(comm);
    return strcmp(name, "gpushim-share\n") == 0;
}

static unsigned threads(void)
{
    return count("/proc/self/task", is_share_thread);
}

static void use_memory(void)
{
    CUdeviceptr small, large, async;
    CUstream stream;
    size_t free_bytes, total;

    must("cuStreamCreate", cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < 20; i++) {
        must("cuMemAlloc", cuMemAlloc(&small, 4096));
        must("cuMemAlloc", cuMemAlloc(&large, (size_t)8 << 20));
        must("cuMemAllocAsync", cuMemAllocAsync(&async, 1 << 20, stream));
        must("cuMemsetD32Async", cuMemsetD32Async(async, 1, 1 << 18, stream));
        must("cuMemcpyDtoD", cuMemcpyDtoD(large, small, 4096));
        must("cuMemFreeAsync", cuMemFreeAsync(async, stream));
        must("cuMemFree", cuMemFree(small));
        must("cuMemFree", cuMemFree(large));
        must("cuMemGetInfo", cuMemGetInfo(&free_bytes, &total));
    }
    must("cuStreamDestroy", cuStreamDestroy(stream));
}

static int run(const char *dir)
{
    unsigned descriptors = count("/proc/self/fd", is_socket);
    CUipcMemHandle handle;
    CUdeviceptr block;

    start_driver();
    use_memory();
    if (threads() != 0)
        fail("there is a share thread", (int)threads());
    if (count("/proc/self/fd", is_socket) != descriptors)
        fail("there is a socket", (int)count("/proc/self/fd", is_socket));
    if (count(dir, is_socket) != 0)
        fail("there is a socket in the folder", (int)count(dir, is_socket));
    must("cuMemAlloc", cuMemAlloc(&block, 4096));
    must("cuIpcGetMemHandle", cuIpcGetMemHandle(&handle, block));
    for (int i = 0; i < TRIES && threads() == 0; i++)
        usleep(1000); /* until it has its name, which one that it starts has for a moment too */
    if (threads() == 0 || count("/proc/self/fd", is_socket) <= descriptors ||
        count(dir, is_socket) != 1)
        fail("nothing was seen of what sharing takes", (int)threads());
    puts("ok");
    return 0;
}

int main(void)
{
    const char *dir = folder_new("private");
    int status = 1;
    pid_t child;

    child = fork_child();
    if (child == 0)
        exit(run(dir));
    if (child < 0 || waitpid(child, &status, 0) != child)
        fail("no child", errno);
    if (rmdir(dir) != 0)
        fail("something is left in the folder", errno);
    return status == 0 ? 0 : 1;
}
