/*
 * Withdrawals against opens, and threads of one importer against each other: two sides in one
 * process, for three seconds. Each exporting thread stamps a block, publishes its handle, and as
 * soon as a withdrawal says that nobody holds it, stamps it anew. An opening thread that gets in
 * must see the stamp that was published with the handle for as long as it has the block open.
 * Others ask for memory meanwhile, and who has what was freed.
 */
#include "stamps.h"
#include "tests/system.h"

#define EXPORTERS 2
#define IMPORTERS 4
#define ASKERS    2
#define GIVEN     7
#define RUN_NS    3000000000ull
#define BACK_NS   10000000000ull

static struct side exporter, importer;
static struct side_chunk chunk;
static struct stamps_slot slots[EXPORTERS];
static uint64_t end;
static unsigned opened, refused, withdrawn, given, held; /* atomic */

/* The last exporter's block is in a chunk of its own each time: it is withdrawn while the chunk's
 * descriptor is made, which takes a while, for who opens it. */
static void *run_exporter(void *arg)
{
    struct stamps_slot *slot = arg;
    size_t number = (size_t)(slot - slots);
    uint32_t stamp = (uint32_t)number << 24;
    bool goes_on = true;

    while (goes_on && side_now() < end) {
        /* Most are gone before they can be opened; some are there for as long as an open takes
         * where TSan watches it. */
        unsigned live_us = ++stamp % 16 ? 100 : 20000;
        struct side_chunk own, *from = &chunk;

        if (number == EXPORTERS - 1) {
            own = side_chunk_new(&exporter, 2 * MIB);
            from = &own;
        }
        goes_on =
            stamps_live(&exporter, from, number * STAMPS_BLOCK, stamp, slot, live_us, BACK_NS);
        if (from == &own)
            side_chunk_free(&exporter, from);
        __atomic_add_fetch(&withdrawn, goes_on, __ATOMIC_RELAXED);
    }
    return NULL;
}

static void *run_importer(void *arg)
{
    unsigned seed = (unsigned)(uintptr_t)arg;
    CUcontext context = (CUcontext)(uintptr_t)(0x1000 + 0x1000 * (seed % 2));

    while (side_now() < end) {
        struct stamps_slot *slot = &slots[rand_r(&seed) % EXPORTERS];
        CUdeviceptr address;
        uint32_t stamp;

        if (!stamps_open(&importer, slot, context, (unsigned)rand_r(&seed) % 2000, &refused,
                         &address, &stamp))
            continue;
        __atomic_add_fetch(&opened, 1, __ATOMIC_RELAXED);
        stamps_look(address, stamp);
        if (gs_share_close(importer.share, address) != GS_OK)
            stamps_fail("close", stamp, 0);
    }
    return NULL;
}

static void *run_asker(void *arg)
{
    while (side_now() < end) {
        struct gs_share_answers answers;
        struct gs_share_held now;

        gs_share_ask(importer.share, side_gpu, MIB, &answers);
        if (answers.given != 0 && answers.given != GIVEN)
            __atomic_add_fetch(&stamps_failures, 1, __ATOMIC_RELAXED);
        __atomic_add_fetch(&given, answers.given == GIVEN, __ATOMIC_RELAXED);
        gs_share_held(exporter.share, side_gpu, 0, &now);
        if (now.holders > 1 || now.bytes > EXPORTERS * STAMPS_BLOCK)
            stamps_fail("held", (unsigned)now.bytes, now.holders);
        __atomic_add_fetch(&held, now.bytes > 0, __ATOMIC_RELAXED);
        usleep(2000); /* the others are what this is about */
    }
    return arg;
}

int main(void)
{
    pthread_t threads[EXPORTERS + IMPORTERS + ASKERS];
    struct gs_share_options options;
    char dir[64];

    alarm(60);
    side_dir_new(dir, sizeof dir);
    side_options(&options, dir);
    side_start(&exporter, &options);
    side_start(&importer, &options);
    side_serve(&exporter, GIVEN);
    chunk = side_chunk_new(&exporter, 2 * MIB);
    memdriver_delay_export(200);
    end = side_now() + RUN_NS;
    for (int i = 0; i < EXPORTERS; i++) {
        gs_lock_init(&slots[i].lock, GS_RANK_IMPORTER);
        pthread_create(&threads[i], NULL, run_exporter, &slots[i]);
    }
    for (uintptr_t i = 0; i < IMPORTERS; i++)
        pthread_create(&threads[EXPORTERS + i], NULL, run_importer, (void *)(i + 1));
    for (int i = 0; i < ASKERS; i++)
        pthread_create(&threads[EXPORTERS + IMPORTERS + i], NULL, run_asker, NULL);
    for (int i = 0; i < EXPORTERS + IMPORTERS + ASKERS; i++)
        pthread_join(threads[i], NULL);
    side_stop(&importer);
    side_stop(&exporter);
    side_chunk_free(&exporter, &chunk);
    side_dir_remove(dir);
    printf("opened %u, refused %u, withdrawn %u, given %u times, held %u, alive %d, failures %u\n",
           opened, refused, withdrawn, given, held, memdriver_alive(), stamps_failures);
    if (!opened || !refused || !withdrawn || !given || !held || memdriver_alive() != 0)
        stamps_failures++;
    return stamps_failures ? 1 : 0;
}
