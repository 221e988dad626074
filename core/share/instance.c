/* What a sharing process is called, and what its name tells (core/share/instance.h). */
#include "core/share/instance.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/text.h"

#define RANDOM_SIZE  8
#define BOOT_AT      8
#define NAMESPACE_AT 11
#define PID_AT       13
#define PID_SIZE     3 /* pids have 22 bits */
#define BOOT_DIGITS  (2 * (NAMESPACE_AT - BOOT_AT))

void gs_boot_id(char ret_id[GS_BOOT_SIZE])
{
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    char text[64];
    ssize_t size = fd < 0 ? 0 : read(fd, text, sizeof text);
    unsigned count = 0;

    if (fd >= 0)
        close(fd);
    for (ssize_t i = 0; i < size && count < GS_BOOT_SIZE - 1; i++)
        if (strchr("0123456789abcdef", text[i]) && text[i])
            ret_id[count++] = text[i];
    ret_id[count == GS_BOOT_SIZE - 1 ? count : 0] = 0;
}

bool gs_random(void *bytes, size_t size)
{
    ssize_t got;

    do
        got = getrandom(bytes, size, 0);
    while (got < 0 && errno == EINTR);
    return got == (ssize_t)size;
}

/* The file is of the namespace in which children are: one that made itself another for them is not
 * in it. */
static bool is_of_children(void)
{
    struct statx own, childrens;

    return statx(AT_FDCWD, "/proc/self/ns/time", 0, STATX_INO, &own) == 0 &&
           statx(AT_FDCWD, "/proc/self/ns/time_for_children", 0, STATX_INO, &childrens) == 0 &&
           own.stx_ino == childrens.stx_ino;
}

int64_t gs_clock_ahead_ns(void)
{
    int fd = is_of_children() ? open("/proc/self/timens_offsets", O_RDONLY | O_CLOEXEC) : -1;
    char text[128] = "";
    long long seconds, ns;

    if (fd >= 0) {
        (void)!read(fd, text, sizeof text - 1);
        close(fd);
    }
    if (sscanf(text, "monotonic %lld %lld", &seconds, &ns) != 2)
        return 0;
    return seconds * (int64_t)GS_NS_PER_S + ns;
}

static void put(unsigned char *to, unsigned size, uint64_t number)
{
    for (unsigned i = 0; i < size; i++)
        to[i] = (unsigned char)(number >> 8 * i);
}

void gs_home_find(struct gs_home *ret_home)
{
    char boot[GS_BOOT_SIZE];
    struct statx info;

    memset(ret_home, 0, sizeof *ret_home);
    gs_boot_id(boot);
    ret_home->known = boot[0] != 0;
    boot[BOOT_DIGITS] = 0;
    put(ret_home->own + BOOT_AT, NAMESPACE_AT - BOOT_AT, strtoull(boot, NULL, 16));
    if (statx(AT_FDCWD, "/proc/self/ns/pid", 0, STATX_INO, &info) == 0)
        put(ret_home->own + NAMESPACE_AT, PID_AT - NAMESPACE_AT, info.stx_ino);
}

bool gs_instance_new(pid_t pid, unsigned char ret_instance[GS_INSTANCE_SIZE])
{
    struct gs_home home;

    gs_home_find(&home);
    memcpy(ret_instance, home.own, GS_INSTANCE_SIZE);
    put(ret_instance + PID_AT, PID_SIZE, (uint64_t)pid);
    return gs_random(ret_instance, RANDOM_SIZE);
}

enum gs_whereabouts gs_home_whereabouts(const struct gs_home *home, const char *name)
{
    unsigned char instance[GS_INSTANCE_SIZE];
    pid_t pid = 0;

    for (unsigned i = 0; i < GS_INSTANCE_SIZE; i++) {
        const char digits[3] = {name[2 * i], name[2 * i + 1]};

        instance[i] = (unsigned char)strtoull(digits, NULL, 16);
    }
    for (unsigned i = 0; i < PID_SIZE; i++)
        pid |= (pid_t)instance[PID_AT + i] << 8 * i;
    if (!home->known ||
        memcmp(instance + BOOT_AT, home->own + BOOT_AT, NAMESPACE_AT - BOOT_AT) != 0)
        return GS_ELSEWHERE;
    if (memcmp(instance + NAMESPACE_AT, home->own + NAMESPACE_AT, PID_AT - NAMESPACE_AT) != 0)
        return GS_UNSEEN;
    return pid > 0 && kill(pid, 0) != 0 && errno == ESRCH ? GS_BESIDE_GONE : GS_BESIDE;
}

void gs_instance_name(const unsigned char *instance, char ret_name[GS_SOCKET_NAME_SIZE])
{
    gs_text_hex(instance, GS_INSTANCE_SIZE, ret_name);
}
