/*
 * Importer: references on their way back to the exporter.
 *
 *   idle or closed ─► fences recorded ─► passed ─► (chunk unmapped with its last block) ─► CLOSE sent
 *        │
 *        └──────────── opened again: nothing was given back, the mapping is used on
 *
 * A fence stands for each context of the process: any of them can work with what one has opened.
 * While a capture is open none can be
 * recorded, so that is done later; a later fence only covers more. A block has at most one fence
 * under way for each context, however often it is opened and closed.
 */
#include "core/base/list.h"
#include "core/share/importer.h"

#include <stdlib.h>

#define POLL_FIRST_NS   GS_NS_PER_MS
#define POLL_LONGEST_NS (16 * GS_NS_PER_MS)

static struct gs_importer_context *context_find(struct gs_share *share, CUcontext context)
{
    struct gs_importer_context *found;

    HASH_FIND(hh, share->importer.contexts, &context, sizeof(context), found);
    return found;
}

static gs_status context_add(struct gs_share *share, CUcontext context)
{
    struct gs_importer_context *added;

    if (context_find(share, context))
        return GS_OK;
    added = calloc(1, sizeof *added);
    if (!added)
        return GS_NO_HOST_MEMORY;
    added->context = context;
    gs_fence_pool_init(share->fences, &added->pool, context, NULL);
    if (!added->pool.line) { /* nothing could ever be given back */
        free(added);
        return GS_NO_HOST_MEMORY;
    }
    HASH_ADD(hh, share->importer.contexts, context, sizeof added->context, added);
    if (added->hh.tbl)
        return GS_OK;
    gs_fence_pool_forget(&added->pool);
    free(added);
    return GS_NO_HOST_MEMORY;
}

/* That of the context; NULL: no host memory. */
static struct gs_use *use_of(struct gs_share *share, struct gs_opened *opened, CUcontext context)
{
    struct gs_use *grown;

    for (unsigned i = 0; i < opened->use_count; i++)
        if (opened->uses[i].context == context)
            return &opened->uses[i];
    if (context_add(share, context) != GS_OK)
        return NULL;
    grown = realloc(opened->uses, (opened->use_count + 1) * sizeof *grown);
    if (!grown)
        return NULL;
    opened->uses = grown;
    grown[opened->use_count] = (struct gs_use){.context = context};
    return &grown[opened->use_count++];
}

gs_status gs_use_add_locked(struct gs_share *share, struct gs_opened *opened, CUcontext context)
{
    struct gs_use *use = use_of(share, opened, context);

    if (!use)
        return GS_NO_HOST_MEMORY;
    use->has_opened = true;
    return GS_OK;
}

gs_status gs_uses_add_locked(struct gs_share *share, struct gs_opened *opened)
{
    const struct gs_share_events *events = &share->events;
    union gs_told told;

    if (!events->asked || !events->asked(events->arg, GS_ASKED_CONTEXTS, 0, &told))
        return GS_OK;
    for (unsigned i = 0; i < told.contexts.count; i++)
        if (!use_of(share, opened, told.contexts.of[i]))
            return GS_NO_HOST_MEMORY;
    return GS_OK;
}

CUcontext gs_opener(const struct gs_opened *opened)
{
    for (unsigned i = 0; i < opened->use_count; i++)
        if (opened->uses[i].has_opened)
            return opened->uses[i].context;
    return NULL;
}

/* ---- Fences --------------------------------------------------------------------------------- */

/* A call that failed for want of memory may work the next time, and until then work that was
 * submitted may run. */
static bool may_work_later(gs_status status)
{
    return status == GS_CAPTURING || status == GS_NO_HOST_MEMORY ||
           status == (gs_status)CUDA_ERROR_OUT_OF_MEMORY;
}

/* Events say nothing here, or nothing that can be believed: the context itself is waited for, which
 * fails at once where it is broken. Other errors are those of one that is gone or broken and runs
 * nothing any more. */
