/*
 * Where contexts and streams end. Memory ends with its context, stream-ordered memory too, so the
 * arena follows: a context is detached before the driver ends it, since its handle may be given to
 * a new one at once.
 */
#include "hook.h"
#include "shim/result.h"
#include "shim/start.h"

#include "core/api/core.h"
#include "core/api/peer_access.h"
#include "core/api/pin.h"

/* The driver has ended a context. */
static void end(CUcontext handle, struct gs_context *context)
{
    gs_core_context_gone(gs_core, handle, context);
    gs_core_sync_memops_due(gs_core); /* its captures have ended with it */
}

/* Ends a context by a call of the driver that names it; one that gives up a use (`may_stay`) ends
 * it with the last. */
static CUresult destroy(CUcontext ctx, CUresult(CUDAAPI **real)(CUcontext), bool may_stay)
{
    struct gs_context *context;
    CUresult result;

    if (!gs_state_enter())
        return (*real)(ctx);
    GS_KEEP_CALLER;
    gs_core_context_going(gs_core);
    context = gs_core_context_detach(gs_core, ctx);
    result = (*real)(ctx);
    if (result == CUDA_SUCCESS && !(may_stay && gs_core_context_exists(gs_core, ctx)))
        end(ctx, context);
    else
        gs_core_context_stays(gs_core, ctx, context);
    return result;
}

/* A primary context that a call of the driver may end. */
struct primary {
    CUdevice device;
    bool turn;
    CUcontext handle;
    struct gs_context *context;
};

static struct primary primary_going(CUdevice device)
{
    struct primary primary = {.device = device};

    gs_core_context_going(gs_core);
    primary.turn = gs_core_primary_turn(gs_core, device);
    primary.handle = gs_core_primary(gs_core, device);
    if (primary.handle)
        primary.context = gs_core_context_detach(gs_core, primary.handle);
    return primary;
}

/* After that call; `always_ends` tells whether success means that it is gone. */
static void primary_went(const struct primary *primary, CUresult result, bool always_ends)
{
    struct gs_context *context = primary->context;

    if (primary->handle && result == CUDA_SUCCESS &&
        (always_ends || !gs_core_primary_active(gs_core, primary->device)))
        /* Also what another thread began with there meanwhile. */
        do
            end(primary->handle, context);
        while (primary->turn &&
               (context = gs_core_context_detach(gs_core, primary->handle)) != NULL);
    else
        gs_core_context_stays(gs_core, primary->handle, context);
    if (primary->turn)
        gs_core_primary_turn_end(gs_core, primary->device);
}

/* Resets or releases it. */
static CUresult end_primary(CUdevice dev, CUresult(CUDAAPI **real)(CUdevice), bool always_ends)
{
    struct primary primary;
    CUresult result;

    if (!gs_state_enter())
        return (*real)(dev);
    GS_KEEP_CALLER;
    primary = primary_going(dev);
    result = (*real)(dev);
    primary_went(&primary, result, always_ends);
    return result;
}

/* A green context retains the primary one. */
GS_HOOK CUresult CUDAAPI cuGreenCtxDestroy(CUgreenCtx hCtx)
{
    GS_AT_GATE(cuGreenCtxDestroy);
    CUcontext green = NULL;
    struct primary primary;
    CUresult result;

    if (!gs_state_enter())
        return gs_real.cuGreenCtxDestroy(hCtx);
    GS_KEEP_CALLER;
    primary = primary_going(gs_core_green_device(gs_core, hCtx, &green));
    result = gs_real.cuGreenCtxDestroy(hCtx);
    if (result == CUDA_SUCCESS)
        gs_core_green_gone(gs_core, green);
    primary_went(&primary, result, false);
    gs_core_sync_memops_due(gs_core);
    return result;
}

GS_HOOK CUresult CUDAAPI cuCtxEnablePeerAccess(CUcontext peerContext, unsigned int Flags)
{
    GS_AT_GATE(cuCtxEnablePeerAccess);
    gs_status status = GS_OK;
    CUresult result = GS_NOTED(gs_real.cuCtxEnablePeerAccess(peerContext, Flags),
                               status = gs_core_peer_enabled(gs_core, peerContext));

    if (status == GS_OK)
        return result;
    gs_real.cuCtxDisablePeerAccess(peerContext); /* all of it or nothing, as natively */
    return gs_result(status);
}

GS_HOOK CUresult CUDAAPI cuCtxDisablePeerAccess(CUcontext peerContext)
{
    GS_AT_GATE(cuCtxDisablePeerAccess);
    return gs_real.cuCtxDisablePeerAccess(peerContext); /* what it let in stays so */
}

/* A new stream may get the handle of a destroyed one, so what is free for the stream alone is
 * taken from it before; a capture ends with its stream. The default streams cannot be destroyed:
 * the driver refuses those. */
static CUresult destroy_stream(CUstream stream, CUresult(CUDAAPI **real)(CUstream))
{
    CUresult result;

    if (!gs_state_enter() || !stream || stream == CU_STREAM_LEGACY ||
        stream == CU_STREAM_PER_THREAD)
        return (*real)(stream);
    GS_KEEP_CALLER;
    gs_core_stream_gone(gs_core, stream);
    result = (*real)(stream);
    if (result == CUDA_SUCCESS)
        gs_core_capture_end(gs_core, stream);
    return result;
}

/* ---- Made from rows ------------------------------------------------------------------------- */

#define GS_MAKES_ENDS_CONTEXT GS_ALWAYS
#define GS_MAKE_ENDS_CONTEXT(symbol, order, async, real) \
    return destroy(context, &gs_real.symbol, false);

#define GS_MAKES_LEAVES_CONTEXT GS_ALWAYS
#define GS_MAKE_LEAVES_CONTEXT(symbol, order, async, real) \
    return destroy(context, &gs_real.symbol, true);

#define GS_MAKES_RESETS_PRIMARY GS_ALWAYS
#define GS_MAKE_RESETS_PRIMARY(symbol, order, async, real) \
    return end_primary(device, &gs_real.symbol, true);

#define GS_MAKES_RELEASES_PRIMARY GS_ALWAYS
#define GS_MAKE_RELEASES_PRIMARY(symbol, order, async, real) \
    return end_primary(device, &gs_real.symbol, false);

#define GS_MAKES_ENDS_STREAM GS_ALWAYS
#define GS_MAKE_ENDS_STREAM(symbol, order, async, real) \
    return destroy_stream(stream, &gs_real.symbol);

#include "made.h"
