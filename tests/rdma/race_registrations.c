/*
 * The cache of registrations against a model: threads register, use, release, free, unmap and map
 * again at the same address, with a device that is full at times and fails at times. At no step is
 * a registration live over memory that has gone, or used beyond what it was made for; in the end
 * none is left, and the counts agree. A plain program, so that TSan can watch it too.
 *
 *   race_registrations [--seconds N] [--threads N] [--late]
 *
 * --late unmaps before it undoes what is registered, as a wrong build would: this has to fail.
 */
#include "core/base/lock.h"
#include "core/regcache/regcache.h"
#include "model.h"
#include "tests/clock.h"
#include "tests/system.h"

#define BLOCK   ((size_t)64 << 10)
#define BLOCKS  (MODEL_CHUNK / BLOCK)
#define OURS    (MODEL_CHUNKS - MODEL_FOREIGN)
#define USES    6
#define MORE_NS UINT64_C(60000000000) /* for a machine on which too little has happened */

enum state { READY, LIVE, LIMBO };

static struct pool_chunk {
    struct gs_lock lock; /* rank ARENA; protects what is below */
    enum state block[BLOCKS];
    bool detached;
} pool[OURS];

static struct gs_regcache *cache;
static bool late;
static unsigned long asked, acquired, released_events, waited, unmapped;

static int pin(const struct gs_reg_key *key, uint64_t base, size_t size, void *arg,
               void **ret_handle)
{
    return model_pin(base, size, (struct model_registration **)ret_handle);
}

static int unpin(const struct gs_reg_key *key, void *handle)
{
    return model_unpin(handle);
}

static const struct gs_reg_backend backend[2] = {
    {.name = "lends", .lends = true, .pin = pin, .unpin = unpin},
    {.name = "shares", .pin = pin, .unpin = unpin},
};

static void count(unsigned long *counter)
{
    __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED);
}

static uint64_t block_address(unsigned chunk, unsigned block)
{
    return model_address(chunk) + block * BLOCK;
}

/* What was freed under a registration in use is free when that use has ended. */
static void look_through_limbo(void)
{
    for (unsigned c = 0; c < OURS; c++) {
        gs_lock_take(&pool[c].lock);
        for (unsigned b = 0; b < BLOCKS; b++)
            if (pool[c].block[b] == LIMBO && !gs_regcache_in_use(cache, block_address(c, b), BLOCK))
                pool[c].block[b] = READY;
        gs_lock_release(&pool[c].lock);
    }
}

static void on_release(void *arg, uint64_t base, size_t size)
{
    count(&released_events);
    look_through_limbo();
}

/* A registration may cover more than its user asked for; what was asked for is counted here. */
static unsigned asked_of[OURS][BLOCKS];

struct use {
    struct gs_reg *reg;
    unsigned chunk, first, last; /* blocks that were asked for */
};

static void count_use(const struct use *use, int change)
{
    for (unsigned b = use->first; b <= use->last; b++)
        __atomic_fetch_add(&asked_of[use->chunk][b], (unsigned)change, __ATOMIC_SEQ_CST);
}

static bool is_asked_for(unsigned chunk, unsigned block)
{
    return __atomic_load_n(&asked_of[chunk][block], __ATOMIC_SEQ_CST) != 0;
}

static void fail(const char *what)
{
    fprintf(stderr, "%s\n", what);
    _Exit(1);
}

/* A thread's own: live blocks beside each other, as one allocation, and what it has registered. */
struct worker {
    pthread_t thread;
    unsigned seed, chunk, block, blocks;
    bool has;
    struct use use[USES];
    uint64_t end_ns;
};

static void take_blocks(struct worker *w)
{
    unsigned chunk = rand_r(&w->seed) % OURS, first = rand_r(&w->seed) % BLOCKS;
    unsigned most = 1 + rand_r(&w->seed) % 8, count = 0;

    gs_lock_take(&pool[chunk].lock);
    while (!pool[chunk].detached && count < most && first + count < BLOCKS &&
           pool[chunk].block[first + count] == READY) {
        if (is_asked_for(chunk, first + count))
            fail("a block is handed out under a registration in use");
        pool[chunk].block[first + count++] = LIVE;
    }
    w->chunk = chunk;
    w->block = first;
    w->blocks = count;
    w->has = count > 0;
    gs_lock_release(&pool[chunk].lock);
}

static void free_blocks(struct worker *w)
{
    gs_lock_take(&pool[w->chunk].lock);
    for (unsigned b = w->block; b < w->block + w->blocks; b++) {
        bool used = gs_regcache_in_use(cache, block_address(w->chunk, b), BLOCK);

        if (!used && is_asked_for(w->chunk, b))
            fail("a registration in use is not seen");
        pool[w->chunk].block[b] = used ? LIMBO : READY;
        if (used)
            count(&waited);
    }
    gs_lock_release(&pool[w->chunk].lock);
    w->has = false;
}