static bool events_fail(gs_status status)
{
    return status == GS_NOT_OFFERED || status == (gs_status)CUDA_ERROR_NOT_SUPPORTED ||
           status == (gs_status)CUDA_ERROR_UNKNOWN;
}

static void use_record(struct gs_share *share, struct gs_use *use)
{
    struct gs_importer_context *context = context_find(share, use->context);
    gs_status status = GS_NO_CONTEXT;

    if (context && context->leaving)
        return;
    if (context)
        status = gs_fence_record(&context->pool, &use->fence);
    if (may_work_later(status))
        return;
    if (events_fail(status)) {
        if (!gs_fences_capturing(share->fences))
            use->next = GS_FENCE_SYNCING;
        return;
    }
    use->next = GS_FENCE_NONE; /* recorded; or the context is broken and runs nothing any more */
}

/* Whether nothing that the context submitted before the last close can still run. */
static bool use_passed(struct gs_share *share, struct gs_use *use)
{
    if (use->fence.line) {
        struct gs_importer_context *context = context_find(share, use->context);
        gs_status status = GS_OK;

        if (context && context->leaving)
            return false;
        if (context)
            status = gs_fence_query(&context->pool, &use->fence);
        if (status == (gs_status)CUDA_ERROR_NOT_READY || may_work_later(status))
            return false;
        use->fence.line = NULL; /* passed, or of a broken context */
        if (events_fail(status) && use->next == GS_FENCE_NONE)
            use->next = GS_FENCE_WANTED;
    }
    if (use->next == GS_FENCE_WANTED)
        use_record(share, use);
    return !use->fence.line && use->next == GS_FENCE_NONE;
}

static bool all_passed(struct gs_share *share, struct gs_opened *opened)
{
    bool passed = true;

    for (unsigned i = 0; i < opened->use_count; i++)
        passed &= use_passed(share, &opened->uses[i]);
    return passed;
}

void gs_closing_start_locked(struct gs_share *share, struct gs_opened *opened)
{
    if (opened->external)
        gs_external_ends_locked(share, opened->external);
    for (unsigned i = 0; i < opened->use_count; i++) {
        opened->uses[i].next = GS_FENCE_WANTED;
        if (!opened->uses[i].fence.line)
            use_record(share, &opened->uses[i]);
    }
    opened->next = share->importer.closing;
    share->importer.closing = opened;
    share->importer.poll_ns = POLL_FIRST_NS;
    if (share->importer.polling)
        return;
    share->importer.polling = true;
    gs_thread_wake(share);
}

void gs_closing_stop_locked(struct gs_share *share, struct gs_opened *opened)
{
    LL_DELETE(share->importer.closing, opened);
    for (unsigned i = 0; i < opened->use_count; i++)
        opened->uses[i].next = GS_FENCE_NONE;
}

static void uses_change(struct gs_share *share, CUcontext context, unsigned from, unsigned to)
{
    for (struct gs_opened *opened = share->importer.closing; opened; opened = opened->next)
        for (unsigned i = 0; i < opened->use_count; i++)
            if (opened->uses[i].next == from && opened->uses[i].context == context)
                opened->uses[i].next = to;
}

/* A driver without cuCtxRecordEvent: the thread waits for the contexts whose fences are missing, as
 * long as their work takes; it is the share thread's own wait, not one of the program's.
 * Lets go of the lock meanwhile; what is closed in between, or again, asks for another wait. */
static void wait_for_contexts_locked(struct gs_share *share)
{
    struct gs_opened *opened;
    CUcontext context = NULL, popped;

    for (opened = share->importer.closing; opened; opened = opened->next)
        for (unsigned i = 0; i < opened->use_count; i++) {
            if (opened->uses[i].next == GS_FENCE_WAITING)
                return; /* another thread is at it */
            if (opened->uses[i].next == GS_FENCE_SYNCING &&
                !context_find(share, opened->uses[i].context)->leaving)
                context = opened->uses[i].context;
        }
    if (!context || !gs_fences_wait_begins(share->fences))
        return;
    uses_change(share, context, GS_FENCE_SYNCING, GS_FENCE_WAITING);
    gs_lock_release(&share->importer.lock);
    if (share->driver->ctx_push_current(context) == CUDA_SUCCESS) {
        share->driver->ctx_synchronize();
        share->driver->ctx_pop_current(&popped);
    }
    gs_fences_wait_ends(share->fences);
    gs_lock_take(&share->importer.lock);
    uses_change(share, context, GS_FENCE_WAITING, GS_FENCE_NONE);
}

