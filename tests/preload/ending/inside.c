/* What tests of a process's end have a puppet call (tests/puppet.c) beside the driver. */
#include <cuda.h>
#include <spawn.h>

#include "tests/check.h"
#include "tests/system.h"

#define MIB      ((size_t)1 << 20)
#define BLOCKS   24
#define OK(call) CHECK((call) == CUDA_SUCCESS, "failed")

void late_set(void (*call)(void));
extern char **environ;

static CUdeviceptr blocks[BLOCKS];
static CUcontext context;

#pragma GCC visibility push(default)

/* Blocks that live. */
void have_blocks(void);
void have_blocks(void)
{
    OK(cuCtxGetCurrent(&context));
    for (int i = 0; i < BLOCKS; i++)
        OK(cuMemAlloc(&blocks[i], 4 * MIB));
}

/* What handlers and destructors do, some before the library's own end and some after it. */
void use_memory(void);
void use_memory(void)
{
    CUdeviceptr ptr = 0;
    static unsigned next;

    OK(cuCtxSetCurrent(context));
    OK(cuMemFree(blocks[next++]));
    OK(cuMemAlloc(&ptr, 3 * MIB));
    OK(cuMemsetD8(ptr, 1, 3 * MIB));
    OK(cuMemFreeAsync(ptr, NULL));
    OK(cuMemAllocAsync(&ptr, 4096, NULL));
    OK(cuMemFree(ptr));
}

void use_memory_at_exit(void);
void use_memory_at_exit(void)
{
    CHECK(atexit(use_memory) == 0);
}

void use_memory_at_quick_exit(void);
void use_memory_at_quick_exit(void)
{
    CHECK(at_quick_exit(use_memory) == 0);
}

/* In the destructor of a library that was there before the driver. */
void use_memory_late(void);
void use_memory_late(void)
{
    late_set(use_memory);
}

void keep_allocating(void);
void keep_allocating(void)
{
    for (unsigned i = 0;; i++) {
        CUdeviceptr ptr = 0;
        size_t size = i % 7 == 0 ? 5 * MIB : (size_t)512 << i % 10;

        if (i % 2 ? cuMemAllocAsync(&ptr, size, NULL) : cuMemAlloc(&ptr, size))
            continue;
        cuMemsetD8Async(ptr, 1, size, NULL);
        if (i % 3)
            cuMemFreeAsync(ptr, NULL);
        else
            cuMemFree(ptr);
    }
}

/* The program anew, which allocates, by other calls than fork; whether each ended well. */
bool spawn_others(void);
bool spawn_others(void)
{
    char *words[] = {(char[]){"puppet"}, (char[]){"allocate"}, NULL};
    int spawned = -1, forked = -1;
    pid_t pid;

    if (posix_spawn(&pid, "/proc/self/exe", NULL, NULL, words, environ) != 0 ||
        waitpid(pid, &spawned, 0) != pid)
        return false;
    pid = vfork();
    if (pid == 0) {
        execve("/proc/self/exe", words, environ);
        _exit(1);
    }
    return waitpid(pid, &forked, 0) == pid && spawned == 0 && forked == 0 && system("true") == 0;
}
