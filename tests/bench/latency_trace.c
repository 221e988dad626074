/*
 * The calls of a recorded program as a mix (latency.h), over and over. What it never frees is freed
 * at the end of each round.
 */
#include "latency.h"

#define CALLS_PER_KERNEL 16

static struct trace trace;
static uint64_t kernel_length;

static void play_trace(struct latency_actor *actor)
{
    struct latency_block *blocks = bench_array(trace.slots, sizeof *blocks);
    uint64_t calls = 0;

    latency_begin(actor);
    while (!latency_is_done(actor)) {
        for (size_t i = 0; i < trace.count; i++) {
            const struct trace_op *op = &trace.ops[i];

            if (op->alloc)
                latency_allocate(actor, &blocks[op->slot], op->size);
            else
                latency_free(actor, &blocks[op->slot]);
            if (op->alloc && ++calls % (CALLS_PER_KERNEL / 2) == 0 && kernel_length)
                latency_kernel(actor, &blocks[op->slot], kernel_length);
        }
        latency_idle(actor);
        for (uint32_t slot = 0; slot < trace.slots; slot++)
            latency_free(actor, &blocks[slot]);
    }
    free(blocks);
    trace_free(&trace);
}

const struct latency_mix *latency_trace(const char *path, uint64_t kernel_ns,
                                        const struct trace **ret_trace, uint64_t *ret_calls)
{
    static struct latency_mix mix = {NULL, 1, 1, play_trace};

    trace_read(&trace, path);
    kernel_length = kernel_ns;
    *ret_trace = &trace;
    *ret_calls = 0;
    for (size_t i = 0; i < trace.count; i++)
        *ret_calls += trace.ops[i].alloc ? 2 : 0;
    mix.name = path;
    return &mix;
}
