/*
 * The mixes (latency.h). What each thread allocates and frees depends on its seed alone: nothing
 * here asks how long something took, or which address it got.
 */
#include "latency.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

static void allocate_all(struct latency_actor *actor, struct latency_block *blocks, unsigned count,
                         size_t (*size)(struct latency_actor *))
{
    for (unsigned i = 0; i < count; i++)
        latency_allocate(actor, &blocks[i], size(actor));
}

static void free_all(struct latency_actor *actor, struct latency_block *blocks, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        latency_free(actor, &blocks[i]);
}

/* Any of those that are left comes next. */
static void free_in_disorder(struct latency_actor *actor, struct latency_block *blocks,
                             unsigned count)
{
    for (; count > 0; count--) {
        unsigned i = (unsigned)latency_random(actor, count);

        latency_free(actor, &blocks[i]);
        blocks[i] = blocks[count - 1];
    }
}

/* ---- mixed, threads: many live blocks, one replaced at random each step ---- */

#define MIXED_BLOCKS 2000 /* of all threads together */
#define MIXED_KERNEL 16   /* steps */
#define MIXED_NS     5000

/* 6 of 10 below 100 KiB, 3 below 4 MiB, 1 below 40 MiB. */
static size_t mixed_size(struct latency_actor *actor)
{
    uint64_t kind = latency_random(actor, 10);

    return 1 + latency_random(actor, kind < 6 ? 100 * KIB : kind < 9 ? 4 * MIB : 40 * MIB);
}

static void play_mixed(struct latency_actor *actor)
{
    unsigned count = MIXED_BLOCKS / latency_threads(actor);
    struct latency_block *blocks = bench_array(count, sizeof *blocks);

    allocate_all(actor, blocks, count, mixed_size);
    latency_begin(actor);
    for (unsigned step = 1; !latency_is_done(actor); step++) {
        struct latency_block *block = &blocks[latency_random(actor, count)];

        latency_free(actor, block);
        latency_allocate(actor, block, mixed_size(actor));
        if (step % MIXED_KERNEL == 0)
            latency_kernel(actor, block, MIXED_NS);
    }
    free_all(actor, blocks, count);
    free(blocks);
}

/* ---- server: bursts of requests, quiet times between ---- */

#define WEIGHTS        24
#define ADAPTERS       4
#define ADAPTER_BURSTS 8 /* until others are loaded */
#define REQUESTS       64
#define REQUEST_BLOCKS 14
#define ARRIVALS       4         /* at most, before a step */
#define TOKENS_OF_LOG2 6         /* a prompt has 64 to 4,096 tokens */
#define PIECE          (4 * MIB) /* of keys and values, for PIECE_TOKENS */
#define PIECE_TOKENS   512
#define PIECE_STEPS    16 /* until a request needs one more */
#define PREFILL_NS     100000
#define DECODE_NS      20000

struct request {
    struct latency_block block[REQUEST_BLOCKS];
    unsigned count, steps_left;
};

struct server {
    struct latency_block weights[WEIGHTS], adapters[ADAPTERS];
    struct request *request[REQUESTS]; /* the first `active` are */
    unsigned active, to_come, bursts;
};

static size_t weight_size(struct latency_actor *actor)
{
    return (128 + latency_random(actor, 128)) * MIB;
}

static size_t adapter_size(struct latency_actor *actor)
{
    return (32 + latency_random(actor, 64)) * MIB + latency_random(actor, MIB);
}

static void request_needs(struct latency_actor *actor, struct request *request, size_t size)
{
    if (request->count < REQUEST_BLOCKS)
        latency_allocate(actor, &request->block[request->count++], size);
}

