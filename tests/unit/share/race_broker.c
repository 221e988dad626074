/*
 * A broker, a process that leaves its blocks with it, one that opens them and keeps them idle for
 * next to no time, and processes that are killed: all but these in one program, for three seconds,
 * so that a thread sanitizer sees every thread there is. Blocks are offered, withdrawn and stamped
 * anew while they are opened, chunks go back under the kept descriptors, others ask who holds
 * what, and the broker itself ends in the middle and another comes. Whoever has a block open must
 * see the stamp that was published with its token.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/share/wire.h"
#include "other.h"
#include "side.h"

#define SHARERS 2
#define OPENERS 3
#define DEAD    2
#define SLOTS   (SHARERS + DEAD)
#define RUN_NS  3000000000ull
#define MORE_NS 60000000000ull /* for a machine on which too little has happened */
#define BLOCK   512

/* A token that is around, and what its block holds. */
struct slot {
    struct gs_lock lock; /* protects both against each other */
    unsigned char token[GS_TOKEN_SIZE];
    uint32_t stamp;
};

static struct side exporter, opener;
static struct slot slots[SLOTS]; /* of the sharers, then of killed processes */
static char dir[64];
static uint64_t end;
static unsigned opened, from_dead, refused, withdrawn, asked, failures; /* atomic */

static void fail(const char *what, unsigned a, unsigned b)
{
    if (__atomic_fetch_add(&failures, 1, __ATOMIC_SEQ_CST) < 10)
        fprintf(stderr, "%s: %u, %u\n", what, a, b);
}

static bool has_enough(void)
{
    unsigned *all[] = {&opened, &from_dead, &refused, &withdrawn, &asked};
    bool enough = true;

    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        enough &= __atomic_load_n(all[i], __ATOMIC_RELAXED) > 0;
    return enough;
}

static bool is_over(void)
{
    uint64_t now = side_now();

    return now >= end && (has_enough() || now >= end + MORE_NS);
}

static void publish(struct slot *slot, const unsigned char *token, uint32_t stamp)
{
    gs_lock_take(&slot->lock);
    memcpy(slot->token, token, GS_TOKEN_SIZE);
    slot->stamp = stamp;
    gs_lock_release(&slot->lock);
}

/* ---- The broker ----------------------------------------------------------------------------- */

struct broker {
    struct gs_map map;
    struct gs_fences fences;
    struct gs_log log;
    struct gs_share *share;
};

static void nothing_to_do(void *arg)
{
}

static void broker_start(struct broker *broker, const struct gs_share_options *options)
{
    struct gs_share_events events = {.lease_ended = nothing_to_do};
    struct gs_share_options own = *options;

    own.is_broker = true;
    own.broker = false;
    own.listen_fd = -1;
    own.keep_ns = 300000000;
    broker->log = exporter.log;
    gs_map_init(&broker->map);
    gs_fences_init(&broker->fences, &gs_broker_driver);
    if (gs_share_create(&gs_broker_driver, &broker->map, &broker->fences, &broker->log, &own,
                        &events, &broker->share) != GS_OK ||
        gs_share_serve(broker->share) != GS_OK)
        abort();
}

static void broker_stop(struct broker *broker)
{
    gs_share_destroy(broker->share);
    gs_fences_destroy(&broker->fences);
    gs_map_destroy(&broker->map);
}

/* ---- Threads -------------------------------------------------------------------------------- */

static void *run_sharer(void *arg)
{
    struct slot *slot = arg;
    uint32_t stamp = (uint32_t)(slot - slots) << 24;

    while (!is_over()) {
        struct side_chunk chunk = side_chunk_new(&exporter, 2 * MIB);
        uint32_t *word = (uint32_t *)(uintptr_t)chunk.base;

        for (int i = 0; i < 4 && !is_over(); i++) {
            unsigned char token[GS_TOKEN_SIZE];
            struct gs_offer *offer;
            uint64_t freed;

            __atomic_store_n(word, ++stamp, __ATOMIC_SEQ_CST);
            if (side_offer(&exporter, &chunk, 0, BLOCK, &offer) != GS_OK)
                abort();
            gs_offer_token(offer, token);
            publish(slot, token, stamp);
            usleep(1000);
            freed = side_now();
            gs_share_freed(exporter.share, offer, freed);
            while (!gs_share_withdraw(exporter.share, offer, freed, side_now(), true)) {
                if (side_now() - freed > 20000000000ull) {
                    fail("a block is never given back", stamp, 0);
                    return NULL;
                }
                usleep(50);
            }
            __atomic_add_fetch(&withdrawn, 1, __ATOMIC_RELAXED);
        }
        gs_share_chunk_gone(exporter.share, chunk.id);
        side_chunk_free(&exporter, &chunk);
    }
    return NULL;
}

