/* Contexts and devices (core/process/context.h). */
#include "core/process/context.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/share/directory.h"

/* What this thread looked up last. Generations never repeat in a process, so one core's are not
 * another's (tests make several). */
static _Thread_local struct {
    CUcontext handle;
    uint64_t generation; /* 0: its device could not be probed */
    struct gs_context *context;
    CUstream stream;
    uint64_t stream_generation;
    struct gs_context *stream_context;
    uint64_t looked_up; /* the generation that the last look-up was of */
} cached;

/* Which of a context's arenas this thread uses for small blocks: the first, as all do, until it
 * has met others there too often. */
#define MEETINGS_MAX 16
#define MOVES_MAX    (2 * GS_THREAD_ARENAS) /* then there are more threads than arenas */
static _Thread_local struct {
    unsigned arena, meetings, moves;
    unsigned tagged; /* the arena of its tag; 0: it has none */
} place;

/* Small numbers for what programs call their memory. */
static struct {
    pthread_mutex_t mutex;
    char labels[GS_TAGS][GS_TAG_SIZE]; /* that of the first tag first; "": none yet */
} tags = {.mutex = PTHREAD_MUTEX_INITIALIZER};

unsigned gs_tag_find(const char *label, bool makes)
{
    unsigned found = 0;

    if (!label[0])
        return 0;
    pthread_mutex_lock(&tags.mutex);
    for (unsigned i = 0; i < GS_TAGS && !found; i++) {
        if (makes && !tags.labels[i][0])
            snprintf(tags.labels[i], GS_TAG_SIZE, "%s", label);
        if (strcmp(tags.labels[i], label) == 0)
            found = i + 1;
    }
    pthread_mutex_unlock(&tags.mutex);
    return found;
}

void gs_core_tag(const char *label)
{
    const unsigned tag = gs_tag_find(label, true);

    place.tagged = tag ? GS_THREAD_ARENAS + tag - 1 : 0;
}

unsigned gs_tag_here(void)
{
    return place.tagged ? place.tagged - GS_THREAD_ARENAS + 1 : 0;
}

void gs_context_handles_changed(struct gs_core *core)
{
    static uint64_t generations;
    uint64_t next = __atomic_add_fetch(&generations, 1, __ATOMIC_RELAXED);

    __atomic_store_n(&core->generation, next, __ATOMIC_RELEASE);
}

/* That of a context; NULL: no host memory. The contexts' lock is held. */
static struct gs_arena *arena_new_locked(struct gs_core *core, const struct gs_context *context,
                                         unsigned i)
{
    const unsigned tag = i < GS_THREAD_ARENAS ? 0 : i - GS_THREAD_ARENAS + 1;
    struct gs_arena *arena = gs_arena_new(&core->shared, context->device, i == 0, tag);

    gs_lock_assert_held(&core->lock);
    if (!arena)
        return NULL;
    arena->next = core->arenas;
    __atomic_store_n(&core->arenas, arena, __ATOMIC_RELEASE);
    return arena;
}

/* A record with its first arena; NULL: no host memory. The contexts' lock is held. */
static struct gs_context *context_new_locked(struct gs_core *core, CUdevice ordinal)
{
    struct gs_context *context = aligned_alloc(_Alignof(struct gs_context), sizeof *context);

    if (!context)
        return NULL;
    memset(context, 0, sizeof *context);
    context->ordinal = ordinal;
    context->device = &core->device[ordinal];
    context->arenas[0] = arena_new_locked(core, context, 0);
    if (!context->arenas[0]) {
        free(context);
        return NULL;
    }
    context->next = core->contexts;
    core->contexts = context;
    return context;
}

/* Called with the contexts' lock held; the handle's device is in `ordinal`. */
static gs_status context_make_locked(struct gs_core *core, CUcontext handle, CUdevice ordinal,
                                     struct gs_context **ret)
{
    struct gs_context *context = gs_contexts_locked(core);

