/* Open captures (core/gpu/fence.h): they forbid events, and wait for who is about to record one. */
#include "core/gpu/fence.h"

#include <stdlib.h>

#include "core/base/cancel.h"
#include "core/base/clock.h"

#define PAUSE_NS UINT64_C(20000) /* between two looks at who waits */

static void set_count(struct gs_fences *fences, unsigned count)
{
    __atomic_store_n(&fences->captures, count, __ATOMIC_SEQ_CST);
}

/* Called with the lock held, after the count was raised: whoever takes a line from here on sees it.
 * No driver call that is waited for blocks. */
static void wait_for_lines_locked(struct gs_fences *fences)
{
    gs_lock_assert_held(&fences->lock);
    for (struct gs_fence_line *line = fences->lines; line; line = line->next) {
        gs_latch_take(&line->taken);
        gs_latch_release(&line->taken);
    }
}

bool gs_fences_wait_begins(struct gs_fences *fences)
{
    __atomic_add_fetch(&fences->waits, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&fences->captures, __ATOMIC_SEQ_CST) == 0)
        return true;
    gs_fences_wait_ends(fences);
    return false;
}

void gs_fences_wait_ends(struct gs_fences *fences)
{
    __atomic_sub_fetch(&fences->waits, 1, __ATOMIC_SEQ_CST);
}

/* The GPU ends it, for nobody begins another wait; the driver's own begin of a capture would wait
 * for a cuMemFree that waits (core/gpu/driver.h). */
static void await_waits(struct gs_fences *fences)
{
    while (__atomic_load_n(&fences->waits, __ATOMIC_SEQ_CST) > 0)
        gs_rest_ns(PAUSE_NS);
}

static gs_status capture_add(struct gs_fences *fences, struct gs_capture capture)
{
    GS_HOLDING(&fences->lock);

    if (fences->captures == fences->room) {
        unsigned room = fences->room + 16;
        struct gs_capture *grown = realloc(fences->capture, room * sizeof *grown);

        if (!grown)
            return GS_NO_HOST_MEMORY;
        fences->capture = grown;
        fences->room = room;
    }
    fences->capture[fences->captures] = capture;
    set_count(fences, fences->captures + 1);
    wait_for_lines_locked(fences);
    return GS_OK;
}

gs_status gs_fences_capture_begin(struct gs_fences *fences, uint64_t stream_key, CUcontext context,
                                  CUcontext owner)
{
    gs_status status = capture_add(fences, (struct gs_capture){stream_key, context, owner});

    if (status == GS_OK)
        await_waits(fences);
    return status;
}

static void capture_remove_locked(struct gs_fences *fences, unsigned i)
{
    gs_lock_assert_held(&fences->lock);
    fences->capture[i] = fences->capture[fences->captures - 1];
    set_count(fences, fences->captures - 1);
}

void gs_fences_capture_end(struct gs_fences *fences, uint64_t stream_key, CUcontext context)
{
    GS_HOLDING(&fences->lock);

    for (unsigned i = 0; i < fences->captures; i++)
        if (fences->capture[i].stream == stream_key &&
            (!context || fences->capture[i].context == context)) {
            capture_remove_locked(fences, i);
            break;
        }
}

void gs_fences_capture_context_gone(struct gs_fences *fences, CUcontext context)
{
    GS_HOLDING(&fences->lock);

    for (unsigned i = fences->captures; i > 0; i--)
        if (fences->capture[i - 1].context == context || fences->capture[i - 1].owner == context)
            capture_remove_locked(fences, i - 1);
}

bool gs_fences_capturing(struct gs_fences *fences)
{
    return __atomic_load_n(&fences->captures, __ATOMIC_SEQ_CST) > 0;
}

bool gs_fences_captured(struct gs_fences *fences, uint64_t *ret_stream_key)
{
    GS_HOLDING(&fences->lock);

    if (fences->captures == 0)
        return false;
    *ret_stream_key = fences->capture[0].stream;
    return true;
}

#define PAGE 4096

/* The end of a registration waits for all work of the context, as cuMemFree does; beside a capture
 * both pass in relaxed mode, which cuCtxSynchronize does not (measured on an H200). */
static gs_status register_and_end(struct gs_fences *fences)
{
    const struct gs_driver *driver = fences->driver;
    gs_status status = GS_CAPTURING;
    CUstreamCaptureMode mode;
    void *page = NULL;

    if (driver->mem_host_register && driver->mem_host_unregister)
        page = aligned_alloc(PAGE, PAGE);
    if (page && gs_fences_relax(fences, &mode)) {
        if (driver->mem_host_register(page, PAGE, 0) == CUDA_SUCCESS)
            status = (gs_status)driver->mem_host_unregister(page);
        gs_fences_restore(fences, mode);
    }
    free(page);
    return status;
}

gs_status gs_fences_synchronize(struct gs_fences *fences, CUcontext context)
{
    GS_UNCANCELLED; /* or begins of captures would wait for good */
    GS_ENTER(entered, fences->driver, context);
    gs_status status = entered.result;

    if (status != GS_OK)
        return status;
    if (!gs_fences_wait_begins(fences))
        return register_and_end(fences);
    status = (gs_status)fences->driver->ctx_synchronize();
    gs_fences_wait_ends(fences);
    return status;
}
