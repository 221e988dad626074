/* Messages between openers and exporters (core/share/wire.h): building and checking. */
#include "core/share/wire.h"

#include <errno.h>
#include <string.h>

#define WIRE_MAGIC 0x67707368u

static const uint32_t sizes[GS_WIRE_TYPES] = {
    [GS_WIRE_HELLO] = sizeof(struct gs_wire_hello),
    [GS_WIRE_OPEN] = sizeof(struct gs_wire_open),
    [GS_WIRE_GRANT] = sizeof(struct gs_wire_grant),
    [GS_WIRE_REFUSE] = sizeof(struct gs_wire_refuse),
    [GS_WIRE_CLOSE] = sizeof(struct gs_wire_close),
    [GS_WIRE_RECALL] = sizeof(struct gs_wire_recall),
    [GS_WIRE_SHARE] = sizeof(struct gs_wire_share),
    [GS_WIRE_UNSHARE] = sizeof(struct gs_wire_unshare),
    [GS_WIRE_QUERY] = sizeof(struct gs_wire_query),
    [GS_WIRE_REPORT] = sizeof(struct gs_wire_report),
    [GS_WIRE_CACHE] = sizeof(struct gs_wire_cache),
    [GS_WIRE_UNMAP] = sizeof(struct gs_wire_unmap),
    [GS_WIRE_UNMAPPED] = sizeof(struct gs_wire_unmapped),
    [GS_WIRE_FLUSH] = sizeof(struct gs_wire_flush),
    [GS_WIRE_FLUSHED] = sizeof(struct gs_wire_flushed),
    [GS_WIRE_PUBLISH] = sizeof(struct gs_wire_publish),
    [GS_WIRE_BYE] = sizeof(struct gs_wire_bye),
    [GS_WIRE_TAKE_UP] = sizeof(struct gs_wire_take_up),
    [GS_WIRE_PURGE] = sizeof(struct gs_wire_purge),
    [GS_WIRE_PURGED] = sizeof(struct gs_wire_purged),
    [GS_WIRE_SET] = sizeof(struct gs_wire_set),
    [GS_WIRE_SET_TO] = sizeof(struct gs_wire_set_to),
    [GS_WIRE_COLLECT] = sizeof(struct gs_wire_collect),
    [GS_WIRE_COLLECTED] = sizeof(struct gs_wire_collected),
    [GS_WIRE_FAREWELL] = sizeof(struct gs_wire_farewell),
    [GS_WIRE_FORKED] = sizeof(struct gs_wire_forked),
    [GS_WIRE_FIND] = sizeof(struct gs_wire_find),
    [GS_WIRE_FOUND] = sizeof(struct gs_wire_found),
    [GS_WIRE_FETCH] = sizeof(struct gs_wire_fetch),
    [GS_WIRE_PIECES] = sizeof(struct gs_wire_pieces),
    [GS_WIRE_NAME] = sizeof(struct gs_wire_name),
    [GS_WIRE_LOOK_UP] = sizeof(struct gs_wire_look_up),
    [GS_WIRE_NAMED] = sizeof(struct gs_wire_named),
    [GS_WIRE_UNNAME] = sizeof(struct gs_wire_unname),
    [GS_WIRE_UNNAMED] = sizeof(struct gs_wire_unnamed),
    [GS_WIRE_KEPT] = sizeof(struct gs_wire_kept),
    [GS_WIRE_AGENT] = sizeof(struct gs_wire_agent),
    [GS_WIRE_SHARED_AFAR] = sizeof(struct gs_wire_shared_afar),
    [GS_WIRE_UNSHARED_AFAR] = sizeof(struct gs_wire_block_afar),
    [GS_WIRE_OPEN_AFAR] = sizeof(struct gs_wire_open_afar),
    [GS_WIRE_OPENED_AFAR] = sizeof(struct gs_wire_opened_afar),
    [GS_WIRE_TAKE_AFAR] = sizeof(struct gs_wire_take_afar),
    [GS_WIRE_ENDED_AFAR] = sizeof(struct gs_wire_ended_afar),
    [GS_WIRE_RECALL_AFAR] = sizeof(struct gs_wire_block_afar),
    [GS_WIRE_HOLDER_AFAR] = sizeof(struct gs_wire_holder_afar),
    [GS_WIRE_HOLDS_AFAR] = sizeof(struct gs_wire_holds_afar),
    [GS_WIRE_MACHINE_AFAR] = sizeof(struct gs_wire_machine_afar),
    [GS_WIRE_KEPT_AFAR] = sizeof(struct gs_wire_kept_afar),
    [GS_WIRE_FORGET_AFAR] = sizeof(struct gs_wire_forget_afar),
    [GS_WIRE_FORGOTTEN_AFAR] = sizeof(struct gs_wire_forgotten_afar),
    [GS_WIRE_HOLD_AFAR] = sizeof(struct gs_wire_hold_afar),
    [GS_WIRE_HELD_AFAR] = sizeof(struct gs_wire_hold_afar),
    [GS_WIRE_GRANT_AFAR] = sizeof(struct gs_wire_grant_afar),
    [GS_WIRE_ASK_AFAR] = sizeof(struct gs_wire_ask_afar),
    [GS_WIRE_TOLD_AFAR] = sizeof(struct gs_wire_told_afar),
    [GS_WIRE_SHARE_AFAR] = sizeof(struct gs_wire_share_afar),
};

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

const char *gs_wire_reason_text(uint32_t reason)
{
    static const char *const texts[] = {
        [GS_REFUSED_HANDLE] = "the handle is stale or was changed",
        [GS_REFUSED_USER] = "another user, whom share.uids and share.gids do not name",
        [GS_REFUSED_BUSY] = "it serves as many as it may (share.max_clients)",
        [GS_REFUSED_FDS] = "no descriptor is left there (ulimit -n)",
        [GS_REFUSED_DRIVER] = "the driver there does not export the memory",
        [GS_REFUSED_MEMORY] = "no host memory is left there",
        [GS_REFUSED_ENDING] = "the process that shared it is ending",
        [GS_REFUSED_MESSAGE] = "a message out of place",
        [GS_REFUSED_VERSION] = "another version of this library",
        [GS_REFUSED_FLIGHT] = "too many descriptors of its user are under way (ulimit -n)",
        [GS_REFUSED_LIMBO] =
            "it is freed, and this user holds too much of what is (share.limbo_limit "
            "there)",
        [GS_REFUSED_EARLY] = "the process that shared it runs, and is to be asked itself",
        [GS_REFUSED_ALONE] = "it is of no process of this machine, and no gpushim-agent is here "
                             "that asks others; start one beside the broker",
        [GS_REFUSED_DIRECTORY] = "the agent cannot use its directory of machines (its log says why)",
        [GS_REFUSED_MACHINE] = "the agent of the machine that shared it cannot be reached (the log "
                               "of the agent here says why)",
        [GS_REFUSED_UNHEARD] = "no machine of the cluster has published it under this handle: it was "
                               "freed, or its process has ended, or does not share with other "
                               "machines (share.reach and gpushim-agent there)",
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

    return length >= sizeof *head && head->magic == WIRE_MAGIC && head->version == GS_WIRE_VERSION &&
           head->type < GS_WIRE_TYPES && head->size == sizes[head->type] && length == head->size;
}

bool gs_wire_goes_later(int error)
{
    return error == -EAGAIN || error == -ENOBUFS || error == -ENOMEM;
}
