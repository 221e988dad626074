/*
 * Importer: a process that sleeps together with those whose memory it has open, which are to give
 * that back to the driver.
 *
 *   open ─► unmapped; addresses, records and leases stay ─► OPEN (GS_OPEN_LETS_GO) of each block: the exporter knows
 *     ▲                                                                 │ it sleeps itself, and wakes
 *     └── mapped where it was ◄─ GRANT with descriptors ◄─ OPEN (GS_OPEN_WANTS); of the other blocks OPEN (GS_OPEN_HAS_IT)
 *
 * An exporter that cannot be told takes it for mapped, and its memory stays on the GPU. No thread
 * of the program's comes here meanwhile, and the share thread keeps away from a remote that is
 * busy.
 *
 * The exporter's side: a piece whose blocks nobody maps leaves the GPU (gs_share_export_sleeps) and
 * keeps its id, which is in handles. Until it is back nobody is given any of it (GS_REFUSED_ASLEEP:
 * it asks again, up to its debug.timeout).
 *
 * - A step that fails leaves the process at the one before. Who is woken before its exporter waits,
 *   and sleeps on.
 * - The exporter ends meanwhile. Natively its memory would stay for who has it open; here the only copy was its own. Who had it
 *   open wakes all the same: the log says what is lost, and its addresses stay empty, so that copies from there fail, and kernels
 *   do. Nothing reads what was never written.
 * - The importer ends meanwhile: its lease does, as always, and a freed block is had again when its owner wakes.
 * - What was left with a broker stays: that has descriptors, which keep the memory. So does all
 *   under share.isolate, where what is given back is overwritten at once.
 */
#include "core/share/let_go.h"
#include "core/share/importer.h"

#include <string.h>

/* ---- Each exporter --------------------------------------------------------------------------- */

/* The next that this round has not been at, no more busy, and busy by this thread from now on;
 * NULL: there is none. */
static struct gs_remote *next_remote_locked(struct gs_share *share, uint64_t round,
                                            uint64_t until_ns)
{
    struct gs_remote *remote, *next;
    bool again = true;

    while (again) {
        again = false;
        HASH_ITER(hh, share->importer.remotes, remote, next) {
            if (remote->visited >= round)
                continue;
            if (!remote->busy) {
                remote->visited = round;
                remote->busy = true;
                remote->deadline_ns = until_ns;
                return remote;
            }
            again = true;
        }
        again = again && gs_remote_await_locked(share, until_ns);
    }
    return NULL;
}

/* Imports come and go by who has made the remote busy alone. */
static void visit_all(struct gs_share *share, uint64_t until_ns,
                      void (*visit)(struct gs_share *share, struct gs_remote *remote, void *arg),
                      void *arg)
{
    struct gs_remote *remote;
    uint64_t round;

    gs_lock_take(&share->importer.lock);
    round = ++share->importer.rounds;
    while ((remote = next_remote_locked(share, round, until_ns))) {
        gs_lock_release(&share->importer.lock);
        visit(share, remote, arg);
        gs_lock_take(&share->importer.lock);
        gs_remote_release_locked(share, remote);
    }
    gs_lock_release(&share->importer.lock);
}

/* ---- One block of it: its lease gets another generation -------------------------------------- */

static gs_status ask(struct gs_share *share, struct gs_remote *remote, struct gs_opened *opened,
                     struct gs_request *request, struct gs_wire_grant *ret_grant,
                     struct gs_wire_fds *ret_fds)
{
    gs_status status;

    request->ipc_handle = opened->ipc_handle;
    remote->conn.owed++; /* a RECALL of what was granted before may come */
    status = gs_remote_request(share, remote, request, ret_grant, ret_fds);
    gs_room_free(share, &request->room);
    return status;
}

