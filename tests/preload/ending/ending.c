/*
 * How a process can end, or become another program, while it has device memory that is live, shared
 * and open elsewhere, and while threads allocate and the library's own threads are at work. None of
 * it hangs, crashes, or loses the exit status; what others have open stays; and a process that ends
 * in order leaves nothing in the folder of the sockets.
 *
 * usage: ending CASE LATE-MODULE; this process shares with the one that ends
 *        ending in CASE DESCRIPTOR LATE-MODULE; the one that ends
 *        ending after STATUS; what it becomes, or starts
 */
#include "../../../shim/cuda_exact.h"
#include "../check.h"
#include "tests/system.h"

#include <spawn.h>

#define MIB      ((size_t)1 << 20)
#define STATUS   41 /* that the process ends with */
#define AFTER    42 /* that a program it became, or started, ends with */
#define THREADS  3
#define BLOCKS   24
#define OK(call) CHECK((call) == CUDA_SUCCESS, "failed")

void late_set(void (*call)(void));
extern char **environ;

static char **arguments;
static CUdeviceptr blocks[BLOCKS];
static CUcontext context;

/* ---- The process that ends ---- */

static void start_cuda(void)
{
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
}

/* What handlers and destructors do, some before the library's own end and some after it. */
static void use_memory(void)
{
    CUdeviceptr ptr = 0;
    static unsigned next;

    OK(cuCtxSetCurrent(context));
    OK(cuMemFree_v2(blocks[next++]));
    OK(cuMemAlloc_v2(&ptr, 3 * MIB));
    OK(cuMemsetD8_v2(ptr, 1, 3 * MIB));
    OK(cuMemFreeAsync(ptr, NULL));
    OK(cuMemAllocAsync(&ptr, 4096, NULL));
    OK(cuMemFree_v2(ptr));
}

static void *keep_allocating(void *arg)
{
    cuCtxSetCurrent(context);
    for (unsigned i = 0;; i++) {
        CUdeviceptr ptr = 0;
        size_t size = i % 7 == 0 ? 5 * MIB : (size_t)512 << i % 10;

        if (i % 2 ? cuMemAllocAsync(&ptr, size, NULL) : cuMemAlloc_v2(&ptr, size))
            continue;
        cuMemsetD8Async(ptr, 1, size, NULL);
        if (i % 3)
            cuMemFreeAsync(ptr, NULL);
        else
            cuMemFree_v2(ptr);
    }
    return arg;
}

static void *exit_here(void *arg)
{
    exit(STATUS);
    return arg;
}

static pthread_t start_thread(void *(*run)(void *))
{
    pthread_t thread;

    CHECK(pthread_create(&thread, NULL, run, NULL) == 0, "no thread");
    return thread;
}

static void wait_for(pid_t pid, int wanted)
{
    int status = 0;

    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid, "no child: %s", strerror(errno));
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == wanted, "a child's status is 0x%x", status);
}

static char **after_arguments(void)
{
    static char after[] = "after";
    static char *array[3];

    array[0] = arguments[0];
    array[1] = after;
    return array;
}

static void become(bool keep_preload)
{
    if (!keep_preload)
        unsetenv("LD_PRELOAD");
    execve("/proc/self/exe", after_arguments(), environ);
    CHECK(false, "execve: %s", strerror(errno));
}

static void start_others(void)
{
    char **array = after_arguments();
    pid_t pid;

    CHECK(posix_spawn(&pid, "/proc/self/exe", NULL, NULL, array, environ) == 0, "posix_spawn");
    wait_for(pid, AFTER);
    pid = vfork();
    if (pid == 0) {
        execve("/proc/self/exe", array, environ);
        _exit(1);
    }
    wait_for(pid, AFTER);
    CHECK(system("true") == 0, "system");
}

/* A child that ends in order runs the parent's handlers: none of them is about the parent. */
static void fork_after(void)
{
    pid_t pid = fork();

    if (pid == 0)
        exit(STATUS);
    wait_for(pid, STATUS);
    pid = fork();
    if (pid == 0)
        become(true);
    wait_for(pid, AFTER);
}

static void send_handle(int fd, CUdeviceptr ptr)
{
    CUipcMemHandle handle;

    OK(cuIpcGetMemHandle(&handle, ptr));
    CHECK(write(fd, &handle, sizeof handle) == (ssize_t)sizeof handle, "write");
}

static void fill(CUdeviceptr ptr, unsigned char value)
{
    OK(cuMemsetD8_v2(ptr, value, 4 * MIB));
    OK(cuCtxSynchronize());
}

