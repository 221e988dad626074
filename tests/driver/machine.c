/*
 * The memory of the machine's devices when several processes share it (SOFTCUDA_MACHINE): a file
 * with a row for each process, what it holds of each device. A row is its process's as long as that
 * holds a lock on the row's byte, which the kernel ends with the process, killed or not. What was
 * exported or imported by descriptor is listed piece by piece in the rows of all that hold it, and
 * counts once.
 */
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define ROWS 256
#define GUARD_BYTE 4096 /* held while rows are added up; byte 4097 + i is row i's */
#define PIECES 512      /* listed in a row; others count where they were made */

struct piece { /* written with the guard held; inode 0: none */
    uint64_t inode, size;
    int64_t physical;
};

struct row {
    _Atomic uint64_t used[SD_MAX_DEVICES]; /* but for what is listed */
    unsigned count;
    struct piece pieces[PIECES];
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
    memset(&rows[own], 0, sizeof rows[own]);
}

static int by_inode(const void *a, const void *b)
{
    const struct piece *one = a, *other = b;

    return (one->inode > other->inode) - (one->inode < other->inode);
}

/* The guard is held, and rows of killed processes are empty. */
static uint64_t listed_of(int physical)
{
    static struct piece all[ROWS * PIECES];
    size_t count = 0;
    uint64_t sum = 0;

    for (int i = 0; i < ROWS; i++)
        for (unsigned j = 0; j < rows[i].count; j++)
            if (rows[i].pieces[j].physical == physical)
                all[count++] = rows[i].pieces[j];
    qsort(all, count, sizeof *all, by_inode);
    for (size_t i = 0; i < count; i++)
        sum += i && all[i].inode == all[i - 1].inode ? 0 : all[i].size;
    return sum;
}

/* What all live processes hold; the guard is held. A killed one's row is emptied. */
static uint64_t used_of(int physical)
{
    uint64_t sum = 0;

    for (int i = 0; i < ROWS; i++) {
        uint64_t used = atomic_load(&rows[i].used[physical]);

        if (!used && !rows[i].count)
            continue;
        if (i == own || lock(F_OFD_GETLK, F_WRLCK, GUARD_BYTE + 1 + i) != F_UNLCK)
            sum += used;
        else
            memset(&rows[i], 0, sizeof rows[i]);
    }
    return sum + listed_of(physical);
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
    sd_device_count_elsewhere(device, size);
}

void sd_device_count_elsewhere(const struct sd_device *device, size_t size)
{
    if (rows)
        atomic_fetch_sub(&rows[own].used[device->physical], size);
}

bool sd_machine_list(int physical, uint64_t inode, size_t size)
{
    struct row *row;
    bool room;

    if (!rows)
        return false;
    row = &rows[own];
    lock(F_OFD_SETLKW, F_WRLCK, GUARD_BYTE);
    room = row->count < PIECES;
    if (room)
        row->pieces[row->count++] = (struct piece){inode, size, physical};
    lock(F_OFD_SETLK, F_UNLCK, GUARD_BYTE);
    return room;
}

void sd_machine_unlist(uint64_t inode)
{
    struct row *row = &rows[own];

    lock(F_OFD_SETLKW, F_WRLCK, GUARD_BYTE);
    for (unsigned i = 0; i < row->count; i++)
        if (row->pieces[i].inode == inode) {
            row->pieces[i] = row->pieces[--row->count];
            break;
        }
    lock(F_OFD_SETLK, F_UNLCK, GUARD_BYTE);
}

