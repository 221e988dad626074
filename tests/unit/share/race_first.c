/*
 * Threads of an importer that has no share thread yet, against each other and against its
 * exporters: in each round a new importer, whose share thread cannot be had at first. Exporting
 * threads stamp a block, publish its handle, and as soon as a withdrawal says that nobody holds it
 * stamp it anew: who has it open sees no other stamp, and every block comes back.
 */
#include "core/share/internal.h"
#include "stamps.h"
#include "wrapped_thread.h"
#include "tests/system.h"

#define EXPORTERS 2
#define BLOCKS    2 /* of each */
#define SLOTS     (EXPORTERS * BLOCKS)
#define IMPORTERS 4
#define RUN_NS    3000000000ull
#define BACK_NS   10000000000ull
#define ROUND_NS  20000000ull

static struct side exporters[EXPORTERS], importer;
static struct side_chunk chunks[EXPORTERS];
static struct stamps_slot slots[SLOTS];
static uint64_t end, round_end;
static int refusals;                        /* atomic: so many more threads are not to be had */
static bool destroys;                       /* contexts end in this round */
static unsigned opened, refused, withdrawn; /* atomic */

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *arg)
{
    if (__atomic_fetch_sub(&refusals, 1, __ATOMIC_SEQ_CST) > 0)
        return EAGAIN;
    return __real_pthread_create(thread, attributes, run, arg);
}

static void *run_exporter(void *arg)
{
    struct stamps_slot *slot = arg;
    unsigned number = (unsigned)(slot - slots), side = number / BLOCKS;
    size_t offset = number % BLOCKS * STAMPS_BLOCK;
    uint32_t stamp = number << 24;

    while (side_now() < end) {
        if (!stamps_live(&exporters[side], &chunks[side], offset, ++stamp, slot, 300, BACK_NS))
            break;
        __atomic_add_fetch(&withdrawn, 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

static void *run_importer(void *arg)
{
    unsigned seed = (unsigned)(uintptr_t)arg;

    while (side_now() < round_end) {
        struct stamps_slot *slot = &slots[rand_r(&seed) % SLOTS];
        CUcontext context = (CUcontext)(uintptr_t)(0x1000 + 0x1000 * (rand_r(&seed) % 2u));
        CUdeviceptr address;
        uint32_t stamp;

        if (!stamps_open(&importer, slot, context, 0, &refused, &address, &stamp))
            continue;
        __atomic_add_fetch(&opened, 1, __ATOMIC_RELAXED);
        if (!destroys)
            stamps_look(address, stamp);
        if (destroys && rand_r(&seed) % 4 == 0) {
            gs_share_context_leaving(importer.share, context, true);
            gs_share_context_gone(importer.share, context);
        }
        if (gs_share_close(importer.share, address) != GS_OK && !destroys)
            stamps_fail("close", stamp, 0);
    }
    return NULL;
}

int main(void)
{
    pthread_t exporting[SLOTS], opening[IMPORTERS];
    struct gs_share_options options;
    unsigned seed = 1, rounds = 0;
    int fds = side_open_fds();
    char dir[64];

    alarm(90);
    side_dir_new(dir, sizeof dir);
    side_options(&options, dir);
    for (int i = 0; i < EXPORTERS; i++) {
        struct gs_export *first;

        side_start(&exporters[i], &options);
        chunks[i] = side_chunk_new(&exporters[i], 2 * MIB);
        if (side_export(&exporters[i], &chunks[i], MIB, STAMPS_BLOCK, &first) != GS_OK)
            abort();   /* its thread runs from now on */
        usleep(20000); /* and the one that it starts has */
    }
    end = side_now() + RUN_NS;
    for (int i = 0; i < SLOTS; i++) {
        gs_lock_init(&slots[i].lock, GS_RANK_IMPORTER);
        slots[i].may_be_gone = true; /* it looks so to who can have no thread */
        __real_pthread_create(&exporting[i], NULL, run_exporter, &slots[i]);
    }
    for (; side_now() < end; rounds++) {
        side_start(&importer, &options);
        destroys = rounds % 3 == 2;
        if (destroys) /* the events of a context that has gone would be the driver's to count */
            importer.driver.ctx_record_event = NULL;
        __atomic_store_n(&refusals, rand_r(&seed) % 8, __ATOMIC_SEQ_CST);
        round_end = side_now() + ROUND_NS;
        for (uintptr_t i = 0; i < IMPORTERS; i++)
            __real_pthread_create(&opening[i], NULL, run_importer,
                                  (void *)(i + 1 + IMPORTERS * (uintptr_t)rounds));
        for (int i = 0; i < IMPORTERS; i++)
            pthread_join(opening[i], NULL);
        side_stop(&importer);
    }
    for (int i = 0; i < SLOTS; i++)
        pthread_join(exporting[i], NULL);
    for (int i = 0; i < EXPORTERS; i++) {
        side_stop(&exporters[i]);
        side_chunk_free(&exporters[i], &chunks[i]);
    }
    side_dir_remove(dir);
    printf("rounds %u, opened %u, refused %u, withdrawn %u, alive %d, fds %d, failures %u\n",
           rounds, opened, refused, withdrawn, memdriver_alive(), side_open_fds() - fds,
           stamps_failures);
    if (!opened || !withdrawn || memdriver_alive() != 0 || side_open_fds() != fds)
        stamps_failures++;
    return stamps_failures ? 1 : 0;
}
