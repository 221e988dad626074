/*
 * The cache of registrations against a model of a device and of the memory: threads register, use,
 * release, free, unmap and map again at the same address, with a device that is full at times and
 * fails at times. At no step is a registration live over memory that has gone, or used beyond what
 * it was made for; in the end none is left, and the counts agree. A plain program, so that TSan can
 * watch it too.
 *
 *   race_registrations [--late] [--seconds N]
 *
 * --late unmaps before it undoes what is registered, as a wrong build would: this has to fail.
 */
#include "core/base/lock.h"
#include "core/regcache/regcache.h"
#include "tests/clock.h"
#include "tests/system.h"

#define PIECE   ((size_t)2 << 20)
#define OURS    4 /* pieces of the arena's */
#define FOREIGN 4 /* and of others */
#define PIECES  (OURS + FOREIGN)
#define BLOCK   ((size_t)64 << 10)
#define BLOCKS  (PIECE / BLOCK)
#define THREADS 4
#define USES    6
#define ROOM    30                    /* registrations that the device holds */
#define FAILS   50                    /* of so many pins about one fails */
#define MORE_NS UINT64_C(60000000000) /* for a machine on which too little has happened */

static struct gs_regcache *cache;
static bool late;
static unsigned long asked, acquired, waited, unmapped; /* atomic */

static void fail(const char *what)
{
    fprintf(stderr, "%s\n", what);
    _Exit(1);
}

static void count(unsigned long *counter)
{
    __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED);
}

/* ---- The model: what is mapped, what is registered, and whether the one covers the other ----- */

struct registration {
    struct registration *prev, *next;
    uint64_t base;
    size_t size;
    unsigned generation; /* of the piece that it was made over */
    bool dead;           /* its memory went, as memory of others may */
};

static pthread_mutex_t model_lock = PTHREAD_MUTEX_INITIALIZER; /* protects the model */
static struct registration *registrations;
static unsigned generations[PIECES], seed = 1;
static unsigned long pins, unpins, live, bytes;

static uint64_t address_of(unsigned piece)
{
    return UINT64_C(0x7f0000000000) + piece * PIECE;
}

static unsigned piece_of(uint64_t address)
{
    return (unsigned)((address - address_of(0)) / PIECE);
}

static void must_be_known(const struct registration *r)
{
    const struct registration *at = registrations;

    while (at && at != r)
        at = at->next;
    if (!at)
        fail("there is no such registration");
}

static int pin(const struct gs_reg_key *key, uint64_t base, size_t size, void *arg,
               void **ret_handle)
{
    struct registration *r = calloc(1, sizeof *r);
    int error = 0;

    pthread_mutex_lock(&model_lock);
    if (!size || piece_of(base) >= PIECES || piece_of(base + size - 1) != piece_of(base))
        fail("a pin leaves its piece");
    if (rand_r(&seed) % FAILS == 0)
        error = rand_r(&seed) % 2 ? EIO : ENOMEM;
    else if (live >= ROOM)
        error = ENOMEM;
    if (error) {
        free(r);
    } else {
        *r = (struct registration){NULL, registrations, base, size, generations[piece_of(base)],
                                   false};
        if (registrations)
            registrations->prev = r;
        registrations = r;
        pins++, live++, bytes += size;
        *ret_handle = r;
    }
    pthread_mutex_unlock(&model_lock);
    return error;
}

static int unpin(const struct gs_reg_key *key, void *handle)
{
    struct registration *r = handle;

    pthread_mutex_lock(&model_lock);
    must_be_known(r);
    if (!r->dead && r->generation != generations[piece_of(r->base)])
        fail("a registration is undone after its memory went");
    if (r->prev)
        r->prev->next = r->next;
    else
        registrations = r->next;
    if (r->next)
        r->next->prev = r->prev;
    unpins++, live--, bytes -= r->size;
    free(r);
    pthread_mutex_unlock(&model_lock);
    return 0;
}

/* A transfer: the registration must be alive, of what is mapped there now, and reach as far. */
static void use(const struct registration *r, uint64_t base, size_t size)
{
    pthread_mutex_lock(&model_lock);
    must_be_known(r);
    if (base < r->base || base + size > r->base + r->size)
        fail("a registration is used beyond its range");
    if (r->dead || r->generation != generations[piece_of(base)])
        fail("a registration is used of memory that has gone");
    pthread_mutex_unlock(&model_lock);
}

