/* What names this machine, and the time of day (core/base/machine.h). */
#include "core/base/machine.h"

#include <fcntl.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/base/clock.h"

static struct {
    bool has_id;
    unsigned char id[GS_MACHINE_ID_SIZE];
    int64_t ahead_ns;
} pretence;

static int digit_of(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool gs_machine_id(unsigned char ret_id[GS_MACHINE_ID_SIZE])
{
    char text[2 * GS_MACHINE_ID_SIZE];
    unsigned char id[GS_MACHINE_ID_SIZE];
    int fd;
    ssize_t size;

    if (pretence.has_id) {
        memcpy(ret_id, pretence.id, sizeof pretence.id);
        return true;
    }
    fd = open("/etc/machine-id", O_RDONLY | O_CLOEXEC);
    size = fd < 0 ? -1 : read(fd, text, sizeof text);
    if (fd >= 0)
        close(fd);
    if (size != (ssize_t)sizeof text)
        return false;
    for (unsigned i = 0; i < sizeof id; i++) {
        int high = digit_of(text[2 * i]), low = digit_of(text[2 * i + 1]);

        if (high < 0 || low < 0)
            return false;
        id[i] = (unsigned char)(high << 4 | low);
    }
    memcpy(ret_id, id, sizeof id);
    return true;
}

uint64_t gs_wall_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * GS_NS_PER_S + (uint64_t)now.tv_nsec +
           (uint64_t)pretence.ahead_ns;
}

void gs_machine_pretend(const unsigned char id[GS_MACHINE_ID_SIZE], int64_t ahead_ns)
{
    pretence.has_id = id != NULL;
    if (id)
        memcpy(pretence.id, id, sizeof pretence.id);
    pretence.ahead_ns = ahead_ns;
}