static struct gs_reg_request ask(struct worker *w, uint64_t base, size_t size)
{
    return (struct gs_reg_request){
        .key = {.backend = &backend[rand_r(&w->seed) % 2],
                .domain = 1 + rand_r(&w->seed) % 2,
                .access = rand_r(&w->seed) % 2},
        .base = base,
        .size = size,
        .keep = rand_r(&w->seed) % 4 != 0,
    };
}

static void register_blocks(struct worker *w, unsigned slot)
{
    size_t all = w->blocks * BLOCK, offset = rand_r(&w->seed) % all;
    uint64_t base = block_address(w->chunk, w->block) + offset;
    struct gs_reg_request request = ask(w, base, 1 + rand_r(&w->seed) % (all - offset));
    struct gs_reg *reg;
    bool hit = true;

    request.key.shift = request.keep; /* as a backend's access tells them apart */
    request.exact = !request.keep;
    request.cover = base;
    request.cover_size = request.size;
    if (request.keep) {
        request.cover = base & ~(GS_REG_PAGE - 1);
        request.cover_size =
            ((base + request.size + GS_REG_PAGE - 1) & ~(GS_REG_PAGE - 1)) - request.cover;
    }
    if (request.keep && request.key.backend->lends && rand_r(&w->seed) % 2) {
        request.cover = model_address(w->chunk);
        request.cover_size = MODEL_CHUNK;
    }
    count(&asked);
    reg = gs_regcache_hit(cache, &request);
    if (!reg) {
        gs_lock_take(&pool[w->chunk].lock);
        if (gs_regcache_begin(cache, &request, &reg, &hit) != GS_OK)
            reg = NULL;
        gs_lock_release(&pool[w->chunk].lock);
        if (reg && !hit && gs_regcache_complete(cache, reg, NULL) != 0)
            reg = NULL;
    }
    if (!reg)
        return;
    count(&acquired);
    model_use(gs_reg_handle(reg), base, request.size);
    w->use[slot] = (struct use){reg, w->chunk, w->block + (unsigned)(offset / BLOCK),
                                w->block + (unsigned)((offset + request.size - 1) / BLOCK)};
    count_use(&w->use[slot], 1);
}

/* Foreign memory is used by one step alone: that it stays meanwhile is its user's business. */
static void use_foreign(struct worker *w, pthread_mutex_t *foreign)
{
    unsigned chunk = OURS + rand_r(&w->seed) % MODEL_FOREIGN;
    struct gs_reg_request request =
        ask(w, model_address(chunk) + BLOCK * (rand_r(&w->seed) % 4), BLOCK);
    struct gs_reg *reg;
    bool hit = true;

    request.exact = request.keep = true;
    request.cover = request.base;
    request.cover_size = request.size;
    pthread_mutex_lock(&foreign[chunk - OURS]);
    if (rand_r(&w->seed) % 8 == 0)
        model_remap(chunk);
    request.id = model_id(chunk);
    count(&asked);
    reg = gs_regcache_hit(cache, &request);
    if (!reg && gs_regcache_begin(cache, &request, &reg, &hit) == GS_OK && !hit &&
        gs_regcache_complete(cache, reg, NULL) != 0)
        reg = NULL;
    if (reg) {
        count(&acquired);
        model_use(gs_reg_handle(reg), request.base, request.size);
        gs_regcache_release(cache, reg);
    }
    pthread_mutex_unlock(&foreign[chunk - OURS]);
}

static void unmap_chunk(unsigned chunk)
{
    bool ready = true;

    gs_lock_take(&pool[chunk].lock);
    ready = !pool[chunk].detached;
    for (unsigned b = 0; b < BLOCKS; b++)
        ready = ready && pool[chunk].block[b] == READY;
    ready = ready && gs_regcache_invalidate(cache, model_address(chunk), MODEL_CHUNK);
    if (ready)
        pool[chunk].detached = true;
    gs_lock_release(&pool[chunk].lock);
    if (!ready)
        return;
    if (late)
        model_remap(chunk);
    if (!gs_regcache_drain(cache, model_address(chunk), MODEL_CHUNK))
        fail("a registration is in use over memory that nobody has");
    if (!late)
        model_remap(chunk);
    count(&unmapped);
    gs_lock_take(&pool[chunk].lock);
    pool[chunk].detached = false;
    gs_lock_release(&pool[chunk].lock);
}

static bool of_domain(const struct gs_regcache_info *info, void *arg)
{
    return info->key.domain == (uintptr_t)arg;
}

static pthread_mutex_t foreign[MODEL_FOREIGN];

