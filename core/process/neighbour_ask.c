/* Asking other processes for memory (core/process/neighbour.h). */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/process/context.h"
#include "core/process/neighbour.h"
#include "core/share/page.h"
#include "core/share/directory.h"

#define WAIT_MS    50  /* for another who asks, for a process to start giving, */
#define GIVING_MS  1000 /* and to have given */
#define QUIET_MS   100 /* after asking in vain */
#define GROWING_MS 1000
#define LOOK_NS    (5 * GS_NS_PER_MS) /* two answers at once may look like one */
#define LOOK_MOST_NS (2 * LOOK_NS)  /* a look that takes longer stood still, as all may have */
#define WANTED_MIN ((size_t)256 << 20) /* who asks has more to allocate; twice as much each time */

struct asking {
    int fd;
    const char *page;
    uint32_t number;
    bool listens[GS_PAGE_SLOTS], waits_for[GS_PAGE_SLOTS];
    unsigned count; /* that are waited for */
    uint64_t given;
    struct gs_page_request request;
    bool ended; /* one that listened has ended, with all that it held */
};

/* Whether anybody listens but this process itself. Those who did not answer the last time are asked
 * but not waited for. */
static bool find_listeners(struct asking *asking, unsigned own)
{
    uint32_t missed[GS_PAGE_SLOTS];
    bool any = false;

    if (!gs_page_is_locked(asking->fd, GS_PAGE_SLOT_BYTE, GS_PAGE_SLOTS) ||
        !gs_page_get(asking->fd, GS_PAGE_AT(missed), missed, sizeof missed))
        return false;
    for (unsigned i = 0; i < GS_PAGE_SLOTS; i++) {
        bool listens = i != own && gs_page_is_locked(asking->fd, GS_PAGE_SLOT_BYTE + (off_t)i, 1);

        any |= asking->listens[i] = listens;
        asking->waits_for[i] = listens && missed[i] == 0;
        asking->count += asking->waits_for[i];
    }
    return any;
}

/* Whether this request or one that somebody made after it is meant. */
static bool is_since(const struct asking *asking, uint32_t number)
{
    return number != 0 && number - asking->number <= UINT32_MAX / 2;
}

/* Takes note of those that have answered; whether one is at it. */
static bool see_answers(struct asking *asking)
{
    struct gs_page_slot slots[GS_PAGE_SLOTS];
    bool giving = false;

    if (!gs_page_get(asking->fd, GS_PAGE_AT(slots), slots, sizeof slots))
        return false;
    for (unsigned i = 0; i < GS_PAGE_SLOTS; i++) {
        if (!asking->waits_for[i])
            continue;
        if (is_since(asking, slots[i].finished)) {
            asking->given += slots[i].given;
            asking->waits_for[i] = false;
            asking->count--;
        } else if (!gs_page_is_locked(asking->fd, GS_PAGE_SLOT_BYTE + (off_t)i, 1)) {
            asking->ended = true;
            asking->waits_for[i] = false;
            asking->count--;
        } else if (is_since(asking, slots[i].started)) {
            giving = true;
        }
    }
    return giving;
}

/* Nobody waits again for those that said nothing. */
static void note_missing(const struct asking *asking)
{
    struct gs_page_slot slot;

    for (unsigned i = 0; i < GS_PAGE_SLOTS; i++)
        if (asking->waits_for[i] &&
            gs_page_get(asking->fd, GS_PAGE_AT_SLOT(i), &slot, sizeof slot) &&
            !is_since(asking, slot.started))
            gs_page_put(asking->fd, GS_PAGE_AT_MISSED(i), &asking->number, sizeof asking->number);
}

/* For people who wonder why an allocation failed. */
static void count_silent(const struct asking *asking, struct gs_neighbour *neighbour)
{
    struct gs_page_slot slot;
    unsigned silent = 0;

    for (unsigned i = 0; i < GS_PAGE_SLOTS; i++)
        if (asking->listens[i] && gs_page_is_locked(asking->fd, GS_PAGE_SLOT_BYTE + (off_t)i, 1) &&
            gs_page_get(asking->fd, GS_PAGE_AT_SLOT(i), &slot, sizeof slot) &&
            !is_since(asking, slot.finished) && silent++ == 0)
            __atomic_store_n(&neighbour->silent_pid, (int)slot.pid, __ATOMIC_RELAXED);
    __atomic_store_n(&neighbour->silent, silent, __ATOMIC_RELAXED);
}