/* ---- Giving back ---------------------------------------------------------------------------- */

/* Takes a block out of everything; its record goes to the remote's unsent ones. Lets go of the lock
 * while registrations end and the chunk is unmapped. */
static void give_back_locked(struct gs_share *share, struct gs_opened *opened)
{
    struct gs_remote *remote = opened->remote;
    struct gs_import *import = opened->import;
    bool last;

    if (opened->external) {
        gs_external_over_locked(share, opened->external);
        return;
    }
    remote->busy = true;
    gs_import_remove_locked(import, opened);
    last = import->count == 0;
    if (last)
        gs_import_leave_locked(share, import);
    gs_lock_release(&share->importer.lock);
    if (last)
        gs_import_unmap(share, import);
    else if (share->events.in_use)
        share->events.in_use(share->events.arg, opened->address, opened->size, true);
    gs_lock_take(&share->importer.lock);
    if (last)
        gs_import_recycle_locked(share, import);
    HASH_DEL(share->importer.opened, opened);
    remote->opened_count--;
    free(opened->uses);
    opened->uses = NULL;
    LL_PREPEND(remote->unsent, opened);
    gs_remote_flush_locked(share, remote);
    gs_remote_release_locked(share, remote);
}

/* A device may reach it still, or another process what is external here. */
static bool is_held(struct gs_share *share, struct gs_opened *opened)
{
    opened->held = share->events.in_use &&
                   share->events.in_use(share->events.arg, opened->address, opened->size, false);
    if (opened->external && gs_external_is_held_locked(share, opened->external))
        opened->held = true;
    return opened->held;
}

void gs_share_look_again(struct gs_share *share)
{
    int saved = errno;

    gs_lock_take(&share->importer.lock);
    if (share->importer.closing || share->importer.remotes)
        gs_thread_wake(share);
    gs_lock_release(&share->importer.lock);
    errno = saved;
}

/* The blocks whose fences have passed, out of `closing`. */
static struct gs_opened *take_passed_locked(struct gs_share *share)
{
    struct gs_opened *opened, *next, *passed = NULL;

    LL_FOREACH_SAFE(share->importer.closing, opened, next) {
        if (!all_passed(share, opened) || is_held(share, opened))
            continue;
        LL_DELETE(share->importer.closing, opened);
        opened->leaving = true;
        LL_PREPEND(passed, opened);
    }
    return passed;
}

/* Sends what is still to be said; whether something is left to do. */
static bool flush_all_locked(struct gs_share *share)
{
    struct gs_remote *remote, *next;
    bool left = false;

    for (const struct gs_opened *opened = share->importer.closing; opened; opened = opened->next)
        left |= !opened->held; /* the end of what holds it is announced */
    HASH_ITER(hh, share->importer.remotes, remote, next) {
        if (!remote->unsent)
            continue;
        if (remote->busy || !gs_remote_flush_locked(share, remote))
            left = true;
        else
            gs_remote_reap_locked(share, remote);
    }
    return left;
}

