/* Memory that no block lies in any more goes back to the driver (core/process/reclaim.h). */
#include "core/process/reclaim.h"

#include "core/process/context.h"
#include "core/process/limit.h"
#include "core/process/record.h"

#define COUNTED_NS \
    UINT64_C(100000000) /* for the driver to take a piece, where it is only to be counted */

#define LOOKS      10                /* while pieces are waited for */
#define GROWTHS_NS UINT64_C(1000000) /* for who makes pieces, before each call of the driver's */

/* How deep this thread is in unmap_piece. Listeners and pinners that it calls may come back
 * here with an allocation or a question, which are not to wait for it. */
static _Thread_local unsigned releasing_here;

static _Thread_local unsigned growing_here; /* so may who stands between us and the driver */

static _Thread_local bool goes_after;

void gs_releasing_goes_after(bool after)
{
    goes_after = after;
}

/* The driver does one thing at a time, and gives who calls again its turn before one that sleeps
 * for it. */
static void let_growths_go_first(const struct gs_core *core)
{
    if (goes_after)
        gs_growths_await(core, GROWTHS_NS);
}

void gs_change_is(struct gs_core *core, bool begun)
{
    __atomic_add_fetch(begun ? &core->releases.begun : &core->releases.done, 1, __ATOMIC_SEQ_CST);
}

static void leaves_no_more(struct gs_core *core, const struct gs_piece *piece)
{
    __atomic_sub_fetch(&core->figures.leaving[piece->device], piece->span.size, __ATOMIC_SEQ_CST);
}

/* Who counts what is free counts it as leaving until then, and as the driver's from then on. */
static void release(struct gs_core *core, const struct gs_piece *piece)
{
    gs_change_is(core, true);
    let_growths_go_first(core);
    core->driver.mem_release(piece->handle);
    gs_limit_give(core, piece->device, piece->span.size);
    leaves_no_more(core, piece);
    __atomic_store_n(&core->releases.last_ns, gs_now_ns(), __ATOMIC_SEQ_CST);
    gs_change_is(core, false);
}

static size_t unmap_piece(struct gs_core *core, struct gs_piece *piece)
{
    void (*unmapping)(uint64_t, size_t) =
        __atomic_load_n(&core->programs.unmapping, __ATOMIC_ACQUIRE);
    struct gs_trace_mark mark;
    size_t bytes = 0;

    releasing_here++;
    if (unmapping)
        unmapping(piece->span.base, piece->span.size);
    if (gs_regcache_drain(core->regcache, piece->span.base, piece->span.size)) {
        gs_share_chunk_gone(core->share, piece->id);
        mark = gs_trace_begin();
        let_growths_go_first(core);
        if (core->driver.mem_unmap(piece->span.base, piece->span.size) == CUDA_SUCCESS) {
            release(core, piece);
            bytes = piece->span.size;
            gs_record_piece(core, &mark, 0, piece->device, &piece->span);
        }
    }
    if (bytes == 0)
        leaves_no_more(core, piece);
    __atomic_add_fetch(&core->releases.gone, 1, __ATOMIC_SEQ_CST);
    /* What could not be unpinned, or unmapped, keeps its memory and its addresses: they are lost,
     * but nobody else's. */
    if (bytes > 0)
        gs_piece_gone(piece);
    releasing_here--;
    return bytes;
}

size_t gs_pieces_unmap(struct gs_core *core, struct gs_piece *pieces)
{
    size_t bytes = 0;

    while (pieces) {
        struct gs_piece *next = pieces->after;

        bytes += unmap_piece(core, pieces);
        pieces = next;
    }
    return bytes;
}

static uint64_t load(const uint64_t *count)
{
    return __atomic_load_n(count, __ATOMIC_SEQ_CST);
}

/* Until a count is no less than it was to be, or for so long; whether there was anything to wait
 * for. Pauses count, not the clock. */
static bool await(const uint64_t *count, uint64_t least, uint64_t limit_ns)
{
    uint64_t pause = 20000, waited = 0;
    bool any = false;

    while ((int64_t)(least - load(count)) > 0 && waited < limit_ns) {
        any = true;
        gs_rest_ns(pause);
        waited += pause;
        if (pause < GS_NS_PER_MS)
            pause *= 2;
    }
    return any;
}

size_t gs_spent_unmap(struct gs_core *core)
{
    if (!__atomic_load_n(&core->shared.spent, __ATOMIC_RELAXED))
        return 0;
    return gs_pieces_unmap(core, __atomic_exchange_n(&core->shared.spent, NULL, __ATOMIC_ACQUIRE));
}

/* As many as were detached until now; others that come meanwhile are not waited for. From within a
 * release nothing is waited for: it may be this thread's. */
bool gs_releases_await(struct gs_core *core, uint64_t limit_ns)
{
    uint64_t least;
    bool any;

    if (releasing_here)
        return false;
    any = gs_spent_unmap(core) > 0; /* nobody else is at those, nor at what comes there meanwhile */
    least = load(&core->shared.detached);
    for (int i = 0; i < LOOKS && await(&core->releases.gone, least, limit_ns / LOOKS); i++) {
        gs_spent_unmap(core);
        any = true;
    }
    return any;
}

void gs_growth_is(struct gs_core *core, bool begun)
{
    struct gs_releases *counts = &core->releases;

    growing_here += begun ? 1 : -1u;
    __atomic_add_fetch(begun ? &counts->growths_begun : &counts->growths_ended, 1,
                       __ATOMIC_SEQ_CST);
}

bool gs_growths_await(const struct gs_core *core, uint64_t limit_ns)
{
    return !growing_here &&
           await(&core->releases.growths_ended, load(&core->releases.growths_begun), limit_ns);
}

uint64_t gs_core_begin_count(const struct gs_core *core)
{
    uint64_t begun = load(&core->releases.begun);

    if (!releasing_here)
        await(&core->releases.done, begun, COUNTED_NS);
    return load(&core->releases.begun) + load(&core->shared.detached);
}

bool gs_core_count_is_right(const struct gs_core *core, uint64_t begun)
{
    return load(&core->releases.begun) + load(&core->shared.detached) == begun &&
           load(&core->releases.begun) == load(&core->releases.done);
}
