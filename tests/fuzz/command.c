/* The program gpushim in a fuzz target (command.h). */
#include "command.h"

#include "tests/check.h"
#include "tests/system.h"

void fuzz_silence(bool silent)
{
    static FILE *nowhere, *errors;

    if (!nowhere) {
        errors = stderr;
        nowhere = fopen("/dev/null", "we");
        CHECK(nowhere && freopen("/dev/null", "we", stdout));
    }
    stderr = silent ? nowhere : errors;
}

int fuzz_file(const void *bytes, size_t size, char ret_path[64])
{
    int fd = memfd_create("input", MFD_CLOEXEC);

    CHECK(fd >= 0 && write(fd, bytes, size) == (ssize_t)size);
    snprintf(ret_path, 64, "/proc/self/fd/%d", fd);
    return fd;
}
