/*
 * How a process begins to use CUDA: the whole library and a whole driver, not only the look-up.
 *
 *   begin together LIBCUDA [led]   64 threads load the driver and make their first calls at once,
 *                                  each by the way of asking that it likes
 *   begin closed LIBCUDA [led]     the program closes libcuda while memory is live, shared and
 *                                  freed, and loads it again; the library's threads run then
 *   begin held LIBCUDA led         a thread that holds the dynamic linker's lock comes while
 *                                  another one starts the library
 *
 * led: what they find are the library's hooks.
 */
#include "../../../shim/cuda_exact.h"
#include "../check.h"

#include <dirent.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define THREADS  64
#define MIB      ((size_t)1 << 20)
#define OK(call) CHECK((call) == CUDA_SUCCESS, "failed")

struct driver {
    __typeof__(&cuInit) init;
    __typeof__(&cuDevicePrimaryCtxRetain) retain;
    __typeof__(&cuCtxSetCurrent) set_current;
    __typeof__(&cuMemAlloc_v2) alloc;
    __typeof__(&cuMemFree_v2) free;
    __typeof__(&cuMemAllocAsync) alloc_async;
    __typeof__(&cuMemFreeAsync) free_async;
    __typeof__(&cuMemsetD8_v2) fill;
    __typeof__(&cuMemcpyDtoH_v2) read;
    __typeof__(&cuIpcGetMemHandle) get_handle;
};

static const char *libcuda;
static bool led;
static pthread_barrier_t together;

static void *load(void)
{
    void *handle = dlopen(libcuda, RTLD_NOW);

    CHECK(handle, "%s", dlerror());
    return handle;
}

static void *find(void *handle, const char *symbol)
{
    void *found = dlsym(handle, symbol);

    CHECK(found, "%s", symbol);
    return found;
}

static void *ask(void *handle, const char *name)
{
    __typeof__(&cuGetProcAddress_v2) get =
        (__typeof__(&cuGetProcAddress_v2))find(handle, "cuGetProcAddress_v2");
    void *found = NULL;

    CHECK(get(name, &found, 12000, 0, NULL) == CUDA_SUCCESS && found, "%s", name);
    return found;
}

#define FIND(symbol) (__typeof__(&symbol))find(handle, #symbol)

static struct driver find_driver(void *handle, bool by_asking)
{
    struct driver driver = {
        .init = FIND(cuInit),
        .retain = FIND(cuDevicePrimaryCtxRetain),
        .set_current = FIND(cuCtxSetCurrent),
        .alloc = FIND(cuMemAlloc_v2),
        .free = FIND(cuMemFree_v2),
        .alloc_async = FIND(cuMemAllocAsync),
        .free_async = FIND(cuMemFreeAsync),
        .fill = FIND(cuMemsetD8_v2),
        .read = FIND(cuMemcpyDtoH_v2),
        .get_handle = FIND(cuIpcGetMemHandle),
    };

    if (by_asking) {
        driver.alloc = (__typeof__(&cuMemAlloc_v2))ask(handle, "cuMemAlloc");
        driver.free = (__typeof__(&cuMemFree_v2))ask(handle, "cuMemFree");
    }
    CHECK(is_hook((void *)driver.alloc) == led, "cuMemAlloc is in %s",
          object_of((void *)driver.alloc));
    return driver;
}

static void start(const struct driver *driver)
{
    CUcontext context;

    OK(driver->init(0));
    OK(driver->retain(&context, 0));
    OK(driver->set_current(context));
}

/* Small and large, in stream order and not, shared and not. */
static void use(const struct driver *driver, unsigned char stamp)
{
    static const size_t sizes[] = {512, 3 * MIB};
    CUipcMemHandle handle;

    for (int i = 0; i < 4; i++) {
        size_t size = sizes[i % 2];
        CUdeviceptr ptr = 0;
        unsigned char seen = 0;

        OK(i < 2 ? driver->alloc(&ptr, size) : driver->alloc_async(&ptr, size, NULL));
        OK(driver->fill(ptr, stamp, size));
        OK(driver->read(&seen, ptr + size - 1, 1));
        CHECK(seen == stamp, "0x%x, not 0x%x", seen, stamp);
        if (i < 2)
            OK(driver->get_handle(&handle, ptr));
        OK(i < 2 ? driver->free(ptr) : driver->free_async(ptr, NULL));
    }
}

static void *first_calls(void *arg)
{
    long number = (long)arg;
    struct driver driver;

    pthread_barrier_wait(&together);
    driver = find_driver(load(), number % 2);
    start(&driver);
    use(&driver, (unsigned char)(number + 1));
    return NULL;
}

