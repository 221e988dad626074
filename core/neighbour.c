/* Asking other processes for memory, and being asked (core/neighbour.h). */
#include "core/neighbour.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core/context.h"
#include "core/reclaim.h"
#include "core/share/directory.h"
#include "core/stats.h"

#define FILE_NAME "memory-1" /* the number is that of the layout below */
#define PAGE      4096
#define SLOTS     128

#define WAIT_MS    50  /* for a process to start giving, */
#define GIVING_MS  300 /* and to have given */
#define QUIET_MS   100 /* after asking in vain */
#define PAUSE_MS   20  /* between two times that a process gives what it needs itself */
#define GROWING_MS 1000
#define WANTED_MIN ((size_t)256 << 20) /* who asks has more to allocate; twice as much each time */
#define MS         UINT64_C(1000000)

/* The file. All of it is read and written by system calls, one field or record at a time. */
struct slot {
    uint32_t started, finished; /* the requests that its process has got to, and is done with */
    uint64_t given;             /* bytes, with `finished` */
};

struct page {
    uint32_t asked;    /* a futex: the number of the last request */
    uint32_t answered; /* a futex: changes with each answer */
    struct request {
        unsigned char uuid[16]; /* of the device */
        uint64_t wanted;        /* bytes */
        uint32_t slot;          /* of who asks; SLOTS: it has none */
        uint32_t zero;
    } request;
    uint32_t missed[SLOTS]; /* requests that a process did not start on in time; 0: it answers */
    struct slot slots[SLOTS];
};

_Static_assert(sizeof(struct page) <= PAGE, "it is one page");

/* Bytes behind the page, for locks alone. */
enum { ASKER_BYTE = PAGE, GUARD_BYTE, SLOT_BYTE };

#define AT(field) ((off_t)offsetof(struct page, field))
#define AT_SLOT(i) (AT(slots) + (off_t)((i) * sizeof(struct slot)))
#define AT_MISSED(i) (AT(missed) + (off_t)((i) * sizeof(uint32_t)))

/* ---- The file ----------------------------------------------------------------------------- */

static bool get(int fd, off_t at, void *value, size_t size)
{
    return pread(fd, value, size, at) == (ssize_t)size;
}

static bool put(int fd, off_t at, const void *value, size_t size)
{
    return pwrite(fd, value, size, at) == (ssize_t)size;
}

/* 0, or an errno: EAGAIN where another holds it. Of this open file, not of the process. */
static int lock(int fd, short type, off_t byte)
{
    struct flock range = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};

    return fcntl(fd, F_OFD_SETLK, &range) == 0 ? 0 : errno == EACCES ? EAGAIN : errno;
}

/* Whether another open file has a lock on the bytes. */
static bool is_locked(int fd, off_t byte, off_t count)
{
    struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte,
                          .l_len = count};

    return fcntl(fd, F_OFD_GETLK, &range) == 0 && range.l_type != F_UNLCK;
}

static void pause_ns(uint64_t ns)
{
    const struct timespec time = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};

    nanosleep(&time, NULL);
}

static bool lock_within(int fd, off_t byte, uint64_t ns)
{
    uint64_t end = gs_now_ns() + ns;
    int error;

    while ((error = lock(fd, F_WRLCK, byte)) == EAGAIN && gs_now_ns() < end)
        pause_ns(MS);
    return error == 0;
}

/* The file as it is now, or -1. */
static int open_file(int directory, bool make)
{
    int fd = openat(directory, FILE_NAME,
                    O_RDWR | O_NOFOLLOW | O_NOCTTY | O_NONBLOCK | O_CLOEXEC | (make ? O_CREAT : 0),
                    0600);
    struct statx info;

    if (fd < 0)
        return -1;
    /* Another user who owns the directory could have put something else there. */
    if (statx(fd, "", AT_EMPTY_PATH, STATX_TYPE | STATX_MODE | STATX_UID, &info) == 0 &&
        S_ISREG(info.stx_mode) && info.stx_uid == geteuid() && !(info.stx_mode & 077))
        return fd;
    close(fd);
    errno = EPERM;
    return -1;
}

