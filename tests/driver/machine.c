/*
 * The memory of the machine's devices when several processes share it (SOFTCUDA_MACHINE): a file
 * with a row for each process, what it holds of each device. A row is its process's as long as that
 * holds a lock on the row's byte, which the kernel ends with the process, killed or not.
 */
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define ROWS 256
#define GUARD_BYTE 4096 /* held while rows are added up; byte 4097 + i is row i's */

struct row {
    _Atomic uint64_t used[SD_MAX_DEVICES];
};

static struct row *rows; /* NULL: the devices are this process's alone */
static int machine_fd = -1, own = -1;

static int lock(int command, short type, int byte)
{
    struct flock range = {
        .l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    int result;

    do
        result = fcntl(machine_fd, command, &range);
    while (result < 0 && errno == EINTR);
    return result < 0 ? -1 : range.l_type;
}

void sd_machine_init(void)
{
    const char *path = getenv("SOFTCUDA_MACHINE");

    if (!path || rows)
        return;
    machine_fd = sd_open_private(path, O_RDWR | O_CREAT);
    if (machine_fd < 0 || ftruncate(machine_fd, ROWS * sizeof *rows) < 0)
        sd_refuse("SOFTCUDA_MACHINE", path, "a file that can be written");
    for (own = 0; own < ROWS && lock(F_OFD_SETLK, F_WRLCK, GUARD_BYTE + 1 + own) < 0; own++)
        continue;
    rows = mmap(NULL, ROWS * sizeof *rows, PROT_READ | PROT_WRITE, MAP_SHARED, machine_fd, 0);
    if (own == ROWS || rows == MAP_FAILED)
        sd_refuse("SOFTCUDA_MACHINE", path, "a file with a row that is free");
    for (int i = 0; i < SD_MAX_DEVICES; i++)
        atomic_store(&rows[own].used[i], 0);
}

/* What all live processes hold; the guard is held. A killed one's row is emptied. */
static uint64_t used_of(int physical)
{
    uint64_t sum = 0;

    for (int i = 0; i < ROWS; i++) {
        uint64_t used = atomic_load(&rows[i].used[physical]);

        if (!used)
            continue;
        if (i == own || lock(F_OFD_GETLK, F_WRLCK, GUARD_BYTE + 1 + i) != F_UNLCK)
            sum += used;
        else
            atomic_store(&rows[i].used[physical], 0);
    }
    return sum;
}

uint64_t sd_device_used(const struct sd_device *device)
{
    uint64_t used;

    if (!rows)
        return device->used;
    lock(F_OFD_SETLKW, F_WRLCK, GUARD_BYTE);
    used = used_of(device->physical);
    lock(F_OFD_SETLK, F_UNLCK, GUARD_BYTE);
    return used < device->memory ? used : device->memory;
}

bool sd_device_take(struct sd_device *device, size_t size)
{
    bool room = size <= device->memory - device->used;

    if (rows) {
        lock(F_OFD_SETLKW, F_WRLCK, GUARD_BYTE);
        room = room && used_of(device->physical) + size <= device->memory;
        if (room)
            atomic_fetch_add(&rows[own].used[device->physical], size);
        lock(F_OFD_SETLK, F_UNLCK, GUARD_BYTE);
    }
    if (room)
        device->used += size;
    return room;
}

void sd_device_give(struct sd_device *device, size_t size)
{
    device->used -= size;
    if (rows)
        atomic_fetch_sub(&rows[own].used[device->physical], size);
}