static void use(CUdeviceptr address, uint32_t expected)
{
    for (int i = 0; i < 3; i++) {
        uint32_t seen = __atomic_load_n((uint32_t *)(uintptr_t)address, __ATOMIC_SEQ_CST);

        if (seen != expected)
            fail("a foreign stamp was seen", seen, expected);
        usleep(20);
    }
}

static void *run_opener(void *arg)
{
    unsigned seed = (unsigned)(uintptr_t)arg;

    while (!is_over()) {
        unsigned which = (unsigned)rand_r(&seed) % SLOTS;
        struct slot *slot = &slots[which];
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
        usleep((unsigned)rand_r(&seed) % 500);
        status = gs_share_open(opener.share, token, SIDE_CONTEXT, 0, &address);
        if (status == GS_STALE || status == GS_UNREACHABLE) {
            __atomic_add_fetch(&refused, 1, __ATOMIC_RELAXED);
            continue;
        }
        if (status != GS_OK) {
            fail("open", (unsigned)-status, stamp);
            continue;
        }
        __atomic_add_fetch(which < SHARERS ? &opened : &from_dead, 1, __ATOMIC_RELAXED);
        use(address, stamp);
        if (gs_share_close(opener.share, address) != GS_OK)
            fail("close", stamp, 0);
    }
    return NULL;
}

/* Asks the broker who holds what, as gpushim-broker ps does. */
static void *run_asker(void *arg)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};

    snprintf(to.sun_path, sizeof to.sun_path, "%s/broker", dir);
    while (!is_over()) {
        int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        union gs_wire_message message;

        for (uint32_t i = 0; i < 4 && connect(fd, (struct sockaddr *)&to, sizeof to) == 0; i++) {
            gs_wire_start(&message, GS_WIRE_QUERY, i);
            message.query.index = i;
            gs_wire_send(fd, &message, -1);
            if (recv(fd, &message, sizeof message, 0) > 0)
                __atomic_add_fetch(&asked, 1, __ATOMIC_RELAXED);
        }
        close(fd);
        usleep(2000);
    }
    return arg;
}

/* ---- Processes that are killed, and the broker that ends in between -------------------------- */

static void leave_and_die(unsigned which, struct broker *broker, int byte)
{
    unsigned char token[GS_TOKEN_SIZE];
    struct gs_share_stats stats;
    struct other other;

    other_start(&other, dir, "keep=300");
    other_offer(&other, 0, BLOCK, byte, token);
    usleep(30000); /* mostly enough to leave it with the broker; else it cannot be opened */
    gs_share_stats(broker->share, &stats);
    other_kill(&other);
    publish(&slots[SHARERS + which], token, 0x01010101u * (uint32_t)byte);
}

static void kill_others(const struct gs_share_options *options, struct broker *broker)
{
    bool replaced = false;
    int byte = 1;

    while (!is_over()) {
        gs_share_unneeded_since(broker->share);
        leave_and_die((unsigned)byte % DEAD, broker, byte);
        byte = byte % 100 + 1;
        if (replaced || side_now() + RUN_NS / 2 < end)
            continue;
        broker_stop(broker);
        broker_start(broker, options);
        replaced = true;
    }
}

int main(void)
{
    pthread_t threads[SHARERS + OPENERS + 1];
    struct gs_share_options options;
    struct broker broker = {0};
    unsigned count = 0;

    alarm(100);
    side_dir_new(dir, sizeof dir);
    side_options(&options, dir);
    options.idle_ns = 2000000;
    options.idle_blocks = 2;
    side_start(&opener, &options);
    options.broker = true;
    side_start(&exporter, &options);
    broker_start(&broker, &options);
    end = side_now() + RUN_NS;
    for (unsigned i = 0; i < SLOTS; i++)
        gs_lock_init(&slots[i].lock, GS_RANK_OPENER);
    for (unsigned i = 0; i < SHARERS; i++)
        pthread_create(&threads[count++], NULL, run_sharer, &slots[i]);
    for (uintptr_t i = 0; i < OPENERS; i++)
        pthread_create(&threads[count++], NULL, run_opener, (void *)(i + 1));
    pthread_create(&threads[count++], NULL, run_asker, NULL);
    kill_others(&options, &broker);
    while (count)
        pthread_join(threads[--count], NULL);
    side_stop(&opener);
    side_stop(&exporter);
    broker_stop(&broker);
    printf("opened %u, of dead processes %u, refused %u, withdrawn %u, asked %u, alive %d, "
           "failures %u\n",
           opened, from_dead, refused, withdrawn, asked, memdriver_alive(), failures);
    if (!has_enough() || memdriver_alive() != 0)
        failures++;
    if (!strstr(side_logged(), "the broker has ended"))
        failures++;
    side_dir_remove(dir);
    return failures ? 1 : 0;
}
