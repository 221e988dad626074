/* Messages between importers and exporters (core/share/wire.h): building and checking. */
#include "core/share/wire.h"

#include "core/share/alive.h"

#include <errno.h>
#include <string.h>

#define WIRE_MAGIC 0x67707368u

#define SIZE(name, number, shape, ways) [name] = sizeof(struct gs_wire_##shape),
static const uint32_t sizes[GS_WIRE_TYPES] = {GS_WIRE_MESSAGES(SIZE)};
#define WAYS(name, number, shape, ways) [name] = (ways),
static const unsigned ways_of[GS_WIRE_TYPES] = {GS_WIRE_MESSAGES(WAYS)};

void gs_wire_start(union gs_wire_message *message, enum gs_wire_type type, uint32_t request)
{
    memset(message, 0, sizeof *message);
    message->head = (struct gs_wire_head){
        .magic = WIRE_MAGIC,
        .version = GS_WIRE_VERSION,
        .type = (uint16_t)type,
        .size = sizes[type],
        .request = request,
    };
}

void gs_wire_hello(union gs_wire_message *message, const unsigned char instance[GS_INSTANCE_SIZE])
{
    gs_wire_start(message, GS_WIRE_HELLO, 0);
    memcpy(message->hello.instance, instance, GS_INSTANCE_SIZE);
    message->hello.pid = (uint64_t)gs_alive_own_pid();
    strncpy(message->hello.name, program_invocation_short_name, sizeof message->hello.name - 1);
}

const char *gs_wire_reason_text(uint32_t reason)
{
    static const char *const texts[] = {
        [GS_REFUSED_HANDLE] = "the handle is stale or was changed",
        [GS_REFUSED_USER] = "another user, whom share.uids and share.gids do not name",
        [GS_REFUSED_BUSY] = "it serves as many as it may (debug.max_clients)",
        [GS_REFUSED_FDS] = "no descriptor is left there (ulimit -n)",
        [GS_REFUSED_DRIVER] = "the driver there does not export the memory",
        [GS_REFUSED_MEMORY] = "no host memory is left there",
        [GS_REFUSED_ENDING] = "the process that shared it is ending",
        [GS_REFUSED_MESSAGE] = "a message out of place",
        [GS_REFUSED_VERSION] = "another version of this library",
        [GS_REFUSED_FLIGHT] = "too many descriptors of its user are under way (ulimit -n)",
        [GS_REFUSED_LIMBO] =
            "it is freed, and too much of what is freed is held (debug.limbo_limit there)",
        [GS_REFUSED_EARLY] = "the process that shared it runs, and is to be asked itself",
        [GS_REFUSED_ALONE] = "it is of no process of this machine, and no gpushim-agent is here "
                             "that asks others; start one beside the broker",
        [GS_REFUSED_DIRECTORY] =
            "the agent cannot use its directory of machines (its log says why)",
        [GS_REFUSED_MACHINE] = "the agent of the machine that shared it cannot be reached (the log "
                               "of the agent here says why)",
        [GS_REFUSED_UNHEARD] =
            "no machine of the cluster has published it under this handle: it was "
            "freed, or its process has ended, or does not share with other "
            "machines (share.reach and gpushim-agent there)",
        [GS_REFUSED_ASLEEP] = "the process that shared it sleeps (gpushim wake)",
        [GS_REFUSED_AGENT] = "it has another agent",
    };

    if (reason >= sizeof texts / sizeof *texts || !texts[reason])
        return "for a reason that this version does not know";
    return texts[reason];
}

bool gs_wire_is_of_another_version(const union gs_wire_message *message, size_t length)
{
    return length >= sizeof message->head && message->head.magic == WIRE_MAGIC &&
           message->head.version != GS_WIRE_VERSION;
}

bool gs_wire_valid(const union gs_wire_message *message, size_t length)
{
    const struct gs_wire_head *head = &message->head;

    return length >= sizeof *head && head->magic == WIRE_MAGIC &&
           head->version == GS_WIRE_VERSION && head->type < GS_WIRE_TYPES &&
           head->size == sizes[head->type] && length == head->size;
}

bool gs_wire_goes(const union gs_wire_message *message, unsigned ways)
{
    return ways_of[message->head.type] & ways;
}

bool gs_wire_batch_is_valid(const struct gs_wire_batch *batch, const struct gs_wire_fds *fds,
                            uint32_t pieces, uint32_t first, uint64_t left)
{
    if (batch->first != first || batch->count != fds->count || batch->count == 0 ||
        batch->count > pieces - first)
        return false;
    for (uint32_t i = 0; i < batch->count; i++) {
        if (batch->sizes[i] == 0 || batch->sizes[i] % GS_PAGE_SIZE || batch->sizes[i] > left)
            return false;
        left -= batch->sizes[i];
    }
    return (first + batch->count == pieces) == (left == 0);
}

bool gs_wire_goes_later(int error)
{
    return error == -EAGAIN || error == -ENOBUFS || error == -ENOMEM;
}