    if (!gs_is_device(ordinal))
        return GS_NOT_OFFERED;
    if (core->device[ordinal].ordinal != ordinal) /* later it is read without the lock */
        core->device[ordinal].ordinal = ordinal;
    while (context && (!context->spare || context->ordinal != ordinal))
        context = context->next;
    if (!context && !(context = context_new_locked(core, ordinal)))
        return GS_NO_HOST_MEMORY;
    for (unsigned i = 0; i < GS_CONTEXT_ARENAS; i++)
        if (context->arenas[i])
            gs_arena_init(context->arenas[i], handle, i == 0 ? NULL : &context->arenas[0]->events);
    context->handle = handle;
    context->detached = context->spare = context->stack.low = false;
    *ret = context;
    return GS_OK;
}

struct gs_context *gs_context_find_locked(struct gs_core *core, CUcontext handle)
{
    struct gs_context *context = gs_contexts_locked(core);

    while (context && (context->detached || context->handle != handle))
        context = context->next;
    return context;
}

/* The owner of the memory that is allocated under a handle. The contexts' lock is held. */
static CUcontext owner_locked(const struct gs_core *core, CUcontext handle)
{
    unsigned long long id;

    gs_lock_assert_held(&core->lock);
    for (const struct gs_green *green = core->programs.greens; green; green = green->next)
        if (green->handle == handle && core->driver.ctx_get_id(handle, &id) == CUDA_SUCCESS &&
            id == green->id)
            return green->primary;
    return handle;
}

CUcontext gs_context_owner(struct gs_core *core, CUcontext handle)
{
    GS_HOLDING(&core->lock);

    return owner_locked(core, handle);
}

#define GOING_STEP_NS 50000

/* Whether the context may be about to go, in a call by another thread. The contexts' lock is
 * held. */
static bool may_go_locked(const struct gs_core *core, CUcontext handle)
{
    for (const struct gs_context *context = gs_contexts_locked(core); context;
         context = context->next)
        if (context->handle == handle && context->detached && !context->arenas[0]->dead)
            return true;
    return false;
}

/* A context has one record, so what becomes of it is waited for; but not for ever, for the call may
 * wait for GPU work that waits for this thread: a second, where the driver would have said at once
 * that the context is there or not. */
static struct gs_context *context_await_locked(struct gs_core *core, CUcontext handle)
{
    uint64_t deadline = gs_now_ns() + GS_GOING_NS;
    struct gs_context *found;

    while (!(found = gs_context_find_locked(core, handle)) && may_go_locked(core, handle) &&
           gs_now_ns() < deadline) {
        gs_lock_release(&core->lock);
        gs_rest_ns(GOING_STEP_NS);
        gs_lock_take(&core->lock);
    }
    return found;
}

/* Called with the contexts' lock held. Where this process could share nothing the driver's own
 * memory is better, which the driver's IPC shares: nobody else can switch that off. */
static bool stays_native_locked(struct gs_core *core)
{
    char reason[GS_REASON_SIZE];

    gs_lock_assert_held(&core->lock);
    if (core->shares != GS_SHARES_UNKNOWN)
        return core->shares == GS_SHARES_NOT;
    core->shares = GS_SHARES;
    if (!core->options.share.enable || gs_share_can(core->share, reason))
        return false;
    core->shares = GS_SHARES_NOT;
    gs_log_line(&core->options.log, GS_LOG_WARNING,
                "memory could not be shared with other processes (%s): allocations stay the "
                "driver's own, as without the library, so that CUDA IPC works; with "
                "share.enable = off the library allocates all the same",
                reason);
    return true;
}

/* Called with the contexts' lock held. */
static void probe_locked(struct gs_core *core, CUdevice ordinal)
{
    const struct gs_share_options *share = &core->options.share;

    gs_lock_assert_held(&core->lock);
    if (core->device[ordinal].mode != GS_MODE_UNKNOWN)
        return;
    gs_device_probe(&core->driver, &core->options.log, ordinal,
                    share->enable && share->export_ahead, stays_native_locked(core),
                    &core->device[ordinal]);
    if (share->cluster && share->broker)
        gs_device_reach(&core->driver, &core->options.log, &core->device[ordinal]);
}

/* An ended green context can still be pushed, and its device be asked for; it has no id. Drivers
 * before 12.0 have no green ones. */