/* Its tokens, their mask, the pieces; what the prompt's pass needs besides is gone after it. */
static void request_arrives(struct latency_actor *actor, struct request *request)
{
    size_t tokens = (size_t)1 << (TOKENS_OF_LOG2 + latency_random(actor, 7));
    struct latency_block hidden, mask;

    request->count = 0;
    request->steps_left = 4 + (unsigned)latency_random(actor, 60);
    request_needs(actor, request, tokens * 4);
    request_needs(actor, request, 4 * KIB);
    for (size_t piece = 0; piece * PIECE_TOKENS < tokens; piece++)
        request_needs(actor, request, PIECE);
    latency_stream(actor, 1);
    latency_allocate(actor, &hidden, tokens * 8 * KIB);
    latency_allocate(actor, &mask, tokens * tokens);
    latency_kernel(actor, &hidden, PREFILL_NS);
    latency_free(actor, &hidden);
    latency_free(actor, &mask);
    latency_stream(actor, 0);
}

/* One token of each request. */
static void server_decodes(struct latency_actor *actor, struct server *server)
{
    struct latency_block hidden, logits, chosen;

    latency_allocate(actor, &hidden, server->active * 16 * KIB);
    latency_allocate(actor, &logits, server->active * 250 * KIB);
    latency_allocate(actor, &chosen, server->active * 4);
    latency_kernel(actor, &logits, DECODE_NS);
    latency_free(actor, &logits);
    latency_free(actor, &hidden);
    latency_free(actor, &chosen);
}

static void server_steps(struct latency_actor *actor, struct server *server)
{
    unsigned arrive = (unsigned)latency_random(actor, ARRIVALS + 1);

    for (; arrive > 0 && server->to_come > 0 && server->active < REQUESTS; arrive--) {
        request_arrives(actor, server->request[server->active++]);
        server->to_come--;
    }
    if (server->active > 0)
        server_decodes(actor, server);
    for (unsigned i = 0; i < server->active;) {
        struct request *request = server->request[i];

        if (request->steps_left-- % PIECE_STEPS == 0)
            request_needs(actor, request, PIECE);
        if (request->steps_left > 0) {
            i++;
            continue;
        }
        free_in_disorder(actor, request->block, request->count);
        server->request[i] = server->request[--server->active];
        server->request[server->active] = request;
    }
}

static void server_burst(struct latency_actor *actor, struct server *server)
{
    server->to_come = 8 + (unsigned)latency_random(actor, 48);
    while (server->to_come > 0 || server->active > 0)
        server_steps(actor, server);
    latency_finish(actor);
    latency_pause(2 + (unsigned)latency_random(actor, 10));
    if (++server->bursts % ADAPTER_BURSTS == 0) {
        free_in_disorder(actor, server->adapters, ADAPTERS);
        allocate_all(actor, server->adapters, ADAPTERS, adapter_size);
    }
}

static void play_server(struct latency_actor *actor)
{
    struct server *server = bench_array(1, sizeof *server);
    struct request *requests = bench_array(REQUESTS, sizeof *requests);

    for (unsigned i = 0; i < REQUESTS; i++)
        server->request[i] = &requests[i];
    allocate_all(actor, server->weights, WEIGHTS, weight_size);
    allocate_all(actor, server->adapters, ADAPTERS, adapter_size);
    latency_begin(actor);
    while (!latency_is_done(actor))
        server_burst(actor, server);
    free_all(actor, server->adapters, ADAPTERS);
    free_all(actor, server->weights, WEIGHTS);
    free(requests);
    free(server);
}

/* ---- training: the phases of a step ---- */

#define LAYERS       24
#define HIDDEN       ((size_t)1024)
#define PARAMETERS   10 /* of a layer */
#define ACTIVATIONS  9
#define SHAPE_STEPS  3 /* until the batches have another size */
#define OPERATION_NS 10000

/* In numbers of half the usual size: weights and their biases, norms. */
static const size_t parameter_size[PARAMETERS] = {6 * HIDDEN * HIDDEN, 6 * HIDDEN,
                                                  2 * HIDDEN *HIDDEN,  2 * HIDDEN,
                                                  2 * HIDDEN,          2 * HIDDEN,
                                                  8 * HIDDEN *HIDDEN,  8 * HIDDEN,
                                                  8 * HIDDEN *HIDDEN,  2 * HIDDEN};
/* What one token leaves of each operation for the way back. */
static const size_t activation_size[ACTIVATIONS] = {2 * HIDDEN, 6 * HIDDEN, 64,
                                                    2 * HIDDEN, 2 * HIDDEN, 2 * HIDDEN,
                                                    8 * HIDDEN, 8 * HIDDEN, 2 * HIDDEN};