/* Blocks that live, one that is open elsewhere, one of another process that is open here. */
static void prepare(int fd)
{
    CUipcMemHandle theirs;
    CUdeviceptr shared = 0, opened = 0;
    char go;

    start_cuda();
    for (int i = 0; i < BLOCKS; i++)
        OK(cuMemAlloc_v2(&blocks[i], 4 * MIB));
    OK(cuMemAlloc_v2(&shared, 4 * MIB));
    fill(shared, 0x5a);
    send_handle(fd, shared);
    CHECK(read(fd, &theirs, sizeof theirs) == (ssize_t)sizeof theirs, "read");
    OK(cuIpcOpenMemHandle_v2(&opened, theirs, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    CHECK(write(fd, "o", 1) == 1 && read(fd, &go, 1) == 1, "the other process is gone");
}

static bool is(const char *name, const char *wanted)
{
    return strcmp(name, wanted) == 0;
}

static bool under_the_library(void)
{
    return is_hook(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"));
}

/* Whether the process goes on before it ends, and shows it. The software driver takes memory from
 * /proc/PID/fd, which is gone when main is. */
static bool shares_again(const char *name)
{
    return is(name, "spawn") || is(name, "fork-after") || is(name, "fork-before") ||
           (is(name, "pthread_exit-worker") && under_the_library());
}

static void share_again(int fd)
{
    CUdeviceptr again = 0;
    char go;

    OK(cuMemAlloc_v2(&again, 4 * MIB));
    fill(again, 0x5b);
    send_handle(fd, again);
    CHECK(read(fd, &go, 1) == 1, "the other process is gone");
}

/* Its thread is there as a zombie until the process ends. */
static bool main_has_gone(void)
{
    char text[256] = "";
    FILE *file = fopen("/proc/self/stat", "r");
    char *name;

    CHECK(file && fgets(text, sizeof text, file), "no /proc/self/stat");
    fclose(file);
    name = strrchr(text, ')');
    return name && strncmp(name, ") Z", 3) == 0;
}

/* Main has gone, and the process ends by this. */
static void *go_on_without_main(void *arg)
{
    const struct timespec pause = {.tv_nsec = 5000000};

    while (!main_has_gone())
        nanosleep(&pause, NULL);
    cuCtxSetCurrent(context);
    use_memory();
    if (under_the_library())
        share_again(*(int *)arg);
    exit(STATUS);
}

__attribute__((noreturn)) static void leave_main(int fd)
{
    static int kept;
    pthread_t thread;

    kept = fd;
    CHECK(pthread_create(&thread, NULL, go_on_without_main, &kept) == 0, "no thread");
    pthread_exit(NULL);
}

static int end(const char *name, int fd, const char *late_module)
{
    bool handlers = is(name, "handlers"), threads = strstr(name, "threads") != NULL;
    const struct timespec pause = {.tv_nsec = 30000000};

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (is(name, "fork-before")) {
        pid_t pid = fork();

        if (pid == 0)
            become(true);
        wait_for(pid, AFTER);
    }
    if (handlers) { /* before the library's own handler, so it runs after that */
        atexit(use_memory);
        late_set(use_memory);
    }
    prepare(fd);
    if (handlers) {
        void *late = dlopen(late_module, RTLD_NOW);
        void (*set)(void (*)(void)) =
            late ? (void (*)(void (*)(void)))dlsym(late, "late_set") : NULL;

        CHECK(set, "%s", dlerror());
        set(use_memory);
        atexit(use_memory);
    }
    at_quick_exit(use_memory);
    for (int i = 0; threads && i < THREADS; i++)
        start_thread(keep_allocating);
    if (threads)
        nanosleep(&pause, NULL); /* they are under way */
    if (is(name, "spawn"))
        start_others();
    if (is(name, "fork-after"))
        fork_after();
    if (is(name, "pthread_exit-worker"))
        leave_main(fd);
    if (shares_again(name))
        share_again(fd);
    if (is(name, "_exit") || is(name, "_exit-threads"))
        _exit(STATUS);
    if (is(name, "quick_exit") || is(name, "quick_exit-threads"))
        quick_exit(STATUS);
    if (is(name, "exit") || is(name, "exit-threads"))
        exit(STATUS);
    if (is(name, "exec") || is(name, "exec-threads"))
        become(true);
    if (is(name, "exec-without"))
        become(false);
    if (is(name, "thread-exit-threads"))
        pthread_join(start_thread(exit_here), NULL);
    return STATUS;
}

static int after(void)
{
    CUdeviceptr ptr = 0;

    start_cuda();
    OK(cuMemAlloc_v2(&ptr, 4 * MIB));
    fill(ptr, 1);
    OK(cuMemFree_v2(ptr));
    return AFTER;
}

/* ---- The other process ---- */

static void see(CUdeviceptr ptr, unsigned char value)
{
    unsigned char byte = 0;

    OK(cuMemcpyDtoH_v2(&byte, ptr + 4 * MIB - 1, 1));
    CHECK(byte == value, "it reads 0x%x", byte);
}

static void open_next(int fd, unsigned char value, CUdeviceptr *ret_ptr)
{
    CUipcMemHandle handle;

    CHECK(read(fd, &handle, sizeof handle) == (ssize_t)sizeof handle, "it shares nothing");
    OK(cuIpcOpenMemHandle_v2(ret_ptr, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    see(*ret_ptr, value);
}

static size_t free_memory(void)
{
    size_t left = 0, total;

    OK(cuMemGetInfo_v2(&left, &total));
    return left;
}

/* What the process had open of ours comes back. */
static void gets_back(CUdeviceptr mine, size_t left)
{
    const struct timespec pause = {.tv_nsec = 10000000};

    OK(cuMemFree_v2(mine));
    for (int i = 0; free_memory() < left; i++) {
        CHECK(i < 3000, "%zu bytes of ours do not come back", left - free_memory());
        nanosleep(&pause, NULL);
    }
}

/* The folder goes; a process that ended in order has left nothing in it. */
static void clear(const char *folder, bool in_order)
{
    DIR *dir = opendir(folder);
    int left = 0;

    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        if (entry->d_name[0] == '.')
            continue;
        fprintf(in_order ? stderr : stdout, "left behind: %s\n", entry->d_name);
        left++;
        unlinkat(dirfd(dir), entry->d_name, 0);
    }
    if (dir)
        closedir(dir);
    rmdir(folder);
    CHECK(!in_order || left == 0, "%d files were left behind", left);
}

static bool in_order(const char *name)
{
    return strncmp(name, "_exit", 5) != 0 && strncmp(name, "quick", 5) != 0 &&
           strncmp(name, "exec", 4) != 0;
}

static void await(pid_t pid, const char *name)
{
    const struct timespec pause = {.tv_nsec = 5000000};
    int status = 0, wanted = STATUS;
    pid_t ended = 0;

    if (strncmp(name, "exec", 4) == 0)
        wanted = AFTER;
    for (int i = 0; i < 8000 && (ended = waitpid(pid, &status, WNOHANG)) == 0; i++)
        nanosleep(&pause, NULL);
    if (ended == 0)
        kill(pid, SIGKILL);
    CHECK(ended == pid, "it hangs");
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == wanted, "its status is 0x%x", status);
}

/* The process that ends, seen from the one it shares with. */
static int watch(const char *name, char *late_module)
{
    char number[12], in[] = "in", case_name[32], opened = 0;
    CUdeviceptr theirs = 0, again = 0, mine = 0;
    size_t left;
    int ends[2];
    pid_t pid;

    snprintf(case_name, sizeof case_name, "%s", name);
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0, "no sockets");
    snprintf(number, sizeof number, "%d", ends[1]);
    CHECK(posix_spawn(&pid, "/proc/self/exe", NULL, NULL,
                      (char *[]){arguments[0], in, case_name, number, late_module, NULL},
                      environ) == 0,
          "posix_spawn");
    close(ends[1]);
    start_cuda();
    left = free_memory();
    OK(cuMemAlloc_v2(&mine, 4 * MIB));
    fill(mine, 0x5c);
    open_next(ends[0], 0x5a, &theirs);
    send_handle(ends[0], mine);
    CHECK(read(ends[0], &opened, 1) == 1 && opened == 'o', "it did not open ours");
    CHECK(write(ends[0], "g", 1) == 1, "it is gone");
    if (shares_again(name)) {
        open_next(ends[0], 0x5b, &again);
        CHECK(write(ends[0], "g", 1) == 1, "it is gone");
    }
    await(pid, name);
    see(theirs, 0x5a);
    if (again)
        see(again, 0x5b);
    OK(cuIpcCloseMemHandle(theirs));
    gets_back(mine, left);
    return 0;
}

int main(int argc, char **argv)
{
    char folder[] = "/tmp/gpushim-ending-XXXXXX";
    const char *name = argc > 1 ? argv[1] : "";
    pid_t pid;

    arguments = argv;
    if (is(name, "after"))
        return after();
    if (is(name, "in"))
        return end(argv[2], atoi(argv[3]), argv[4]);
    CHECK(argc == 3, "usage: ending CASE LATE-MODULE");
    CHECK(mkdtemp(folder), "no folder");
    setenv("GPUSHIM_SHARE_DIR", folder, 1);
    setenv("GPUSHIM_POOL_DECAY", "1ms", 1); /* its thread always has something to do */
    pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        return watch(name, argv[2]);
    }
    wait_for(pid, 0);
    clear(folder, in_order(name));
    return 0;
}
