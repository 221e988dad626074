/*
 * What shim/lookup/old_libc.c stands in for does what the originals do. Linked with the library's
 * --wrap list, so that every call here is one of the stand-ins.
 */
#include "check.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/stat.h>

static pthread_key_t key;
static int once_runs, destroyed;

static void destroy(void *value)
{
    destroyed += value == &key;
}

static void run_once(void)
{
    once_runs++;
}

static void *thread_main(void *argument)
{
    CHECK(pthread_setspecific(key, &key) == 0 && pthread_getspecific(key) == &key, "specific");
    CHECK(pthread_mutex_trylock(argument) == EBUSY, "trylock of a held mutex");
    char name[16] = "";
    CHECK(pthread_setname_np(pthread_self(), "old-libc") == 0, "setname");
    CHECK(pthread_getname_np(pthread_self(), name, sizeof(name)) == 0, "getname");
    CHECK(strcmp(name, "old-libc") == 0, "the name is %s", name);
    return &key;
}

static void threads(void)
{
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* the detached thread may run late */
    pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_t thread;
    void *value = NULL;
    CHECK(pthread_mutex_trylock(&mutex) == 0, "trylock");
    CHECK(pthread_key_create(&key, destroy) == 0, "key");
    CHECK(pthread_once(&once, run_once) == 0 && pthread_once(&once, run_once) == 0, "once");
    CHECK(once_runs == 1, "%d runs", once_runs);
    CHECK(pthread_create(&thread, NULL, thread_main, &mutex) == 0, "create");
    CHECK(pthread_join(thread, &value) == 0 && value == &key, "join");
    CHECK(destroyed == 1, "the key's destructor");
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    CHECK(pthread_create(&thread, &attributes, thread_main, &mutex) == 0, "create, attributes");
    CHECK(pthread_detach(thread) == 0, "detach");
}

static void signals(void)
{
    sigset_t set, old;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    errno = 77;
    CHECK(pthread_sigmask(SIG_BLOCK, &set, NULL) == 0, "block");
    CHECK(pthread_sigmask(SIG_UNBLOCK, &set, &old) == 0 && sigismember(&old, SIGUSR1), "unblock");
    CHECK(pthread_sigmask(99, &set, NULL) == EINVAL && errno == 77, "a wrong how");
}

static void files(void)
{
    struct stat status;
    CHECK(stat("/dev/null", &status) == 0 && S_ISCHR(status.st_mode), "stat");
    CHECK(stat("/nonexistent", &status) == -1 && errno == ENOENT, "stat of nothing");
    CHECK(lstat("/proc/self", &status) == 0 && S_ISLNK(status.st_mode), "lstat");
    CHECK(fstatat(AT_FDCWD, "/proc/self", &status, 0) == 0 && S_ISDIR(status.st_mode), "fstatat");
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    CHECK(fstat(fd, &status) == 0 && S_ISCHR(status.st_mode), "fstat");
    close(fd);
    CHECK(fstat(fd, &status) == -1 && errno == EBADF, "fstat of nothing");
}

static void numbers(void)
{
    char *end;
    CHECK(strtol("-12x", &end, 10) == -12 && *end == 'x', "strtol");
    CHECK(strtoul("0x10", NULL, 0) == 16 && strtoll("7", NULL, 10) == 7, "strtoul, strtoll");
    errno = 0;
    CHECK(strtoull("99999999999999999999", NULL, 10) == UINT64_MAX && errno == ERANGE, "strtoull");
}

int main(void)
{
    threads();
    signals();
    files();
    numbers();
    return 0;
}
