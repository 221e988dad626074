/*
 * CUDA IPC of events (core/share/event.h has the picture). The driver keeps them in files of
 * /dev/shm, which it makes and opens by shm_open: so the library exports that name. All that is not
 * a file of the driver's events goes on untouched to the next one of the name, libc's mostly, and
 * of those files all but two: of one that is made here another descriptor is kept, close-on-exec,
 * for processes that are to have it; and one that is asked for under a pid that no process has, in
 * a call of cuIpcOpenEventHandle, is what was had for that.
 *
 * Where the library came when libcuda was there (dlopen) it is not asked: then events are the
 * driver's alone.
 */
#include "hook.h"
#include "shim/log.h"
#include "shim/lookup/elf_symbols.h"
#include "shim/lookup/names.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/api/core.h"
#include "core/share/event.h"

_Static_assert(sizeof(CUipcEventHandle) == sizeof(struct gs_event_handle),
               "ours is the driver's with more in it");

#define PREFIX "/cuda.shm."

/* A file that the driver has made: they are few, and stay. */
struct made {
    uint64_t pid, number;
    struct gs_fd fd;
    struct made *next;
};
static _Atomic(struct made *) made_files;

/* What this thread's call is to be given. */
struct wanted {
    uint64_t pid, number; /* 0: it is in no such call */
    int fd;               /* -1: none */
    bool in_vain;         /* it was asked for then */
};
static __thread struct wanted wanted __attribute__((tls_model("initial-exec")));

/* /cuda.shm.UID.PIDHEX.N */
static bool is_events(const char *name, uint64_t *ret_pid, uint64_t *ret_number)
{
    char *end;

    if (!name || strncmp(name, PREFIX, strlen(PREFIX)) != 0)
        return false;
    strtoull(name + strlen(PREFIX), &end, 10);
    if (*end != '.')
        return false;
    *ret_pid = strtoull(end + 1, &end, 16);
    if (*end != '.')
        return false;
    *ret_number = strtoull(end + 1, &end, 10);
    return *end == 0;
}

static void keep(uint64_t pid, uint64_t number, int fd)
{
    struct made *made = malloc(sizeof *made);
    int copy = made ? gs_fd_copy(fd) : -1;

    if (copy < 0) {
        free(made);
        return;
    }
    *made = (struct made){pid, number, gs_fd_keep(copy), atomic_load(&made_files)};
    while (!atomic_compare_exchange_weak(&made_files, &made->next, made))
        continue;
}

static const struct gs_fd *kept(uint64_t pid, uint64_t number)
{
    const struct made *made = atomic_load(&made_files);

    while (made && (made->pid != pid || made->number != number))
        made = made->next;
    return made && gs_fd_is_there(&made->fd) ? &made->fd : NULL;
}

static int visit(struct dl_phdr_info *info, size_t size, void *ret_found)
{
    const ElfW(Dyn) *dynamic = gs_elf_dynamic(info);
    void **found = ret_found;

    if (!gs_elf_is_self(dynamic))
        *found = gs_elf_symbol(info->dlpi_addr, dynamic, "shm_open");
    return *found != NULL;
}

/* Before glibc 2.34 it is librt's, which may have come with libcuda. */
static int next_shm_open(const char *name, int flags, mode_t mode)
{
    static _Atomic(void *) cache;
    int (*next)(const char *, int, mode_t) = gs_next(&cache, "shm_open");
    void *found = NULL;

    if (!next && gs_elf_each(visit, &found))
        atomic_store(&cache, found);
    if (found)
        next = found;
    if (next)
        return next(name, flags, mode);
    errno = ENOSYS;
    return -1;
}

GS_HOOK int shm_open(const char *name, int flags, mode_t mode);
GS_HOOK int shm_open(const char *name, int flags, mode_t mode)
{
    uint64_t pid = 0, number = 0;
    int saved = errno, fd;
    bool is = is_events(name, &pid, &number);

    errno = saved;
    if (is && !(flags & O_CREAT) && wanted.pid && wanted.pid == pid && wanted.number == number) {
        fd = wanted.fd;
        wanted.fd = -1;
        wanted.in_vain = fd < 0;
        if (fd < 0)
            errno = ENOENT;
        return fd;
    }
    fd = next_shm_open(name, flags, mode);
    if (is && fd >= 0 && (flags & O_CREAT) && atomic_load(&gs_state) != GS_STATE_DISABLED) {
        GS_KEEP_CALLER;
        keep(pid, number, fd);
    }
    return fd;
}

static void add_ours(CUipcEventHandle *handle)
{
    struct gs_event_handle ours;
    const struct gs_fd *fd;

    memcpy(&ours, handle, sizeof ours);
    fd = kept(ours.pid, ours.number);
    if (!fd) {
        gs_log(GS_LOG_DEBUG, "an event's handle is the driver's alone: its file was not seen");
        return;
    }
    if (gs_event_export(gs_core_share(gs_core), fd, &ours) == GS_OK)
        memcpy(handle, &ours, sizeof ours);
}

GS_HOOK CUresult CUDAAPI cuIpcGetEventHandle(CUipcEventHandle *pHandle, CUevent event)
{
    return GS_NOTED(gs_real.cuIpcGetEventHandle(pHandle, event), add_ours(pHandle));
}

/* What the handle is led to is in `wanted`, or *ret_reason says why it is not. */
static bool lead(CUipcEventHandle *handle, bool again, const char **ret_reason)
{
    struct gs_event_handle ours;
    int fd;

    memcpy(&ours, handle, sizeof ours);
    if (gs_event_open(gs_core_share(gs_core), again, &ours, &fd, ret_reason) != GS_OK)
        return false;
    memcpy(handle, &ours, sizeof ours);
    wanted = (struct wanted){ours.pid, ours.number, fd, false};
    return true;
}

/* The call is over. Whether the driver has asked for the file, and there was none. */
static bool is_over(const CUipcEventHandle *handle, CUresult result)
{
    const bool in_vain = wanted.in_vain;
    struct gs_event_handle ours;

    gs_fd_drop(wanted.fd); /* it has it from another thread */
    wanted = (struct wanted){.fd = -1};
    memcpy(&ours, handle, sizeof ours);
    if (result == CUDA_SUCCESS)
        gs_event_opened(gs_core_share(gs_core), &ours);
    return in_vain;
}

static CUresult open_theirs(CUevent *event, CUipcEventHandle handle)
{
    const char *reason = NULL;
    CUresult result;

    for (bool again = false;; again = true) {
        CUipcEventHandle led = handle;

        if (!lead(&led, again, &reason))
            break;
        result = gs_real.cuIpcOpenEventHandle(event, led);
        if (!is_over(&led, result) || again)
            return result;
    }
    result = gs_real.cuIpcOpenEventHandle(event, handle);
    if (reason)
        gs_log(result == CUDA_SUCCESS ? GS_LOG_DEBUG : GS_LOG_WARNING,
               "an event of another process was left to the driver, which %s: %s",
               result == CUDA_SUCCESS ? "has opened it" : "does not find it either", reason);
    return result;
}

GS_HOOK CUresult CUDAAPI cuIpcOpenEventHandle(CUevent *phEvent, CUipcEventHandle handle)
{
    if (!gs_state_enter() || !phEvent)
        return gs_real.cuIpcOpenEventHandle(phEvent, handle);
    GS_KEEP_CALLER;
    return open_theirs(phEvent, handle);
}