/* Whether the descriptor still is our file: a program may have closed all of its own. */
static bool is_ours(const struct gs_neighbour *neighbour)
{
    struct statx info;

    return statx(neighbour->fd, "", AT_EMPTY_PATH, STATX_INO, &info) == 0 &&
           info.stx_ino == neighbour->inode &&
           (((uint64_t)info.stx_dev_major << 32) | info.stx_dev_minor) == neighbour->device;
}

/* ---- Futexes in it ------------------------------------------------------------------------ */

static void wake(const char *page, off_t at)
{
    syscall(SYS_futex, page + at, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static void wait_on(const char *page, off_t at, uint32_t seen, uint64_t ns)
{
    const struct timespec time = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};

    syscall(SYS_futex, page + at, FUTEX_WAIT, seen, ns ? &time : NULL, NULL, 0);
}

#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449
#endif

struct waiter { /* struct futex_waitv of newer headers */
    uint64_t value, address;
    uint32_t flags, zero;
};

#define WAITER_32      2
#define WAITER_PRIVATE 128

/* Since Linux 5.16. False: there is none. */
static bool wait_on_both(const int *state, int expected, const char *page, uint32_t seen,
                         uint64_t ns)
{
    const struct waiter both[2] = {
        {(uint32_t)expected, (uintptr_t)state, WAITER_32 | WAITER_PRIVATE, 0},
        {seen, (uintptr_t)(page + AT(asked)), WAITER_32, 0},
    };
    uint64_t end = gs_now_ns() + ns;
    const struct timespec deadline = {(time_t)(end / 1000000000u), (long)(end % 1000000000u)};

    return syscall(SYS_futex_waitv, both, 2, 0, ns ? &deadline : NULL, CLOCK_MONOTONIC) >= 0 ||
           errno == EAGAIN || errno == ETIMEDOUT || errno == EINTR;
}

/* ---- Being asked -------------------------------------------------------------------------- */

/* A slot of one's own; SLOTS: all are taken, or the file system has no such locks. */
static unsigned take_slot(int fd)
{
    static const struct slot empty;
    static const uint32_t answers;
    unsigned slot = 0;
    int error = EAGAIN;

    while (slot < SLOTS && (error = lock(fd, F_WRLCK, SLOT_BYTE + slot)) == EAGAIN)
        slot++;
    if (error || !put(fd, AT_SLOT(slot), &empty, sizeof empty) ||
        !put(fd, AT_MISSED(slot), &answers, sizeof answers))
        return SLOTS;
    return slot;
}

/* The guard is held. A file without a name was the last one's who left: 0 and errno ESTALE. */
static bool enter(struct gs_neighbour *neighbour, int fd)
{
    static const char zero[PAGE];
    struct statx info;

    if (statx(fd, "", AT_EMPTY_PATH, STATX_INO | STATX_SIZE | STATX_NLINK, &info) != 0)
        return false;
    if (info.stx_nlink == 0) {
        errno = ESTALE;
        return false;
    }
    if (info.stx_size < PAGE && !put(fd, 0, zero, sizeof zero))
        return false;
    /* In this order: whoever asks after that finds a listener that has not seen it. */
    if (!get(fd, AT(asked), &neighbour->seen, sizeof neighbour->seen))
        return false;
    neighbour->slot = take_slot(fd);
    if (neighbour->slot == SLOTS)
        return false;
    neighbour->inode = info.stx_ino;
    neighbour->device = ((uint64_t)info.stx_dev_major << 32) | info.stx_dev_minor;
    return true;
}

static bool join_in(struct gs_neighbour *neighbour, int directory)
{
    for (int i = 0; i < 3; i++) {
        int fd = open_file(directory, true);
        bool entered = false;

        if (fd < 0)
            return false;
        if (lock_within(fd, GUARD_BYTE, WAIT_MS * MS)) {
            entered = enter(neighbour, fd);
            lock(fd, F_UNLCK, GUARD_BYTE);
        }
        if (entered) {
            void *page = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0);

            if (page != MAP_FAILED) {
                neighbour->fd = fd;
                neighbour->page = page;
                return true;
            }
        }
        close(fd);
        if (entered || errno != ESTALE)
            return false;
    }
    return false;
}