static void await_answers(struct asking *asking, uint64_t wanted)
{
    uint64_t looked = gs_now_ns(), waited = 0;
    uint32_t seen;

    while (gs_page_get(asking->fd, GS_PAGE_AT(answered), &seen, sizeof seen)) {
        bool giving = see_answers(asking);
        uint64_t most = (giving ? GIVING_MS : WAIT_MS) * GS_NS_PER_MS, took;

        if (asking->count == 0 || asking->given >= wanted || waited >= most)
            break;
        gs_page_wait(asking->page, GS_PAGE_AT(answered), seen,
                     most - waited < LOOK_NS ? most - waited : LOOK_NS);
        took = gs_now_ns() - looked;
        looked += took;
        waited += took < LOOK_MOST_NS ? took : LOOK_MOST_NS;
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

    if (now - __atomic_load_n(&neighbour->asked_ns, __ATOMIC_RELAXED) < GROWING_MS * GS_NS_PER_MS)
        wanted = 2 * __atomic_load_n(&neighbour->wanted, __ATOMIC_RELAXED);
    if (wanted < WANTED_MIN || wanted > UINT64_MAX / 4)
        wanted = WANTED_MIN;
    if (wanted < size)
        wanted = size;
    __atomic_store_n(&neighbour->asked_ns, now, __ATOMIC_RELAXED);
    __atomic_store_n(&neighbour->wanted, wanted, __ATOMIC_RELAXED);
    return wanted;
}

/* Writes the request, and waits for what they say. */
static bool ask(struct gs_core *core, struct asking *asking, const struct gs_device *device,
                size_t size)
{
    struct gs_page_request *request = &asking->request;

    request->wanted = decide_wanted(&core->neighbour, size);
    memcpy(request->uuid, device->uuid, sizeof request->uuid);
    if (!gs_page_get(asking->fd, GS_PAGE_AT(asked), &asking->number, sizeof asking->number))
        return false;
    asking->number += asking->number == UINT32_MAX ? 2 : 1; /* 0 means none */
    if (!gs_page_put(asking->fd, GS_PAGE_AT(request), request, sizeof *request) ||
        !gs_page_put(asking->fd, GS_PAGE_AT(asked), &asking->number, sizeof asking->number))
        return false;
    gs_page_wake(asking->page, GS_PAGE_AT(asked));
    await_answers(asking, request->wanted);
    count_silent(asking, &core->neighbour);
    return asking->given > 0 || asking->ended;
}

static bool ask_by(struct gs_core *core, int fd, const struct gs_device *device, size_t size)
{
    struct gs_neighbour *neighbour = &core->neighbour;
    bool joined = __atomic_load_n(&neighbour->joined, __ATOMIC_ACQUIRE);
    unsigned own = joined ? neighbour->slot : GS_PAGE_SLOTS;
    struct asking asking = {.fd = fd, .request.slot = own};
    bool any;
    void *page;

    /* One after the other, so that what was given for one is not taken for another's. That is a
     * courtesy: a process that is stopped while it asks has the lock until it is ended, so after a
     * while this one asks all the same, and sees the answers to the last of several requests. */
    gs_page_lock_within(fd, GS_PAGE_ASKER_BYTE, WAIT_MS * GS_NS_PER_MS);
    page = mmap(NULL, GS_PAGE_BYTES, PROT_READ, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED)
        return false;
    asking.page = page;
    any = find_listeners(&asking, own) && ask(core, &asking, device, size);
    munmap(page, GS_PAGE_BYTES);
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
    fd = directory < 0 ? -1 : gs_page_open(directory, false);
    any = fd >= 0 && ask_by(core, fd, device, missing_of(core, context, size));
    if (fd >= 0)
        close(fd); /* and the lock is gone */
    if (directory >= 0)
        close(directory);
    if (any)
        gs_log_line(&core->options.log, GS_LOG_INFO,
                    "the GPU was full: other processes gave back what they did not use, asked "
                    "for %zu MiB, in %llu ms",
                    size >> 20, (unsigned long long)((gs_now_ns() - begun) / GS_NS_PER_MS));
    else
        __atomic_store_n(&neighbour->quiet_until_ns, gs_now_ns() + QUIET_MS * GS_NS_PER_MS,
                         __ATOMIC_RELAXED);
    errno = saved;
    return any;
}
