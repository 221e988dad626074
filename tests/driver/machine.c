/*
 * The memory of the machine's devices when several processes share it (SOFTCUDA_MACHINE): a file
 * with a row for each process, what it holds of each device. A row is its process's as long as that
 * holds a lock on the row's byte, which the kernel ends with the process, killed or not (and with
 * the children that it forked, which have its descriptors as they have a GPU's). What was exported
 * or imported by descriptor is listed piece by piece in the rows of all that hold it, and counts
 * once.
 *
 * Only its owner writes to a row. Who looks for room holds the guard, a word of the file, so that
 * two do not find the same. The kernel cannot end the guard of a process that was stopped or killed
 * with it: who has waited for LEASE takes it over. So nothing is half done in a row at any moment,
 * and who took memory gives it back and looks again where the guard was taken over meanwhile.
 */
#include "internal.h"

#include <linux/futex.h>
#include <stdatomic.h>
#include <sys/random.h>

#define ROWS   256
#define PIECES 512                  /* listed in a row; others count where they were made */
#define LEASE  ((uint64_t)20000000) /* ns, of the guard: a thousand times what is done with it */

struct piece {
    _Atomic uint64_t inode; /* 0: none; written last */
    _Atomic uint64_t size;
    _Atomic int64_t physical;
};

struct row {
    _Atomic uint64_t used[SD_MAX_DEVICES]; /* but for what is listed */
    _Atomic unsigned count;                /* no piece lies behind the first `count` */
    struct piece pieces[PIECES];
};

struct machine {
    _Atomic uint32_t guard; /* 0: free; otherwise a number that only its holder knows */
    struct row rows[ROWS];
};

static struct machine *machine; /* NULL: the devices are this process's alone */
static struct row *row;         /* this process's */
static int machine_fd = -1;

/* What F_OFD_GETLK or F_OFD_SETLK say of row i's byte. */
static int lock(int command, int i)
{
    struct flock range = {.l_type = F_WRLCK,
                          .l_whence = SEEK_SET,
                          .l_start = sizeof *machine + i,
                          .l_len = 1};

    return fcntl(machine_fd, command, &range) < 0 ? -1 : range.l_type;
}

/* Waits while the guard is another's; the number that it is held under. */
static uint32_t guard_take(void)
{
    const struct timespec lease = {.tv_nsec = LEASE};
    uint32_t mine, theirs = 0;

    if (getrandom(&mine, sizeof mine, 0) != sizeof mine)
        mine = (uint32_t)sd_now() ^ (uint32_t)getpid() << 16;
    mine |= 1;
    while (!atomic_compare_exchange_strong(&machine->guard, &theirs, mine)) {
        /* Ends when the holder wakes us, which is at once, or after LEASE at the latest. */
        if (theirs &&
            (syscall(SYS_futex, &machine->guard, FUTEX_WAIT, theirs, &lease, NULL, 0) == 0 ||
             errno != ETIMEDOUT))
            theirs = 0;
    }
    return mine;
}

/* False: it was taken over. */
static bool guard_give(uint32_t mine)
{
    if (!atomic_compare_exchange_strong(&machine->guard, &mine, 0))
        return false;
    syscall(SYS_futex, &machine->guard, FUTEX_WAKE, 1, NULL, NULL, 0);
    return true;
}

static bool row_lives(int i)
{
    return &machine->rows[i] == row || lock(F_OFD_GETLK, i) != F_UNLCK;
}

/* What a process that had the row before left in it is not this one's. */
static void row_clear(void)
{
    for (int i = 0; i < SD_MAX_DEVICES; i++)
        atomic_store(&row->used[i], 0);
    for (int i = 0; i < PIECES; i++)
        atomic_store(&row->pieces[i].inode, 0);
    atomic_store(&row->count, 0);
}

void sd_machine_init(void)
{
    const char *path = getenv("SOFTCUDA_MACHINE");
    uint32_t mine;

    if (!path || machine)
        return;
    machine_fd = sd_open_private(path, O_RDWR | O_CREAT);
    if (machine_fd < 0 || ftruncate(machine_fd, sizeof *machine) < 0)
        sd_refuse("SOFTCUDA_MACHINE", path, "a file that can be written");
    machine = mmap(NULL, sizeof *machine, PROT_READ | PROT_WRITE, MAP_SHARED, machine_fd, 0);
    if (machine == MAP_FAILED)
        sd_refuse("SOFTCUDA_MACHINE", path, "a file that can be mapped");
    mine = guard_take();
    for (int i = 0; i < ROWS && !row; i++)
        if (lock(F_OFD_SETLK, i) >= 0)
            row = &machine->rows[i];
    if (!row)
        sd_refuse("SOFTCUDA_MACHINE", path, "a file with a row that is free");
    row_clear();
    guard_give(mine);
}