void gs_neighbour_join(struct gs_core *core)
{
    struct gs_neighbour *neighbour = &core->neighbour;
    char reason[GS_REASON_SIZE] = "";
    int directory;

    if (!core->options.neighbours)
        return;
    directory = gs_directory_open(&core->options.share, true, reason);
    if (directory < 0 || !join_in(neighbour, directory)) {
        gs_log_line(&core->options.log, GS_LOG_DEBUG,
                    "idle memory is not given to other processes that ask for it: %s",
                    reason[0] ? reason : strerror(errno));
    } else {
        neighbour->pid = getpid();
        __atomic_store_n(&neighbour->joined, true, __ATOMIC_RELEASE);
    }
    if (directory >= 0)
        close(directory);
}

static bool is_joined(const struct gs_neighbour *neighbour)
{
    return __atomic_load_n(&neighbour->joined, __ATOMIC_ACQUIRE);
}

bool gs_neighbour_wanted(struct gs_core *core)
{
    struct gs_neighbour *neighbour = &core->neighbour;
    uint32_t asked;

    if (!is_joined(neighbour))
        return false;
    if (is_ours(neighbour) && get(neighbour->fd, AT(asked), &asked, sizeof asked))
        return asked != neighbour->seen;
    __atomic_store_n(&neighbour->joined, false, __ATOMIC_RELEASE); /* the program closed it */
    return false;
}

void gs_neighbour_sleep(struct gs_core *core, int *state, int expected, uint64_t ns)
{
    struct gs_neighbour *neighbour = &core->neighbour;
    const struct timespec time = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};

    if (is_joined(neighbour)) {
        if (gs_neighbour_wanted(core))
            return;
        if (is_joined(neighbour) &&
            wait_on_both(state, expected, neighbour->page, neighbour->seen, ns))
            return;
        /* An older kernel: deaf while it sleeps without end, when it holds little. */
        if (is_joined(neighbour) && ns) {
            if (__atomic_load_n(state, __ATOMIC_SEQ_CST) == expected)
                wait_on(neighbour->page, AT(asked), neighbour->seen, ns);
            return;
        }
    }
    syscall(SYS_futex, state, FUTEX_WAIT_PRIVATE, expected, ns ? &time : NULL, NULL, 0);
}