/* Something else is mapped there. Of the arena nothing may be registered; what is of others is
 * dead. */
static void remap(unsigned piece)
{
    pthread_mutex_lock(&model_lock);
    for (struct registration *r = registrations; r; r = r->next) {
        if (piece_of(r->base) != piece || r->dead)
            continue;
        if (piece < OURS)
            fail("memory went with a registration over it");
        r->dead = true;
    }
    generations[piece]++;
    pthread_mutex_unlock(&model_lock);
}

/* The tag that a driver would give for what is mapped in a foreign piece now. */
static uint64_t id_of(unsigned piece)
{
    uint64_t id;

    pthread_mutex_lock(&model_lock);
    id = (uint64_t)piece << 32 | (generations[piece] + 1);
    pthread_mutex_unlock(&model_lock);
    return id;
}

static const struct gs_reg_backend backend[2] = {
    {.name = "lends", .lends = true, .pin = pin, .unpin = unpin},
    {.name = "shares", .pin = pin, .unpin = unpin},
};

/* ---- The arena ------------------------------------------------------------------------------- */

enum state { READY, LIVE, LIMBO };

static struct {
    struct gs_lock lock; /* rank ARENA; protects what is below */
    enum state block[BLOCKS];
    bool detached;
} pool[OURS];

/* A registration may cover more than its user asked for; what was asked for is counted here. */
static unsigned asked_of[OURS][BLOCKS]; /* atomic */

static uint64_t block_address(unsigned piece, unsigned block)
{
    return address_of(piece) + block * BLOCK;
}

static bool is_asked_for(unsigned piece, unsigned block)
{
    return __atomic_load_n(&asked_of[piece][block], __ATOMIC_SEQ_CST) != 0;
}

/* What was freed under a registration in use is free when that use has ended. */
static void on_release(void *arg, uint64_t base, size_t size)
{
    for (unsigned c = 0; c < OURS; c++) {
        gs_lock_take(&pool[c].lock);
        for (unsigned b = 0; b < BLOCKS; b++)
            if (pool[c].block[b] == LIMBO && !gs_regcache_in_use(cache, block_address(c, b), BLOCK))
                pool[c].block[b] = READY;
        gs_lock_release(&pool[c].lock);
    }
}

struct use {
    struct gs_reg *reg;
    unsigned piece, first, last; /* blocks that were asked for */
};

/* A thread's own: live blocks beside each other, as one allocation, and what it has registered. */
struct worker {
    pthread_t thread;
    unsigned seed, piece, block, blocks; /* no blocks: it has none */
    struct use use[USES];
    uint64_t end_ns;
};

static void take_blocks(struct worker *w)
{
    unsigned piece = rand_r(&w->seed) % OURS, first = rand_r(&w->seed) % BLOCKS;
    unsigned most = 1 + rand_r(&w->seed) % 8, count = 0;

    gs_lock_take(&pool[piece].lock);
    while (!pool[piece].detached && count < most && first + count < BLOCKS &&
           pool[piece].block[first + count] == READY) {
        if (is_asked_for(piece, first + count))
            fail("a block is handed out under a registration in use");
        pool[piece].block[first + count++] = LIVE;
    }
    w->piece = piece;
    w->block = first;
    w->blocks = count;
    gs_lock_release(&pool[piece].lock);
}

static void free_blocks(struct worker *w)
{
    gs_lock_take(&pool[w->piece].lock);
    for (unsigned b = w->block; b < w->block + w->blocks; b++) {
        bool used = gs_regcache_in_use(cache, block_address(w->piece, b), BLOCK);

        if (!used && is_asked_for(w->piece, b))
            fail("a registration in use is not seen");
        pool[w->piece].block[b] = used ? LIMBO : READY;
        if (used)
            count(&waited);
    }
    gs_lock_release(&pool[w->piece].lock);
    w->blocks = 0;
}

/* NULL: the device refused. Memory of the arena is looked at under its lock, that of others is
 * not. */