struct training {
    size_t tokens;
    struct latency_block parameter[LAYERS][PARAMETERS], moments[LAYERS][2 * PARAMETERS];
    struct latency_block gradient[LAYERS][PARAMETERS], activation[LAYERS][ACTIVATIONS];
};

static void forward(struct latency_actor *actor, struct training *t)
{
    struct latency_block scratch;

    for (unsigned layer = 0; layer < LAYERS; layer++)
        for (unsigned i = 0; i < ACTIVATIONS; i++) {
            latency_allocate(actor, &t->activation[layer][i], t->tokens * activation_size[i]);
            latency_allocate(actor, &scratch, t->tokens * activation_size[i] / 2);
            latency_kernel(actor, &t->activation[layer][i], OPERATION_NS);
            latency_free(actor, &scratch);
        }
}

/* Each operation's gradient takes the place of the one after it, and its activation goes. */
static void backward(struct latency_actor *actor, struct training *t)
{
    struct latency_block before, next;

    latency_allocate(actor, &next, t->tokens * activation_size[ACTIVATIONS - 1]);
    for (unsigned layer = LAYERS; layer-- > 0;) {
        for (unsigned i = ACTIVATIONS; i-- > 0;) {
            latency_allocate(actor, &before, t->tokens * activation_size[i]);
            latency_kernel(actor, &before, OPERATION_NS);
            latency_free(actor, &next);
            latency_free(actor, &t->activation[layer][i]);
            next = before;
        }
        for (unsigned i = PARAMETERS; i-- > 0;)
            latency_allocate(actor, &t->gradient[layer][i], parameter_size[i]);
    }
    latency_free(actor, &next);
}

static void optimize(struct latency_actor *actor, struct training *t)
{
    struct latency_block root;

    for (unsigned layer = 0; layer < LAYERS; layer++)
        for (unsigned i = 0; i < PARAMETERS; i++) {
            latency_allocate(actor, &root, 2 * parameter_size[i]);
            latency_kernel(actor, &root, OPERATION_NS);
            latency_free(actor, &root);
        }
}

static void clear_gradients(struct latency_actor *actor, struct training *t)
{
    for (unsigned layer = 0; layer < LAYERS; layer++)
        free_all(actor, t->gradient[layer], PARAMETERS);
}

static void make_parameters(struct latency_actor *actor, struct training *t)
{
    for (unsigned layer = 0; layer < LAYERS; layer++)
        for (unsigned i = 0; i < PARAMETERS; i++) {
            latency_allocate(actor, &t->parameter[layer][i], parameter_size[i]);
            latency_allocate(actor, &t->moments[layer][2 * i], 2 * parameter_size[i]);
            latency_allocate(actor, &t->moments[layer][2 * i + 1], 2 * parameter_size[i]);
        }
}

static void free_parameters(struct latency_actor *actor, struct training *t)
{
    for (unsigned layer = 0; layer < LAYERS; layer++) {
        free_all(actor, t->parameter[layer], PARAMETERS);
        free_all(actor, t->moments[layer], 2 * PARAMETERS);
    }
}

static void play_training(struct latency_actor *actor)
{
    struct training *t = bench_array(1, sizeof *t);

    make_parameters(actor, t);
    latency_begin(actor);
    for (unsigned step = 0; !latency_is_done(actor); step++) {
        if (step % SHAPE_STEPS == 0) /* a batch of 8, padded to a multiple of 8 tokens */
            t->tokens = 8 * 8 * (8 + latency_random(actor, 120));
        forward(actor, t);
        backward(actor, t);
        optimize(actor, t);
        clear_gradients(actor, t);
        latency_finish(actor); /* the loss is looked at */
    }
    free_parameters(actor, t);
    free(t);
}

const struct latency_mix latency_mixes[] = {{"mixed", 1, 1, play_mixed},
                                            {"server", 1, 2, play_server},
                                            {"training", 1, 1, play_training},
                                            {"threads", 16, 1, play_mixed},
                                            {NULL, 0, 0, NULL}};
