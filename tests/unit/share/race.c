/*
 * Withdrawals against opens, and threads of one opener against each other: two sides in one
 * process, for three seconds. Each exporting thread stamps a block, publishes its token, and as
 * soon as a withdrawal says that nobody holds it, stamps it anew. An opening thread that gets in
 * must see the stamp that was published with the token for as long as it has the block open.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "side.h"

#define EXPORTERS 2
#define OPENERS   4
#define RUN_NS    3000000000ull
#define BLOCK     512

struct slot {
    struct gs_lock lock; /* protects token and stamp against each other */
    unsigned char token[GS_TOKEN_SIZE];
    uint32_t stamp;
    size_t offset;
};

static struct side exporter, opener;
static struct side_chunk chunk;
static struct slot slots[EXPORTERS];
static uint64_t end;
static unsigned opened, refused, withdrawn, failures; /* atomic */

static uint32_t *word_at(CUdeviceptr address)
{
    return (uint32_t *)(uintptr_t)address;
}

static void fail(const char *what, unsigned a, unsigned b)
{
    if (__atomic_fetch_add(&failures, 1, __ATOMIC_SEQ_CST) < 10)
        fprintf(stderr, "%s: %u, %u\n", what, a, b);
}

static void *run_exporter(void *arg)
{
    struct slot *slot = arg;
    uint32_t stamp = (uint32_t)(slot - slots) << 24;

    while (side_now() < end) {
        struct gs_offer *offer;
        uint64_t freed;

        __atomic_store_n(word_at(chunk.base + slot->offset), ++stamp, __ATOMIC_SEQ_CST);
        if (side_offer(&exporter, &chunk, slot->offset, BLOCK, &offer) != GS_OK)
            abort();
        gs_lock_take(&slot->lock);
        gs_offer_token(offer, slot->token);
        slot->stamp = stamp;
        gs_lock_release(&slot->lock);
        usleep(100);
        freed = side_now();
        while (!gs_share_withdraw(exporter.share, offer, freed, side_now(), true)) {
            if (side_now() - freed > 10000000000ull) {
                fail("a block is never given back", stamp, 0);
                return NULL;
            }
            usleep(50);
        }
        __atomic_add_fetch(&withdrawn, 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

static void use(CUdeviceptr address, uint32_t expected)
{
    for (int i = 0; i < 3; i++) {
        uint32_t seen = __atomic_load_n(word_at(address), __ATOMIC_SEQ_CST);

        if (seen != expected)
            fail("a foreign stamp was seen", seen, expected);
        usleep(20);
    }
}

static void *run_opener(void *arg)
{
    unsigned seed = (unsigned)(uintptr_t)arg;
    CUcontext context = (CUcontext)(uintptr_t)(0x1000 + 0x1000 * (seed % 2));

    while (side_now() < end) {
        struct slot *slot = &slots[rand_r(&seed) % EXPORTERS];
        unsigned char token[GS_TOKEN_SIZE];
        CUdeviceptr address;
        uint32_t stamp;
        gs_status status;

        gs_lock_take(&slot->lock);
        memcpy(token, slot->token, sizeof token);
        stamp = slot->stamp;
        gs_lock_release(&slot->lock);
        if (!gs_token_is_ours(token))
            continue;
        usleep((unsigned)rand_r(&seed) % 2000); /* so that some come too late */
        status = gs_share_open(opener.share, token, context, 0, &address);
        if (status == GS_STALE) {
            __atomic_add_fetch(&refused, 1, __ATOMIC_RELAXED);
            continue;
        }
        if (status != GS_OK) {
            fail("open", (unsigned)-status, stamp);
            continue;
        }
        __atomic_add_fetch(&opened, 1, __ATOMIC_RELAXED);
        use(address, stamp);
        if (gs_share_close(opener.share, address) != GS_OK)
            fail("close", stamp, 0);
    }
    return NULL;
}

int main(void)
{
    pthread_t threads[EXPORTERS + OPENERS];
    struct gs_share_options options;
    char dir[64];

    alarm(60);
    side_dir_new(dir, sizeof dir);
    side_options(&options, dir);
    side_start(&exporter, &options);
    side_start(&opener, &options);
    chunk = side_chunk_new(&exporter, 2 * MIB);
    memdriver_delay_export(50);
    end = side_now() + RUN_NS;
    for (int i = 0; i < EXPORTERS; i++) {
        gs_lock_init(&slots[i].lock, GS_RANK_OPENER);
        slots[i].offset = (size_t)i * BLOCK;
        pthread_create(&threads[i], NULL, run_exporter, &slots[i]);
    }
    for (uintptr_t i = 0; i < OPENERS; i++)
        pthread_create(&threads[EXPORTERS + i], NULL, run_opener, (void *)(i + 1));
    for (int i = 0; i < EXPORTERS + OPENERS; i++)
        pthread_join(threads[i], NULL);
    side_stop(&opener);
    side_stop(&exporter);
    side_chunk_free(&exporter, &chunk);
    side_dir_remove(dir);
    printf("opened %u, refused %u, withdrawn %u, alive %d, failures %u\n", opened, refused,
           withdrawn, memdriver_alive(), failures);
    if (!opened || !refused || !withdrawn || memdriver_alive() != 0)
        failures++;
    return failures ? 1 : 0;
}