static void release(struct worker *w, unsigned slot)
{
    struct use *use = &w->use[slot];

    if (!use->reg)
        return;
    count_use(use, -1);
    if (gs_regcache_release(cache, use->reg) != 0)
        fail("a release failed");
    use->reg = NULL;
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
        unsigned slot = rand_r(&w->seed) % USES, step = rand_r(&w->seed) % 32;

        if (step < 14) {
            if (!w->has)
                take_blocks(w);
            else if (!w->use[slot].reg)
                register_blocks(w, slot);
        } else if (step < 24) {
            release(w, slot);
        } else if (step < 26) {
            if (w->has)
                free_blocks(w); /* with what is registered of it, sometimes */
        } else if (step < 29) {
            use_foreign(w, foreign);
        } else if (step < 31) {
            unmap_chunk(rand_r(&w->seed) % OURS);
        } else {
            gs_regcache_flush(cache, of_domain, (void *)(uintptr_t)(1 + rand_r(&w->seed) % 2));
        }
    }
    for (unsigned slot = 0; slot < USES; slot++)
        release(w, slot);
    if (w->has)
        free_blocks(w);
    return NULL;
}

/* "Who pins what" says what there is, and nothing twice. */
static int check_list(void)
{
    struct gs_regcache_info info[64];
    size_t count = gs_regcache_list(cache, info, 64);
    struct model_counts model = model_counts();
    size_t bytes = 0;
    int faults = count != model.live;

    for (size_t i = 0; i < count && i < 64; i++) {
        bytes += info[i].size;
        faults += info[i].uses != 0;
        for (size_t k = 0; k < i; k++)
            faults += info[i].id == info[k].id && info[i].base == info[k].base &&
                      info[i].size == info[k].size && !info[i].key.backend->lends &&
                      memcmp(&info[i].key, &info[k].key, sizeof info[i].key) == 0;
    }
    faults += count <= 64 && bytes != model.bytes;
    if (faults)
        fprintf(stderr, "the list of registrations differs: %zu of %lu\n", count, model.live);
    return faults;
}

static int check_end(void)
{
    struct gs_regcache_stats stats;
    struct model_counts model;
    int faults = 0;

    look_through_limbo();
    for (unsigned c = 0; c < OURS; c++)
        for (unsigned b = 0; b < BLOCKS; b++)
            faults += pool[c].block[b] != READY;
    if (faults)
        fprintf(stderr, "%d blocks never came back\n", faults);
    gs_regcache_stats(cache, &stats);
    model = model_counts();
    printf(
        "%lu acquired, %llu hits, %llu misses, %llu merges, %llu evictions, %llu invalidations, "
        "%llu failures, %lu frees waited, %lu unmaps; model: %lu pins, %lu unpins, %lu refused\n",
        acquired, (unsigned long long)stats.hits, (unsigned long long)stats.misses,
        (unsigned long long)stats.merges, (unsigned long long)stats.evictions,
        (unsigned long long)stats.invalidations, (unsigned long long)stats.failures, waited,
        unmapped, model.pins, model.unpins, model.refused);
    if (stats.in_use != 0 || stats.entries != model.live || stats.bytes != model.bytes ||
        stats.pins != model.pins || stats.unpins != model.unpins ||
        stats.hits + stats.misses != asked || stats.misses != stats.pins + stats.failures ||
        acquired != asked - stats.failures) {
        fprintf(stderr, "counts differ: %llu in use, %llu entries of %lu, %llu bytes of %lu\n",
                (unsigned long long)stats.in_use, (unsigned long long)stats.entries, model.live,
                (unsigned long long)stats.bytes, model.bytes);
        faults++;
    }
    faults += check_list();
    gs_regcache_destroy(cache);
    model = model_counts();
    if (model.live) {
        fprintf(stderr, "%lu registrations leaked\n", model.live);
        faults++;
    }
    return faults || model.wrong || !stats.hits || !stats.evictions || !stats.merges || !unmapped ||
           !waited;
}

static void log_line(enum gs_log_level level, const void *place, const char *text)
{
    fprintf(stderr, "%s\n", text);
}

int main(int argc, char **argv)
{
    struct gs_regcache_options options = {.count = 24, .bytes = 24 << 20};
    struct gs_regcache_events events = {.released = on_release};
    struct gs_log log = {.line = log_line};
    struct worker worker[16] = {0};
    unsigned seconds = 4, threads = 4;

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--late") == 0)
            late = true;
        else if (i + 1 < argc && strcmp(argv[i], "--seconds") == 0)
            seconds = (unsigned)atoi(argv[++i]);
        else if (i + 1 < argc && strcmp(argv[i], "--threads") == 0)
            threads = (unsigned)atoi(argv[++i]);
    }
    if (threads < 1 || threads > 16)
        return 2;
    for (unsigned c = 0; c < OURS; c++)
        gs_lock_init(&pool[c].lock, GS_RANK_ARENA);
    for (unsigned c = 0; c < MODEL_FOREIGN; c++)
        pthread_mutex_init(&foreign[c], NULL);
    if (gs_regcache_create(&options, &events, &log, &cache) != GS_OK)
        return 2;
    model_fail_pins(50);
    model_room(30);
    for (unsigned i = 0; i < threads; i++) {
        worker[i].seed = i + 1;
        worker[i].end_ns = now_ns() + seconds * UINT64_C(1000000000);
        pthread_create(&worker[i].thread, NULL, work, &worker[i]);
    }
    for (unsigned i = 0; i < threads; i++)
        pthread_join(worker[i].thread, NULL);
    return check_end();
}