struct listed {
    uint64_t inode, size;
};

static int by_inode(const void *a, const void *b)
{
    const struct listed *one = a, *other = b;

    return (one->inode > other->inode) - (one->inode < other->inode);
}

/* Adds the row's pieces of the device. */
static size_t row_pieces(const struct row *of, int physical, struct listed *ret_pieces)
{
    unsigned end = atomic_load(&of->count);
    size_t count = 0;

    for (unsigned i = 0; i < end; i++) {
        const struct piece *piece = &of->pieces[i];
        struct listed listed = {atomic_load(&piece->inode), atomic_load(&piece->size)};
        if (listed.inode && atomic_load(&piece->physical) == physical)
            ret_pieces[count++] = listed;
    }
    return count;
}

/* What all live processes hold. */
static uint64_t used_of(int physical)
{
    static struct listed all[ROWS * PIECES]; /* protected by sd_lock */
    size_t count = 0;
    uint64_t sum = 0;

    for (int i = 0; i < ROWS; i++) {
        const struct row *of = &machine->rows[i];
        uint64_t used = atomic_load(&of->used[physical]);
        if ((!used && !atomic_load(&of->count)) || !row_lives(i))
            continue;
        sum += used;
        count += row_pieces(of, physical, all + count);
    }
    qsort(all, count, sizeof *all, by_inode);
    for (size_t i = 0; i < count; i++)
        sum += i && all[i].inode == all[i - 1].inode ? 0 : all[i].size;
    return sum;
}

uint64_t sd_device_used(const struct sd_device *device)
{
    uint32_t mine;
    uint64_t used;

    if (!machine)
        return device->used;
    mine = guard_take();
    used = used_of(device->physical);
    guard_give(mine);
    return used < device->memory ? used : device->memory;
}

/* Where the guard was taken over, its taker may have seen the same room. */
static bool take_of_machine(const struct sd_device *device, size_t size)
{
    bool room, alone = false;

    do {
        uint32_t mine = guard_take();
        uint64_t used = used_of(device->physical);
        room = used <= device->memory && size <= device->memory - used;
        if (room)
            atomic_fetch_add(&row->used[device->physical], size);
        alone = guard_give(mine);
        if (room && !alone)
            atomic_fetch_sub(&row->used[device->physical], size);
    } while (!alone);
    return room;
}

bool sd_device_take(struct sd_device *device, size_t size)
{
    bool room = size <= device->memory - device->used;

    if (room && machine)
        room = take_of_machine(device, size);
    if (room)
        device->used += size;
    return room;
}

void sd_device_give(struct sd_device *device, size_t size)
{
    device->used -= size;
    if (machine)
        atomic_fetch_sub(&row->used[device->physical], size);
}

static struct piece *free_piece(void)
{
    unsigned count = atomic_load(&row->count);

    for (unsigned i = 0; i < count; i++)
        if (!atomic_load(&row->pieces[i].inode))
            return &row->pieces[i];
    if (count == PIECES)
        return NULL;
    atomic_store(&row->count, count + 1);
    return &row->pieces[count];
}

bool sd_machine_list(const struct sd_device *device, uint64_t inode, size_t size, bool counted)
{
    struct piece *piece = machine ? free_piece() : NULL;
    uint32_t mine;

    if (!piece)
        return false;
    atomic_store(&piece->size, size);
    atomic_store(&piece->physical, device->physical);
    mine = guard_take(); /* nobody sees it counted twice */
    atomic_store(&piece->inode, inode);
    if (counted)
        atomic_fetch_sub(&row->used[device->physical], size);
    guard_give(mine);
    return true;
}

void sd_machine_unlist(uint64_t inode)
{
    unsigned count = atomic_load(&row->count);

    for (unsigned i = 0; i < count; i++)
        if (atomic_load(&row->pieces[i].inode) == inode) {
            atomic_store(&row->pieces[i].inode, 0);
            return;
        }
}