/* The lease has the generation of the last grant. */
static void note(struct gs_share *share, struct gs_remote *remote, struct gs_opened *opened,
                 const struct gs_wire_grant *grant)
{
    gs_lock_take(&share->importer.lock);
    opened->generation = grant->head.request;
    opened->connection = remote->connection;
    opened->recalled = opened->orphan = false; /* it is asked for anew */
    gs_lock_release(&share->importer.lock);
}

/* The blocks of an import from the `first` on. */
static gs_status ask_all(struct gs_share *share, struct gs_remote *remote, struct gs_import *import,
                         unsigned first, enum gs_open_wants wants)
{
    struct gs_wire_grant grant;
    struct gs_wire_fds fds;
    gs_status status = GS_OK;

    for (unsigned i = first; status == GS_OK && i < import->count; i++) {
        struct gs_request request = {.wants = wants};

        status = ask(share, remote, import->sorted[i], &request, &grant, &fds);
        if (status == GS_OK)
            note(share, remote, import->sorted[i], &grant);
    }
    return status;
}

/* ---- Away ------------------------------------------------------------------------------------ */

/* Of a process that serves it itself: who has it only of a broker, or of another machine, keeps
 * it. */
static bool may_go(const struct gs_remote *remote, const struct gs_import *import)
{
    return !import->ends && !import->host && import->count > 0 && remote->conn.fd >= 0 &&
           !remote->conn.by_broker;
}

/* GS_OK also where it is not told: it is away all the same. Another status: it stays. */
static gs_status unmap(struct gs_share *share, struct gs_import *import)
{
    const struct gs_share_events *events = &share->events;
    gs_status status;

    if (events->in_use && events->in_use(events->arg, import->span.base, import->span.size, false))
        return GS_NOT_OFFERED;
    if (events->in_use)
        events->in_use(events->arg, import->span.base, import->span.size, true);
    status = share->driver->mem_unmap(import->span.base, import->span.size);
    if (status == GS_OK) {
        import->away = true;
        import->lost = false;
    }
    return status;
}

/* Who does not answer is not told of the rest. What is away of a wake that failed it may take for
 * mapped again. */
static void let_go_of(struct gs_share *share, struct gs_remote *remote, void *arg)
{
    gs_status told = GS_OK;
    size_t *bytes = arg;

    remote->owner_started = remote->owner_pid > 0 ? gs_alive_started(remote->owner_pid) : 0;
    for (struct gs_import *import = remote->imports; import; import = import->next) {
        if (import->lost ||
            (!import->away && (!may_go(remote, import) || unmap(share, import) != GS_OK)))
            continue;
        *bytes += import->span.size;
        if (told == GS_OK)
            told = ask_all(share, remote, import, 0, GS_OPEN_LETS_GO);
    }
}

size_t gs_share_let_go(struct gs_share *share)
{
    uint64_t count = 0, kept = 0;
    size_t bytes = 0;

    gs_lock_take(&share->importer.lock);
    gs_cache_collect_locked(share, &count, &kept); /* what nobody has open is not to come back */
    gs_lock_release(&share->importer.lock);
    visit_all(share, gs_now_ns() + share->options.timeout_ns, let_go_of, &bytes);
    return bytes;
}

/* ---- Back ------------------------------------------------------------------------------------ */

/* The exporter hears of all blocks that they are mapped before one is. */
static gs_status take_back(struct gs_share *share, struct gs_remote *remote,
                           struct gs_import *import)
{
    gs_status others = ask_all(share, remote, import, 1, GS_OPEN_HAS_IT), status;
    struct gs_request request = {.wants = GS_OPEN_WANTS};
    struct gs_wire_grant grant;
    struct gs_wire_fds fds;

    status = ask(share, remote, import->sorted[0], &request, &grant, &fds);
    if (status != GS_OK)
        return status;
    note(share, remote, import->sorted[0], &grant); /* a RECALL of that grant may come at once */
    if (others != GS_OK)                            /* the connection is another one */
        status = ask_all(share, remote, import, 1, GS_OPEN_HAS_IT);
    if (status == GS_OK)
        status = gs_import_map_again(share, remote, &request, &grant, &fds, import);
    gs_fds_done(&fds, status == GS_OK);
    if (status == GS_OK) {
        import->connection = remote->connection;
        import->away = false;
    }
    return status;
}

