/* A thread's life (stress.h): steps of all kinds in random order. */
#include "stress.h"

#define CAPTURE_STEPS 40 /* at most, while a capture is open */

/* What a thread has while it lives. */
struct life {
    struct world *world;
    struct block slot[SLOTS];
    struct block recorded; /* what the open capture is about: not freed meanwhile */
    CUstream capturing;    /* NULL: no capture is open */
    unsigned steps_left;   /* until it ends */
};

static bool chance(struct life *life, uint32_t of)
{
    return stress_below(&life->world->random, of) == 0;
}

static CUstream home_of(const struct life *life, const struct block *block)
{
    return life->world->stream[block->home];
}

/* ---- blocks ---- */

/* Puts a block's last work on another stream. */
static void move(struct life *life, struct block *block, unsigned to)
{
    world_order(life->world, block->home, to);
    block->home = to;
}

static bool make(struct life *life, struct block *block)
{
    if (!world_allocate(life->world, block))
        return false;
    if (chance(life, 8))
        move(life, block, stress_below(&life->world->random, life->world->streams));
    world_stamp(life->world, block, home_of(life, block), chance(life, 4));
    return true;
}

/* Kernels that touch it are still to come when it is freed. */
static void end(struct life *life, struct block *block)
{
    struct world *world = life->world;

    if (chance(life, 3))
        world_check(world, block, home_of(life, block), chance(life, 2));
    if (chance(life, 2))
        world_stamp(world, block, home_of(life, block), true);
    world_free(world, block);
}

static void look_at(struct life *life, struct block *block)
{
    struct world *world = life->world;
    unsigned other = stress_below(&world->random, world->streams);

    switch (stress_below(&world->random, 4)) {
    case 0:
        world_read(world, block);
        break;
    case 1: /* on another stream, which the block stays with */
        move(life, block, other);
        world_check(world, block, home_of(life, block), false);
        break;
    default:
        world_check(world, block, home_of(life, block), chance(life, 4));
    }
}

static void step_block(struct life *life)
{
    struct block *block = &life->slot[stress_below(&life->world->random, SLOTS)];

    if (!block->words) {
        if (!make(life, block)) /* memory is out: less of it, and wait for it to come back */
            for (unsigned i = 0; i < SLOTS / 2; i++)
                if (life->slot[i].words)
                    end(life, &life->slot[i]);
    } else if (chance(life, 3)) {
        look_at(life, block);
    } else {
        end(life, block);
    }
}

/* In one go, as most programs do most of the time. */
static void step_pairs(struct life *life)
{
    for (unsigned i = 0; i < 8; i++) {
        struct block block;

        if (make(life, &block))
            end(life, &block);
    }
}

static void step_exchange(struct life *life)
{
    struct block *block = &life->slot[stress_below(&life->world->random, SLOTS)];

    if (!life->world->shared)
        return;
    if (!block->words)
        exchange_take(life->world, block);
    else if (exchange_put(life->world, block))
        block->words = 0;
}

/* ---- streams ---- */

static void step_stream(struct life *life)
{
    struct world *world = life->world;
    unsigned i = STREAM_OWN + stress_below(&world->random, STREAMS - STREAM_OWN);
    unsigned heir = (i + 1 + stress_below(&world->random, STREAMS - 1)) % STREAMS;

    for (unsigned s = 0; s < SLOTS; s++)
        if (life->slot[s].words && life->slot[s].home == i)
            move(life, &life->slot[s], heir);
    if (life->capturing && life->recorded.home == i)
        move(life, &life->recorded, heir);
    world_new_stream(world, i);
}

/* The GPU does not get further and further behind. */
static void step_wait(struct life *life)
{
    struct world *world = life->world;

    MUST(cuStreamSynchronize(world->stream[stress_below(&world->random, world->streams)]));
    world_look(world);
}

/* ---- captures and graphs ---- */

/* Memory of the graph's own as well. */
static void record_own_memory(struct life *life, CUstream stream)
{
    struct world *world = life->world;
    struct block block = {.words = 1 + stress_below(&world->random, 1 << 16), .tag = UINT32_MAX};

    if (REFUSED(world, cuMemAllocAsync(&block.address, block.words * 4, stream)))
        return;
    world_stamp(world, &block, stream, chance(life, 2));
    world_check(world, &block, stream, false);
    MUST(cuMemFreeAsync(block.address, stream));
}

static void capture_begin(struct life *life)
{
    struct world *world = life->world;
    unsigned s = stress_below(&world->random, SLOTS);

    if (life->capturing || !life->slot[s].words)
        return;
    life->recorded = life->slot[s];
    life->slot[s].words = 0;
    MUST(cuStreamCreate(&life->capturing, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamBeginCapture(life->capturing, CU_STREAM_CAPTURE_MODE_RELAXED));
    life->steps_left = stress_below(&world->random, CAPTURE_STEPS);
    world_stamp(world, &life->recorded, life->capturing, chance(life, 2));
    world_check(world, &life->recorded, life->capturing, false);
}

/* A graph's own memory may be refused as well, at either call. */
static void run_graph(struct life *life, CUgraph graph)
{
    CUstream stream = home_of(life, &life->recorded);
    CUgraphExec exec;

    if (REFUSED(life->world, cuGraphInstantiateWithFlags(&exec, graph, 0)))
        return;
    if (!REFUSED(life->world, cuGraphLaunch(exec, stream)) && chance(life, 2))
        REFUSED(life->world, cuGraphLaunch(exec, stream));
    MUST(cuGraphExecDestroy(exec)); /* it runs on */
}

/* What the graph works on is freed behind it. */
static void capture_end(struct life *life)
{
    CUgraph graph;

    if (chance(life, 2))
        record_own_memory(life, life->capturing);
    MUST(cuStreamEndCapture(life->capturing, &graph));
    MUST(cuStreamDestroy(life->capturing));
    life->capturing = NULL;
    run_graph(life, graph);
    MUST(cuGraphDestroy(graph));
    if (chance(life, 4))
        world_read(life->world, &life->recorded);
    if (chance(life, 2))
        end(life, &life->recorded);
    else
        world_free(life->world, &life->recorded);
}

/* ---- all of it ---- */

static void step(struct life *life)
{
    uint32_t kind = stress_below(&life->world->random, 256);

    if (life->capturing && life->steps_left-- == 0)
        capture_end(life);
    if (kind < 8 && life->world->streams < STREAMS)
        step_block(life);
    else if (kind < 4)
        step_stream(life);
    else if (kind < 8)
        capture_begin(life);
    else if (kind < 32)
        step_exchange(life);
    else if (kind < 48)
        step_wait(life);
    else if (kind < 64)
        step_pairs(life);
    else
        step_block(life);
}

void worker_live(struct world *world, unsigned steps, bool tidy)
{
    struct life life = {.world = world};

    for (unsigned i = 0; i < steps && !stress_over(); i++) {
        step(&life);
        world_keep_up(world);
    }
    if (life.capturing)
        capture_end(&life);
    for (unsigned i = 0; i < SLOTS; i++) {
        /* Natively stream-ordered memory is its device's, and lives on. */
        if (life.slot[i].words && (tidy || life.slot[i].ordered))
            end(&life, &life.slot[i]);
    }
}