gs_status gs_core_in_context(struct gs_core *core)
{
    unsigned long long id;
    CUdevice device;

    return (gs_status)(core->driver.ctx_get_id ? core->driver.ctx_get_id(NULL, &id)
                                               : core->driver.ctx_get_device(&device));
}

static gs_status look_up(struct gs_core *core, CUcontext handle, bool probe,
                         struct gs_context **ret)
{
    gs_status status = GS_OK;
    CUcontext popped;
    CUdevice ordinal;

    gs_lock_take(&core->lock);
    *ret = context_await_locked(core, handle); /* before the driver is asked whether it is one */
    if (!*ret) {
        status = core->driver.ctx_push_current(handle);
        if (status == GS_OK) {
            CUcontext owner = handle;

            status = gs_core_in_context(core);
            if (status == GS_OK)
                status = core->driver.ctx_get_device(&ordinal);
            if (status == GS_OK) {
                owner = owner_locked(core, handle);
                if (!core->probed && !gs_fences_probe(&core->fences, owner))
                    core->driver.ctx_record_event = NULL;
                core->probed = true;
            }
            core->driver.ctx_pop_current(&popped);
            if (owner != handle)
                *ret = context_await_locked(core, owner);
            handle = owner;
        }
        if (status == GS_OK && !*ret)
            status = context_make_locked(core, handle, ordinal, ret);
    }
    if (status == GS_OK && probe)
        probe_locked(core, (*ret)->ordinal);
    if (status == GS_OK)
        handle = (*ret)->handle; /* its record may be another's soon */
    gs_lock_release(&core->lock);
    if (status == GS_OK)
        gs_single_context(&core->single, handle);
    return status;
}

enum gs_device_mode gs_context_device_mode(struct gs_core *core, CUdevice ordinal)
{
    CUcontext handle;

    if (!gs_is_device(ordinal) || core->driver.ctx_get_current(&handle) != CUDA_SUCCESS)
        return GS_MODE_UNKNOWN;
    GS_HOLDING(&core->lock);
    probe_locked(core, ordinal);
    return core->device[ordinal].mode;
}

static gs_status look_up_and_cache(struct gs_core *core, CUcontext handle, uint64_t seen,
                                   struct gs_context **ret)
{
    gs_status status = look_up(core, handle, true, ret);

    if (status != GS_OK)
        return status;
    cached.handle = handle;
    cached.generation = (*ret)->device->mode != GS_MODE_UNKNOWN ? seen : 0;
    cached.context = *ret;
    return GS_OK;
}

static inline gs_status of_handle(struct gs_core *core, CUcontext handle, struct gs_context **ret)
{
    uint64_t seen = __atomic_load_n(&core->generation, __ATOMIC_ACQUIRE);

    cached.looked_up = seen;
    if (cached.handle == handle && cached.generation == seen) {
        *ret = cached.context;
        return GS_OK;
    }
    return look_up_and_cache(core, handle, seen, ret);
}

/* Who falls asleep waits for all of them, so that each has its record. */
void gs_core_context_made(struct gs_core *core, CUcontext handle)
{
    CUcontext other;
    struct gs_context *made;
    const bool first = !gs_context_next(core, NULL, &other);

    if (look_up(core, handle, first, &made) != GS_OK) /* then it is asked when it is used */
        gs_single_context(&core->single, handle);
}

static inline gs_status current_handle(const struct gs_core *core, CUcontext *ret_handle)
{
    gs_status status = core->driver.ctx_get_current(ret_handle);

    return status == GS_OK && !*ret_handle ? GS_NO_CONTEXT : status;
}

gs_status gs_context_current(struct gs_core *core, struct gs_context **ret_context)
{
    CUcontext handle = NULL;
    gs_status status = current_handle(core, &handle);

    return status == GS_OK ? of_handle(core, handle, ret_context) : status;
}

gs_status gs_context_current_unprobed(struct gs_core *core, struct gs_context **ret_context)
{
    CUcontext handle = NULL;
    gs_status status = current_handle(core, &handle);

    return status == GS_OK ? look_up(core, handle, false, ret_context) : status;
}

