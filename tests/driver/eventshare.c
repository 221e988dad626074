/*
 * Events of several processes. Such an event is a page of a memfd that all of them map, with two
 * numbers: how often it was recorded, and the highest record whose work is done. A handle names the
 * descriptor of the process that made the event, which an importer opens as a legacy handle's
 * (ipc.c). Who waits for a record sleeps on the second number. One record that is done makes all
 * earlier ones so; one whose process was killed before is never done.
 *
 * Nothing is measured of the real driver's errors here: INVALID_HANDLE for an event that was not
 * made for it is what CUDA documents; in the process that made it, and for junk, an event is
 * refused as memory is.
 */
#include "internal.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAGIC  0x5645435049435309ull
#define LENGTH 4096

struct page {
    _Atomic uint32_t recorded, done; /* they go round */
};

struct sd_shared {
    unsigned refs; /* of events and operations; protected by sd_lock */
    int fd;        /* -1: of another process */
    uint64_t inode;
    struct page *page;
};

/* What the 64 bytes hold. */
struct token {
    uint64_t magic;
    uint64_t process; /* random, of the exporting process */
    uint64_t inode;
    int32_t pid, fd;
};
_Static_assert(sizeof(struct token) <= sizeof(CUipcEventHandle), "a token is a handle");

static struct sd_shared *shared_map(int fd)
{
    struct sd_shared *shared = calloc(1, sizeof *shared);
    struct stat st;

    if (!shared)
        return NULL;
    shared->page = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (shared->page == MAP_FAILED || fstat(fd, &st) < 0) {
        if (shared->page != MAP_FAILED)
            munmap(shared->page, LENGTH);
        free(shared);
        return NULL;
    }
    shared->refs = 1;
    shared->fd = -1;
    shared->inode = st.st_ino;
    return shared;
}

struct sd_shared *sd_shared_new(void)
{
    int fd = sd_memfd_new(LENGTH, "softcuda-event");
    struct sd_shared *shared = fd < 0 ? NULL : shared_map(fd);

    if (shared)
        shared->fd = fd;
    else if (fd >= 0)
        close(fd);
    return shared;
}

struct sd_shared *sd_shared_ref(struct sd_shared *shared)
{
    shared->refs++;
    return shared;
}

void sd_shared_unref(struct sd_shared *shared)
{
    if (!shared || --shared->refs)
        return;
    munmap(shared->page, LENGTH);
    if (shared->fd >= 0)
        close(shared->fd);
    free(shared);
}

uint32_t sd_shared_record(struct sd_shared *shared)
{
    return atomic_fetch_add(&shared->page->recorded, 1) + 1;
}

uint32_t sd_shared_last(const struct sd_shared *shared)
{
    return atomic_load(&shared->page->recorded);
}

static bool reaches(uint32_t done, uint32_t record)
{
    return (int32_t)(done - record) >= 0;
}

bool sd_shared_is_done(const struct sd_shared *shared, uint32_t record)
{
    return reaches(atomic_load(&shared->page->done), record);
}

void sd_shared_done(struct sd_shared *shared, uint32_t record)
{
    uint32_t done = atomic_load(&shared->page->done);

    while (!reaches(done, record))
        if (atomic_compare_exchange_weak(&shared->page->done, &done, record))
            break;
    syscall(SYS_futex, &shared->page->done, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void sd_shared_wait(struct sd_shared *shared, uint32_t record)
{
    uint32_t done = atomic_load(&shared->page->done);

    while (!reaches(done, record)) {
        syscall(SYS_futex, &shared->page->done, FUTEX_WAIT, done, NULL, NULL, 0);
        done = atomic_load(&shared->page->done);
    }
}

CUresult sd_ipc_get_event_handle(CUipcEventHandle *handle, CUevent event_handle)
{
    const struct sd_event *event = sd_object_check(event_handle, SD_EVENT);
    struct token token;

    if (!event || !(event->flags & CU_EVENT_INTERPROCESS))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!handle)
        return CUDA_ERROR_INVALID_VALUE;
    memset(&token, 0, sizeof token);
    token.magic = MAGIC;
    token.process = sd_process_token();
    token.inode = event->shared->inode;
    token.pid = getpid();
    token.fd = event->shared->fd;
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &token, sizeof token);
    return CUDA_SUCCESS;
}

CUresult sd_ipc_open_event_handle(CUevent *event, CUipcEventHandle handle)
{
    struct sd_shared *shared;
    struct sd_context *context;
    struct token token;
    CUresult result = sd_current_owner(&context);
    int fd;

    if (result)
        return result;
    memcpy(&token, &handle, sizeof token);
    if (!event || token.magic != MAGIC)
        return CUDA_ERROR_INVALID_VALUE;
    if (token.process == sd_process_token())
        return CUDA_ERROR_INVALID_CONTEXT;
    result = sd_open_theirs(token.pid, token.fd, token.inode, LENGTH, &fd);
    if (result)
        return result;
    shared = shared_map(fd);
    close(fd);
    if (!shared)
        return CUDA_ERROR_MAP_FAILED;
    /* Not INTERPROCESS: only who made it gives handles of it. */
    return sd_event_new(context, CU_EVENT_DISABLE_TIMING, shared, event);
}
