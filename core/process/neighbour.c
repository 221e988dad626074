/* Being asked for memory by other processes (core/process/neighbour.h). */
#include "core/process/neighbour.h"

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

#include "core/process/context.h"
#include "core/share/page.h"
#include "core/process/reclaim.h"
#include "core/share/directory.h"
#include "core/process/stats.h"

#define COMING_TIMES 50 /* a millisecond apart, where another takes the file away */
#define PAUSE_MS  20 /* between two times that a process gives what it needs itself, */
#define PAUSE_MOST_MS 400 /* or as long as that, below the time that who asks waits for it */

/* ---- Coming and sleeping ------------------------------------------------------------------ */

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
        {seen, (uintptr_t)(page + GS_PAGE_AT(asked)), WAITER_32, 0},
    };
    uint64_t end = gs_now_ns() + ns;
    const struct timespec deadline = {(time_t)(end / 1000000000u), (long)(end % 1000000000u)};

    return syscall(SYS_futex_waitv, both, 2, 0, &deadline, CLOCK_MONOTONIC) >= 0 ||
           errno == EAGAIN || errno == ETIMEDOUT || errno == EINTR;
}

/* A slot of one's own; GS_PAGE_SLOTS: all are taken, or the file system has no such locks. */
static unsigned take_slot(int fd)
{
    const struct gs_page_slot empty = {.pid = (uint32_t)getpid()};
    static const uint32_t answers;
    unsigned slot = 0;
    int error = EAGAIN;

    while (slot < GS_PAGE_SLOTS &&
           (error = gs_page_lock(fd, F_WRLCK, GS_PAGE_SLOT_BYTE + slot, 1)) == EAGAIN)
        slot++;
    errno = error;
    if (error || !gs_page_put(fd, GS_PAGE_AT_SLOT(slot), &empty, sizeof empty) ||
        !gs_page_put(fd, GS_PAGE_AT_MISSED(slot), &answers, sizeof answers))
        return GS_PAGE_SLOTS;
    return slot;
}

/* A file without a name was the last one's who left: false, and errno ESTALE. With a slot of it
 * nobody takes its name (gs_page_remove_unused). */
static bool enter(struct gs_neighbour *neighbour, int fd)
{
    struct statx info;

    /* Longer, but never written over: two may come at once. */
    if (statx(fd, "", AT_EMPTY_PATH, STATX_SIZE, &info) != 0 ||
        (info.stx_size < GS_PAGE_BYTES && ftruncate(fd, GS_PAGE_BYTES) != 0))
        return false;
    /* In this order: whoever asks after that finds a listener that has not seen it. */
    if (!gs_page_get(fd, GS_PAGE_AT(asked), &neighbour->seen, sizeof neighbour->seen))
        return false;
    neighbour->slot = take_slot(fd);
    if (neighbour->slot == GS_PAGE_SLOTS ||
        statx(fd, "", AT_EMPTY_PATH, STATX_NLINK, &info) != 0)
        return false;
    if (info.stx_nlink == 0) {
        errno = ESTALE;
        return false;
    }
    neighbour->fd = gs_fd_keep(fd);
    return true;
}

static bool join_in(struct gs_neighbour *neighbour, int directory)
{
    for (int i = 0; i < COMING_TIMES; i++) {
        int fd = gs_page_open(directory, true);
        bool entered;

        if (fd < 0)
            return false;
        entered = enter(neighbour, fd);
        if (entered) {
            void *page = mmap(NULL, GS_PAGE_BYTES, PROT_READ, MAP_SHARED, fd, 0);

            if (page != MAP_FAILED) {
                neighbour->page = page;
                return true;
            }
        }
        close(fd);
        if (entered || (errno != ESTALE && errno != EAGAIN))
            return false;
        gs_page_pause(GS_NS_PER_MS);
    }
    return false;
}

void gs_neighbour_join(struct gs_core *core)
{
    struct gs_neighbour *neighbour = &core->neighbour;
    char reason[GS_REASON_SIZE] = "";
    int directory;

    if (!core->options.neighbours || neighbour->page)
        return;
    directory = gs_directory_open(&core->options.share, true, reason);
    if (directory < 0 || !join_in(neighbour, directory)) {
        if (!neighbour->failed)
            gs_log_line(&core->options.log, GS_LOG_DEBUG,
                        "idle memory is not given to other processes that ask for it: %s",
                        reason[0] ? reason : strerror(errno));
        neighbour->failed = true;
    } else {
        gs_directory_sweep(directory, &core->options.share);
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
    if (gs_fd_is_there(&neighbour->fd) &&
        gs_page_get(neighbour->fd.fd, GS_PAGE_AT(asked), &asked, sizeof asked))
        return asked != neighbour->seen;
    __atomic_store_n(&neighbour->joined, false, __ATOMIC_RELEASE); /* the program closed it */
    return false;
}

void gs_neighbour_sleep(struct gs_core *core, int *state, int expected, uint64_t ns, bool deaf)
{
    struct gs_neighbour *neighbour = &core->neighbour;
    const struct timespec time = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};

    if (is_joined(neighbour)) {
        if (gs_neighbour_wanted(core))
            return;
        if (is_joined(neighbour) &&
            wait_on_both(state, expected, neighbour->page, neighbour->seen, ns))
            return;
        /* An older kernel: deaf where it sleeps for long, when it holds little. */
        if (is_joined(neighbour) && !deaf) {
            if (__atomic_load_n(state, __ATOMIC_SEQ_CST) == expected)
                gs_page_wait(neighbour->page, GS_PAGE_AT(asked), neighbour->seen, ns);
            return;
        }
    }
    syscall(SYS_futex, state, FUTEX_WAIT_PRIVATE, expected, &time, NULL, 0);
}