static struct gs_reg *acquire(const struct gs_reg_request *request, struct gs_lock *lock)
{
    struct gs_reg *reg = gs_regcache_hit(cache, request);
    bool hit = true;

    count(&asked);
    if (!reg) {
        if (lock)
            gs_lock_take(lock);
        if (gs_regcache_begin(cache, request, &reg, &hit) != GS_OK)
            fail("no memory");
        if (lock)
            gs_lock_release(lock);
        if (!hit && gs_regcache_complete(cache, reg, NULL) != 0)
            return NULL;
    }
    count(&acquired);
    use(gs_reg_handle(reg), request->base, request->size);
    return reg;
}

static struct gs_reg_request ask(struct worker *w, uint64_t base, size_t size)
{
    return (struct gs_reg_request){.key = {.backend = &backend[rand_r(&w->seed) % 2],
                                           .domain = 1 + rand_r(&w->seed) % 2,
                                           .access = rand_r(&w->seed) % 2},
                                   .base = base,
                                   .size = size,
                                   .keep = rand_r(&w->seed) % 4 != 0,
                                   .cover = base,
                                   .cover_size = size};
}

static void count_use(const struct use *use, int change)
{
    for (unsigned b = use->first; b <= use->last; b++)
        __atomic_fetch_add(&asked_of[use->piece][b], (unsigned)change, __ATOMIC_SEQ_CST);
}

static void register_blocks(struct worker *w, struct use *use)
{
    size_t all = w->blocks * BLOCK, offset = rand_r(&w->seed) % all;
    uint64_t base = block_address(w->piece, w->block) + offset;
    struct gs_reg_request request = ask(w, base, 1 + rand_r(&w->seed) % (all - offset));

    request.key.shift = request.keep; /* as a backend's access tells them apart */
    request.exact = !request.keep;
    if (request.keep) {
        request.cover = base & ~(GS_REG_PAGE - 1);
        request.cover_size =
            ((base + request.size + GS_REG_PAGE - 1) & ~(GS_REG_PAGE - 1)) - request.cover;
    }
    if (request.keep && request.key.backend->lends && rand_r(&w->seed) % 2) {
        request.cover = address_of(w->piece);
        request.cover_size = PIECE;
    }
    *use = (struct use){acquire(&request, &pool[w->piece].lock), w->piece,
                        w->block + (unsigned)(offset / BLOCK),
                        w->block + (unsigned)((offset + request.size - 1) / BLOCK)};
    if (use->reg)
        count_use(use, 1);
}

static void release(struct use *use)
{
    if (!use->reg)
        return;
    count_use(use, -1);
    if (gs_regcache_release(cache, use->reg) != 0)
        fail("a release failed");
    use->reg = NULL;
}

/* Foreign memory is used by one step alone: that it stays meanwhile is its user's business. */
static void use_foreign(struct worker *w)
{
    static pthread_mutex_t foreign = PTHREAD_MUTEX_INITIALIZER;
    unsigned piece = OURS + rand_r(&w->seed) % FOREIGN;
    struct gs_reg_request request =
        ask(w, address_of(piece) + BLOCK * (rand_r(&w->seed) % 4), BLOCK);
    struct gs_reg *reg;

    request.exact = request.keep = true;
    pthread_mutex_lock(&foreign);
    if (rand_r(&w->seed) % 8 == 0)
        remap(piece);
    request.id = id_of(piece);
    reg = acquire(&request, NULL);
    if (reg)
        gs_regcache_release(cache, reg);
    pthread_mutex_unlock(&foreign);
}

static void unmap_piece(unsigned piece)
{
    bool ready;

    gs_lock_take(&pool[piece].lock);
    ready = !pool[piece].detached;
    for (unsigned b = 0; b < BLOCKS; b++)
        ready = ready && pool[piece].block[b] == READY;
    ready = ready && gs_regcache_invalidate(cache, address_of(piece), PIECE);
    if (ready)
        pool[piece].detached = true;
    gs_lock_release(&pool[piece].lock);
    if (!ready)
        return;
    if (late)
        remap(piece);
    if (!gs_regcache_drain(cache, address_of(piece), PIECE))
        fail("a registration is in use over memory that nobody has");
    if (!late)
        remap(piece);
    count(&unmapped);
    gs_lock_take(&pool[piece].lock);
    pool[piece].detached = false;
    gs_lock_release(&pool[piece].lock);
}