void gs_neighbour_wake(struct gs_core *core, int *state)
{
    syscall(SYS_futex, state, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
    if (is_joined(&core->neighbour))
        wake(core->neighbour.page, AT(asked)); /* the others look and sleep on */
}

/* The device of this process that a request is about, or NULL. */
static const struct gs_device *device_of(struct gs_core *core, const struct request *request)
{
    const struct gs_device *found = NULL;

    gs_lock_take(&core->lock);
    for (struct gs_context *context = core->contexts; context && !found; context = context->next) {
        const struct gs_device *device = &core->device[context->ordinal];

        if (memcmp(device->uuid, request->uuid, sizeof device->uuid) == 0)
            found = device;
    }
    gs_lock_release(&core->lock);
    return found;
}

/* A process that is asked again and again for what it needs gives at a rate that it can bear. */
static void rest(struct gs_neighbour *neighbour, const struct gs_stats *stats)
{
    uint64_t passed = gs_now_ns() - neighbour->gave_ns;

    if (stats->counts.grown != neighbour->gave_grown && passed < PAUSE_MS * MS)
        pause_ns(PAUSE_MS * MS - passed);
}

/* What was freed just now shows as idle a moment later, if the GPU is. */
static uint64_t yield_within(struct gs_core *core, const struct gs_device *device, uint64_t wanted)
{
    uint64_t end = gs_now_ns() + PAUSE_MS * MS, bytes = 0;
    struct gs_stats stats;

    for (;;) {
        bytes += gs_device_yield(core, device, (size_t)(wanted - bytes));
        gs_stats_read(core, device->ordinal, &stats);
        if (bytes >= wanted || stats.retiring == 0 || gs_now_ns() >= end ||
            __atomic_load_n(&core->decay.ending, __ATOMIC_SEQ_CST))
            return bytes;
        pause_ns(MS / 4);
    }
}

static uint64_t give(struct gs_core *core, const struct request *request)
{
    struct gs_neighbour *neighbour = &core->neighbour;
    const struct gs_device *device = device_of(core, request);
    struct gs_stats stats;
    uint64_t bytes;

    if (!device)
        return 0;
    gs_stats_read(core, device->ordinal, &stats);
    rest(neighbour, &stats);
    bytes = yield_within(core, device, request->wanted < SIZE_MAX ? request->wanted : SIZE_MAX);
    neighbour->gave_ns = gs_now_ns();
    neighbour->gave_grown = stats.counts.grown;
    __atomic_fetch_add(&neighbour->counts.answered, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&neighbour->counts.given, bytes, __ATOMIC_RELAXED);
    if (bytes)
        gs_log_line(&core->options.log, GS_LOG_DEBUG,
                    "another process found the GPU full: %llu MiB that lay idle were given back",
                    (unsigned long long)bytes >> 20);
    return bytes;
}

void gs_neighbour_answer(struct gs_core *core)
{
    struct gs_neighbour *neighbour = &core->neighbour;
    static const uint32_t answers;
    struct slot slot = {0};
    struct request request;
    uint32_t answered, asked;
    int fd = neighbour->fd;

    if (!gs_neighbour_wanted(core) || !get(fd, AT(asked), &asked, sizeof asked) ||
        !get(fd, AT(request), &request, sizeof request))
        return;
    neighbour->seen = asked;
    if (request.slot == neighbour->slot) /* this process's own, which has given up what it could */
        return;
    slot.started = asked;
    if (!put(fd, AT_SLOT(neighbour->slot), &slot, sizeof slot) ||
        !put(fd, AT_MISSED(neighbour->slot), &answers, sizeof answers))
        return;
    slot.given = give(core, &request);
    slot.finished = asked;
    if (!is_ours(neighbour) || !put(fd, AT_SLOT(neighbour->slot), &slot, sizeof slot) ||
        !get(fd, AT(answered), &answered, sizeof answered))
        return;
    answered += 1 + neighbour->slot; /* two at once may give the same: who asks looks again soon */
    put(fd, AT(answered), &answered, sizeof answered);
    wake(neighbour->page, AT(answered));
}

/* Removes the file where no other open one listens. Whoever comes or goes has the guard, and sees
 * to it himself. Without a name it is not what the name stands for now. */
static void remove_unused(int fd, int directory)
{
    struct statx info;

    if (!lock_within(fd, GUARD_BYTE, MS))
        return;
    if (!is_locked(fd, SLOT_BYTE, SLOTS) &&
        statx(fd, "", AT_EMPTY_PATH, STATX_NLINK, &info) == 0 && info.stx_nlink > 0)
        unlinkat(directory, FILE_NAME, 0);
    lock(fd, F_UNLCK, GUARD_BYTE);
}

void gs_neighbour_leave(struct gs_core *core)
{
    struct gs_neighbour *neighbour = &core->neighbour;
    char reason[GS_REASON_SIZE];
    int directory;

    if (!is_joined(neighbour) || neighbour->pid != getpid() || !is_ours(neighbour))
        return;
    directory = gs_directory_open(&core->options.share, false, reason);
    if (directory >= 0) {
        remove_unused(neighbour->fd, directory);
        close(directory);
    }
    lock(neighbour->fd, F_UNLCK, SLOT_BYTE + neighbour->slot);
}

void gs_neighbour_sweep(int directory)
{
    int fd = open_file(directory, false);

    if (fd < 0)
        return;
    remove_unused(fd, directory);
    close(fd);
}

void gs_neighbour_free(struct gs_core *core)
{
    struct gs_neighbour *neighbour = &core->neighbour;

    if (!neighbour->page)
        return;
    munmap((void *)neighbour->page, PAGE);
    if (is_ours(neighbour))
        close(neighbour->fd);
    neighbour->page = NULL;
    neighbour->joined = false;
}

/* ---- Asking ------------------------------------------------------------------------------- */

struct asking {
    int fd;
    const char *page;
    uint32_t number;
    bool waits_for[SLOTS];
    unsigned count;
    uint64_t given;
    bool ended; /* one that listened has ended, with all that it held */
};

/* Whether anybody listens but this process itself. Those who did not answer the last time are asked
 * but not waited for. */
static bool find_listeners(struct asking *asking, unsigned own)
{
    uint32_t missed[SLOTS];
    bool any = false;

    if (!is_locked(asking->fd, SLOT_BYTE, SLOTS) ||
        !get(asking->fd, AT(missed), missed, sizeof missed))
        return false;
    for (unsigned i = 0; i < SLOTS; i++) {
        bool listens = i != own && is_locked(asking->fd, SLOT_BYTE + (off_t)i, 1);

        any |= listens;
        asking->waits_for[i] = listens && missed[i] == 0;
        asking->count += asking->waits_for[i];
    }
    return any;
}

/* Takes note of those that have answered; whether one is at it. */
static bool see_answers(struct asking *asking)
{
    struct slot slots[SLOTS];
    bool giving = false;

    if (!get(asking->fd, AT(slots), slots, sizeof slots))
        return false;
    for (unsigned i = 0; i < SLOTS; i++) {
        if (!asking->waits_for[i])
            continue;
        if (slots[i].finished == asking->number) {
            asking->given += slots[i].given;
            asking->waits_for[i] = false;
            asking->count--;
        } else if (!is_locked(asking->fd, SLOT_BYTE + (off_t)i, 1)) {
            asking->ended = true;
            asking->waits_for[i] = false;
            asking->count--;
        } else if (slots[i].started == asking->number) {
            giving = true;
        }
    }
    return giving;
}

/* Nobody waits again for those that said nothing. */
static void note_missing(const struct asking *asking)
{
    struct slot slot;

    for (unsigned i = 0; i < SLOTS; i++)
        if (asking->waits_for[i] && get(asking->fd, AT_SLOT(i), &slot, sizeof slot) &&
            slot.started != asking->number)
            put(asking->fd, AT_MISSED(i), &asking->number, sizeof asking->number);
}

static void await_answers(struct asking *asking, uint64_t wanted)
{
    uint64_t begun = gs_now_ns(), now = begun;
    uint32_t seen;

    while (get(asking->fd, AT(answered), &seen, sizeof seen)) {
        bool giving = see_answers(asking);
        uint64_t end = begun + (giving ? GIVING_MS : WAIT_MS) * MS;

        if (asking->count == 0 || asking->given >= wanted || now >= end)
            break;
        wait_on(asking->page, AT(answered), seen, end - now < 5 * MS ? end - now : 5 * MS);
        now = gs_now_ns();
    }
    note_missing(asking);
}

/* What is free is not missing. The context is of the device. */
static size_t missing_of(struct gs_core *core, CUcontext context, size_t size)
{
    size_t left, total;
    CUcontext popped;

    if (!core->driver.mem_get_info || gs_fences_capturing(&core->fences) ||
        core->driver.ctx_push_current(context) != CUDA_SUCCESS)
        return size;
    if (core->driver.mem_get_info(&left, &total) == CUDA_SUCCESS && left < size)
        size -= left;
    core->driver.ctx_pop_current(&popped);
    return size;
}

/* What to ask for: a process that grows asks for more each time, not for each of its chunks. */
static uint64_t decide_wanted(struct gs_neighbour *neighbour, size_t size)
{
    uint64_t now = gs_now_ns(), wanted = WANTED_MIN;

    if (now - __atomic_load_n(&neighbour->asked_ns, __ATOMIC_RELAXED) < GROWING_MS * MS)
        wanted = 2 * __atomic_load_n(&neighbour->wanted, __ATOMIC_RELAXED);
    if (wanted < WANTED_MIN || wanted > UINT64_MAX / 4)
        wanted = WANTED_MIN;
    if (wanted < size)
        wanted = size;
    __atomic_store_n(&neighbour->asked_ns, now, __ATOMIC_RELAXED);
    __atomic_store_n(&neighbour->wanted, wanted, __ATOMIC_RELAXED);
    return wanted;
}

static bool ask(struct gs_core *core, struct asking *asking, const struct gs_device *device,
                size_t size, unsigned own)
{
    struct request request = {.slot = own};

    if (!find_listeners(asking, own))
        return false;
    request.wanted = decide_wanted(&core->neighbour, size);
    memcpy(request.uuid, device->uuid, sizeof request.uuid);
    if (!get(asking->fd, AT(asked), &asking->number, sizeof asking->number))
        return false;
    asking->number += asking->number == UINT32_MAX ? 2 : 1; /* 0 means none */
    if (!put(asking->fd, AT(request), &request, sizeof request) ||
        !put(asking->fd, AT(asked), &asking->number, sizeof asking->number))
        return false;
    wake(asking->page, AT(asked));
    await_answers(asking, request.wanted);
    return asking->given > 0 || asking->ended;
}

static bool ask_by(struct gs_core *core, int fd, const struct gs_device *device, size_t size)
{
    struct gs_neighbour *neighbour = &core->neighbour;
    unsigned own = is_joined(neighbour) ? neighbour->slot : SLOTS;
    struct asking asking = {.fd = fd};
    void *page;
    bool any;

    if (!lock_within(fd, ASKER_BYTE, WAIT_MS * MS))
        return true; /* others ask all the time; what they got may be left over */
    page = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED)
        return false;
    asking.page = page;
    any = ask(core, &asking, device, size, own);
    munmap(page, PAGE);
    __atomic_fetch_add(&neighbour->counts.asked, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&neighbour->counts.got, asking.given, __ATOMIC_RELAXED);
    return any;
}

