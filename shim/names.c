/* Names of GPU memory (gpushim.h): what callers give is checked here, and copied. */
#include <errno.h>
#include <string.h>

#include "shim/gpushim.h"
#include "shim/hooks/hook.h"
#include "shim/stack.h"
#include "shim/start.h"

#include "core/process/own.h"

_Static_assert(sizeof(((struct gpushim_named *)0)->handle) == GS_IPC_HANDLE_SIZE &&
                   sizeof(((struct gpushim_named *)0)->label) == GS_LABEL_SIZE &&
                   sizeof(((struct gpushim_named *)0)->note) == GS_NOTE_SIZE,
               "they hold what is found");

/* A name, or a label; false: it is longer than that. */
static bool copy(char *ret_text, size_t size, const char *text)
{
    size_t length = strnlen(text, size);

    if (length == size)
        return false;
    memcpy(ret_text, text, length);
    return true;
}

static bool read_name(struct gs_naming *ret_naming, const char *name)
{
    memset(ret_naming, 0, sizeof *ret_naming);
    return name && copy(ret_naming->name, sizeof ret_naming->name, name) &&
           gs_naming_is_good(ret_naming);
}

static bool read_publication(struct gs_naming *ret_naming, const char *name,
                             const struct gpushim_publication *publication)
{
    if (!read_name(ret_naming, name) || !publication || publication->size < sizeof *publication ||
        publication->note_size > sizeof ret_naming->note ||
        (publication->note_size > 0 && !publication->note))
        return false;
    if (publication->label &&
        !copy(ret_naming->label, sizeof ret_naming->label, publication->label))
        return false;
    ret_naming->note_size = (uint32_t)publication->note_size;
    if (publication->note_size > 0)
        memcpy(ret_naming->note, publication->note, publication->note_size);
    return gs_naming_is_good(ret_naming);
}

static int error_of(gs_status status)
{
    switch (status) {
    case GS_OK:
        return 0;
    case GS_NOT_OURS:
    case GS_NO_CONTEXT:
        return ENODEV;
    case GS_TOO_MANY:
        return ENOSPC;
    case GS_NO_HOST_MEMORY:
        return ENOMEM;
    case GS_NOT_LIVE:
    case GS_INVALID:
        return EFAULT;
    default: /* GS_NOT_OFFERED, GS_UNREACHABLE, GS_NO_RANDOM, or the driver's own */
        return ENOTSUP;
    }
}

GS_HOOK int gpushim_publish(const char *name, const struct gpushim_publication *publication)
{
    GS_AROUND_AT_GATE_AS(GS_GATE_OTHER);
    struct gs_naming naming;
    gs_status status;

    if (!read_publication(&naming, name, publication))
        return EINVAL;
    if (!gs_state_enter())
        return ENODEV;
    GS_KEEP_ERRNO;
    status = gs_ours(publication->address)
                 ? gs_core_publish(gs_core, publication->address, &naming)
                 : gs_core_own_publish(gs_core, publication->address, &naming);
    return error_of(status);
}

static int error_of_look_up(enum gs_look_up outcome)
{
    return outcome == GS_LOOK_FOUND ? 0 : outcome == GS_LOOK_NONE ? ENOENT : ETIMEDOUT;
}

static void tell(struct gpushim_named *named, const struct gs_found *found)
{
    struct gpushim_named all = {
        .size = named->size,
        .offset = found->offset,
        .bytes = found->size,
        .address = found->address,
        .age_ns = found->age_ns,
        .pid = found->pid,
        .uid = found->uid,
        .kept = found->kept,
        .note_size = found->naming.note_size,
    };

    memcpy(all.handle, found->ipc_handle, sizeof all.handle);
    memcpy(all.uuid, found->uuid, sizeof all.uuid);
    memcpy(all.process, found->process, sizeof all.process);
    memcpy(all.label, found->naming.label, sizeof all.label);
    memcpy(all.note, found->naming.note, sizeof all.note);
    *named = all;
}

GS_HOOK int gpushim_lookup(const char *name, struct gpushim_named *named)
{
    struct gs_naming naming;
    struct gs_found found = {.uid = 0};
    enum gs_look_up outcome;

    if (!read_name(&naming, name) || !named || named->size < sizeof *named)
        return EINVAL;
    if (!gs_state_enter())
        return ENODEV;
    outcome = gs_share_look_up(gs_core_share(gs_core), naming.name, &found);
    if (outcome == GS_LOOK_FOUND)
        tell(named, &found);
    return error_of_look_up(outcome);
}

GS_HOOK int gpushim_unpublish(const char *name)
{
    struct gs_naming naming;

    if (!read_name(&naming, name))
        return EINVAL;
    if (!gs_state_enter())
        return ENODEV;
    return error_of_look_up(gs_share_unname(gs_core_share(gs_core), naming.name));
}

GS_HOOK int gpushim_tag(const char *label)
{
    struct gs_naming naming = {.name = "-"};

    if (label && (!copy(naming.label, sizeof naming.label, label) || !gs_naming_is_good(&naming)))
        return EINVAL;
    gs_stack_tag(naming.label);
    if (atomic_load(&gs_state) != GS_STATE_CHILD) /* whose parent's threads may have been at it */
        gs_core_tag(naming.label);
    return 0;
}