/* ---- The threads, and what is left of them --------------------------------------------------- */

static bool of_domain(const struct gs_regcache_info *info, void *arg)
{
    return info->key.domain == (uintptr_t)arg;
}

/* All that is to be proved has happened, which takes a slow machine longer. */
static bool has_enough(void)
{
    struct gs_regcache_stats stats;

    gs_regcache_stats(cache, &stats);
    return stats.hits && stats.evictions && stats.merges &&
           __atomic_load_n(&unmapped, __ATOMIC_RELAXED) &&
           __atomic_load_n(&waited, __ATOMIC_RELAXED);
}

static void *work(void *arg)
{
    struct worker *w = arg;

    while (now_ns() < w->end_ns || (!has_enough() && now_ns() < w->end_ns + MORE_NS)) {
        struct use *use = &w->use[rand_r(&w->seed) % USES];
        unsigned step = rand_r(&w->seed) % 32;

        if (step < 14 && !w->blocks)
            take_blocks(w);
        else if (step < 14 && !use->reg)
            register_blocks(w, use);
        else if (step >= 14 && step < 24)
            release(use);
        else if (step >= 24 && step < 26)
            free_blocks(w); /* with what is registered of it, sometimes */
        else if (step >= 26 && step < 29)
            use_foreign(w);
        else if (step >= 29 && step < 31)
            unmap_piece(rand_r(&w->seed) % OURS);
        else if (step == 31)
            gs_regcache_flush(cache, of_domain, (void *)(uintptr_t)(1 + rand_r(&w->seed) % 2));
    }
    for (unsigned slot = 0; slot < USES; slot++)
        release(&w->use[slot]);
    free_blocks(w);
    return NULL;
}

static int check_end(void)
{
    struct gs_regcache_stats stats;

    on_release(NULL, 0, 0);
    for (unsigned c = 0; c < OURS; c++)
        for (unsigned b = 0; b < BLOCKS; b++)
            if (pool[c].block[b] != READY)
                fail("a block never came back");
    gs_regcache_stats(cache, &stats);
    printf("%lu acquired, %llu hits, %llu merges, %llu evictions, %llu failures, %lu frees waited, "
           "%lu unmaps\n",
           acquired, (unsigned long long)stats.hits, (unsigned long long)stats.merges,
           (unsigned long long)stats.evictions, (unsigned long long)stats.failures, waited,
           unmapped);
    if (stats.in_use != 0 || stats.entries != live || stats.bytes != bytes || stats.pins != pins ||
        stats.unpins != unpins || stats.hits + stats.misses != asked ||
        stats.misses != stats.pins + stats.failures || acquired != asked - stats.failures)
        fail("counts differ");
    if (gs_regcache_list(cache, NULL, 0) != live)
        fail("the list of registrations differs");
    if (!has_enough())
        fail("too little has happened");
    gs_regcache_destroy(cache);
    return live > 0;
}

static void log_line(enum gs_log_level level, const void *place, const char *text)
{
    fprintf(stderr, "%s\n", text);
}

int main(int argc, char **argv)
{
    const struct gs_regcache_options options = {.count = 24, .bytes = 24 << 20};
    const struct gs_regcache_events events = {.released = on_release};
    const struct gs_log log = {.line = log_line};
    static struct worker worker[THREADS];
    unsigned seconds = 4;

    for (int i = 1; i < argc; i++) {
        late |= strcmp(argv[i], "--late") == 0;
        if (i + 1 < argc && strcmp(argv[i], "--seconds") == 0)
            seconds = (unsigned)atoi(argv[i + 1]);
    }
    for (unsigned c = 0; c < OURS; c++)
        gs_lock_init(&pool[c].lock, GS_RANK_ARENA);
    if (gs_regcache_create(&options, &events, &log, &cache) != GS_OK)
        return 2;
    for (unsigned i = 0; i < THREADS; i++) {
        worker[i].seed = i + 1;
        worker[i].end_ns = now_ns() + seconds * UINT64_C(1000000000);
        pthread_create(&worker[i].thread, NULL, work, &worker[i]);
    }
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(worker[i].thread, NULL);
    return check_end();
}