bool gs_neighbour_ask(struct gs_core *core, const struct gs_device *device, CUcontext context,
                      size_t size)
{
    struct gs_neighbour *neighbour = &core->neighbour;
    uint64_t begun = gs_now_ns();
    char reason[GS_REASON_SIZE];
    int saved = errno, fd, directory;
    bool any;

    if (!core->options.neighbours ||
        begun < __atomic_load_n(&neighbour->quiet_until_ns, __ATOMIC_RELAXED))
        return false;
    directory = gs_directory_open(&core->options.share, false, reason);
    fd = directory < 0 ? -1 : open_file(directory, false);
    any = fd >= 0 && ask_by(core, fd, device, missing_of(core, context, size));
    if (fd >= 0)
        close(fd); /* and the lock is gone */
    if (directory >= 0)
        close(directory);
    if (any)
        gs_log_line(&core->options.log, GS_LOG_INFO,
                    "the GPU was full: other processes gave back what they did not use, asked "
                    "for %zu MiB, in %llu ms",
                    size >> 20, (unsigned long long)((gs_now_ns() - begun) / MS));
    else
        __atomic_store_n(&neighbour->quiet_until_ns, gs_now_ns() + QUIET_MS * MS,
                         __ATOMIC_RELAXED);
    errno = saved;
    return any;
}
