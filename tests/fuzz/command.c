/* The program gpushim in a fuzz target (command.h). */
#include "command.h"

#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/check.h"

void fuzz_silence(void)
{
    static FILE *nowhere;

    if (nowhere)
        return;
    nowhere = fopen("/dev/null", "we");
    CHECK(nowhere && freopen("/dev/null", "we", stdout));
    stderr = nowhere; /* libFuzzer has taken the other */
}

int fuzz_file(const void *bytes, size_t size, char ret_path[64])
{
    int fd = memfd_create("input", MFD_CLOEXEC);

    CHECK(fd >= 0 && write(fd, bytes, size) == (ssize_t)size);
    snprintf(ret_path, 64, "/proc/self/fd/%d", fd);
    return fd;
}
