/* Handing idle memory over to another process (core/handover.h). */
#include "core/handover.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/context.h"
#include "core/reclaim.h"
#include "core/share/directory.h"
#include "core/share/wire.h"

#define CALLERS_MAX 64 /* at one socket, whoever they are */
#define MORE_TIMES  2  /* a chunk may be so much larger than what it is wanted for */
#define CONNECT_NS  UINT64_C(50000000)
#define IDLE_NS     UINT64_C(2000000) /* for the GPU to be seen idle */

_Static_assert(GS_PAGE_SOCKET_SIZE == GS_MEMORY_NAME_SIZE, "the name fits");

static bool in_one_namespace(pid_t pid, const char *which)
{
    struct statx own, other;
    char path[64];

    snprintf(path, sizeof path, "/proc/self/ns/%s", which);
    if (statx(AT_FDCWD, path, 0, STATX_INO, &own) != 0)
        return false;
    snprintf(path, sizeof path, "/proc/%d/ns/%s", (int)pid, which);
    return statx(AT_FDCWD, path, 0, STATX_INO, &other) == 0 && own.stx_ino == other.stx_ino &&
           own.stx_dev_major == other.stx_dev_major && own.stx_dev_minor == other.stx_dev_minor;
}

/* Whether the process at the other end could look into this one anyway, and this one into it: the
 * kernel says what namespaces another process has to nobody else. */
static bool is_one_of_us(int socket)
{
    struct ucred who;
    socklen_t size = sizeof who;

    return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &size) == 0 && who.uid == geteuid() &&
           who.pid > 0 && in_one_namespace(who.pid, "pid") && in_one_namespace(who.pid, "user");
}

/* ---- Who asks ------------------------------------------------------------------------------- */

static bool choose_name(char ret_name[GS_PAGE_SOCKET_SIZE])
{
    unsigned char random[GS_INSTANCE_SIZE];

    if (!gs_random(random, sizeof random))
        return false;
    for (unsigned i = 0; i < sizeof random; i++)
        snprintf(ret_name + 2 * i, 3, "%02x", random[i]);
    strcat(ret_name, GS_MEMORY_SUFFIX);
    return true;
}

int gs_handover_listen(struct gs_core *core, int directory, const struct gs_handed_list *list,
                       struct gs_page_request *request)
{
    char reason[GS_REASON_SIZE];
    int listener;

    if (!list || list->chunk < GS_HANDED_SIZE_MIN || core->shared.wipe ||
        !gs_fds_has_room(&core->fds) || !choose_name(request->socket))
        return -1;
    listener = gs_directory_listen(directory, &core->options.share, request->socket, reason);
    if (listener >= 0)
        request->chunk = list->chunk;
    return listener;
}

static bool is_sensible(const struct gs_wire_memory *memory, const struct gs_device *device)
{
    return memory->size >= GS_HANDED_SIZE_MIN && memory->size % GS_PAGE_SIZE == 0 &&
           memory->size <= device->total &&
           memcmp(memory->uuid, device->uuid, sizeof memory->uuid) == 0;
}

static bool map_one(struct gs_core *core, const struct gs_device *device,
                    const struct gs_wire_memory *memory, int fd, struct gs_handed *ret)
{
    if (!is_sensible(memory, device) ||
        gs_device_map_import(&core->driver, device, fd, memory->size, &ret->handle,
                             &ret->address) != GS_OK)
        return false;
    ret->size = memory->size;
    ret->fd = gs_fds_keep(&core->fds, fd);
    if (!ret->fd.any)
        gs_device_unmap(&core->driver, ret->handle, ret->address, ret->size);
    return ret->fd.any;
}

/* Up to the first message that is not memory which can be had. */
static void receive_from(struct gs_core *core, const struct gs_device *device, int socket,
                         struct gs_handed_list *list)
{
    union gs_wire_message message;
    bool had = true;
    int fd;

    while (had && list->count < GS_HANDED_MAX && gs_wire_receive(socket, &message, &fd) == 0) {
        had = message.head.type == GS_WIRE_MEMORY && fd >= 0 &&
              map_one(core, device, &message.memory, fd, &list->one[list->count]);
        list->count += had;
        if (!had && fd >= 0)
            close(fd);
    }
}

void gs_handover_receive(struct gs_core *core, const struct gs_device *device, int directory,
                         const struct gs_page_request *request, int listener,
                         struct gs_handed_list *list)
{
    int socket;