/* A default stream, of the context that was just found. */
static gs_status default_key(struct gs_core *core, CUstream stream, uint64_t *ret_key)
{
    CUcontext its;

    *ret_key = gs_stream_key(stream);
    if (__builtin_expect(cached.handle == cached.context->handle, 1))
        return GS_OK;
    *ret_key = gs_stream_key_green(cached.handle);
    return core->driver.stream_get_ctx(stream, &its); /* it may have none */
}

gs_status gs_context_of_stream(struct gs_core *core, CUstream stream,
                               struct gs_context **ret_context, uint64_t *ret_key)
{
    uint64_t seen = __atomic_load_n(&core->generation, __ATOMIC_ACQUIRE);
    CUcontext handle = NULL;
    gs_status status;

    if (gs_stream_is_default(stream)) {
        status = gs_context_current(core, ret_context);
        return status == GS_OK ? default_key(core, stream, ret_key) : status;
    }
    *ret_key = (uint64_t)(uintptr_t)stream;
    if (cached.stream == stream && cached.stream_generation == seen) {
        cached.looked_up = seen;
        *ret_context = cached.stream_context;
        return GS_OK;
    }
    status = core->driver.stream_get_ctx(stream, &handle);
    if (status != GS_OK)
        return status;
    status = of_handle(core, handle, ret_context);
    if (status == GS_OK && (*ret_context)->device->mode != GS_MODE_UNKNOWN) {
        cached.stream = stream;
        cached.stream_generation = seen;
        cached.stream_context = *ret_context;
    }
    return status;
}

/* That of a context, made if need be; NULL: no host memory. */
static struct gs_arena *arena_locked(struct gs_core *core, struct gs_context *context, unsigned i)
{
    struct gs_arena *arena = context->arenas[i];

    gs_lock_assert_held(&core->lock);
    if (arena || !(arena = arena_new_locked(core, context, i)))
        return arena;
    gs_arena_init(arena, context->handle, &context->arenas[0]->events);
    arena->dead = context->arenas[0]->dead;
    arena->leaving = context->arenas[0]->leaving;
    __atomic_store_n(&context->arenas[i], arena, __ATOMIC_RELEASE);
    return arena;
}

__attribute__((cold, noinline)) static struct gs_arena *tagged_arena(struct gs_core *core,
                                                                     struct gs_context *context)
{
    GS_HOLDING(&core->lock);

    return arena_locked(core, context, place.tagged);
}

/* To the context's next arena, which whoever meets nobody there stays in; to the first where that
 * cannot be made. */
static void move_on(struct gs_core *core, struct gs_context *context)
{
    place.meetings = 0;
    place.arena = (place.arena + 1) % GS_THREAD_ARENAS;
    place.moves++;
    GS_HOLDING(&core->lock);
    arena_locked(core, context, place.arena);
}

__attribute__((cold, noinline)) static struct gs_arena *not_known(struct gs_arena *arena)
{
    gs_latch_release(&arena->lock);
    return NULL;
}

/* A record changes hands under its arenas' locks, after the generation has changed. */
static inline struct gs_arena *known(const struct gs_core *core, struct gs_arena *arena)
{
    if (__builtin_expect(__atomic_load_n(&core->generation, __ATOMIC_RELAXED) != cached.looked_up,
                         0))
        return not_known(arena);
    return arena;
}

/* By itself, so that who meets nobody saves no registers for it. */
__attribute__((noinline)) static struct gs_arena *
lock_slowly(struct gs_core *core, struct gs_context *context, struct gs_arena *arena, size_t size)
{
    gs_latch_take(&arena->lock);
    if (place.tagged || size >= core->shared.small_limit || ++place.meetings < MEETINGS_MAX ||
        place.moves >= MOVES_MAX)
        return known(core, arena);
    gs_latch_release(&arena->lock);
    move_on(core, context);
    return gs_context_lock_arena(core, context, size);
}

struct gs_arena *gs_context_lock_arena(struct gs_core *core, struct gs_context *context,
                                       size_t size)
{
    unsigned i = place.tagged ? place.tagged : size < core->shared.small_limit ? place.arena : 0;
    struct gs_arena *arena = __atomic_load_n(&context->arenas[i], __ATOMIC_ACQUIRE);

    if (!arena && place.tagged)
        arena = tagged_arena(core, context);
    if (!arena)
        arena = context->arenas[0];
    if (__builtin_expect(gs_latch_try(&arena->lock), 1))
        return known(core, arena);
    return lock_slowly(core, context, arena, size);
}