/* In a context that has opened it. */
static gs_status take_back_in_context(struct gs_share *share, struct gs_remote *remote,
                                      struct gs_import *import)
{
    const struct gs_opened *opened = import->sorted[0];
    const CUcontext context = gs_opener(opened);
    gs_status status = context ? share->driver->ctx_push_current(context) : GS_OK;
    CUcontext popped;

    if (status != GS_OK)
        return status;
    status = take_back(share, remote, import);
    if (context)
        share->driver->ctx_pop_current(&popped);
    return status;
}

/* What its program has closed goes back, away as it is. */
static bool is_wanted_locked(const struct gs_import *import)
{
    unsigned at = 0;

    while (at < import->count && import->sorted[at]->count == 0)
        at++;
    return import->away && !import->lost && at < import->count;
}

static bool is_wanted(struct gs_share *share, const struct gs_import *import)
{
    GS_HOLDING(&share->importer.lock);

    return is_wanted_locked(import);
}

/* Nobody has it any more. One that runs and is not there has its socket away, and puts that up
 * again, however long it gets no CPU; one that has called exec is not told from it. */
static bool is_lost(const struct gs_remote *remote, gs_status status)
{
    return status == GS_STALE || (status == GS_UNREACHABLE && remote->conn.fd < 0 &&
                                  !remote->astray && !gs_remote_owner_runs(remote));
}

static void lose(struct gs_share *share, const struct gs_remote *remote, struct gs_import *import)
{
    import->lost = true;
    gs_log_line(
        &share->log, GS_LOG_ERROR,
        "process %d, whose memory was open here, has ended while both slept, and %zu MiB at %llx with it: "
        "what touches them fails",
        (int)remote->owner_pid, import->span.size >> 20, (unsigned long long)import->span.base);
}

static void take_back_of(struct gs_share *share, struct gs_remote *remote, void *arg)
{
    struct gs_untaken *untaken = arg;

    gs_sooner(&remote->deadline_ns, gs_now_ns() + share->options.timeout_ns);
    for (struct gs_import *import = remote->imports; import; import = import->next) {
        gs_status status;

        if (!is_wanted(share, import))
            continue;
        status = gs_now_ns() < remote->deadline_ns ? take_back_in_context(share, remote, import)
                                                   : GS_UNREACHABLE;
        if (status != GS_OK && is_lost(remote, status))
            lose(share, remote, import);
        else if (status != GS_OK)
            *untaken = (struct gs_untaken){.pid = remote->owner_pid, .status = status};
    }
}

static size_t count_left(struct gs_share *share)
{
    struct gs_remote *remote, *next;
    size_t left = 0;
    GS_HOLDING(&share->importer.lock);

    HASH_ITER(hh, share->importer.remotes, remote, next)
        for (const struct gs_import *import = remote->imports; import; import = import->next)
            left += is_wanted_locked(import) ? import->span.size : 0;
    return left;
}

bool gs_share_take_back(struct gs_share *share, uint64_t until_ns, struct gs_untaken *ret)
{
    for (;;) {
        *ret = (struct gs_untaken){.status = GS_UNREACHABLE};
        visit_all(share, until_ns, take_back_of, ret);
        ret->left = count_left(share);
        if (ret->left == 0 || ret->status > 0 || gs_now_ns() >= until_ns ||
            __atomic_load_n(&share->ending, __ATOMIC_ACQUIRE))
            return ret->left == 0;
        gs_rest_ns(GS_REFUSED_NS);
    }
}

void gs_share_take_back_ends(struct gs_share *share)
{
    __atomic_store_n(&share->ending, true, __ATOMIC_RELEASE);
}
