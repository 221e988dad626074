/*
 * Part of the tests' drivers and of programs that are to run under the library: a process that was
 * started with libgpushim in LD_PRELOAD, and has it not, ends here. The dynamic linker only warns
 * of a library that it does not find, and a test would show of the driver what it is to show of the
 * library.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* As the process was started with it: a program may set it for another one. */
static const char *preload_at_start(char *text, size_t size)
{
    int fd = open("/proc/self/environ", O_RDONLY | O_CLOEXEC);
    size_t used = 0;
    ssize_t n;

    while (fd >= 0 && used < size - 1 && (n = read(fd, text + used, size - 1 - used)) > 0)
        used += (size_t)n;
    if (fd >= 0)
        close(fd);
    text[used] = '\0';
    for (const char *entry = text; entry < text + used; entry += strlen(entry) + 1)
        if (strncmp(entry, "LD_PRELOAD=", strlen("LD_PRELOAD=")) == 0)
            return entry + strlen("LD_PRELOAD=");
    return "";
}

__attribute__((constructor)) static void library_is_there(void)
{
    static char environment[1 << 17];
    const char *preload = preload_at_start(environment, sizeof environment);

    if (!strstr(preload, "libgpushim") || dlsym(RTLD_DEFAULT, "gpushim_memory"))
        return;
    fprintf(stderr, "this is to run under the library, which is not there: LD_PRELOAD is %s\n",
            preload);
    _exit(99); /* an error also of a test that should fail */
}