gs_status gs_context_lock_piece(struct gs_core *core, CUdeviceptr address,
                                struct gs_piece **ret_piece)
{
    for (;;) {
        struct gs_span *span = gs_map_find(&core->map, address);
        struct gs_piece *piece = (struct gs_piece *)span;
        struct gs_arena *arena;

        if (!span)
            return GS_NOT_OURS;
        if (span->kind == GS_SPAN_IMPORT)
            return GS_NOT_LIVE;
        arena = __atomic_load_n(&piece->arena, __ATOMIC_RELAXED);
        if (!arena)
            continue; /* just taken out of the map */
        gs_latch_take(&arena->lock);
        /* A record is an arena's piece while it names the arena, and only under the arena's lock
         * does that change. */
        if (__atomic_load_n(&piece->arena, __ATOMIC_RELAXED) == arena &&
            address - span->base < span->size) {
            *ret_piece = piece;
            return GS_OK;
        }
        gs_latch_release(&arena->lock);
    }
}

gs_status gs_context_lock_around(struct gs_core *core, CUdeviceptr address,
                                 struct gs_block **ret_block)
{
    struct gs_piece *piece;
    struct gs_block *block;
    gs_status status = gs_context_lock_piece(core, address, &piece);

    if (status != GS_OK)
        return status;
    block = gs_piece_find_locked(piece, address);
    if (block->state == GS_BLOCK_LIVE && address - block->base < block->size) {
        *ret_block = block;
        return GS_OK;
    }
    gs_latch_release(&piece->arena->lock);
    return GS_INVALID;
}

gs_status gs_context_await_work(struct gs_context *context, uint64_t until_ns)
{
    struct gs_arena *arena = context->arenas[0];
    struct gs_fence fence = {0};
    gs_status status;

    gs_latch_take(&arena->lock);
    status = arena->dead      ? GS_OK
             : arena->leaving ? GS_NO_CONTEXT
                              : gs_fence_mark(&arena->events, &fence);
    gs_latch_release(&arena->lock);
    return status == GS_OK ? gs_fence_wait(&fence, until_ns) : status;
}

struct gs_context *gs_context_next(struct gs_core *core, const struct gs_context *context,
                                   CUcontext *ret_handle)
{
    struct gs_context *next;
    GS_HOLDING(&core->lock);

    next = context ? context->next : gs_contexts_locked(core);
    while (next && next->detached)
        next = next->next;
    if (next)
        *ret_handle = next->handle;
    return next;
}

CUcontext gs_context_of_device(struct gs_core *core, CUdevice ordinal)
{
    CUcontext handle = NULL;
    GS_HOLDING(&core->lock);

    for (struct gs_context *context = gs_contexts_locked(core); context; context = context->next)
        if (!context->detached && context->ordinal == ordinal)
            handle = context->handle;
    return handle;
}

bool gs_context_device(struct gs_core *core, CUcontext handle, CUdevice *ret_device)
{
    const struct gs_driver *driver = &core->driver;
    CUcontext current = NULL;

    if (driver->ctx_get_current(&current) == CUDA_SUCCESS && current == handle)
        return driver->ctx_get_device(ret_device) == CUDA_SUCCESS;
    GS_ENTER(entered, driver, handle);
    return !entered.result && driver->ctx_get_device(ret_device) == CUDA_SUCCESS;
}

bool gs_context_mem_info(struct gs_core *core, CUcontext handle, size_t *ret_free,
                         size_t *ret_total)
{
    const struct gs_driver *driver = &core->driver;

    if (!handle || !driver->mem_get_info)
        return false;
    GS_ENTER(entered, driver, handle);
    return !entered.result && driver->mem_get_info(ret_free, ret_total) == CUDA_SUCCESS;
}

bool gs_core_context_exists(struct gs_core *core, CUcontext handle)
{
    unsigned version;

    return core->driver.ctx_get_api_version(handle, &version) == CUDA_SUCCESS;
}
