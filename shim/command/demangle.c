/*
 * Names of C++ functions as one writes them (functions.h), by the C++ library where there is one. A symbol of
 * some hundred bytes may stand for a name of more than there is memory, and nothing bounds what the library
 * does for it: so it does that in a child that has some CPU time for each. Once that was not enough, all
 * symbols stay what they are.
 */

#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/fd.h"
#include "shim/command/functions.h"
#include "shim/command/old_dl.h"

OLDEST(dlopen);
OLDEST(dlsym);

#define CPU_US  100000 /* for one symbol; most take some 10 */
#define ANSWER  1024   /* of the name at most so much is told */

typedef char *demangle_fn(const char *symbol, char *buffer, size_t *size, int *ret_status);

static struct {
    int fd; /* to the child */
    pid_t pid;
    bool tried;
} child = {.fd = -1};

/* SIGPROF, which nobody handles, ends it. */
static void answer_all(int fd)
{
    const struct itimerval some = {.it_value = {.tv_usec = CPU_US}}, none = {0};
    void *library = dlopen("libstdc++.so.6", RTLD_LAZY);
    demangle_fn *function = library ? (demangle_fn *)dlsym(library, "__cxa_demangle") : NULL;
    char symbol[FUNCTIONS_NAME];
    ssize_t got;

    while (function && (got = recv(fd, symbol, sizeof symbol - 1, 0)) > 0) {
        const char *name;
        size_t length;

        symbol[got] = 0;
        setitimer(ITIMER_PROF, &some, NULL);
        name = function(symbol, NULL, NULL, NULL);
        setitimer(ITIMER_PROF, &none, NULL);
        if (!name)
            name = "";
        length = strlen(name);
        if (send(fd, name, (length < ANSWER ? length : ANSWER - 1) + 1, MSG_NOSIGNAL) < 0)
            break;
        free(*name ? (char *)(uintptr_t)name : NULL);
    }
}

static void start_child(void)
{
    int ends[2];

    child.tried = true;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
        return;
    child.pid = fork();
    if (child.pid == 0) {
        close(ends[0]);
        answer_all(ends[1]);
        _exit(0);
    }
    close(ends[1]);
    child.fd = ends[0];
    if (child.pid < 0)
        gs_fd_drop(child.fd), child.fd = -1;
}

static void end_child(void)
{
    close(child.fd);
    child.fd = -1;
    waitpid(child.pid, NULL, 0);
}

bool demangle(const char *symbol, char *ret_name, size_t size)
{
    ssize_t got;

    if (!child.tried)
        start_child();
    if (child.fd < 0)
        return false;
    if (send(child.fd, symbol, strlen(symbol), MSG_NOSIGNAL) < 0 ||
        (got = recv(child.fd, ret_name, size, 0)) <= 0) {
        end_child();
        return false;
    }
    ret_name[size - 1] = 0;
    return got > 1;
}