    if (listener < 0)
        return;
    unlinkat(directory, request->socket, 0);
    for (int i = 0; i < CALLERS_MAX &&
                    (socket = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0;
         i++) {
        if (is_one_of_us(socket))
            receive_from(core, device, socket, list);
        close(socket);
    }
    close(listener);
}

void gs_handed_release(struct gs_core *core, struct gs_handed *handed)
{
    gs_device_unmap(&core->driver, handed->handle, handed->address, handed->size);
    gs_fds_close(&core->fds, &handed->fd);
}

/* ---- Who is asked --------------------------------------------------------------------------- */

struct heir {
    struct gs_core *core;
    const struct gs_device *device;
    CUcontext context;
    int socket;
    int fd; /* of what is overwritten and to be sent; -1: none */
};

/* What was in it is this process's. The thread's own stream has nothing else to do; the chunk is
 * nobody's, so no other stream comes into it. */
static bool overwrite(const struct heir *heir, const struct gs_chunk *chunk)
{
    const struct gs_driver *driver = &heir->core->driver;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUcontext popped;
    bool done;

    if (!driver->memset_d8_async || !driver->exchange_capture_mode ||
        driver->ctx_push_current(heir->context) != CUDA_SUCCESS)
        return false;
    driver->exchange_capture_mode(&mode);
    done = driver->memset_d8_async(chunk->span.base, 0, chunk->span.size, CU_STREAM_PER_THREAD) ==
           CUDA_SUCCESS;
    /* Also where it failed: nothing may still write there when it is unmapped. */
    done &= driver->stream_synchronize(CU_STREAM_PER_THREAD) == CUDA_SUCCESS;
    driver->exchange_capture_mode(&mode);
    driver->ctx_pop_current(&popped);
    return done;
}

/* The chunk is still mapped; its memory lives on by the descriptor. */
static void inherit(void *arg, const struct gs_chunk *chunk)
{
    struct heir *heir = arg;

    if (overwrite(heir, chunk))
        gs_device_export(&heir->core->driver, chunk->handle, &chunk->fd, &heir->fd);
}

/* Nothing of it is mapped here any more, so it is in one process alone. Where it cannot be sent it
 * goes to the driver. */
static bool send_on(const struct heir *heir, size_t size)
{
    union gs_wire_message message;
    bool sent;

    if (heir->fd < 0)
        return false;
    gs_wire_start(&message, GS_WIRE_MEMORY, 0);
    message.memory.size = size;
    memcpy(message.memory.uuid, heir->device->uuid, sizeof message.memory.uuid);
    sent = gs_wire_send(heir->socket, &message, heir->fd) == 0;
    close(heir->fd);
    return sent;
}

static int connect_to(struct gs_core *core, const struct gs_page_request *request)
{
    const struct gs_share_options *options = &core->options.share;
    char reason[GS_REASON_SIZE];
    int directory, socket;

    if (!memchr(request->socket, 0, sizeof request->socket) ||
        !gs_directory_is_memory(request->socket))
        return -1;
    directory = gs_directory_open(options, false, reason);
    if (directory < 0)
        return -1;
    socket = gs_directory_connect(directory, options, request->socket, CONNECT_NS);
    close(directory);
    if (socket >= 0 && !is_one_of_us(socket)) {
        close(socket);
        socket = -1;
    }
    return socket;
}

static bool may_go_on(struct gs_core *core)
{
    return !gs_fences_capturing(&core->fences) &&
           !__atomic_load_n(&core->decay.ending, __ATOMIC_SEQ_CST);
}

static uint64_t hand_over(struct heir *heir, uint64_t wanted, size_t least, uint64_t *ret_handed)
{
    uint64_t given = 0;
    size_t most = least * MORE_TIMES;

    for (int i = 0; i < GS_HANDED_MAX && may_go_on(heir->core); i++) {
        struct gs_chunk *chunk =
            gs_device_detach_idle(heir->core, heir->device, least, most, IDLE_NS, &heir->context);
        size_t bytes;

        if (!chunk)
            break;
        heir->fd = -1;
        bytes = gs_chunk_release(&heir->core->shared, chunk, inherit, heir);
        given += bytes;
        if (!send_on(heir, bytes))
            break;
        *ret_handed += bytes;
        if (given >= wanted || wanted - given < least)
            break;
        most = wanted - given < most ? (size_t)(wanted - given) : most;
    }
    return given;
}

uint64_t gs_handover_give(struct gs_core *core, const struct gs_device *device,
                          const struct gs_page_request *request, uint64_t *ret_handed)
{
    struct heir heir = {.core = core, .device = device};
    uint64_t given;

    *ret_handed = 0;
    if (request->chunk < GS_HANDED_SIZE_MIN || request->chunk > device->total || core->shared.wipe)
        return 0;
    heir.socket = connect_to(core, request);
    if (heir.socket < 0)
        return 0;
    given = hand_over(&heir, request->wanted, (size_t)request->chunk, ret_handed);
    close(heir.socket);
    return given;
}