void gs_neighbour_wake(struct gs_core *core, int *state)
{
    syscall(SYS_futex, state, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
    if (is_joined(&core->neighbour))
        gs_page_wake(core->neighbour.page, GS_PAGE_AT(asked)); /* the others look and sleep on */
}

/* The device of this process that a request is about, or NULL. */
static const struct gs_device *device_of(struct gs_core *core,
                                         const struct gs_page_request *request)
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

static bool is_ending(const struct gs_core *core)
{
    return __atomic_load_n(&core->decay.ending, __ATOMIC_SEQ_CST);
}

/*
 * A process that is asked again and again for what it needs itself gives at a rate that it can bear;
 * twice as seldom each time where it found the GPU full no more itself, so that nobody has used what
 * it gave. Who asks is not refused: he waits.
 */
static void rest(struct gs_core *core, const struct gs_stats *stats)
{
    struct gs_neighbour *neighbour = &core->neighbour;
    uint64_t asked = __atomic_load_n(&neighbour->counts.asked, __ATOMIC_RELAXED);
    uint64_t pause = PAUSE_MS * GS_NS_PER_MS, most = PAUSE_MOST_MS * GS_NS_PER_MS;

    if (stats->counts.grown == neighbour->gave_grown)
        return;
    if (asked == neighbour->gave_asked && gs_now_ns() - neighbour->gave_ns < most + pause)
        pause = 2 * neighbour->pause_ns < most ? 2 * neighbour->pause_ns : most;
    neighbour->pause_ns = pause;
    while (gs_now_ns() - neighbour->gave_ns < pause && !is_ending(core))
        gs_page_pause(GS_NS_PER_MS);
}

/* What was freed just now shows as idle a moment later, if the GPU is. */
static uint64_t yield_within(struct gs_core *core, const struct gs_device *device, uint64_t wanted)
{
    uint64_t end = gs_now_ns() + PAUSE_MS * GS_NS_PER_MS, bytes = 0;
    struct gs_stats stats;

    for (;;) {
        bytes += gs_device_yield(core, device, (size_t)(wanted - bytes));
        gs_stats_read(core, device->ordinal, &stats);
        if (bytes >= wanted || stats.retiring == 0 || gs_now_ns() >= end || is_ending(core))
            return bytes;
        gs_page_pause(GS_NS_PER_MS / 4);
    }
}

static uint64_t give(struct gs_core *core, const struct gs_page_request *request)
{
    struct gs_neighbour *neighbour = &core->neighbour;
    const struct gs_device *device = device_of(core, request);
    struct gs_stats stats;
    uint64_t bytes;

    if (!device)
        return 0;
    gs_stats_read(core, device->ordinal, &stats);
    rest(core, &stats);
    gs_stats_read(core, device->ordinal, &stats);
    bytes = yield_within(core, device, request->wanted);
    if (bytes) {
        neighbour->gave_ns = gs_now_ns();
        neighbour->gave_grown = stats.counts.grown;
        neighbour->gave_asked = __atomic_load_n(&neighbour->counts.asked, __ATOMIC_RELAXED);
    }
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
    struct gs_page_slot *slot = &neighbour->answer;
    struct gs_page_request request;
    uint32_t answered, asked;
    int fd = neighbour->fd.fd;

    if (!gs_neighbour_wanted(core) || !gs_page_get(fd, GS_PAGE_AT(asked), &asked, sizeof asked) ||
        !gs_page_get(fd, GS_PAGE_AT(request), &request, sizeof request))
        return;
    neighbour->seen = asked;
    if (request.slot == neighbour->slot) /* this process's own, which has given up what it could */
        return;
    slot->pid = (uint32_t)neighbour->pid;
    slot->started = asked; /* beside what it answered before: another may still wait for that */
    if (!gs_page_put(fd, GS_PAGE_AT_SLOT(neighbour->slot), slot, sizeof *slot) ||
        !gs_page_put(fd, GS_PAGE_AT_MISSED(neighbour->slot), &answers, sizeof answers))
        return;
    slot->given = give(core, &request);
    slot->finished = asked;
    if (!gs_fd_is_there(&neighbour->fd) ||
        !gs_page_put(fd, GS_PAGE_AT_SLOT(neighbour->slot), slot, sizeof *slot) ||
        !gs_page_get(fd, GS_PAGE_AT(answered), &answered, sizeof answered))
        return;
    answered += 1 + neighbour->slot; /* two at once may give the same: who asks looks again soon */
    gs_page_put(fd, GS_PAGE_AT(answered), &answered, sizeof answered);
    gs_page_wake(neighbour->page, GS_PAGE_AT(answered));
}

void gs_neighbour_leave(struct gs_core *core)
{
    struct gs_neighbour *neighbour = &core->neighbour;
    char reason[GS_REASON_SIZE];
    int directory;

    if (!is_joined(neighbour) || neighbour->pid != getpid() || !gs_fd_is_there(&neighbour->fd))
        return;
    directory = gs_directory_open(&core->options.share, false, reason);
    if (directory >= 0) {
        gs_page_remove_unused(neighbour->fd.fd, directory);
        close(directory);
    }
    gs_page_lock(neighbour->fd.fd, F_UNLCK, GS_PAGE_SLOT_BYTE + neighbour->slot, 1);
}

void gs_neighbour_free(struct gs_core *core)
{
    struct gs_neighbour *neighbour = &core->neighbour;

    if (!neighbour->page)
        return;
    munmap((void *)neighbour->page, GS_PAGE_BYTES);
    gs_fd_close(&neighbour->fd);
    neighbour->page = NULL;
    neighbour->joined = false;
}
