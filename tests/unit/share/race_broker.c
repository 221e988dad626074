/*
 * A broker, a process that leaves its blocks with it, one that opens them and keeps them idle for
 * next to no time, and processes that are killed: all but these in one program, for three seconds,
 * so that a thread sanitizer sees every thread there is. Blocks are exported, withdrawn and stamped
 * anew while they are opened, chunks go back under the kept descriptors, others ask who holds
 * what, and the broker itself ends in the middle and another comes. Whoever has a block open must
 * see the stamp that was published with its handle.
 */
#include "core/share/wire.h"
#include "other.h"
#include "stamps.h"
#include "tests/system.h"

#define SHARERS   2
#define IMPORTERS 3
#define DEAD      2
#define SLOTS     (SHARERS + DEAD)
#define RUN_NS    3000000000ull
#define BACK_NS   20000000000ull
#define MORE_NS   60000000000ull /* for a machine on which too little has happened */

static struct side exporter, importer;
static struct stamps_slot slots[SLOTS]; /* of the sharers, then of killed processes */
static char dir[64];
static uint64_t end;
static unsigned opened, from_dead, refused, withdrawn, asked; /* atomic */

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

/* ---- The broker ----------------------------------------------------------------------------- */

struct broker {
    struct gs_map map;
    struct gs_fences fences;
    struct gs_log log;
    struct gs_share *share;
};

static void nothing_to_do(void *arg, uint64_t address)
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
    struct stamps_slot *slot = arg;
    uint32_t stamp = (uint32_t)(slot - slots) << 24;

    while (!is_over()) {
        struct side_chunk chunk = side_chunk_new(&exporter, 2 * MIB);

        for (int i = 0; i < 4 && !is_over(); i++) {
            if (!stamps_live(&exporter, &chunk, 0, ++stamp, slot, 1000, BACK_NS))
                return NULL;
            __atomic_add_fetch(&withdrawn, 1, __ATOMIC_RELAXED);
        }
        gs_share_chunk_gone(exporter.share, chunk.id);
        side_chunk_free(&exporter, &chunk);
    }
    return NULL;
}

static void *run_importer(void *arg)
{
    unsigned seed = (unsigned)(uintptr_t)arg;

    while (!is_over()) {
        unsigned which = (unsigned)rand_r(&seed) % SLOTS;
        struct stamps_slot *slot = &slots[which];
        CUdeviceptr address;
        uint32_t stamp;

        if (!stamps_open(&importer, slot, SIDE_CONTEXT, (unsigned)rand_r(&seed) % 500, &refused,
                         &address, &stamp))
            continue;
        __atomic_add_fetch(which < SHARERS ? &opened : &from_dead, 1, __ATOMIC_RELAXED);
        stamps_look(address, stamp);
        if (gs_share_close(importer.share, address) != GS_OK)
            stamps_fail("close", stamp, 0);
    }
    return NULL;
}

/* Asks the broker who holds what, as gpushim-broker ps does. */
static void *run_asker(void *arg)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};

    snprintf(to.sun_path, sizeof to.sun_path, "%s/%s", dir, side_broker_name());
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
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    struct gs_share_stats stats;
    struct other other;

    other_start(&other, dir, "keep=300");
    other_export(&other, 0, STAMPS_BLOCK, byte, ipc_handle);
    usleep(30000); /* mostly enough to leave it with the broker; else it cannot be opened */
    gs_share_stats(broker->share, &stats);
    other_kill(&other);
    stamps_publish(&slots[SHARERS + which], ipc_handle, 0x01010101u * (uint32_t)byte);
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
    pthread_t threads[SHARERS + IMPORTERS + 1];
    struct gs_share_options options;
    struct broker broker = {0};
    unsigned count = 0;

    alarm(100);
    side_dir_new(dir, sizeof dir);
    side_options(&options, dir);
    options.idle_ns = 2000000;
    options.idle_blocks = 2;
    side_start(&importer, &options);
    options.broker = true;
    side_start(&exporter, &options);
    broker_start(&broker, &options);
    end = side_now() + RUN_NS;
    for (unsigned i = 0; i < SLOTS; i++) {
        gs_lock_init(&slots[i].lock, GS_RANK_IMPORTER);
        slots[i].may_be_gone = true;
    }
    for (unsigned i = 0; i < SHARERS; i++)
        pthread_create(&threads[count++], NULL, run_sharer, &slots[i]);
    for (uintptr_t i = 0; i < IMPORTERS; i++)
        pthread_create(&threads[count++], NULL, run_importer, (void *)(i + 1));
    pthread_create(&threads[count++], NULL, run_asker, NULL);
    kill_others(&options, &broker);
    while (count)
        pthread_join(threads[--count], NULL);
    side_stop(&importer);
    side_stop(&exporter);
    broker_stop(&broker);
    printf("opened %u, of dead processes %u, refused %u, withdrawn %u, asked %u, alive %d, "
           "failures %u\n",
           opened, from_dead, refused, withdrawn, asked, memdriver_alive(), stamps_failures);
    if (!has_enough() || memdriver_alive() != 0)
        stamps_failures++;
    if (!strstr(side_logged(), "the broker has ended"))
        stamps_failures++;
    side_dir_remove(dir);
    return stamps_failures ? 1 : 0;
}