uint64_t gs_closing_tick(struct gs_share *share, uint64_t now)
{
    struct gs_opened *passed;
    uint64_t due;

    if (__atomic_load_n(&share->ending, __ATOMIC_ACQUIRE))
        return GS_NEVER;
    gs_lock_take(&share->importer.lock);
    due = gs_remotes_tick_locked(share, now);
    gs_sooner(&due, gs_fork_tick_locked(share, now));
    gs_sooner(&due, gs_cache_tick_locked(share, now));
    wait_for_contexts_locked(share);
    passed = take_passed_locked(share);
    while (passed) {
        struct gs_opened *opened = passed;

        passed = opened->next;
        if (opened->remote->busy) {
            opened->leaving = false; /* nobody may come for it soon: it can be opened again */
            opened->next = share->importer.closing;
            share->importer.closing = opened;
        } else {
            give_back_locked(share, opened);
        }
    }
    if (!share->importer.polling) /* what a late answer leaves to be said begins it too */
        share->importer.poll_ns = POLL_FIRST_NS;
    share->importer.polling = flush_all_locked(share);
    if (share->importer.polling) {
        gs_sooner(&due, now + share->importer.poll_ns);
        if (share->importer.poll_ns < POLL_LONGEST_NS)
            share->importer.poll_ns *= 2;
    }
    gs_sooner(&due, gs_flush_tick_locked(share, now));
    gs_lock_release(&share->importer.lock);
    return due;
}

/* ---- Ends ----------------------------------------------------------------------------------- */

static void use_remove(struct gs_opened *opened, CUcontext context)
{
    for (unsigned i = 0; i < opened->use_count; i++) {
        if (opened->uses[i].context != context)
            continue;
        opened->uses[i] = opened->uses[--opened->use_count];
        return;
    }
}

void gs_share_context_leaving(struct gs_share *share, CUcontext context, bool leaving)
{
    struct gs_importer_context *found;
    GS_HOLDING(&share->importer.lock);

    found = context_find(share, context);
    if (found)
        found->leaving = leaving;
}

/* The block is not used in it any more; memory of the host is registered in it no more. */
static void leave_context(struct gs_opened *opened, CUcontext context)
{
    if (opened->import)
        gs_import_leave_context_locked(opened->import, context);
    use_remove(opened, context);
}

void gs_share_context_gone(struct gs_share *share, CUcontext context)
{
    int saved = errno;
    struct gs_importer_context *gone;
    struct gs_opened *opened, *next;

    gs_lock_take(&share->importer.lock);
    gs_externals_end_locked(share, context);
    gone = context_find(share, context);
    HASH_ITER(hh, share->importer.opened, opened, next) {
        leave_context(opened, context);
        if (gs_opener(opened) || opened->count == 0)
            continue;
        opened->count = 0;
        gs_closing_start_locked(share, opened);
    }
    if (gone) {
        HASH_DEL(share->importer.contexts, gone);
        gs_fence_pool_forget(&gone->pool);
        free(gone);
    }
    gs_lock_release(&share->importer.lock);
    errno = saved;
}

void gs_closing_finish(struct gs_share *share)
{
    struct gs_opened *opened, *next_opened;
    struct gs_remote *remote, *next_remote;
    struct gs_importer_context *context, *next_context;
    struct gs_import *import;

    gs_lock_take(&share->importer.lock);
    HASH_ITER(hh, share->importer.opened, opened, next_opened) {
        if (opened->count == 0 && !opened->kept)
            continue;
        if (opened->kept)
            gs_cache_take_locked(share, opened);
        gs_closing_start_locked(share, opened);
    }
    while ((opened = share->importer.closing)) {
        LL_DELETE(share->importer.closing, opened);
        all_passed(share, opened);
        give_back_locked(share, opened);
    }
    gs_lock_release(&share->importer.lock);
    while (gs_share_external_next(share, 0))
        continue;
    gs_lock_take(&share->importer.lock);
    HASH_ITER(hh, share->importer.remotes, remote, next_remote) {
        gs_remote_disconnect(share, remote);
        gs_remote_flush_locked(share, remote);
        gs_remote_reap_locked(share, remote);
    }
    HASH_ITER(hh, share->importer.contexts, context, next_context) {
        HASH_DEL(share->importer.contexts, context);
        gs_fence_pool_destroy(&context->pool);
        free(context);
    }
    while ((import = share->importer.spare_imports)) {
        LL_DELETE(share->importer.spare_imports, import);
        free(import);
    }
    gs_lock_release(&share->importer.lock);
}
