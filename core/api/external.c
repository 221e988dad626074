/* Memory that somebody else made (core/api/core.h). */
#include "core/api/core.h"

#include "core/base/text.h"
#include "core/process/context.h"

/* In the context that is current. */
static gs_status attach_here(struct gs_core *core, const struct gs_external_memory *memory,
                             uint64_t owner, CUdeviceptr *ret_address, CUcontext *ret_context)
{
    struct gs_context *context;
    gs_status status = gs_context_current(core, &context);

    if (status != GS_OK)
        return status;
    if (memory->kind == GS_EXTERNAL_EXPORTED && !gs_device_has_vmm(&core->driver))
        return GS_NOT_OFFERED;
    status = gs_share_attach(core->share, memory, context->handle, context->ordinal,
                             context->device->uuid, owner, ret_address);
    if (status != GS_OK)
        return status;
    *ret_context = context->handle;
    if (memory->kind == GS_EXTERNAL_EXPORTED)
        status = gs_peers_admit_import(core, *ret_address);
    if (status != GS_OK)
        gs_share_attach_undo(core->share, *ret_address);
    return status;
}

gs_status gs_core_attach(struct gs_core *core, const struct gs_external_memory *memory,
                         CUdevice device, uint64_t owner, CUdeviceptr *ret_address,
                         CUcontext *ret_context)
{
    CUcontext primary;
    CUdevice current;
    bool turn;

    if (core->driver.ctx_get_device(&current) == CUDA_SUCCESS && current == device)
        return attach_here(core, memory, owner, ret_address, ret_context);
    turn = gs_core_primary_turn(core, device);
    primary = gs_is_device(device) ? gs_core_primary(core, device) : NULL;
    if (turn)
        gs_core_primary_turn_end(core, device);
    if (!primary)
        return GS_NO_CONTEXT;
    GS_ENTER(entered, &core->driver, primary);
    return entered.result ? GS_NO_CONTEXT
                          : attach_here(core, memory, owner, ret_address, ret_context);
}

uint64_t gs_core_settle_ns(const struct gs_core *core)
{
    return core->options.share.settle_ns;
}

void gs_core_external_say(struct gs_core *core, CUdeviceptr address)
{
    char line[512];
    struct gs_text text = {line, sizeof line, 0, false};
    struct gs_share_held held;
    size_t size = gs_share_external_held(core->share, address, &held);

    if (size == 0)
        return;
    for (unsigned i = 0; i < held.holders && i < GS_SHARE_HOLDERS; i++)
        gs_text_add(&text, "; process %d (%s%s) has it open for %llu s", (int)held.most[i].pid,
                    held.most[i].name, held.most[i].stopped ? ", stopped" : "",
                    (unsigned long long)(held.most[i].held_ns / GS_NS_PER_S));
    if (held.holders > GS_SHARE_HOLDERS)
        gs_text_add(&text, "; and %u others", held.holders - GS_SHARE_HOLDERS);
    if (gs_regcache_in_use(core->regcache, address, size))
        gs_text_add(&text, "; it is registered with a network card or storage");
    if (text.length == 0)
        gs_text_add(&text, "; the GPU has not done what was submitted before");
    gs_log_line(&core->options.log, GS_LOG_WARNING, "external memory at %llx is in use still%s",
                (unsigned long long)address, line);
}