static void threads_together(void)
{
    pthread_t threads[THREADS];

    pthread_barrier_init(&together, NULL, THREADS);
    for (long i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, first_calls, (void *)i) == 0, "thread %ld", i);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}

/* In the library's threads, the arenas' and the share thread, which both come to be here. */
static void signals_are_blocked(void)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    unsigned found = 0;

    /* A thread that they have started has their name until it gives itself one. */
    for (int i = 0; led && i < 30000 && found != 2; i++) {
        DIR *tasks = opendir("/proc/self/task");

        found = 0;
        for (struct dirent *task; tasks && (task = readdir(tasks));) {
            char path[300], line[100], name[20] = "";
            unsigned long long blocked = 0;
            FILE *status;

            snprintf(path, sizeof path, "/proc/self/task/%s/status", task->d_name);
            status = fopen(path, "r");
            while (status && fgets(line, sizeof line, status)) {
                sscanf(line, "Name: %19s", name);
                sscanf(line, "SigBlk: %llx", &blocked);
            }
            if (status)
                fclose(status);
            if (strcmp(name, "gpushim-trim") != 0 && strcmp(name, "gpushim-share") != 0)
                continue;
            found++;
            for (int signal = 1; signal < 32; signal++)
                CHECK(signal == SIGKILL || signal == SIGSTOP || blocked >> (signal - 1) & 1,
                      "signal %d is not blocked in %s", signal, name);
        }
        if (tasks)
            closedir(tasks);
        nanosleep(&pause, NULL);
    }
    CHECK(!led || found == 2, "%u threads", found);
}

/* What is freed goes back to the driver, in a thread of the library's, while the program has no
 * libcuda. (The software driver stays in the process by itself.) */
static void closed(void)
{
    const struct timespec pause = {.tv_nsec = 50000000};
    void *handle = load();
    struct driver driver = find_driver(handle, false);
    CUdeviceptr blocks[32];

    start(&driver);
    use(&driver, 1);
    for (int i = 0; i < 32; i++)
        OK(driver.alloc(&blocks[i], 4 * MIB));
    for (int i = 1; i < 32; i++)
        OK(driver.free(blocks[i]));
    signals_are_blocked();
    CHECK(dlclose(handle) == 0, "%s", dlerror());
    nanosleep(&pause, NULL);
    driver = find_driver(load(), true);
    OK(driver.free(blocks[0]));
    use(&driver, 2);
}

/* The start of a process that is to share through a broker looks where its program is, and stays
 * there until another thread walks the loaded objects. */
static sem_t starts, walks;

__attribute__((visibility("default"))) int faccessat(int folder, const char *path, int mode,
                                                     int flags)
{
    static atomic_flag asked = ATOMIC_FLAG_INIT;

    if (strstr(path, "gpushim-broker") && !atomic_flag_test_and_set(&asked)) {
        sem_post(&starts);
        sem_wait(&walks);
    }
    return flags ? -1 : (int)syscall(SYS_faccessat, folder, path, mode);
}

static void *begins(void *arg)
{
    struct driver driver = find_driver(load(), false);

    start(&driver);
    return NULL;
}

static int walk(struct dl_phdr_info *info, size_t size, void *handle)
{
    struct driver driver;

    sem_post(&walks);
    driver = find_driver(handle, false);
    start(&driver);
    return 1;
}

static void linker_held(void)
{
    void *handle = load();
    pthread_t thread;

    setenv("GPUSHIM_SHARE_STRATEGY", "broker", 1);
    sem_init(&starts, 0, 0);
    sem_init(&walks, 0, 0);
    alarm(60);
    CHECK(pthread_create(&thread, NULL, begins, NULL) == 0, "a thread");
    sem_wait(&starts);
    dl_iterate_phdr(walk, handle);
    pthread_join(thread, NULL);
}

int main(int argc, char **argv)
{
    char folder[] = "/tmp/gpushim-begin-XXXXXX";

    int status;
    pid_t pid;

    CHECK(argc >= 3, "usage: begin together|closed|held LIBCUDA [led]");
    libcuda = argv[2];
    led = argc > 3;
    CHECK(mkdtemp(folder), "no folder");
    setenv("GPUSHIM_SHARE_DIR", folder, 1);
    setenv("GPUSHIM_POOL_DECAY", "10ms", 1);
    pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (strcmp(argv[1], "together") == 0)
            threads_together();
        else if (strcmp(argv[1], "held") == 0)
            linker_held();
        else
            closed();
        return 0;
    }
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0, "its status is 0x%x", status);
    CHECK(rmdir(folder) == 0, "it left something in %s", folder);
    return 0;
}
