/*
 * A process that does what brings a preloaded library into play, loading, looking up, a thread, a
 * fork and an end in order, and nothing with CUDA (quiet_process.py).
 *
 * usage: quiet LIBRARY, where LIBRARY is cu_neighbours.c's
 */
#include "check.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>

static void *look_up(void *library)
{
    CHECK(dlsym(library, "cudaMalloc") && dlsym(library, "cuMemAlloc_v2_other"), "its names");
    CHECK(dlsym(RTLD_DEFAULT, "getenv") && dlsym(RTLD_NEXT, "malloc"), "libc's names");
    CHECK(!dlsym(RTLD_DEFAULT, "ibv_no_such") && !dlsym(RTLD_DEFAULT, "cuNoSuch"), "nobody's");
    return NULL;
}

int main(int argc, char **argv)
{
    void *library = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_DEEPBIND) : NULL;
    pthread_t thread;
    int status;
    pid_t pid;

    CHECK(library, "usage: quiet LIBRARY");
    look_up(library);
    CHECK(pthread_create(&thread, NULL, look_up, library) == 0, "no thread");
    pthread_join(thread, NULL);
    pid = fork();
    if (pid == 0) {
        look_up(library);
        exit(0);
    }
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0, "the child");
    return dlclose(library);
}
